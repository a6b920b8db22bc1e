"""Checks 1 to 4, 26 to 32, 65 to 69: how a plugin makes itself known, and what it does when it is refused.

It calls Register, or the kubelet's plugin watcher finds it.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ... import events
from ...faults import RegisterFault
from ...protocol.validation import is_extended_resource
from ...protocol.wire import CallError, DialError, PluginConnection, PluginInfo
from ..checks import KUBELET_SOCK, WATCHER, Checks
from ..scene import plural

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()

_VERSION_ERROR = 'requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]'


def _answers(scene: PluginScene, endpoint: str) -> str | None:
    """Return why nobody answers at this endpoint; None: somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(scene.socket_path(endpoint)))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _has_registers(scene: PluginScene, count: int) -> bool:
    return len(scene.registers) >= count


@CHECKS.add(
    1,
    "the socket answers before Register",
    expected="at the moment of Register the plugin's socket accepts connections; version v1beta1, a bare file name as "
    "endpoint, a valid resource name",
    rule="section 2.3: bind, listen and serve first, then Register: the kubelet dials within milliseconds; section 2.1 "
    "and 2.2: the endpoint is a file name in the plugin directory, the version is compared as text",
    cure="start your gRPC server and wait until it listens, then call Register with the socket's file name",
    routes=KUBELET_SOCK,
)
async def _answers_before_register(case: Case) -> str:
    seen: list[tuple[events.RegisterReceived, str | None]] = []
    holder: list[PluginScene] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.RegisterReceived) and not seen:
            seen.append((event, _answers(holder[0], event.endpoint)))

    async with case.node(listener=listen) as scene:
        holder.append(scene)
        await scene.start()
        await scene.until(lambda: seen, case.patience_for_connecting, "no Register came")
        register, refused = seen[0]
        name = register.endpoint
        scene.require(
            name and "/" not in name and name not in (".", ".."),
            f"the endpoint was {name!r}, which is not a bare file name",
        )
        scene.require(refused is None, f"Register came while {name!r} did not accept connections: {refused}")
        scene.require(register.version == "v1beta1", f"the version was {register.version!r}")
        scene.require(
            is_extended_resource(register.resource), f"{register.resource!r} is not a valid extended resource name"
        )
        asked = scene.kubelet.events
        took = await scene.until(
            lambda: asked.of(events.OptionsReceived, resource=register.resource),
            case.limit(1.0),
            "GetDevicePluginOptions was not answered",
        )
    return f"Register for {register.resource} at {name}, which answered; options after {took * 1000:.0f} ms"


@CHECKS.add(
    2,
    "GetDevicePluginOptions is answered while Register waits",
    expected="with Register answered 8 s late: the options are answered at once, Register is awaited, and not repeated",
    rule="section 2.1: Register blocks until the plugin has been dialed and has answered GetDevicePluginOptions; since "
    "1.36 a deadline that is too short aborts the registration",
    cure="serve from another thread or task than the one that calls Register, and give Register 15 s or more",
    routes=KUBELET_SOCK,
    lasts=8.0,
)
async def _register_is_awaited(case: Case) -> str:
    late = case.span(8.0)
    async with case.node() as scene:
        scene.kubelet.faults.register(RegisterFault(delay=late, resource=scene.resource))
        await scene.start()
        log = scene.kubelet.events
        await scene.until(lambda: scene.registers, case.patience_for_connecting, "no Register came")
        took = await scene.until(
            lambda: log.of(events.OptionsReceived), case.limit(1.0), "GetDevicePluginOptions was not answered"
        )
        await scene.until(lambda: log.of(events.RegisterAnswered), late + case.limit(1.0), "Register was not awaited")
        answer = log.of(events.RegisterAnswered)[0]
        scene.require(answer.error is None, f"Register was given up after {answer.seconds:.1f} s: {answer.error}")
        scene.require(len(scene.registers) == 1, f"{plural(len(scene.registers), 'Register')} came, one is enough")
        await scene.connected()
    return f"options after {took * 1000:.0f} ms, Register awaited for {answer.seconds:.1f} s"


