"""Checks 57 to 64, 74 and 75: the end of a plugin, two instances at once, two resources in one, and long lives."""

from __future__ import annotations

import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import grpc
import grpc.aio

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1

from ... import events
from ...protocol.wire import CallError, settle
from ..checks import KUBELET_SOCK, Checks, NotApplicable
from ..scene import ids, plural
from .allocation import allocate
from .subject import Staging

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kdp.kubelet.paths import KubeletPaths

    from ...protocol.pods import ContainerReply
    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()


@CHECKS.add(
    57,
    "SIGTERM ends the plugin cleanly",
    expected="within 2 s, exit code 0, its socket is gone, no list is sent",
    rule="section 11: an empty or unhealthy last list would take devices from another instance; a leftover socket is "
    "useless and costs time at the next start",
    cure="on SIGTERM end the streams, then the server, unlink your own socket, exit 0",
)
async def _sigterm(case: Case) -> str:
    async with case.connected() as scene:
        known, own = len(scene.lists), scene.sockets()
        ending = await scene.stop()
        code = ending.code
        scene.require(code in (None, 0), f"the exit code was {code}")
        left = scene.sockets() & own
        scene.require(not left, f"it left {ids(left)} behind")
        await scene.until(
            lambda: not scene.kubelet.streams(scene.resource), case.limit(0.5), "the kubelet still has a stream"
        )
        sent = scene.lists[known:]
        scene.require(not sent, f"before its end it sent a list with {sent[0].healthy if sent else 0} healthy devices")
    exit_code = "" if code is None else f", exit code {code}"
    return f"ended after {ending.seconds:.2f} s{exit_code}, no socket left, no list sent"


@CHECKS.add(
    58,
    "an Allocate in flight is answered before the end",
    expected="SIGTERM during Allocate: the reply is delivered, then the plugin ends",
    rule=(
        "section 11: keep answering calls in flight, then close the server; section 6.3: a broken call fails the "
        "pod for good"
    ),
    cure=(
        "on SIGTERM wait for the calls in flight before you end the streams: the kubelet closes the connection "
        "with them"
    ),
)
async def _sigterm_in_allocate(case: Case) -> str:
    async with _slow_allocate(case) as scene:
        [device] = scene.some(1)
        answers: list[ContainerReply | CallError] = []
        took = 0.0

        async def call() -> None:
            try:
                answers.extend(await allocate(scene, [device]))
            except CallError as error:
                answers.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            if case.subject.has_process:
                await anyio.sleep(0.05)  # it is known to take 0.3 s and more
            else:
                await scene.until(scene.instance.entered, case.limit(1.0), "Allocate did not reach the backend")
            took = (await scene.stop()).seconds
        [answer] = answers
        scene.require(not isinstance(answer, CallError), f"the Allocate in flight was answered with: {answer}")
    return f"the reply came, the plugin ended after {took:.2f} s"


_AT_THE_END = 1.0
"""Seconds for which a plugin must wait for a call after SIGTERM; it has 2 s for its whole shutdown."""


@asynccontextmanager
async def _slow_allocate(case: Case) -> AsyncGenerator[PluginScene]:
    """Make a plugin whose Allocate takes long enough to be interrupted."""
    if not case.subject.has_process:
        async with case.connected(Staging(allocate="slow")) as scene:
            yield scene
        return
    async with case.connected() as scene:
        began = time.monotonic()
        await allocate(scene, scene.some(1))
        took = time.monotonic() - began
        if took < 0.3:
            raise NotApplicable(f"Allocate takes {took * 1000:.0f} ms: no signal can be sent in the middle of it")
        if took > _AT_THE_END:
            raise NotApplicable(f"Allocate takes {took:.1f} s: a plugin that ends need not wait for it so long")
        yield scene


