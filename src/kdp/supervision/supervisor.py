"""`Supervisor`: keeps one backend open, discovers, listens to its events, and says what devices there are.

It knows hooks, health and time, and no protocol: the device-plugin side and the DRA side both read its ``discovery``.

::

    open ──► discover at the start, every poll_interval, on rescan, when a device node comes or goes
      ▲        │ watch runs beside it from the first discovery on
      │        ▼
    pause ◄── close ◄── NotReady from any hook

What is published is always the whole truth: all devices with all conditions of their health applied. A discovery that
fails or hangs keeps the last known devices; after ``stale_after`` they are Unhealthy with the reason, and never vanish.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import anyio
import attrs

from ..concurrency.backoff import Backoff
from ..concurrency.observable import Latest
from ..errors import HookError, HookTimeoutError, InvalidValueError, NotReady, lasting, sentence
from ..model.backend import is_overridden
from ..model.devices import Device
from ..model.health_policy import policy_of
from ..model.names import check_resource_name
from .backend_validation import check_attributes
from .device_nodes import DeviceNodes
from .health import DeviceHealth, HealthChange, HealthMonitor, HealthState
from .hooks import Hooks
from .lifecycle import Opening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import EllipsisType

    from ..allocation import Topology
    from ..allocation.preferences import Preferences
    from ..hardware import Host
    from ..model.backend import DeviceBackend

__all__ = [
    "Deadlines",
    "Discovery",
    "Supervisor",
    "pause_after",
    "resource_of",
    "static_resources",
]

logger = logging.getLogger(__name__)

_NOT_YET = "it has not discovered anything yet"

RESCAN_GAP = 0.05
"""Seconds between the starts of two discoveries that events asked for."""

WATCH_SECONDS = 10.0
"""Seconds after which a ``watch`` is complained about that was told to stop at the last close and has not."""

RETRY_AFTER = 5.0
"""Seconds after which a failed discovery is repeated, unless ``poll_interval`` is shorter."""


@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds that hooks get; tests shorten them."""

    discover: float = 30.0
    open: float = 60.0
    close: float = 60.0
    allocate: float = 20.0
    prefer: float = 0.05
    links: float = 30.0
    prepare_container: float = 25.0
    released: float = 60.0


@attrs.frozen(kw_only=True)
class _Findings:
    """What one ``discover`` brought: devices, node faults by device id, and the statically named resources."""

    devices: tuple[Device, ...]
    faults: Mapping[str, str]
    resources: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Discovery:
    """What is known of a backend.

    Attributes:
        devices: All its devices, health judged; None: nothing is known yet, so nothing may be registered.
        problem: Why the backend is not ready; None: it is open and has discovered.
        resources: Resources that exist also without a device.
        health: How those of the devices are that are not simply healthy, by id; since when on `time.monotonic`'s clock.
        unknown: Why nobody knows how the devices are, although the backend is open; None: somebody does.
    """

    devices: tuple[Device, ...] | None
    problem: str | None
    resources: tuple[str, ...] = ()
    health: Mapping[str, DeviceHealth] = attrs.field(factory=dict[str, DeviceHealth])
    unknown: str | None = None


def resource_of(device: Device, backend: DeviceBackend) -> str:
    """Return the resource that a device belongs to.

    Raises:
        InvalidValueError: Neither the device nor its backend names one.
    """
    resource = device.resource or backend.resource
    if resource is None:
        raise InvalidValueError(
            f"device {device.id!r} names no resource and {type(backend).__name__}.resource is None: set one of them"
        )
    return resource


def static_resources(backend: DeviceBackend) -> tuple[str, ...]:
    """Return the resources that a backend names itself, devices or not; each name is checked.

    Raises:
        InvalidNameError: The kubelet would not accept a name.
    """
    names = (*((backend.resource,) if backend.resource is not None else ()), *backend.resources)
    return tuple(dict.fromkeys(check_resource_name(name) for name in names))