@CHECKS.add(
    3,
    "Register and GetDevicePluginOptions say the same",
    expected="the options in Register equal those that GetDevicePluginOptions returns",
    rule="section 1.1: kubelets since 1.32 ignore the options in Register, older ones used them",
    cure="fill RegisterRequest.options with the value that GetDevicePluginOptions returns",
    routes=KUBELET_SOCK,
)
async def _same_options(case: Case) -> str:
    async with case.connected() as scene:
        first = scene.registers[0]
        asked = scene.kubelet.events.of(events.OptionsReceived, resource=scene.resource)[0]
        said = (first.pre_start_required, first.preferred_allocation_available)
        answered = (asked.pre_start_required, asked.preferred_allocation_available)
        template = "pre_start_required={}, get_preferred_allocation_available={}"
        scene.require(
            said == answered,
            f"Register said {template.format(*said)}, GetDevicePluginOptions said {template.format(*answered)}",
        )
    return template.format(*said)


@CHECKS.add(
    4,
    "the first list comes at once and is complete",
    expected="within 1 s of the stream: every device, each id once, health Healthy or Unhealthy",
    rule="section 5: each message is the whole list; until the first one the node shows nothing; an id that is listed "
    "twice can count twice; any health text except 'Healthy' means unhealthy",
    cure="know your devices before you register, and send them all as the first message of every stream",
)
async def _first_list(case: Case) -> str:
    async with case.connected() as scene:
        opened = scene.kubelet.events.of(events.StreamOpened, resource=scene.resource)[0]
        first = scene.lists[0]
        took = first.time - opened.time
        scene.require(took <= case.limit(1.0), f"the first list came {took:.2f} s after the stream was opened")
        devices = scene.decode(first)
        names = [device.id for device in devices]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 5000 else []
        scene.require(not twice, f"the first list names {twice[:1]} twice")
        odd = [device for device in devices if device.health not in ("Healthy", "Unhealthy")]
        scene.require(not odd, f"device {odd[0].id!r} has the health {odd[0].health!r}" if odd else "")
        scene.require("" not in names, "a device has an empty id")
        await scene.quiet(case.span(0.5), events.ListReceived, resource=scene.resource)
        late = "" if names or not scene.listed else await _late(scene)
    return (
        f"{plural(len(names), 'device')}, {first.healthy} healthy, {took * 1000:.0f} ms after the stream was opened"
        f"{late}"
    )


async def _late(scene: PluginScene) -> str:
    """Judge the first list of a second stream: a plugin may have no device at its start, but later it has them all."""
    stream = scene.client.watch()
    try:
        first = await stream.next(scene.case.limit(1.0))
    except TimeoutError:
        raise scene.failed("a second stream got no list") from None
    finally:
        stream.cancel()
    scene.require(
        {device.id for device in first or ()} == set(scene.listed),
        f"the first list of a second stream has {len(first or ())} of {len(scene.listed)} devices",
    )
    return f"; {plural(len(scene.listed), 'device')} came later, and are in the first list of a second stream"


@CHECKS.add(
    26,
    "a touched kubelet.sock does not cause a registration",
    expected="kubelet.sock is touched and created anew while the stream lives: no Register",
    rule="section 2.5 and 12 (B3, B8): registering while your stream is open makes 1.37 refuse the path for ever, "
    "and older kubelets close the new connection; an open stream proves the registration",
    cure="while a ListAndWatch stream is open, ignore everything that happens to kubelet.sock",
    routes=KUBELET_SOCK,
)
async def _touched_socket(case: Case) -> str:
    async with case.connected() as scene:
        await _settled(scene)
        scene.kubelet.faults.recreate_socket_file()
        await scene.quiet(case.span(1.0), events.RegisterReceived, events.StreamEnded)
        scene.kubelet.faults.recreate_socket_file()
        await scene.quiet(case.span(1.0), events.RegisterReceived, events.StreamEnded)
    return "two new files, no Register, the stream lives"


