"""`DevicePlugin`: one resource; drives its session and its inventory against the real world.

All decisions are the session's and the inventory's. Here is only the doing: events come through one mailbox, commands
are obeyed one after another, and each change of state is told in one log line.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..concurrency import threads
from ..concurrency.backoff import Backoff
from ..concurrency.observable import Observable
from ..errors import ListTooLargeError, RegistrationError, RegistrationRefusedError
from ..kubelet import KubeletState, KubeletWatch
from ..kubelet.server import ServeError, SocketServer
from ..kubelet.sockets import missing_right, remove_dead
from ..supervision.backend_validation import scrubs
from ..supervision.change_log import ChangeLog
from ..supervision.conditions import CONTESTED, OBSTACLE
from ..supervision.given import owners_of
from ..supervision.publisher import LOOK_PAUSE, blocked_health, without_blocked
from ..supervision.service import DRAIN_SECONDS
from . import rivals, session
from .inventory import Inventory, ListChange
from .refusal_log import RefusalLog
from .registration import SocketNames, dial, register
from .servicer import DevicePluginServicer
from .session import Session, State
from .state_log import StateLog
from .status import ResourceStatus
from .wire import encode_device, worst_case_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import grpc
    from anyio.abc import TaskGroup

    from ..hardware import Host
    from ..model.conditions import Condition
    from ..model.devices import Device
    from ..supervision.health import DeviceHealth
    from ..supervision.supervisor import Supervisor
    from .cdi import ResourceCdi
    from .held import HeldDevices
    from .options import ManagerOptions
    from .status import Cause
    from .tracking.tracker import Tracker

logger = logging.getLogger(__name__)

_NO_LIST: Final = "there is no device list yet"


def _contested(pods: str | None) -> Condition | None:
    """Return the condition of a device that these two pods hold. `None` without them."""
    if pods is None:
        return None
    reason = f"two pods hold it, {pods}: it is offered again when one of them has ended"
    return CONTESTED.because(reason, time.monotonic())


class DevicePlugin:
    """Serves one extended resource to the kubelet.

    Args:
        resource: The extended resource's name.
        options: How plugins are run.
        supervisor: The backend that the devices are of.
        host: The node's files.
        kubelet: Says whether a kubelet is there.
        tracker: Takes what is found out about the devices, and says what pods hold.
        held: Says which devices containers have under other names.

    Attributes:
        supervisor: As given.
        inventory: The device table.
        stopped: Set when `run` has ended.

    Raises:
        InvalidNameError: No socket name fits into the directory.
    """

    def __init__(
        self,
        resource: str,
        options: ManagerOptions,
        *,
        supervisor: Supervisor,
        host: Host,
        kubelet: KubeletWatch,
        tracker: Tracker,
        held: HeldDevices,
    ) -> None:
        self.resource = resource
        self.inventory = Inventory(encode=encode_device, worst_case=worst_case_bytes)
        self.supervisor = supervisor
        self._options = options
        self._names = SocketNames(options.directory, resource)
        self._rivals = rivals.Rivals(resource, options.directory, self._names.has_made)
        self._kubelet = kubelet
        self._host = host
        self._cdi: ResourceCdi | None = None
        self._found: tuple[Device, ...] = ()
        self._doubted = asyncio.Event()
        self._problem_offered: str | None = None
        self._blocked_since = 0.0
        if options.cdi is not None:
            from .cdi import ResourceCdi  # late: few plugins pay for it

            self._cdi = ResourceCdi(resource, options.cdi, host, supervisor.backend.joined_env)
        self._tracker = tracker
        self._held = held
        self._scrubs = scrubs(supervisor.backend, options.release_policy)
        self._session = Session(backoff=Backoff(), watcher=self._options.is_watcher)
        self._mailbox: asyncio.Queue[session.Event] = asyncio.Queue()
        self._changed: Observable[None] = Observable(None)
        self._list_problem: str | None = None
        self._dialed: grpc.aio.Channel | None = None
        self._server: SocketServer | None = None
        self._servicer: DevicePluginServicer | None = None
        self._known: object | None = None
        self._since = time.monotonic()
        self._log = StateLog(resource, options.history)
        self._change_log = ChangeLog(resource, history=options.history)
        self._refusals = RefusalLog(resource, options.history)
        self.stopped = anyio.Event()

    def update(self, devices: Iterable[Device]) -> None:
        """Take the whole truth about this resource's devices. A list that cannot be sent changes nothing."""
        self._found = tuple(devices)
        self._describe(self._found)  # before the kubelet hears of them
        is_first = self.inventory.snapshot is None
        try:
            offered = self._offered(self._found)
            change = self.inventory.update(offered, time.monotonic(), answering=self._held.answering(self.resource))
        except ListTooLargeError as error:
            if str(error) != self._list_problem:
                logger.error("%s: %s", self.resource, error, extra={"resource": self.resource})
            self._list_problem = str(error)
            self._describe()
            return
        self._list_problem = None
        self._announce(change)
        self._report_list()
        if is_first:
            self._mailbox.put_nowait(session.ListReady())

    def _describe(self, coming: Iterable[Device] = ()) -> None:
        snapshot = self.inventory.snapshot
        if self._cdi is not None:
            listed = snapshot.devices.values() if snapshot is not None else ()
            described = {device.id: device for device in (*listed, *coming)}
            today = {device.id: device for device in self._found}
            owners = owners_of(self._found) if described.keys() - today.keys() else {}
            if described or snapshot is not None:
                self._cdi.update(
                    device for device in described.values() if not self._is_other(device, device.id in today, owners)
                )

    def _is_other(self, device: Device, is_there: bool, owners: Mapping[str, Device]) -> bool:
        """Return whether other hardware is behind a device's id, or behind the node of a device that is gone."""
        given = self._tracker.records.given(self.resource, device.id)
        if given is None:
            return False
        if is_there:
            return given.is_other_hardware(device)
        return any(given.heirs([node.host_path for node in device.edits.device_nodes], owners))

    def _offered(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return the devices, Unhealthy where no container could get one: an offer that fails makes dead pods."""
        records = self._tracker.records
        before = self._listed
        if self._scrubs:
            records.presume(self.resource, (device.id for device in devices if device.exists))
            unsaved = records.unsaved(self.resource)
            withheld = records.withheld(self.resource, (device.id for device in devices))
            devices = without_blocked(devices, lambda device: unsaved or withheld.get(device.id), before)
        elif late := records.unreleased(self.resource):
            devices = without_blocked(devices, lambda device: late.get(device.id), before)
        if doubles := self._tracker.double_holders(self.resource):
            devices = without_blocked(devices, lambda device: _contested(doubles.get(device.id)), before)
        if any(device.consumes for device in devices):
            held = records.consumption(self.supervisor.backend)
            if short := self.supervisor.shortages(devices, held):
                devices = without_blocked(devices, lambda device: short.get(device.id), before)
        if self._cdi is None:
            return devices
        if self._cdi.problem != self._problem_offered:
            self._problem_offered, self._blocked_since = self._cdi.problem, time.monotonic()
        return without_blocked(devices, functools.partial(self._obstacle, self._cdi))

    @property
    def _listed(self) -> Mapping[str, Device]:
        return self.inventory.snapshot.devices if self.inventory.snapshot is not None else {}

    def _obstacle(self, cdi: ResourceCdi, device: Device) -> Condition | None:
        why = cdi.obstacle(device)
        return None if why is None else OBSTACLE.because(why, self._blocked_since)

    async def _follow_offers(self, offers: Observable[Any]) -> None:
        """Offer anew what came back, was scrubbed, or was given away, and what shares counters with that."""
        while True:
            version = offers.version
            if self._scrubs:
                await self._tracker.records.look_at_state()
            if self.inventory.snapshot is not None:
                self.update(self._found)
            with anyio.move_on_after(LOOK_PAUSE if self._scrubs else None):
                await offers.after(version)

    async def _look_at_cdi(self, cdi: ResourceCdi) -> None:
        """Look regularly whether the CDI file is as it should be, and at once after a refused Allocate."""
        while True:
            with anyio.move_on_after(LOOK_PAUSE):
                await self._doubted.wait()
            self._doubted.clear()
            with contextlib.suppress(RuntimeError):  # no thread can be started now; the next look tries again
                await threads.run(cdi.look, name="kdp-cdi")
            if cdi.problem != self._problem_offered and self.inventory.snapshot is not None:
                self.update(self._found)

    def reoffer(self) -> None:
        """Offer the devices again, because one of them has got a second holder, or lost one."""
        if self.inventory.snapshot is not None:
            self.update(self._found)

    def withdraw(self) -> None:
        """Stop because the resource is there no more."""
        if self._cdi is not None:
            self._cdi.withdraw()
        self.stop()

    def forget(self, ids: Iterable[str]) -> None:
        """Drop these tombstones now: no pod holds the devices, or they are back under another resource."""
        self._announce(self.inventory.forget(ids))
        self._describe()
        self._report_list()

    def adopt(self, held: Mapping[str, Sequence[int]]) -> None:
        """List as tombstones the devices that pods hold, with their NUMA nodes: they vanished before this process."""
        answering = self._held.answering(self.resource)
        self._announce(self.inventory.adopt(held, time.monotonic(), answering=answering))
        self._report_list()

    def hold(self, ids: Iterable[str]) -> None:
        """Keep these tombstones: pods hold the devices."""
        self.inventory.hold(ids, time.monotonic())

    def _report_list(self) -> None:
        self._tracker.listed(self.resource, self.inventory.snapshot, self.inventory.tombstones)

    def reregister(self, generation: int, reason: str) -> None:
        """Begin a new generation, because the kubelet does not have the list that this one sent."""
        self._mailbox.put_nowait(session.DriftDetected(generation, reason))

    def _announce(self, change: ListChange) -> None:
        unhealthy = self._change_log.changed(change.transitions, change.removed)
        if change.topology_lost_by is not None:
            text = f"device {change.topology_lost_by} has no NUMA node, so the kubelet gets none for the whole resource"
            logger.warning("%s: %s", self.resource, text, extra={"resource": self.resource})
        if unhealthy and self._session.state is State.CONNECTED:
            self._tracker.failed(self.resource, unhealthy)
        if change.on_wire:
            self._changed.set(None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is listed, not even a tombstone."""
        snapshot = self.inventory.snapshot
        return snapshot is not None and not snapshot.devices

    @property
    def status(self) -> ResourceStatus:
        """Where the resource stands now."""
        snapshot = self.inventory.snapshot
        devices = snapshot.devices.values() if snapshot else ()
        blocked: Mapping[str, DeviceHealth] = {}
        if self._cdi is not None and self._cdi.problem is not None:
            blocked = blocked_health(self._found, functools.partial(self._obstacle, self._cdi))
        faults = {**self.supervisor.discovery.value.health, **blocked}
        holders = self._tracker.recent_holders(self.resource)
        obstacle = self._cdi.problem if self._cdi is not None and blocked else None
        cause, reason = self._trouble()
        return ResourceStatus(
            resource=self.resource,
            state=self._session.state.value,
            reason=reason or obstacle,
            devices=len(devices),
            healthy=sum(device.health.is_healthy for device in devices),
            faults={i: health for i, health in faults.items() if snapshot and i in snapshot.devices},
            listed=self._listed,
            obstacle=obstacle,
            cdi=None if self._cdi is None else self._cdi.problem,
            too_large=self._list_problem,
            kubelet=self._tracker.kubelet_problem,
            doubles=self._tracker.double_holders(self.resource),
            rival=self._rivals.problem or self._tracker.strangers(self.resource),
            cause=cause or (None if obstacle is None else "obstacle"),
            view=self._tracker.view(self.resource),
            vanished=len(self.inventory.tombstones),
            since=self._since,
            holders=None if holders is None else {i: ", ".join(map(str, held)) for i, held in holders.items()},
        )

    def _trouble(self) -> tuple[Cause | None, str | None]:
        """Return why the kubelet does not have the resource, in one word and as a sentence."""
        state = self._session.state
        if state is State.CONNECTED:
            return None, None
        if self.inventory.snapshot is None:
            return ("list_too_large", self._list_problem) if self._list_problem else ("backend", _NO_LIST)
        view = self._kubelet.view.value
        if self._options.is_watcher or view.state is KubeletState.LISTENING:
            return "registration", self._session.reason
        if state is not State.WAITING:
            return "kubelet", self._session.reason
        refused = view.state in (KubeletState.DENIED, KubeletState.UNREADABLE)
        remedy = missing_right(errno.EACCES) if refused else ""
        if view.state in (KubeletState.NO_DIRECTORY, KubeletState.NOT_A_DIRECTORY):
            remedy = (
                "; mount the node's directory there, or give another one: --device-plugin-dir DIR; without a kubelet, "
                "'kdp simulate' tries a plugin"
            )
        return "kubelet", f"{view.state.value} ({self._options.paths.kubelet_socket}){remedy}"

    def _log_state(self) -> None:
        state = self._session.state
        if state is State.CONNECTED:
            self._log.connected(self.inventory.snapshot)
        elif state in (State.WAITING, State.LOST) and (reason := self._trouble()[1]) is not None:
            self._log.lost(reason)

    async def run(self) -> None:
        """Serve until `stop`. Cancellation ends it at once, without the grace that `stop` gives."""
        remove_dead(self._options.directory, self._names.has_made)
        self._rivals.look()
        self._known = self._kubelet.view.value.identity
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._follow_kubelet)
                if self._cdi is not None:
                    tasks.start_soon(self._look_at_cdi, self._cdi)
                if self._scrubs or self.supervisor.hooks.overridden("counters"):
                    tasks.start_soon(self._follow_offers, self._tracker.records.offers)
                elif self.supervisor.hooks.overridden("released"):
                    tasks.start_soon(self._follow_offers, self._tracker.records.late)
                while self._session.state is not State.STOPPED:
                    event, before = await self._next_event(), self._session.state
                    commands = self._session.handle(event, time.monotonic())
                    self._options.counts.handled(self.resource, event, commands, before, self._session.state)
                    for command in commands:
                        await self._obey(command, tasks)
                    await self._prepare()
                    is_connected = self._session.state is State.CONNECTED
                    if is_connected is not (before is State.CONNECTED):
                        self._since = time.monotonic()
                    self._tracker.connected(self.resource, self._session.generation if is_connected else None)
                    self._log_state()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._close(0.0)
            self._change_log.end()
            self._refusals.end()
            self.stopped.set()

    def stop(self) -> None:
        """Ask for the orderly stop: calls in flight get `DRAIN_SECONDS`, streams end, then `run` returns."""
        self._mailbox.put_nowait(session.Stop())

    def _refused(self, ids: Sequence[str], reason: str, is_failure: bool) -> None:
        """Take that an Allocate was refused: the CDI file may be the reason."""
        self._doubted.set()
        self._refusals.refused(ids, reason, is_failure=is_failure)

    async def _next_event(self) -> session.Event:
        deadline = self._session.deadline
        if deadline is None:
            return await self._mailbox.get()
        with anyio.move_on_after(max(0.0, deadline - time.monotonic())):
            return await self._mailbox.get()
        return session.Tick()

    async def _obey(self, command: session.Command, tasks: TaskGroup) -> None:
        match command:
            case session.Serve(generation):
                await self._serve(generation)
            case session.Register(generation) if self._options.is_watcher:
                self._publish(generation)
            case session.Register(generation):
                tasks.start_soon(self._register, generation)
            case session.Close(generation):
                await self._close(DRAIN_SECONDS if self._session.state is State.STOPPED else 0.0)
                self._mailbox.put_nowait(session.Closed(generation))
                self._kubelet.look()

    async def _serve(self, generation: int) -> None:
        if not self._options.is_watcher:
            self._dialed = dial(self._options.paths)  # gRPC connects in threads of its own while the server is made
        self._describe()  # /var/run/cdi is empty after a reboot, and others may have cleaned it
        try:
            server = await self._have_server(generation)
            if not self._options.is_watcher:
                server.publish()
        except ServeError as error:
            self._mailbox.put_nowait(session.ServeFailed(generation, str(error)))
        else:
            self._mailbox.put_nowait(session.Served(generation))

    async def _prepare(self) -> None:
        """Make the next server while a new kubelet's socket does not listen yet: its wipe is over by then."""
        view = self._kubelet.view.value
        comes = view.state is KubeletState.DEAD and view.identity != self._known  # else it has ended and left its file
        if comes and self._session.state is State.WAITING and self.inventory.snapshot is not None:
            with contextlib.suppress(ServeError):  # said when it matters
                await self._have_server(self._session.generation + 1)

    async def _have_server(self, generation: int) -> SocketServer:
        """Return this generation's server, which listens under its hidden name; it may have been made before."""
        if self._server is not None:
            if self._server.is_in_place:
                return self._server
            await self._server.stop()  # it was wiped after all, before anybody has found it
        self._servicer = DevicePluginServicer(
            self.resource,
            generation,
            self._options,
            supervisor=self.supervisor,
            inventory=self.inventory,
            changed=self._changed,
            host=self._host,
            records=self._tracker.records,
            held=self._held,
            guard=self._tracker.guard,
            other_holder=self._tracker.other_holder,
            post=self._mailbox.put_nowait,
            refused=self._refused,
            cdi=self._cdi,
            scrubs=self._scrubs,
        )
        self._server = SocketServer(self._names.path(generation), self._servicer.handlers())
        await self._server.start()
        return self._server

    def _publish(self, generation: int) -> None:
        """Let the plugin watcher find the socket; its calls are the answer."""
        assert self._server is not None
        try:
            self._server.publish()
        except ServeError as error:
            self._mailbox.put_nowait(session.RegisterFailed(generation, str(error)))

    async def _register(self, generation: int) -> None:
        dialed, self._dialed = self._dialed, None
        assert dialed is not None
        assert self._server is not None
        assert self._servicer is not None
        try:
            await register(dialed, self._options.paths, self._server, self.resource, self._servicer.options)
        except RegistrationError as error:
            permanent = isinstance(error, RegistrationRefusedError)
            self._mailbox.put_nowait(session.RegisterFailed(generation, str(error), permanent=permanent))
        else:
            self._mailbox.put_nowait(session.Registered(generation))

    async def _close(self, drain: float) -> None:
        """End the current server: no new connection, then the calls in flight, then the streams.

        The plugin watcher closes the connection when the socket's file goes, so on its route the file goes last.
        """
        dialed, server, servicer = self._dialed, self._server, self._servicer
        self._dialed = self._server = self._servicer = None
        if dialed is not None:  # it came to no Register
            await dialed.close()
        if server is None or servicer is None:
            return
        if not self._options.is_watcher:
            server.unlink()
        try:
            await servicer.settle(drain)
        finally:  # a cancellation does not wait for the calls, but for the server
            servicer.end_streams()
            await server.stop()

    async def _follow_kubelet(self) -> None:
        version = -1
        while True:
            with anyio.move_on_after(rivals.LOOK_PAUSE if self._rivals.problem else float("inf")):
                await self._kubelet.view.after(version)
            self._rivals.look()
            if self._kubelet.view.version == version:
                continue
            view, version = self._kubelet.view.value, self._kubelet.view.version
            listening = view.state is KubeletState.LISTENING
            if listening:
                self._known = view.identity
            self._mailbox.put_nowait(session.KubeletHere(view.identity) if listening else session.KubeletGone())
            if self._server is None or self._server.is_in_place:
                continue
            if self._session.state is State.CONNECTED:
                self._log.warn("the plugin's socket file was removed; its stream lives, so it is kept until that ends")
            elif self._session.state in (State.REGISTERING, State.AWAITING_STREAM):
                reason = "the plugin's socket was removed while it was being registered"
                self._mailbox.put_nowait(session.RegisterFailed(self._session.generation, reason))