@CHECKS.add(
    59,
    "a killed plugin starts again although its old socket is left",
    expected="after SIGKILL its dead socket is left: it starts, registers under another name, and removes no other "
    "plugin's socket",
    rule="section 2.5: kubelet 1.37 may refuse a path that was used before; section 11: remove only your own sockets "
    "that refuse connections",
    cure="make socket names unique for each process, and at the start remove only dead ones with your own prefix",
)
async def _killed(case: Case) -> str:
    async with case.connected() as scene:
        directory = (
            scene.kubelet.paths.plugins_registry_dir
            if case.facts.route == "watcher"
            else scene.kubelet.paths.device_plugin_dir
        )
        foreign = directory / ".foreign-dead.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(foreign))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as living:
            other = directory / ".foreign-living.sock"
            living.bind(str(other))
            living.listen()
            used = {event.socket_path for event in scene.kubelet.events.of(events.StreamOpened)}
            first, known = scene.instance, len(scene.lists)
            scene.may_end(first)
            await first.kill()
            await scene.until(
                lambda: not scene.kubelet.streams(scene.resource), case.limit(0.5), "the kubelet still has a stream"
            )
            await scene.start()
            await scene.connected(lists=known)
            again = scene.kubelet.events.of(events.StreamOpened, resource=scene.resource)[-1].socket_path
            scene.require(again not in used, f"the new process used the socket name {Path(again).name!r} again")
            scene.require(foreign.exists() and other.exists(), "the new process removed another plugin's socket")
            foreign.unlink()
            other.unlink()
    return f"registered again as {Path(again).name}, foreign sockets untouched"


async def _second(scene: PluginScene, *, needs_a_name: bool = True) -> str:
    """Start one more instance beside the first, and return the socket path of its stream.

    Args:
        scene: With the first one connected.
        needs_a_name: Its socket must not be the first one's.
    """
    known, before = len(scene.lists), {event.socket_path for event in _opened(scene)}
    instance = await scene.start()
    scene.may_end(instance)
    await scene.until(
        lambda: instance.ending is not None or len(scene.lists) > known,
        scene.case.patience_for_connecting,
        "the second instance did not connect",
    )
    if instance.ending is not None:
        raise NotApplicable(f"a second instance beside the first {instance.ending}: {instance.output()[-200:]}")
    await scene.filled()
    path = _opened(scene)[-1].socket_path
    if needs_a_name and path in before:
        raise scene.failed(f"the second instance registered the socket of the first, {Path(path).name}")
    return path


def _is_socket(path: str) -> bool:
    return Path(path).is_socket()


def _opened(scene: PluginScene) -> list[events.StreamOpened]:
    return scene.kubelet.events.of(events.StreamOpened, resource=scene.resource)


@CHECKS.add(
    60,
    "the end of an old instance does not disturb a new one",
    expected="two instances overlap on a kubelet 1.37, the old one ends: the new one's stream and socket are untouched",
    rule="section 11: with unique socket names per instance an update without a gap is safe on 1.37",
    cure="unlink only the socket that is still yours; send no last list; use names that no other process uses",
    routes=KUBELET_SOCK,
)
async def _overlap(case: Case) -> str:
    async with case.connected(profile="k137") as scene:
        first = scene.instance
        second = await _second(scene)
        known, count = len(_opened(scene)), len(scene.listed)
        healthy = len(scene.healthy)
        await scene.stop(first)
        await scene.until(
            lambda: scene.kubelet.streams(scene.resource) == 1,
            case.limit(0.5),
            "the first instance's stream is still open",
        )
        await scene.elapse(case.span(0.5))
        scene.require(
            len(_opened(scene)) == known and scene.kubelet.streams(scene.resource) == 1,
            "the new instance lost its stream",
        )
        scene.require(_is_socket(second), f"the new instance's socket {Path(second).name} is gone")
        scene.require(
            (len(scene.listed), len(scene.healthy)) == (count, healthy),
            f"{healthy} healthy of {count} devices became {len(scene.healthy)} of {len(scene.listed)}",
        )
        if scene.healthy:
            await allocate(scene, scene.healthy[:1])
    return f"the old one left, the new one's stream and {Path(second).name} are as they were (kubelet k137)"


@CHECKS.add(
    61,
    "a new instance registers again if the old one's end closes its stream",
    expected="two instances overlap on a kubelet up to 1.36: the old one ends, the kubelet closes the newer stream, "
    "and the new one registers again within 1 s",
    rule=(
        "section 2.5: up to 1.36 the end of the old stream closes the client that is on record, which is the new "
        "one (#121994)"
    ),
    cure="register again whenever your stream ends, also right after a successful registration",
    routes=KUBELET_SOCK,
)
async def _overlap_on_old_kubelets(case: Case) -> str:
    profile = case.profile if case.profile in ("k132", "k134", "k136") else "k136"
    async with case.connected(profile=profile) as scene:
        first = scene.instance
        await _second(scene, needs_a_name=False)
        before, known = len(scene.registers), len(scene.lists)
        await scene.stop(first)
        await scene.until(
            lambda: len(scene.registers) > before, case.limit(1.0), "the new instance did not register again"
        )
        again = scene.registers[before].time
        ends = scene.kubelet.events.of(events.StreamEnded, resource=scene.resource)
        took = again - max((end.time for end in ends if end.time <= again), default=again)
        await scene.connected(lists=known)
        await scene.until(
            lambda: len(scene.healthy) >= min(1, len(case.facts.healthy)), case.limit(0.5), "no device is healthy again"
        )
    return f"registered again {took * 1000:.0f} ms after its stream was closed (kubelet {profile})"