@CHECKS.add(
    27,
    "a lost socket file is replaced when the stream ends",
    expected="own socket file deleted while the stream lives: the stream is kept; when it ends, Register with a socket "
    "that answers",
    rule=(
        "section 2.5: never register while your stream is open; section 12 (B7): the kubelet deletes the files "
        "when it starts"
    ),
    cure="do not react to the file's disappearance; make a new socket with a new name for each registration",
    routes=KUBELET_SOCK,
)
async def _lost_socket(case: Case) -> str:
    async with case.connected() as scene:
        await _settled(scene)
        scene.kubelet.faults.delete_socket(scene.registers[-1].endpoint)
        await scene.quiet(case.span(1.0), events.RegisterReceived, events.StreamEnded)
        known = len(scene.lists)
        scene.kubelet.drop_stream(scene.resource)
        took = await scene.connected(lists=known)
    return f"the stream was kept; {took * 1000:.0f} ms after it ended there was a new one"


async def _refused_for_good(case: Case, text: str, words: str) -> str:
    span = case.span(3.0)
    async with case.node() as scene:
        scene.refuse(text, times=None)
        instance = await scene.start()
        await scene.until(lambda: scene.registers, case.patience_for_connecting, "no Register came")
        await scene.until(
            lambda: words in instance.output(),
            case.limit(1.0),
            f"the plugin did not say why it was refused ({words!r})",
        )
        scene.require(instance.is_ready() is not True, "the plugin reports ready although it was refused")
        before = len(scene.registers)
        await scene.elapse(span)
        calls = len(scene.registers) - before
        scene.require(calls <= max(2, 2 * span), f"{calls} Register calls in {span:.1f} s: too many for a slow retry")
    return f"{plural(calls, 'more Register')} in {span:.1f} s, the reason said, the process alive"


@CHECKS.add(
    28,
    "an unsupported API version is reported, and the plugin stays alive",
    expected=(
        "Register is refused because of the API version: the plugin logs the reason, stays alive, retries slowly, "
        "and is not ready"
    ),
    rule="section 2.2: the refusal of the API version is permanent; waiting does not help, but exiting makes it worse "
    "(section 12, B25: CrashLoopBackOff)",
    cure="log the text once, keep serving, retry after seconds, and never exit",
    routes=KUBELET_SOCK,
)
async def _version_refused(case: Case) -> str:
    return await _refused_for_good(case, _VERSION_ERROR, "is not supported by kubelet")


@CHECKS.add(
    29,
    "an invalid name is reported, and the plugin stays alive",
    expected=(
        "Register is refused because of the resource name: the plugin logs the reason, stays alive, retries slowly, "
        "and is not ready"
    ),
    rule="section 2.2: the refusal of the resource name is permanent; waiting does not help, but exiting makes it "
    "worse",
    cure="log the text once, keep serving, retry after seconds, and never exit",
    routes=KUBELET_SOCK,
)
async def _name_refused(case: Case) -> str:
    return await _refused_for_good(case, f'the ResourceName "{case.facts.resource}" is invalid', "is invalid")


@CHECKS.add(
    30,
    "a failed Register is tried again",
    expected="Register fails with a dial error, fails with UNAVAILABLE, or hangs: the plugin retries each time with a "
    "socket that answers, until it succeeds",
    rule="section 2.2: retry after every refusal except those of version and name; section 2.5: the kubelet needs "
    "a retry, not an exit",
    cure="retry with growing pauses, give each Register a deadline, and keep the server up meanwhile",
    routes=KUBELET_SOCK,
    lasts=16.0,
)
async def _tried_again(case: Case) -> str:
    refused: list[str] = []
    holder: list[PluginScene] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.RegisterReceived) and (why := _answers(holder[0], event.endpoint)):
            refused.append(f"{event.endpoint}: {why}")

    async with case.node(listener=listen) as scene:
        holder.append(scene)
        scene.refuse("failed to dial device plugin: context deadline exceeded")
        scene.refuse("the registry is closing", code="UNAVAILABLE")
        scene.kubelet.faults.register(RegisterFault(hang=True, resource=scene.resource))
        await scene.start()
        for number, what in enumerate(("the dial failure", "UNAVAILABLE", "the call that hung"), start=2):
            patience = case.limit(6.0) if number == 4 else case.limit(1.0)
            await scene.until(partial(_has_registers, scene, number), patience, f"no Register came after {what}")
        await scene.connected()
        scene.require(not refused, f"Register came while the socket did not answer: {refused[:1]}")
        calls = scene.registers
    return f"{plural(len(calls), 'Register')}, each with a socket that answered; connected in the end"