def pause_after(took: float, *, interval: float) -> float:
    """Return for how long to rest after a discovery, so that the next begins an interval after this one began.

    What hardware says just after it was looked at is then known an interval and one discovery later, and not two. One that
    takes longer than half of the interval is followed by a rest of that half: a slow library is not asked without end.

    Args:
        took: Seconds that it took.
        interval: Seconds between the beginnings of two.
    """
    return max(interval - took, interval / 2)


def _preferences(backend: DeviceBackend, policy: str | None, counts: Counter[str]) -> Preferences | None:
    asked = policy or backend.policy or getattr(backend, "placement", None)
    if not asked and not is_overridden(backend, "links"):
        return None
    from ..allocation.preferences import Preferences, policy_in_force  # whoever has no policy does not pay for it

    chosen = policy_in_force(backend, policy)
    return None if chosen is None else Preferences(chosen, counts)


@final
class _Reporter:
    """The `kdp.Reporter` of one opening; after it calls change nothing."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        self._stopping = threading.Event()

    @property
    def stopping(self) -> threading.Event:
        return self._stopping

    def rescan(self) -> None:
        self._send(self._supervisor.rescan)

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        ids = _names(ids_or_unit)
        if not reason:
            raise InvalidValueError("fault(..., ''): the reason must say what is wrong; valid is 'XID 79'")
        self._send(lambda: self._supervisor.fault(ids, reason, kind=kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        ids = _names(ids_or_unit)
        self._send(lambda: self._supervisor.clear(ids, kind=kind))

    def _send(self, call: Callable[[], None]) -> None:
        if not self._stopping.is_set():
            try:
                self._loop.call_soon_threadsafe(call)
            except RuntimeError:  # the loop is closed: a thread that outlived the plugin
                return


def _names(ids_or_unit: str | Iterable[str]) -> tuple[str, ...]:
    return (ids_or_unit,) if isinstance(ids_or_unit, str) else tuple(ids_or_unit)


class Supervisor:
    """Supervises one backend. Run `run` in a task group; read ``discovery``.

    Args:
        backend: The vendor's object.
        host: The node's files; None: the devices are no node's, so that nobody looks for their device nodes.
        poll_interval: Overrides the backend's; ``...``: does not.
        check: Further checks of a discovery and its static resources, as those of a protocol; raises
            `InvalidValueError`. Called in the thread of ``discover``.
        deadlines: See `Deadlines`.
        health_policy: Thresholds that differ from those of the backend's ``health_policy``.
        observe: Called on the loop for each change of a device's state; must not block. What it raises is logged.
        policy: Overrides the backend's; ``none``: no policy; None: as the backend says.

    Attributes:
        discovery: The newest `Discovery`.
        preferences: Which devices to prefer; None: there is no policy.
        preferred: Counts the answers: see `kdp.allocation.preferences.Preferences`, and ``empty`` for those that are
            left to the kubelet because something went wrong.
        deadlines: As given.
        hooks: How the backend's hooks are called.

    Raises:
        ConfigurationError: An attribute of the backend is wrong, or thresholds contradict each other.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        *,
        host: Host | None,
        poll_interval: float | EllipsisType | None = ...,
        check: Callable[[Sequence[Device], Sequence[str]], None] | None = None,
        deadlines: Deadlines | None = None,
        health_policy: Mapping[str, float | None] | None = None,
        observe: Callable[[HealthChange], object] | None = None,
        policy: str | None = None,
    ) -> None:
        check_attributes(backend)
        self.backend = backend
        self.deadlines = deadlines or Deadlines()
        self.hooks = Hooks(backend)
        self.label = self.hooks.label
        self._opening = Opening(self.hooks, open_seconds=self.deadlines.open, close_seconds=self.deadlines.close)
        self.preferred: Counter[str] = Counter()
        self.preferences = _preferences(backend, policy, self.preferred)
        self.discovery = Latest(Discovery(devices=None, problem=_NOT_YET))
        self._poll_interval = backend.poll_interval if poll_interval is ... else poll_interval
        self._check = check
        self._policy = policy_of(backend, health_policy or {})
        self._monitor = HealthMonitor(self._policy)
        self._observe = observe
        self._hold_timer: asyncio.TimerHandle | None = None
        self._found: _Findings | None = None
        self._stale: str | None = None
        self._stale_timer: asyncio.TimerHandle | None = None
        self._failing: str | None = None
        self._wake = anyio.Event()
        self._nodes = DeviceNodes(host)
        self._not_ready: str | None = _NOT_YET
        self._opened_scope: anyio.CancelScope | None = None
        self._backoff = Backoff()

    # -- what others ask for -------------------------------------------------------------------------------------------

    def rescan(self) -> None:
        """Discover soon. Any number of requests while one discovery runs lead to one more."""
        self._wake.set()

    def fault(self, ids: Iterable[str], reason: str, *, kind: str) -> None:
        """Set a condition; see `kdp.Reporter.fault`."""
        self._publish(self._monitor.fault(ids, reason, kind=kind, now=time.monotonic()))

    def clear(self, ids: Iterable[str], *, kind: str) -> None:
        """Take a condition back; see `kdp.Reporter.clear`."""
        self._publish(self._monitor.clear(ids, kind=kind, now=time.monotonic()))

    async def call(self, hook: str, *args: Any, deadline: float, then: Callable[[Any], Any] | None = None) -> Any:
        """Call a hook for a protocol; as `Hooks.call`, and `NotReady` also closes the backend and opens it again.

        Until it has discovered again no hook is called: it may be closed.
        """
        if self._not_ready is not None:
            raise NotReady(f"{self.label} is not ready: {self._not_ready}")
        try:
            return await self.hooks.call(hook, *args, deadline=deadline, then=then)
        except NotReady as error:
            self._drop(sentence(error))
            raise

    # -- the life of the backend ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Supervise until cancelled; then call `shutdown`."""
        async with self._nodes:
            while True:
                self._wake = anyio.Event()
                try:
                    await self._opening.open()
                except (NotReady, HookError) as error:
                    self._drop(sentence(error))
                else:
                    await self._while_open()
                    await self._opening.close()
                with anyio.move_on_after(self._backoff.next()):
                    await self._wake.wait()  # SIGHUP, or a device node that came: no need to wait

    async def once(self) -> dict[str, tuple[Device, ...]]:
        """Open and discover once, and return the judged devices by resource; `shutdown` must follow.

        Raises:
            KdpError: The backend is not ready, or a hook misbehaved.
        """
        await self._opening.open()
        found: _Findings = await self.hooks.call("discover", deadline=self.deadlines.discover, then=self._examine)
        resources: dict[str, tuple[Device, ...]] = dict.fromkeys(found.resources, ())
        self._monitor.probed(found.devices, found.faults, time.monotonic())
        for device in self._monitor.devices:
            name = resource_of(device, self.backend)
            resources[name] = (*resources.get(name, ()), device)
        return resources

    async def shutdown(self, seconds: float) -> None:
        """Close the backend if it is open, within so many seconds, and let its threads end."""
        await self._opening.end(seconds)
        for timer in (self._stale_timer, self._hold_timer):
            if timer is not None:
                timer.cancel()

    async def _while_open(self) -> None:
        """Discover and watch until a hook says `NotReady`."""
        reporter = _Reporter(self)
        discovered = anyio.Event()
        try:
            with anyio.CancelScope() as self._opened_scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._discover_forever, discovered)
                    tasks.start_soon(self._follow_nodes)
                    if self.preferences is not None and self.hooks.overridden("links"):
                        tasks.start_soon(self._follow_units, self.preferences)
                    if self.hooks.overridden("watch"):
                        await discovered.wait()
                        tasks.start_soon(self._watch_forever, reporter)
        finally:
            self._opened_scope = None
            reporter.stopping.set()

    def _drop(self, reason: str) -> None:
        """Note that the backend is not ready: its devices are Unhealthy until it is again."""
        if reason != self._not_ready:
            logger.warning("%s is not ready: %s", self.label, reason, extra={"backend": self.label})
        self._not_ready = reason
        self._recover()
        self._publish(self._silence())
        if self._opened_scope is not None:
            self._opened_scope.cancel()

    # -- discovery -----------------------------------------------------------------------------------------------------

    async def _discover_forever(self, discovered: anyio.Event) -> None:
        while True:
            self._wake = anyio.Event()
            started = time.monotonic()
            try:
                found = await self.hooks.call("discover", deadline=self.deadlines.discover, then=self._examine)
            except NotReady as error:
                self._drop(sentence(error))
                return
            except HookError as error:
                self._fail(sentence(error))
                pause: float | None = min(RETRY_AFTER, self._poll_interval or RETRY_AFTER)
            else:
                self._take(found)
                pause = self._poll_interval
                if self._monitor.wants_probe:
                    pause = min(self._policy.recheck, pause or self._policy.recheck)
                pause = pause and pause_after(time.monotonic() - started, interval=pause)
                if pause and not discovered.is_set():
                    # The backends of a process open at the same moment; in step ever after they would wait for one another.
                    pause *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
                discovered.set()
            with anyio.move_on_after(pause if pause is not None else float("inf")):
                await self._wake.wait()
            await anyio.sleep(max(0.0, started + RESCAN_GAP - time.monotonic()))

    def _examine(self, found: Any) -> _Findings:
        """Check what ``discover`` returned and look at the device nodes. Runs in the hook's thread."""
        try:
            iterator = iter(found)
        except TypeError:
            raise InvalidValueError(f"it returned {lasting(repr(found))}: must be an iterable of kdp.Device") from None
        devices = tuple(iterator)
        seen: set[str] = set()
        for device in devices:
            if not isinstance(device, Device):
                raise InvalidValueError(
                    f"it returned {lasting(repr(device))}: must be a kdp.Device, this is a {type(device).__name__}"
                )
            if device.id in seen:
                raise InvalidValueError(f"it returned device id {device.id!r} twice: ids must be unique in the process")
            seen.add(device.id)
            resource_of(device, self.backend)
        resources = static_resources(self.backend)
        if self._check is not None:
            self._check(devices, resources)
        return _Findings(devices=devices, faults=self._nodes.faults(devices), resources=resources)

    def _take(self, found: _Findings) -> None:
        if self._failing is not None:
            logger.info("%s: discovery works again", self.label, extra={"backend": self.label})
        if self._found is None:
            logger.info("%s: devices discovered: %d", self.label, len(found.devices), extra={"backend": self.label})
        self._recover()
        self._not_ready = None
        self._backoff.reset()
        if self._nodes.follow(found.devices):  # nobody told what happened to them since they were looked at
            found = attrs.evolve(found, faults=self._nodes.faults(found.devices))
        self._found = found
        self._publish(self._monitor.probed(found.devices, found.faults, time.monotonic()))

    def _recover(self) -> None:
        self._failing = self._stale = None
        if self._stale_timer is not None:
            self._stale_timer.cancel()
            self._stale_timer = None

    def _fail(self, reason: str) -> None:
        if reason != self._failing:
            logger.error("%s: %s", self.label, reason, extra={"backend": self.label})
        self._failing = reason
        if self._not_ready is not None:
            self._not_ready = reason
        if self._stale_timer is None:  # the reason why they became stale stays theirs: a new one is no news
            self._stale_timer = asyncio.get_running_loop().call_later(self.backend.stale_after, self._mark_stale)
        self._publish(self._silence())

    def _mark_stale(self) -> None:
        self._stale = f"unknown since {self.backend.stale_after:g} s: {self._failing}"
        self._publish(self._silence())

    # -- health --------------------------------------------------------------------------------------------------------

    def _silence(self) -> tuple[HealthChange, ...]:
        """Mark all devices Unhealthy if nobody has known for too long how they are."""
        reason = self._not_ready or self._stale
        return self._monitor.silence(reason, time.monotonic()) if reason else ()

    def _end_hold(self) -> None:
        self._publish(self._monitor.tick(time.monotonic()))

    def _publish(self, transitions: Iterable[HealthChange]) -> None:
        """Say what devices there are now, and tell the observer what has just changed of them."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        deadline = self._monitor.deadline
        if deadline is not None:
            wait = max(0.0, deadline - time.monotonic())
            self._hold_timer = asyncio.get_running_loop().call_later(wait, self._end_hold)
        found = self._found
        self.discovery.set(
            Discovery(devices=None, problem=self._not_ready)
            if found is None
            else Discovery(
                devices=self._monitor.devices,
                problem=self._not_ready,
                resources=found.resources,
                health=self._monitor.health,
                unknown=self._stale,
            )
        )
        for transition in transitions:
            self._tell(transition)

    def _tell(self, transition: HealthChange) -> None:
        device, states = transition.device, (transition.before, transition.health.state)
        if set(states) == {HealthState.HEALTHY, HealthState.SUSPECT}:
            # The other changes are seen in the list, and told by whoever makes it.
            text = (
                f"{transition.health.state.value} ({transition.health.reason})" if transition.health.reason else "well"
            )
            resource = resource_of(device, self.backend)
            extra = {"resource": resource, "device_id": device.id}
            logger.info("%s: device %s is %s, listed Healthy as before", resource, device.id, text, extra=extra)
        if self._observe is not None:
            try:
                self._observe(transition)
            except Exception:
                logger.exception("%s: the observer of health failed; going on", self.label)

    # -- events --------------------------------------------------------------------------------------------------------

    async def _watch_forever(self, reporter: _Reporter) -> None:
        backoff = Backoff()
        try:
            await self.hooks.idle("watch", deadline=WATCH_SECONDS)
        except HookTimeoutError as error:
            logger.warning(
                "%s: %s, so that only polling sees changes: look at report.stopping", self.label, sentence(error)
            )
        while True:
            try:
                await self.hooks.call("watch", reporter, deadline=None)
            except NotReady as error:
                self._drop(sentence(error))
                return
            except HookError as error:
                logger.warning("%s: %s; calling it again", self.label, sentence(error))
                await anyio.sleep(backoff.next())
            else:
                return

    async def _follow_units(self, preferences: Preferences) -> None:
        """Ask how the units are linked whenever there are others than before."""
        asked: frozenset[str] | None = None
        told = ""
        version = -1
        while True:
            await self.discovery.after(version)
            version = self.discovery.version
            devices = self._found.devices if self._found else ()
            units = frozenset(device.unit for device in devices)
            while devices and units != asked:
                try:
                    preferences.topology = await self.links(devices)
                except NotReady as error:
                    self._drop(sentence(error))
                    return
                except HookError as error:
                    if sentence(error) != told:
                        told = sentence(error)
                        logger.warning("%s: %s; the links of before stay in force", self.label, told)
                    await anyio.sleep(RETRY_AFTER)
                    devices = self._found.devices if self._found else ()
                    units = frozenset(device.unit for device in devices)
                else:
                    asked, told = units, ""

    async def links(self, devices: tuple[Device, ...]) -> Topology:
        """Ask the backend how the units of these devices are linked.

        Raises:
            NotReady: The hook said so.
            HookError: It misbehaved, or what it returned is wrong.
        """
        from ..allocation import Topology

        def examine(links: Any) -> Topology:
            if not isinstance(links, Mapping):
                raise InvalidValueError(f"it returned {links!r}: must map pairs of units to weights")
            return Topology((device.unit for device in devices), links)  # pyright: ignore[reportUnknownArgumentType]

        topology: Topology = await self.hooks.call("links", devices, deadline=self.deadlines.links, then=examine)
        return topology

    async def _follow_nodes(self) -> None:
        while True:
            await self._nodes.changed()
            faults = self._nodes.faults(self._found.devices if self._found else ())
            self._publish(self._monitor.nodes(faults, time.monotonic()))
            self.rescan()