@asynccontextmanager
async def _intruder(paths: KubeletPaths, resource: str) -> AsyncGenerator[str]:
    """Register a second plugin that fails GetDevicePluginOptions; gives the kubelet's answer."""

    async def options(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, "no options today")

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(options)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {"GetDevicePluginOptions": handler}),)
    )
    path = paths.device_plugin_dir / "intruder.sock"
    server.add_insecure_port(f"unix:{path}")
    with anyio.CancelScope(shield=True):  # gRPC fails at a server that was left halfway
        await server.start()
    request = v1beta1.RegisterRequest(version="v1beta1", endpoint=path.name, resource_name=resource)
    channel = grpc.aio.insecure_channel(
        f"unix:{paths.kubelet_socket}", options=(("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    )
    try:
        register: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/v1beta1.Registration/Register")
        answer = "accepted"
        try:
            await register(request.SerializeToString(), timeout=20.0)
        except grpc.aio.AioRpcError as error:
            answer = error.details() or error.code().name
        yield answer
    finally:
        with anyio.CancelScope(shield=True):
            await channel.close()
            await server.stop(None)
            await settle()


@CHECKS.add(
    62,
    "a second instance that fails to register changes nothing",
    expected=(
        "another plugin of the resource fails GetDevicePluginOptions: the first one's stream lives, it does not "
        "register"
    ),
    rule="section 2.5: a failed Register of another path does no harm on 1.37; section 12 (B8)",
    cure="ignore what other processes do in the plugin directory while your stream lives",
    routes=KUBELET_SOCK,
)
async def _failing_second(case: Case) -> str:
    async with case.connected(profile="k137") as scene:
        own, before = scene.sockets(), len(scene.registers)
        async with _intruder(scene.kubelet.paths, scene.resource) as answer:
            scene.require("options" in answer, f"the kubelet answered the second plugin {answer!r}")
            await scene.elapse(case.span(0.5))
            scene.require(scene.sockets() >= own, f"sockets vanished: {ids(own - scene.sockets())}")
        await scene.elapse(case.span(0.5))
        more = len(scene.registers) - before - 1
        scene.require(more == 0, f"the first plugin registered {plural(more, 'time')} again although its stream lived")
        scene.require(scene.kubelet.streams(scene.resource) == 1 and scene.streams_opened == 1, "the stream ended")
        if scene.healthy:
            await allocate(scene, scene.healthy[:1])
    return "the second one was refused; the first one's stream lives (kubelet k137)"


@CHECKS.add(
    63,
    "a second instance that ends changes nothing",
    expected="a second instance registers and ends: the first one goes on serving, with its devices as before",
    rule="section 11: when one of several instances ends, the kubelet does not ask the other one for its list: "
    "an empty last list stays in force",
    cure="send no list at shutdown; give each device the same id in each process",
    routes=KUBELET_SOCK,
)
async def _second_leaves(case: Case) -> str:
    async with case.connected(profile="k137") as scene:
        first_path = _opened(scene)[0].socket_path
        healthy, listed = scene.healthy, [*scene.listed]
        await _second(scene)
        others = scene.listed.keys() - listed
        scene.require(not others, f"the second instance has {ids(others)} instead of {ids(listed)}")
        known = len(_opened(scene))
        await scene.stop(scene.instance)
        await scene.until(
            lambda: scene.kubelet.streams(scene.resource) == 1,
            case.limit(0.5),
            "the second instance's stream is still open",
        )
        await scene.elapse(case.span(0.5))
        scene.require(len(_opened(scene)) == known, "the first instance registered again")
        scene.require(_is_socket(first_path), "the first instance's socket is gone")
        scene.require(scene.healthy == healthy, f"{plural(len(healthy), 'healthy device')} became {len(scene.healthy)}")
        if healthy:
            await allocate(scene, healthy[:1])
    return f"the first one serves on with {plural(len(healthy), 'healthy device')} (kubelet k137)"


@CHECKS.add(
    64,
    "the resources of one process are independent",
    expected="one process, two resources, one stream killed: only that resource registers again",
    rule=(
        "section 2.5: each registration has a connection of its own; section 12 (B5): registering again costs the "
        "kubelet"
    ),
    cure="give each resource its own socket and its own state; never restart them all",
)
async def _two_resources(case: Case) -> str:
    staging = Staging() if len(case.facts.resources) > 1 else Staging(second=True)
    async with case.connected(staging) as scene:
        log = scene.kubelet.events

        def resources() -> set[str]:
            return {event.resource for event in log.of(events.ListReceived)}

        await scene.until(lambda: len(resources()) > 1, case.patience_for_connecting, "no second resource was listed")
        others = sorted(resources() - {scene.resource})
        before = {name: len(log.of(events.StreamOpened, resource=name)) for name in others}
        known = len(scene.lists)
        scene.kubelet.drop_stream(scene.resource)
        await scene.connected(lists=known)
        await scene.elapse(case.span(0.5))
        touched = [name for name in others if len(log.of(events.StreamOpened, resource=name)) != before[name]]
        scene.require(not touched, f"with {scene.resource} also {ids(touched)} registered again")
        quiet = [name for name in others if scene.kubelet.streams(name) != 1]
        scene.require(not quiet, f"{ids(quiet)} lost its stream")
    return f"{scene.resource} came back, {ids(others)} was left alone"


_LONG_LIFE = 200.0
"""Seconds for the calls of check 74. A busy machine makes fewer of them, and what each leaves behind shows in fewer."""


@CHECKS.add(
    74,
    "a long run leaks nothing",
    expected="100 000 calls over one connection: memory, descriptors and threads stay flat",
    rule="section 2.4: the kubelet keeps one connection for all calls of a registration, for weeks",
    cure="find what each call leaves behind",
    waits=60.0,
    alone=True,
)
async def _long_life(case: Case) -> str:
    wanted = max(500, int(100_000 * case.scale))
    async with case.connected() as scene:
        devices = scene.healthy[:1]
        client = scene.client

        made = 0
        until = time.monotonic() + _LONG_LIFE

        async def calls(count: int) -> None:
            nonlocal made
            for number in range(count):
                if time.monotonic() > until:
                    return
                if devices and number % 2:
                    await client.allocate(devices)
                else:
                    await client.options()
                made += 1

        await _at_once(calls, max(200, wanted // 10))
        before = scene.instance.usage()
        began, made = time.monotonic(), 0
        await _at_once(calls, wanted)
        took = time.monotonic() - began
        after = scene.instance.usage()
        grown = (after.rss - before.rss) / (1024 * 1024)
        scene.require(grown < 16, f"{made} calls made memory grow by {grown:.0f} MiB")
        scene.require(after.fds <= before.fds + 8, f"{made} calls: {before.fds} descriptors became {after.fds}")
        scene.require(after.threads <= before.threads + 8, f"{before.threads} threads became {after.threads}")
    return (
        f"{made} calls in {took:.0f} s: {grown:+.1f} MiB, {after.fds - before.fds:+d} descriptors, "
        f"{after.threads - before.threads:+d} threads"
    )


async def _at_once(calls: Any, count: int) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(calls, count // 8)


@CHECKS.add(
    75,
    "two hundred restarts leave nothing behind",
    expected="200 kubelet restarts in a row: threads and descriptors stay flat, one living stream at the end",
    rule="section 4.4: every restart is a new generation; what each one leaves behind adds up",
    cure="close the old server, its socket and its tasks before the next registration",
    routes=KUBELET_SOCK,
    waits=60.0,
    alone=True,
)
async def _many_restarts(case: Case) -> str:
    wanted = max(10, int(200 * case.scale))
    async with case.connected() as scene:

        async def once() -> None:
            known = len(scene.lists)
            await scene.kubelet.restart()
            await scene.connected(lists=known)

        for _ in range(5):
            await once()
        before = scene.instance.usage()
        began = time.monotonic()
        for _ in range(wanted):
            await once()
        took = time.monotonic() - began
        after = scene.instance.usage()
        streams = scene.kubelet.streams(scene.resource)
        scene.require(streams == 1, f"{plural(streams, 'stream')} at the end")
        scene.require(after.fds <= before.fds + 8, f"{wanted} restarts: {before.fds} descriptors became {after.fds}")
        scene.require(after.threads <= before.threads + 8, f"{before.threads} threads became {after.threads}")
    return (
        f"{wanted} restarts in {took:.0f} s, {after.fds - before.fds:+d} descriptors, "
        f"{after.threads - before.threads:+d} threads"
    )
