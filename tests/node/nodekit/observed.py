"""`ObservedKubelet`: the kubelet's own device manager, for the checks of the conformance kit.

The plugin is in the kubelet's own directories and talks to nobody but the kubelet: what happens is told from inside its
process (devmgr's ``-observe``), and becomes the events that the simulated kubelet would have written down. What a check
does to a kubelet is done there too, or with the files and the process. A Register that a check wants refused, delayed
or left without a stream is treated so at the kubelet's door; what the device manager itself does is never made up.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import posixpath
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
import attrs
import grpc
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.proto import pluginregistration_v1_pb2 as registration
from kdp.testing import AdmissionError, AdmittedPod, CallError, ListedDevice, Pod, ScenarioError, events
from kdp_testkit.armed_faults import ArmedFaults, RegisterFault
from kdp_testkit.devicemanager.kubelet_core import CurrentProcess
from kdp_testkit.events import EventLog
from kdp_testkit.faults import Faults
from kdp_testkit.profiles import profile_named
from kdp_testkit.protocol.registry import Refusal
from kdp_testkit.protocol.wire import PluginConnection, decode_devices, settle

from .devmgr import DeviceManager, DeviceManagerEnded
from .recorder import Listed, Recorder
from .tools import MINORS, Minor

if TYPE_CHECKING:
    from kdp.testing import SimulatedKubelet
    from kdp_testkit.events import Event

__all__ = ["ObservedKubelet", "real"]

NOISE = "example.com/noise"
"""The resource of the plugin that keeps the kubelet writing its checkpoint; no check is told of it."""

_LOOK = 0.01
_FOR_EVER = 3600.0
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class _Faults(Faults):
    """The faults that need nothing but the kubelet's door, its directories and its files."""

    def __init__(self, kubelet: ObservedKubelet) -> None:
        super().__init__(cast("SimulatedKubelet", kubelet), CurrentProcess(), ArmedFaults())

    @override
    def register(self, fault: RegisterFault, *, times: int | None = 1) -> None:
        if fault.drop or not (fault.dial and fault.options) or fault.connections != 1 or fault.dial_delay:
            raise ScenarioError(f"a real device manager cannot be made to do this: {fault}")
        super().register(fault, times=times)


@attrs.frozen
class _Stream:
    number: int
    resource: str
    path: str


class _Connection(PluginConnection):
    """Calls over the device manager's own connection to a plugin; a further stream has one of its own."""

    def __init__(self, manager: DeviceManager, path: str, numbers: itertools.count[int]) -> None:
        super().__init__(path)
        self._manager = manager
        self._numbers = numbers

    @override
    async def call(
        self,
        method: str,
        payload: bytes,
        *,
        service: str = "/v1beta1.DevicePlugin/",
        timeout: float | None = None,
    ) -> bytes:
        number = next(self._numbers)
        try:
            said = await self._manager.ask(
                "call",
                within=_FOR_EVER,
                call=number,
                path=self.socket_path,
                method=service + method,
                payload=_text(payload),
                seconds=timeout or 0.0,
            )
        except DeviceManagerEnded:
            raise CallError("CANCELLED", "the kubelet was killed") from None
        except anyio.get_cancelled_exc_class():
            self._manager.tell("cancel", call=number)
            raise
        if said["failure"] is not None:
            raise CallError(*_status(said["failure"]))
        return _bytes(said["answer"])