@CHECKS.add(
    31,
    "a socket name that is still on record is not used again",
    expected="Register answered 'device plugin already connected': the next Register names another socket",
    rule="section 2.5: a path that 1.37 has refused once is refused for ever, and every try leaks a connection",
    cure="bind a fresh socket with a new name for every registration; never repeat one",
    routes=KUBELET_SOCK,
)
async def _another_name(case: Case) -> str:
    async with case.node() as scene:
        path = scene.kubelet.paths.device_plugin_dir / "plugin.sock"
        scene.refuse(f"device plugin already connected: {path}")
        await scene.start()
        await scene.until(lambda: len(scene.registers) > 1, case.limit(2.0), "no second Register came")
        first, second = (register.endpoint for register in scene.registers[:2])
        scene.require(first != second, f"the second Register named the refused socket {first!r} again")
        await scene.connected()
    return f"{first}, then {second}"


@CHECKS.add(
    32,
    "GetDevicePluginOptions is the same each time",
    expected="two calls, one answer",
    rule="section 7: the kubelet asks for the options once in each registration, and keeps them until the next",
    cure="return constant options",
)
async def _options_twice(case: Case) -> str:
    async with case.connected() as scene:
        first, second = await scene.client.options(10.0), await scene.client.options(10.0)
        scene.require(first == second, f"first {first}, then {second}")
    return str(first)


async def _settled(scene: PluginScene) -> None:
    """Wait for Register's answer: what a plugin does in the middle of it is another matter."""
    await scene.until(
        lambda: scene.kubelet.events.of(events.RegisterAnswered, resource=scene.resource),
        scene.case.limit(1.0),
        "Register was not awaited",
    )


def _sockets(scene: PluginScene) -> list[Path]:
    """Return the sockets that the plugin watcher would look at."""
    directory = scene.kubelet.paths.plugins_registry_dir
    return sorted(p for p in directory.rglob("*") if p.is_socket() and not p.name.startswith("."))


def _identities(scene: PluginScene) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_ctime_ns) for path in _sockets(scene)}


@asynccontextmanager
async def _dialed(scene: PluginScene, path: Path) -> AsyncGenerator[PluginConnection]:
    """Connect as the plugin watcher does: the authority is the percent-encoded path."""
    connection = PluginConnection(str(path), authority=None)
    try:
        await connection.dial()
    except DialError as error:
        raise scene.failed(f"{path.name} does not answer: {error}") from None
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


async def _info(scene: PluginScene, path: Path) -> PluginInfo:
    async with _dialed(scene, path) as connection:
        try:
            return await connection.info()
        except CallError as error:
            raise scene.failed(f"GetInfo of {path.name} failed: {error}") from None


@CHECKS.add(
    65,
    "GetInfo says what the plugin watcher needs",
    expected=(
        "a socket appears: GetInfo within 1 s with type DevicePlugin, a valid resource name, v1beta1 among the versions"
    ),
    rule="section 3: the watcher gives GetInfo 1 s, finds the handler by type, and validates the name; one of the "
    "versions must be its own, and others do no harm",
    cure="serve pluginregistration.Registration on the socket: type 'DevicePlugin', name the resource, no endpoint",
    routes=WATCHER,
)
async def _get_info(case: Case) -> str:
    async with case.connected() as scene:
        infos = scene.kubelet.events.of(events.PluginInfoReceived)
        wrong = [event.error for event in infos if event.error]
        refused = scene.kubelet.events.of(events.PluginNotified)
        wrong += [event.error for event in refused if not event.registered]
        scene.require(not wrong, f"the plugin watcher said: {wrong[0] if wrong else ''}")
        info = next(event for event in infos if event.resource == scene.resource)
        scene.require(info.plugin_type == "DevicePlugin", f"the type was {info.plugin_type!r}")
        scene.require("v1beta1" in info.versions, f"the versions were {info.versions}")
    return f"DevicePlugin {info.resource} {list(info.versions)}"


