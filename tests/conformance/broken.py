"""A small device plugin in bare grpc.aio with one switchable defect: what the checks must be able to find.

Without a defect it does everything right, so that a failed check has found the defect and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
from anyio.abc import TaskStatus
from typing_extensions import override

from kdp.kubelet import KubeletPaths
from kdp.kubelet.server import start_server, stop_server
from kdp.proto import deviceplugin_v1beta1_pb2 as pb
from kdp.proto import pluginregistration_v1_pb2 as registration
from kdp.proto import podresources_v1_pb2 as podresources
from kdp_testkit.conformance.checks import Route
from kdp_testkit.conformance.deviceplugin.backend import SLOW
from kdp_testkit.conformance.deviceplugin.subject import SECRET, Staging, Subject
from kdp_testkit.conformance.instance import Ending, Instance, Usage

RESOURCE = "example.com/bare"
STREAM_WAIT = 1.0
GAP = 0.055
LIMIT = 4_194_304
ASKS = 0.1
DOUBTS = 4

# ruff: noqa: ASYNC110 - the plugin polls: what it waits for has no event

_Code = grpc.StatusCode
_Context = Any


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(os.fspath(path)) == 0


class Served:
    """One resource: its server, its streams, its registration."""

    def __init__(self, plugin: Bare, resource: str) -> None:
        self.plugin = plugin
        self.defect = plugin.defect
        self.resource = resource
        self.generation = 0
        self.streams = 0
        self.had_stream = False
        self.lost = anyio.Event()
        self.notified = ""
        self.server: grpc.aio.Server | None = None
        self.path = Path()
        self.ending = False
        self.leaked: list[Any] = []
        self.queue: asyncio.Queue[None] = asyncio.Queue()
        self.options_calls = 0
        self.allocated: set[str] = set()
        self.mixed = ""
        self.calls: set[asyncio.Task[Any]] = set()
        self.relay: asyncio.Server | None = None
        self.neighbours: set[str] = set()

    # -- the server ----------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        if self.defect in ("one_name", "one_name_for_ever"):
            return "bare.sock" if self.defect == "one_name_for_ever" else f"bare-{id(self.plugin)}.sock"
        return f"bare-{os.getpid()}-{id(self):x}-{self.generation}.sock"

    async def serve(self) -> None:
        self.generation += 1
        self.ending, self.had_stream, self.lost = False, False, anyio.Event()
        self.path = self.plugin.directory / self._name()
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server(
            options=(("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1), ("grpc.http2.max_ping_strikes", 0))
        )
        unary = grpc.unary_unary_rpc_method_handler

        def method(function: Any, request: Any, reply: Any) -> grpc.RpcMethodHandler[Any, Any]:
            return unary(function, request.FromString, reply.SerializeToString)

        handlers = {
            "GetDevicePluginOptions": method(self.options, pb.Empty, pb.DevicePluginOptions),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self.watch, pb.Empty.FromString, pb.ListAndWatchResponse.SerializeToString
            ),
            "Allocate": method(self.allocate, pb.AllocateRequest, pb.AllocateResponse),
            "GetPreferredAllocation": method(
                self.preferred, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
            ),
            "PreStartContainer": method(self.pre_start, pb.PreStartContainerRequest, pb.PreStartContainerResponse),
        }
        watcher = {
            "GetInfo": method(self.info, registration.InfoRequest, registration.PluginInfo),
            "NotifyRegistrationStatus": method(
                self.notify, registration.RegistrationStatus, registration.RegistrationStatusResponse
            ),
        }
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),
                grpc.method_handlers_generic_handler("pluginregistration.Registration", watcher),
            )
        )
        if self.defect == "strict_authority":
            inner = self.path.with_name(f".{self.path.name}")
            server.add_insecure_port(f"unix:{inner}")
            await start_server(server)
            self.relay = await asyncio.start_unix_server(self._relay(inner), path=self.path)
        else:
            hidden = self.path.with_name(f".{self.path.name}")
            server.add_insecure_port(f"unix:{hidden}")
            await start_server(server)
            os.rename(hidden, self.path)
        if self.defect == "leaks_generations":
            self.leaked += [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
        self.server = server
        self.neighbours = set(os.listdir(self.plugin.directory))

    def _relay(self, inner: Path) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            upstream, downstream = await asyncio.open_unix_connection(inner)

            async def back() -> None:
                while data := await upstream.read(65536):
                    writer.write(data)

            task = asyncio.ensure_future(back())
            with suppress(OSError):
                while data := await reader.read(65536):
                    if b"%2F" in data:
                        break
                    downstream.write(data)
            task.cancel()
            writer.close()
            downstream.close()

        return relay

    async def close(self) -> None:
        server, self.server = self.server, None
        if self.relay is not None:
            self.relay.close()
            self.relay = None
        if server is None:
            return
        if self.plugin.route == "kubelet" and self.defect != "leaves_socket":
            self.path.unlink(missing_ok=True)
        if self.calls and self.defect != "breaks_calls":
            await asyncio.wait(tuple(self.calls), timeout=1.0)
        self.ending = True
        self.plugin.change()
        await stop_server(server, 0.1)
        if self.defect != "leaves_socket":
            self.path.unlink(missing_ok=True)
            self.path.with_name(f".{self.path.name}").unlink(missing_ok=True)

    # -- registering ---------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        backoff = 0.05
        known: object = None
        while True:
            if self.plugin.route == "watcher":
                await self.serve()
                await self._watched()
            else:
                identity = await self.plugin.kubelet()
                known, backoff = identity, backoff if identity == known else 0.05
                if self.defect == "ignores_directory" and self.plugin.directory_changed():
                    await anyio.sleep_forever()
                early = self.defect == "registers_first"
                if not early:
                    await self.serve()
                if await self._registered(early) and await self._stream_came():
                    await self._connected(identity)
                elif self.defect == "gives_up":
                    await anyio.sleep_forever()
            if self.defect == "drops_lost_streams" and self.had_stream:
                await anyio.sleep_forever()
            if self.defect == "restarts_all":
                for other in self.plugin.served:
                    other.lost.set()
            if self.defect == "keeps_file" and self.had_stream:
                await anyio.sleep_forever()
            await self.close()
            if self.defect == "leaves_when_lost" and self.had_stream:
                await anyio.sleep_forever()
            if self.defect == "renames_after_restart":
                self.plugin.devices = {f"{name}x": health for name, health in self.plugin.devices.items()}
            await anyio.sleep(0.05 if self.defect == "constant_pause" else backoff)
            backoff = min(backoff * 2, 2.0)

    async def _watched(self) -> None:
        while not self.lost.is_set() and not (self.notified and self.defect != "deaf_to_refusals"):
            await anyio.sleep(0.005)
        if self.notified and self.defect != "says_nothing":
            self.plugin.say(self.notified)
        self.notified = ""

    async def _registered(self, early: bool) -> bool:
        options = self._options()
        if self.defect == "options_differ":
            options.pre_start_required = not options.pre_start_required
        endpoint = f"./{self.path.name}" if self.defect == "endpoint_is_a_path" else self.path.name
        if early:
            self.generation += 1
            endpoint = self._name()
            self.generation -= 1
        request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=self.resource, options=options)
        async with anyio.create_task_group() as tasks:
            if early:

                async def late() -> None:
                    await anyio.sleep(0.3)
                    await self.serve()

                tasks.start_soon(late)
            async with grpc.aio.insecure_channel(
                f"unix:{self.plugin.paths.kubelet_socket}", options=(("grpc.use_local_subchannel_pool", 1),)
            ) as channel:
                call: Any = channel.unary_unary("/v1beta1.Registration/Register")
                try:
                    await call(request.SerializeToString(), timeout=0.3 if self.defect == "impatient" else 2.0)
                except grpc.aio.AioRpcError as error:
                    text = error.details() or ""
                    if self.defect != "says_nothing":
                        self.plugin.say(f"not registered: {text}")
                    permanent = "is invalid" in text or "not supported" in text
                    if permanent and self.defect == "exits_when_refused":
                        self.plugin.exit(1)
                    if permanent and self.defect != "hammers":
                        await anyio.sleep(2.0)
                    tasks.cancel_scope.cancel()
                    return False
        return True

    async def _stream_came(self) -> bool:
        if self.defect == "trusts_register":
            while not self.had_stream:
                await anyio.sleep(0.005)
        with anyio.move_on_after(STREAM_WAIT):
            while not self.had_stream:
                await anyio.sleep(0.005)
        return self.had_stream

    async def _connected(self, identity: object) -> None:
        existing = self.neighbours
        while not self.lost.is_set():
            await anyio.sleep(0.005)
            if self.defect == "registers_on_touch" and self.plugin.identity() not in (identity, None):
                identity = self.plugin.identity()
                await self._registered(False)
            if self.defect == "replaces_its_socket" and not self.path.exists():
                return
            if self.defect == "nervous" and set(os.listdir(self.plugin.directory)) - existing:
                if [n for n in set(os.listdir(self.plugin.directory)) - existing if n.startswith("intruder")]:
                    return
                existing = set(os.listdir(self.plugin.directory))
            if self.defect == "registers_for_devices" and self.plugin.appeared:
                self.plugin.appeared = False
                await anyio.sleep(0.03)
                return
        if self.defect == "compares_inodes":
            while self.plugin.identity() is None or self.plugin.identity()[0] == identity[0]:  # type: ignore[index]
                await anyio.sleep(0.005)
        if self.defect == "needs_events" and self.plugin.staging.without_inotify:
            await anyio.sleep_forever()

    # -- the calls -----------------------------------------------------------------------------------------------------

    def _options(self) -> pb.DevicePluginOptions:
        staging = self.plugin.staging
        return pb.DevicePluginOptions(
            pre_start_required=staging.prepares is not None, get_preferred_allocation_available=bool(staging.prefers)
        )

    async def options(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:
        self.options_calls += 1
        options = self._options()
        if self.defect == "options_change" and self.options_calls % 2 == 0:
            options.pre_start_required = not options.pre_start_required
        if self.defect == "leaks_calls":
            self.leaked.append(os.open("/dev/null", os.O_RDONLY))
        return options

    def _list(self) -> pb.ListAndWatchResponse:
        numa = self.plugin.staging.numa
        found = pb.ListAndWatchResponse()
        devices = self.plugin.devices if self.resource == RESOURCE else {"second-0": "Healthy", "second-1": "Healthy"}
        for number, (name, health) in enumerate(devices.items()):
            device = found.devices.add(ID=name, health=health)
            nodes = [int(node) for node in numa[number % len(numa)]] if numa else []
            mixed = numa and any(node < 0 for entry in numa for node in entry)
            if nodes and not (mixed and self.defect != "sends_minus_one"):
                device.topology.nodes.extend(pb.NUMANode(ID=node) for node in nodes)
        if self.defect == "doubles_ids":
            found.devices.add(ID=next(iter(devices)), health="Healthy")
        if self.defect == "odd_health":
            found.devices[0].health = "healthy"
        return found

    async def watch(self, request: pb.Empty, context: _Context) -> Any:
        self.streams += 1
        self.had_stream = True
        number = self.streams
        try:
            if self.defect == "slow_list" and len(self.plugin.devices) > 100:
                await anyio.sleep(1.5)  # above the limit of 1 s, and far from 3 s, after which nobody is met
            if self.defect == "second_is_late" and self.resource != RESOURCE:
                await anyio.sleep(0.5)  # longer than the kit waits for a further resource
            if self.defect == "partial_list":
                await context.write(pb.ListAndWatchResponse(devices=self._list().devices[:1]))
                await anyio.sleep(0.02)
            if self.defect == "empty_first":
                await context.write(pb.ListAndWatchResponse())
                await anyio.sleep(0.02)
            last = None
            history = 0
            while not self.ending:
                changed = self.plugin.changed
                if self.defect == "queues_states":
                    while history < len(self.plugin.history):
                        await context.write(self.plugin.history[history])
                        history += 1
                message = self._list()
                if self.defect in ("repeats_list", "answers_noise") and number:
                    await context.write(message)
                    await anyio.sleep(0.1)
                    continue
                while self.defect == "waits_for_quiet" and last is not None:
                    with anyio.move_on_after(0.2) as quiet:
                        await self.plugin.changed.wait()
                    if quiet.cancelled_caught:
                        message = self._list()
                        break
                if self.defect == "is_starved":  # no defect: it is what a busy machine does to a plugin
                    await anyio.sleep(1.2)
                if message != last and not self.ending and not (self.defect == "shared_queue" and number > 1 and last):
                    fits = message.ByteSize() <= LIMIT
                    if fits or self.defect == "sends_anything":
                        await context.write(message)
                        last = message
                        if self.defect not in ("no_coalescing", "registers_for_devices"):  # this one lists first
                            await anyio.sleep(GAP)
                        continue
                    self.plugin.say(f"{len(message.devices)} devices are too many for one list")
                await changed.wait()
            if self.defect == "empty_last_list" and self.plugin.asked_at is not None:
                await context.write(pb.ListAndWatchResponse())
        finally:
            self.streams -= 1
            if not self.streams:
                self.lost.set()

    def _reply(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        if self.defect not in ("depends_on_order", "keeps_the_order"):
            ids = sorted(ids)
        reply = pb.ContainerAllocateResponse(envs={"BARE": ",".join(ids)})
        if self.defect == "depends_on_order":
            reply.envs["FIRST"] = ids[0]
        permissions = "" if self.defect == "no_permissions" else "rw"
        host = "dev/null" if self.defect == "relative_path" else "/dev/null"
        reply.devices.add(container_path="/dev/bare", host_path=host, permissions=permissions)
        reply.mounts.add(container_path="/run/bare", host_path=os.fspath(self.plugin.artefact), read_only=True)
        if self.defect == "unresolvable_cdi":
            reply.cdi_devices.add(name=f"example.com/bare={ids[0]}")
        return reply

    async def allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        task = asyncio.current_task()
        assert task is not None
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        if self.defect == "lazy_artefacts":
            self.plugin.artefact.mkdir(exist_ok=True)
        replies: list[pb.ContainerAllocateResponse] = []
        for asked in request.container_requests:
            ids = list(asked.devices_ids)
            if not ids and self.defect == "crashes_on_empty":
                ids[0].strip()
            if len(ids) > 1 and self.defect == "crashes_on_two":
                ids[2].strip()
            if self.defect == "refuses_one_order" and ids != sorted(ids):
                await context.abort(_Code.FAILED_PRECONDITION, "the devices must be given in order")
            if not ids:
                await context.abort(_Code.INVALID_ARGUMENT, "no device is named")
            for name in ids:
                health = self.plugin.devices.get(name, "Healthy" if name.startswith("second") else "")
                if not health and self.defect != "accepts_unknown":
                    await context.abort(_Code.INVALID_ARGUMENT, f"there is no device {name}")
                if health == "Unhealthy" and self.defect != "accepts_unhealthy":
                    await context.abort(_Code.FAILED_PRECONDITION, f"device {name} is unhealthy")
            if self.defect == "keeps_a_book" and self.allocated & set(ids):
                await context.abort(_Code.ALREADY_EXISTS, f"{ids} are already allocated")
            if self.defect == "one_at_a_time" and self.allocated:
                await context.abort(_Code.RESOURCE_EXHAUSTED, "one container at a time")
            self.allocated |= set(ids)
            await self._work(context)
            if self.defect in ("mixes_requests", "mixes_slowly"):
                self.mixed = ids[0]
                await anyio.sleep(0.002 if self.defect == "mixes_requests" else 0.5)
                ids = [self.mixed]
            replies.append(self._reply(ids))
        if self.defect == "answers_the_first_only":
            replies = replies[:1]
        if self.defect == "answers_twice":
            replies = replies * 2
        return pb.AllocateResponse(container_responses=replies)

    async def _work(self, context: _Context) -> None:
        plugin = self.plugin
        if plugin.released:
            return
        match plugin.staging.allocate:
            case "slow":
                plugin.inside += 1
                try:
                    await anyio.sleep(SLOW)
                except BaseException:
                    if self.defect != "cannot_be_cancelled":
                        plugin.cancellations += 1
                    raise
                finally:
                    plugin.inside -= 1
            case "hangs":
                plugin.inside += 1
                try:
                    if self.defect == "hangs_for_ever":
                        await anyio.sleep_forever()
                    await anyio.sleep(0.4)
                finally:
                    plugin.inside -= 1
                await context.abort(_Code.DEADLINE_EXCEEDED, "the device does not answer")
            case "raises":
                if self.defect == "tells_secrets":
                    await context.abort(_Code.INTERNAL, f"Traceback (most recent call last): {SECRET}")
                await context.abort(_Code.INTERNAL, "internal error; see the log")
            case _:
                return

    async def preferred(self, request: pb.PreferredAllocationRequest, context: _Context) -> Any:
        if not self.plugin.staging.prefers:
            code = _Code.INTERNAL if self.defect == "fails_when_not_offered" else _Code.UNIMPLEMENTED
            await context.abort(code, "not offered")
        [asked] = request.container_requests
        available, must = sorted(asked.available_deviceIDs), list(asked.must_include_deviceIDs)
        if self.defect == "fails_the_impossible" and asked.allocation_size > len(available):
            await context.abort(_Code.INVALID_ARGUMENT, "so many are not available")
        if self.defect == "ignores_must_include":
            must = []
            available.reverse()
        chosen = [*must, *(name for name in available if name not in must)][: asked.allocation_size]
        if self.defect == "prefers_all":
            chosen = available
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def pre_start(self, request: pb.PreStartContainerRequest, context: _Context) -> Any:
        if self.defect == "starts_once" and self.leaked:
            await context.abort(_Code.FAILED_PRECONDITION, "was started already")
        self.leaked.append(None)
        seconds = self.plugin.staging.prepares or 0.0
        left = context.time_remaining()
        if seconds > left and self.defect != "ignores_deadlines":
            await anyio.sleep(max(0.0, left - 0.5))
            await context.abort(_Code.DEADLINE_EXCEEDED, "the device is still being reset")
        await anyio.sleep(seconds)
        return pb.PreStartContainerResponse()

    async def info(self, request: registration.InfoRequest, context: _Context) -> registration.PluginInfo:
        if self.defect == "no_info":
            await context.abort(_Code.UNIMPLEMENTED, "what?")
        versions = ["v1alpha1", "v1beta1"] if self.defect == "more_versions" else ["v1beta1"]
        if self.defect == "learns_its_version" and not self.notified:
            versions = ["v1"]
        return registration.PluginInfo(type="DevicePlugin", name=self.resource, supported_versions=versions)

    async def notify(
        self, request: registration.RegistrationStatus, context: _Context
    ) -> registration.RegistrationStatusResponse:
        if not request.plugin_registered:
            self.notified = request.error
        return registration.RegistrationStatusResponse()


class Bare(Instance):
    """The plugin's process, in this one."""

    def __init__(self, defect: str, route: Route, paths: KubeletPaths, staging: Staging, artefact: Path) -> None:
        self.defect = defect
        self.route: Route = route
        self.paths = paths
        self.staging = staging
        self.artefact = artefact
        self.directory = paths.plugins_registry_dir if route == "watcher" else paths.device_plugin_dir
        self.devices = {f"bare-{i}": "Healthy" for i in range(staging.devices or 4)}
        self.changed = anyio.Event()
        self.history: list[pb.ListAndWatchResponse] = []
        self.appeared = False
        self.inside = self.cancellations = 0
        self.released = False
        self.lines: list[str] = []
        self.given_back: list[tuple[str, ...]] = []
        self.asked_at: float | None = None
        self.served = [Served(self, RESOURCE)]
        if staging.second or defect == "second_is_late":
            self.served.append(Served(self, f"{RESOURCE}-second"))
        self._over = anyio.Event()
        self._ended = anyio.Event()
        self._code = 0
        self._directory_fd = -1
        self._silent = False

    def say(self, line: str) -> None:
        self.lines.append(line)

    def exit(self, code: int) -> None:
        self._code = code
        self._over.set()

    def identity(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = self.paths.kubelet_socket.lstat()
            return found.st_ino, found.st_ctime_ns
        return None

    def directory_changed(self) -> bool:
        if self._directory_fd < 0:
            self._directory_fd = os.open(self.directory, os.O_RDONLY)
        return os.fstat(self._directory_fd).st_nlink == 0

    async def kubelet(self) -> object:
        """Wait for a kubelet that listens."""
        refused: object = None
        while True:
            identity = self.identity()
            if identity is None and self.defect == "exits_without_kubelet":
                self.exit(1)
            if identity is not None and identity != refused:
                if _connects(self.paths.kubelet_socket):
                    return identity
                if self.defect == "exits_when_socket_is_dead":
                    self.exit(1)
                if self.defect == "gives_up_when_refused":
                    refused = identity
            await anyio.sleep(0.0 if self.defect == "spins" else 0.005)

    def change(self) -> None:
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    async def run(self, wake: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.defect != "lazy_artefacts":
            self.artefact.mkdir(exist_ok=True)
        try:
            async with anyio.create_task_group() as tasks:
                task_status.started()
                for served in self.served:
                    tasks.start_soon(served.live)
                if self.staging.asks_often:
                    tasks.start_soon(self._reconcile)
                await self._over.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for served in self.served:
                    await served.close()
                    for leaked in served.leaked:
                        if leaked is not None:
                            os.close(leaked)
                if self.defect == "cleans_everything":
                    for path in self.directory.iterdir():
                        if path.is_socket() and path.name != "kubelet.sock":
                            path.unlink()
                if self.defect in ("cleans_up", "lazy_artefacts"):
                    shutil.rmtree(self.artefact, ignore_errors=True)
                if self.defect == "is_slow_to_end":
                    await anyio.sleep(2.5)
            if self._directory_fd >= 0:
                os.close(self._directory_fd)
            now = time.monotonic()
            code = 1 if self.defect == "ends_badly" else self._code
            self.ending = Ending(seconds=now - (self.asked_at or now), code=code, asked=self.asked_at is not None)
            self._ended.set()
            wake()

    async def _reconcile(self) -> None:
        """Ask the kubelet who holds what, and what it takes for healthy."""
        pause, seen, missing, doubts = ASKS, Counter[str](), Counter[str](), 0
        while True:
            await anyio.sleep(pause)
            try:
                held, healthy = await self._pod_resources()
                pause = ASKS
            except grpc.aio.AioRpcError:
                if self.defect == "hammers_pod_resources":
                    continue
                pause = min(2 * max(pause, 0.2), 2.0)
                if self.defect != "frees_on_errors":
                    continue
                held, healthy, pause = Counter[str](), set(self.devices), ASKS
            seen |= held
            for name in set(seen):
                missing[name] = 0 if name in held else missing[name] + 1
                if missing[name] == 2:
                    self.given_back.append((name,) * (seen[name] if self.defect == "counts_entries" else 1))
                    if self.defect == "forgets_what_it_told":
                        missing[name] = 0
                    else:
                        del seen[name], missing[name]
            connected = self.served[0].streams and not self.served[0].lost.is_set()
            wanted = {name for name, health in self.devices.items() if health == "Healthy"}
            doubts = doubts + 1 if connected and wanted - healthy else 0
            if doubts >= DOUBTS and self.defect != "believes_itself":
                self.served[0].lost.set()
                doubts = 0

    async def _pod_resources(self) -> tuple[Counter[str], set[str]]:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 << 20))
        async with grpc.aio.insecure_channel(f"unix:{self.paths.pod_resources_socket}", options=options) as channel:
            method: Any = channel.unary_unary
            listed = podresources.ListPodResourcesResponse.FromString(
                await method("/v1.PodResourcesLister/List")(b"", timeout=2.0)
            )
            allocatable = podresources.AllocatableResourcesResponse.FromString(
                await method("/v1.PodResourcesLister/GetAllocatableResources")(b"", timeout=2.0)
            )
        entries = [entry for pod in listed.pod_resources for c in pod.containers for entry in c.devices]
        mine = (name for entry in entries if entry.resource_name == RESOURCE for name in entry.device_ids)
        healthy = {name for e in allocatable.devices if e.resource_name == RESOURCE for name in e.device_ids}
        return Counter(mine), healthy

    @override
    def returned(self) -> list[tuple[str, ...]]:
        return list(self.given_back)

    @override
    async def stop(self, within: float) -> Ending:
        self.asked_at = self.asked_at or time.monotonic()
        self._over.set()
        with anyio.fail_after(within):
            await self._ended.wait()
        assert self.ending is not None
        return self.ending

    @override
    async def kill(self) -> None:
        await self.stop(10)

    @override
    def output(self) -> str:
        return "\n".join(self.lines)

    @override
    def usage(self) -> Usage:
        return Usage.of_process(os.getpid())

    def _set(self, device: str, health: str) -> None:
        if self.devices.get(device) != health:
            self.devices[device] = health
            if self.defect == "queues_states":
                self.history.append(self.served[0]._list())
            self.change()

    @override
    async def fail(self, device: str) -> None:
        if self.defect != "does_not_watch":
            self._set(device, "Unhealthy")
        await anyio.lowlevel.checkpoint()

    @override
    async def heal(self, device: str) -> None:
        if self.defect != "never_heals":
            self._set(device, "Healthy")
        await anyio.lowlevel.checkpoint()

    @override
    async def vanish(self, device: str) -> None:
        if self.defect == "keeps_the_vanished":
            return
        if self.defect == "drops_the_held":
            del self.devices[device]
            self.change()
        else:
            self._set(device, "Unhealthy")

    @override
    async def add(self, device: str = "") -> None:
        self.devices[device or "bare-new"] = "Healthy"
        self.appeared = True
        self.change()

    @override
    async def grow(self, count: int) -> None:
        self.devices = {f"{i:063d}": "Healthy" for i in range(count)}
        self.change()

    @override
    def entered(self) -> int:
        return self.inside

    @override
    def cancelled(self) -> int:
        return self.cancellations

    @override
    def release(self) -> None:
        self.released = True


class BareSubject(Subject):
    """The bare plugin with a defect; "" for none."""

    def __init__(self, defect: str, directory: Path, route: Route = "kubelet") -> None:
        self.defect = defect
        self._route: Route = route
        self._artefact = directory / "artefact"

    @override
    @asynccontextmanager
    async def start(self, paths: KubeletPaths, staging: Staging, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        bare = Bare(self.defect, self._route, paths, staging, self._artefact)
        async with anyio.create_task_group() as tasks:
            await tasks.start(bare.run, wake)
            try:
                yield bare
            finally:
                with anyio.CancelScope(shield=True), suppress(TimeoutError):
                    await bare.stop(10)
                tasks.cancel_scope.cancel()