class ObservedKubelet(AsyncContextManagerMixin):
    """A kubelet's real device manager with as much of `SimulatedKubelet` as the conformance checks use.

    Args:
        minor: Which Kubernetes.
        root: The kubelet's root directory, kept at the end; default: a temporary one.
        listener: Called with each event at once; a Register is not treated before it returns.
        autostart: Whether it runs when the context is entered.
    """

    def __init__(
        self,
        minor: Minor,
        *,
        root: Path | None = None,
        listener: Callable[[Event], None] | None = None,
        autostart: bool = True,
    ) -> None:
        self.profile = profile_named(minor.profile)
        self.events = EventLog(listener)
        self.faults: Faults = _Faults(self)
        self._manager = DeviceManager(minor, root=root, look=_LOOK, observe=self._hear, autostart=False)
        self.paths = self._manager.paths
        self._autostart = autostart
        self._numbers = itertools.count(1)
        self._resources: dict[str, str] = {}
        self._calls: dict[int, Event] = {}
        self._streams: dict[int, _Stream] = {}
        self._lists: dict[str, dict[str, ListedDevice]] = {}
        self._connections: dict[str, _Connection] = {}
        self._treating: set[asyncio.Future[None]] = set()

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with self._manager:
            try:
                if self._autostart:
                    await self.start()
                yield self
            finally:
                self.faults.release()
                with anyio.CancelScope(shield=True):
                    for connection in self._connections.values():
                        await connection.drop()
                    if self._connections:
                        await settle()

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the kubelet's process is there."""
        return self._manager.is_running

    async def start(self, *, listen_delay: float = 0.0) -> None:
        """Start it; returns when kubelet.sock is listened at.

        Args:
            listen_delay: Seconds between bind(2) and listen(2).
        """
        self._streams.clear()
        self._lists.clear()
        await self._manager.start(listen_delay=listen_delay)

    async def stop(self) -> None:
        """Let the device manager end in its own good order, then its process."""
        await self._manager.stop()
        self.events.add(events.KubeletStopped(how="stopped"))

    async def crash(self) -> None:
        """Kill it."""
        await self._manager.crash()
        self.events.add(events.KubeletStopped(how="crashed"))

    async def restart(self, *, down: float = 0.0, listen_delay: float = 0.0, reboot: bool = False) -> None:
        """Kill it and start it again.

        Args:
            down: Seconds without a kubelet.
            listen_delay: Seconds between bind(2) and listen(2).
            reboot: No container runs any more.
        """
        await self.crash()
        if reboot:
            self._manager.node_reboots()
        await anyio.sleep(down)
        await self.start(listen_delay=listen_delay)

    def story(self) -> str:
        """Return what a failed test needs."""
        return f"{self.events.story()}\n{self._manager.story()}"

    # -- what it believes ----------------------------------------------------------------------------------------------

    def devices(self, resource: str) -> dict[str, ListedDevice]:
        """Return the last list of a resource that the device manager has put into its table.

        All devices are Unhealthy if it counts none as allocatable, whatever the list said: that is what it makes of the
        end of a stream.
        """
        if not self.is_running:
            raise ScenarioError("the kubelet is not running: it knows no devices")
        listed = dict(self._lists.get(resource, {}))
        if self._manager.allocatable().get(resource) == 0:
            listed = {name: device._replace(health="Unhealthy") for name, device in listed.items()}
        return listed

    def streams(self, resource: str) -> int:
        """Return how many ListAndWatch streams of this resource are open."""
        return len(self._streaming(resource)) if self.is_running else 0

    def _streaming(self, resource: str) -> list[_Stream]:
        return [stream for stream in self._streams.values() if stream.resource == resource]

    def _streams_of(self, resource: str) -> list[_Stream]:
        found = self._streaming(resource) if self.is_running else []
        if not found:
            raise ScenarioError(f"there is no open stream of {resource}")
        return found

    # -- what is done to it --------------------------------------------------------------------------------------------

    def plugin(self, resource: str) -> PluginConnection:
        """Return the connection to the plugin that opened its stream last."""
        path = self._streams_of(resource)[-1].path
        if path not in self._connections:
            self._connections[path] = _Connection(self._manager, path, self._numbers)
        return self._connections[path]

    def drop_stream(self, resource: str) -> None:
        """Cancel this resource's ListAndWatch."""
        for stream in self._streams_of(resource):
            self._manager.tell("drop", stream=stream.number)

    def pause_reading(self, resource: str) -> None:
        """Do not read this resource's lists any more; one that is being read is still taken."""
        for stream in self._streams_of(resource):
            self._manager.tell("pause", stream=stream.number, paused=True)

    def resume_reading(self, resource: str) -> None:
        """Read on."""
        for stream in self._streams_of(resource):
            self._manager.tell("pause", stream=stream.number, paused=False)

    @asynccontextmanager
    async def checkpoint_noise(self, per_second: float = 100.0) -> AsyncGenerator[None]:
        """Have the checkpoint written so often: by another plugin, which changes its list as often."""
        plugin = Recorder(self.paths.device_plugin_dir, "noise.sock", resource=NOISE, calls=[])
        await plugin.serve()

        async def change() -> None:
            for number in itertools.count():
                plugin.change(Listed(f"noise-{number % 2}"))
                await anyio.sleep(1 / per_second)

        try:
            answer = await plugin.register(self.paths.kubelet_socket)
            if answer != "ok":
                raise ScenarioError(f"the noise could not be made: {answer}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(change)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await plugin.stop()

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Admit a pod, then start its containers."""
        return await self._manager.admit(pod)

    async def delete(self, pod: Pod) -> None:
        """Remove a pod from the node."""
        await self._manager.delete(pod)

    async def readmit(self) -> Mapping[str, AdmittedPod | AdmissionError]:
        """Admit all known pods again."""
        return await self._manager.readmit()

    # -- what it tells -------------------------------------------------------------------------------------------------

    def _hear(self, said: dict[str, Any]) -> None:
        match said["event"]:
            case "listening":
                self._note(events.KubeletStarted(time=said["m"], profile=self.profile.name))
            case "register":
                self._registers(said)
            case "registered":
                asked = self._calls.pop(said["call"])
                assert isinstance(asked, events.RegisterReceived)
                error = None if said["failure"] is None else _status(said["failure"])[1]
                self._note(
                    events.RegisterAnswered(
                        time=said["m"],
                        resource=asked.resource,
                        endpoint=asked.endpoint,
                        error=error,
                        seconds=said["seconds"],
                    )
                )
            case "asked":
                self._treating.add(task := asyncio.ensure_future(self._treat(said)))
                task.add_done_callback(self._treating.discard)
            case "told":
                error = None if said["failure"] is None else _status(said["failure"])[1]
                self._note(events.PodResourcesAsked(time=said["m"], method=said["method"], error=error))
            case "call":
                self._called(said)
            case "answered":
                self._answered(said)
            case "stream":
                stream = _Stream(said["stream"], self._resources.get(said["path"], ""), said["path"])
                self._streams[stream.number] = stream
                self._note(events.StreamOpened(time=said["m"], resource=stream.resource, socket_path=stream.path))
            case "list":
                self._listed(said)
            case "stream_ended":
                stream = self._streams.pop(said["stream"])
                code, detail = _status(said["failure"])
                self._note(
                    events.StreamEnded(
                        time=said["m"], resource=stream.resource, socket_path=stream.path, code=code, detail=detail
                    )
                )
            case _:
                pass

    def _note(self, event: Event) -> None:
        if getattr(event, "resource", None) != NOISE:
            self.events.add(event)

    def _registers(self, said: dict[str, Any]) -> None:
        asked = v1beta1.RegisterRequest.FromString(_bytes(said["request"]))
        event = events.RegisterReceived(
            time=said["m"],
            resource=asked.resource_name,
            endpoint=asked.endpoint,
            version=asked.version,
            pre_start_required=asked.options.pre_start_required,
            preferred_allocation_available=asked.options.get_preferred_allocation_available,
        )
        path = posixpath.normpath(f"{self.paths.device_plugin_dir}/{asked.endpoint}")
        self._resources[path] = asked.resource_name
        self._calls[said["call"]] = event
        self._note(event)
        fault = (
            RegisterFault() if asked.resource_name == NOISE else self.faults.armed.next_register(asked.resource_name)
        )
        self._manager.tell(
            "treat",
            call=said["call"],
            path=path,
            seconds=fault.delay,
            code=0 if fault.code is None else grpc.StatusCode[fault.code].value[0],
            text=fault.text.replace("{socket}", path),
            hang=fault.hang,
            mute=not fault.stream,
        )

    async def _treat(self, said: dict[str, Any]) -> None:
        """Let the faults of the pod-resources API meet a call; what they put into a reply is put into the kubelet's."""
        try:
            await self.faults.armed.meet(said["method"])
        except Refusal as refusal:
            code = grpc.StatusCode[refusal.code].value[0]
            self._manager.tell("treat", call=said["call"], code=code, text=str(refusal))
        else:
            more = self.faults.armed.shape(b"") if said["method"] == "List" else b""
            self._manager.tell("treat", call=said["call"], payload=_text(more))

    def _listed(self, said: dict[str, Any]) -> None:
        stream, payload = self._streams[said["stream"]], _bytes(said["list"])
        devices = decode_devices(payload)
        self._lists[stream.resource] = {device.id: device for device in devices}
        healthy = sum(device.health == "Healthy" for device in devices)
        self._note(
            events.ListReceived(
                time=said["m"],
                resource=stream.resource,
                socket_path=stream.path,
                healthy=healthy,
                unhealthy=len(devices) - healthy,
                size_bytes=len(payload),
                payload=payload,
            )
        )

    def _called(self, said: dict[str, Any]) -> None:
        at, resource, payload = said["m"], self._resources.get(said["path"], ""), _bytes(said["request"])
        match said["method"]:
            case "Allocate":
                ids = _ids(payload)
                self._note(events.AllocateRequested(time=at, resource=resource, device_ids=ids))
            case "PreStartContainer":
                ids = tuple(v1beta1.PreStartContainerRequest.FromString(payload).devices_ids)
                self._note(events.PreStartRequested(time=at, resource=resource, device_ids=ids))
            case _:
                pass

    def _answered(self, said: dict[str, Any]) -> None:
        at, path, resource = said["m"], said["path"], self._resources.get(said["path"], "")
        error = None if said["failure"] is None else _status(said["failure"])[1]
        request, answer = _bytes(said["request"]), _bytes(said.get("answer", ""))
        match said["method"]:
            case "GetDevicePluginOptions" if error is None:
                options = v1beta1.DevicePluginOptions.FromString(answer)
                self._note(
                    events.OptionsReceived(
                        time=at,
                        resource=resource,
                        socket_path=path,
                        pre_start_required=options.pre_start_required,
                        preferred_allocation_available=options.get_preferred_allocation_available,
                    )
                )
            case "Allocate":
                self._note(
                    events.AllocateAnswered(
                        time=at, resource=resource, device_ids=_ids(request), error=error, seconds=said["seconds"]
                    )
                )
            case "GetInfo":
                info = registration.PluginInfo.FromString(answer)
                if error is None:
                    self._resources[info.endpoint or path] = info.name
                self._note(
                    events.PluginInfoReceived(
                        time=at,
                        socket_path=path,
                        plugin_type=info.type,
                        resource=info.name,
                        endpoint=info.endpoint,
                        versions=tuple(info.supported_versions),
                        error=error,
                    )
                )
            case "NotifyRegistrationStatus":
                told = registration.RegistrationStatus.FromString(request)
                self._note(
                    events.PluginNotified(
                        time=at,
                        socket_path=path,
                        registered=told.plugin_registered,
                        error=told.error,
                        failure=error,
                    )
                )
            case _:
                pass


def real(
    root: Path | None,
    *,
    profile: str,
    autostart: bool,
    listener: Callable[[Event], None] | None,
    seen_at: str | None,
) -> AbstractAsyncContextManager[SimulatedKubelet]:
    """Make the kubelet's own device manager of the minor that a profile is the simulation of.

    The checks know a kubelet by what `ObservedKubelet` has of a simulated one, and by nothing else.
    """
    if seen_at is not None:
        raise ScenarioError("a real kubelet is told of the paths that its plugins see")
    [minor] = [minor for minor in MINORS if minor.profile == profile]
    kubelet = ObservedKubelet(minor, root=root, listener=listener, autostart=autostart)
    return cast("AbstractAsyncContextManager[SimulatedKubelet]", kubelet)


def _ids(payload: bytes) -> tuple[str, ...]:
    requests = v1beta1.AllocateRequest.FromString(payload).container_requests
    return tuple(name for request in requests for name in request.devices_ids)


def _status(failure: Mapping[str, Any]) -> tuple[str, str]:
    return _CODES[failure["code"]], failure["text"]


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def _bytes(text: str | None) -> bytes:
    return base64.b64decode(text or "")