@CHECKS.add(
    66,
    "a refusal by the plugin watcher is logged, and leads to a new socket",
    expected="NotifyRegistrationStatus(false, text): the plugin logs the text, and makes the socket anew after a pause",
    rule="section 3: kubelets before 1.36 never try a socket again; only a new file makes them look; section 12 (B20)",
    cure="when the status is false, log the text, unlink the socket and make a new one after a growing pause",
    routes=WATCHER,
)
async def _notified(case: Case) -> str:
    text = "plugin registration failed with err: refused by the conformance kit"
    async with case.node(autostart=False) as scene:
        scene.kubelet.paths.plugins_registry_dir.mkdir(parents=True, exist_ok=True)
        scene.kubelet.paths.device_plugin_dir.mkdir(parents=True, exist_ok=True)
        instance = await scene.start()
        await scene.until(lambda: _sockets(scene), case.patience_for_connecting, "no socket appeared")
        before = _identities(scene)
        async with _dialed(scene, _sockets(scene)[0]) as connection:
            await connection.info()
            await connection.notify(registered=False, error=text)
        took = await scene.until(
            lambda: _identities(scene) - before, case.limit(1.5), "the socket was not made anew after the refusal"
        )
        scene.require(
            "refused by the conformance kit" in instance.output(), "the plugin did not log why it was refused"
        )
    return f"the text was logged, a new socket came {took * 1000:.0f} ms after the refusal"


@CHECKS.add(
    67,
    "a plugin that the plugin watcher found survives the kubelet's restart",
    expected="the kubelet restarts, deletes nothing in its plugin directory, and looks again: GetInfo is answered, the "
    "stream is back",
    rule="section 3: at its start the kubelet walks the directory, and keeps the files of the plugin watcher",
    cure="keep the socket; when the stream ends make it anew, and answer GetInfo at any time",
    routes=WATCHER,
)
async def _restart(case: Case) -> str:
    async with case.connected() as scene:
        known, asked = len(scene.lists), len(scene.kubelet.events.of(events.PluginInfoReceived))
        before = set(scene.listed)
        await scene.kubelet.restart(down=case.span(0.1))
        took = await scene.connected(lists=known)
        answered = scene.kubelet.events.of(events.PluginInfoReceived)[asked:]
        scene.require(any(event.error is None for event in answered), "GetInfo was not answered after the restart")
        scene.require(set(scene.listed) >= before, "after the restart ids were missing")
    return f"GetInfo answered, the list is back {took * 1000:.0f} ms after the restart"


@CHECKS.add(
    68,
    "a lost stream leads to a new socket file",
    expected="the stream is lost: the socket file is made anew, so that the plugin watcher looks again",
    rule="section 3: the end of a stream does not make the watcher register again; only a new file does",
    cure="when the stream ends, unlink the socket and make a new one",
    routes=WATCHER,
)
async def _lost_stream(case: Case) -> str:
    async with case.connected() as scene:
        before, known = _identities(scene), len(scene.lists)
        scene.kubelet.drop_stream(scene.resource)
        took = await scene.until(
            lambda: _identities(scene) - before, case.limit(1.5), "no new socket file came after the stream was lost"
        )
        await scene.connected(lists=known)
    return f"a new socket file {took * 1000:.0f} ms after the stream was lost, and a new stream"


@CHECKS.add(
    69,
    "the plugin watcher's authority is accepted",
    expected="GetInfo with :authority %2Fvar%2F... is answered",
    rule="section 2.4: the watcher's own dial sets no authority, so the percent-encoded path is sent",
    cure="do not check :authority, or use an HTTP/2 server that accepts any",
    routes=WATCHER,
)
async def _authority(case: Case) -> str:
    async with case.node(autostart=False) as scene:
        scene.kubelet.paths.plugins_registry_dir.mkdir(parents=True, exist_ok=True)
        scene.kubelet.paths.device_plugin_dir.mkdir(parents=True, exist_ok=True)
        await scene.start()
        await scene.until(lambda: _sockets(scene), case.patience_for_connecting, "no socket appeared")
        info = await _info(scene, _sockets(scene)[0])
    return f"GetInfo answered: {info.name}"
