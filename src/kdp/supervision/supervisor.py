"""`Supervisor`: keeps one backend open, discovers, listens to its events, and says what devices there are.

It knows hooks, health and time, and no protocol: the device-plugin side and the DRA side both read its ``discovery``.

::

    open ──► discover at the start, every poll_interval, on rescan, when a device node comes or goes
      ▲        │ watch runs beside it from the first discovery on
      │        ▼
    pause ◄── close ◄── NotReady from any hook

What is learned of the devices goes to a `DiscoveryPublisher`.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ..concurrency.backoff import Backoff
from ..errors import (
    ConfigurationError,
    HookError,
    HookTimeoutError,
    InvalidValueError,
    KdpError,
    NoHardware,
    NotReady,
    sentence,
)
from ..model.backend import WrappedBackend, is_overridden, tell_holdings, watched_files_of
from ..model.health_policy import policy_of
from ..model.spelling import slip_of, slips_in
from ..startup import shown
from .backend_store import give_store, save_store, settle_store
from .backend_validation import (
    Findings,
    check_attributes,
    check_signatures,
    checked_devices,
    clashing_variable,
    resource_of,
    static_resources,
)
from .device_nodes import DeviceNodes
from .hooks import Hooks
from .lifecycle import BackendLifecycle
from .publisher import DiscoveryPublisher
from .reporter import EventReporter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from types import EllipsisType

    from ..allocation.policies import Preferences
    from ..hardware import Host
    from ..model.backend import DeviceBackend
    from ..model.conditions import Condition
    from ..model.devices import Device, Health
    from ..model.quantities import Amount, Consumption
    from .conditions import Conditions
    from .health import HealthChange
    from .labelling import Labelling
    from .measuring import Measuring
    from .shared_state import SharedState

logger = logging.getLogger(__name__)

RESCAN_GAP = 0.05
"""Seconds between the starts of two discoveries that events asked for."""

WATCH_SECONDS = 10.0
"""Seconds after which a ``watch`` is complained about that was told to stop at the last close and has not."""

STABLE = 5.0
"""Seconds for which a backend must stay open so that the pauses between openings are short again."""

RETRY_AFTER = 5.0
"""Seconds after which a failed discovery is repeated, unless ``poll_interval`` is shorter."""

SAVE_LEAST = 0.1
"""Seconds for the unsaved values of the backend's store, also if the hooks have used up the time of the stop."""


@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds that hooks get; tests shorten them."""

    __repr__ = shown

    discover: float = 30.0
    open: float = 60.0
    close: float = 60.0
    allocate: float = 20.0
    prefer: float = 0.05
    links: float = 30.0
    counters: float = 30.0
    prepare_container: float = 25.0
    released: float = 60.0
    measure: float = 5.0
    labels: float = 5.0


def pause_after(took: float, *, interval: float) -> float:
    """Return for how long to rest after a discovery, so that the next begins an interval after this one began.

    What hardware says just after it was looked at is then known an interval and one discovery later, and not two. One
    that takes longer than half of the interval is followed by a rest of that half: a slow library is not asked without
    end.
    """
    return max(interval - took, interval / 2)


def _preferences(backend: DeviceBackend, policy: str | None) -> Preferences | None:
    asked = policy or backend.policy or getattr(backend, "placement", None)
    if not asked and not is_overridden(backend, "links"):
        return None
    from ..allocation.policies import Preferences, policy_in_force  # late: few backends have a policy

    chosen = policy_in_force(backend, policy)
    return None if chosen is None else Preferences(chosen)


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
        state: What an earlier supervisor of the same object left.
        polls_links: Whether ``links`` is called when the units change. Without it, ``preferences`` knows no links.
        measures: Whether ``measure`` is called.
        wants_labels: Whether ``labels`` is called.
        wants_counters: Whether ``counters`` is called after each discovery whose devices consume any.

    Attributes:
        discovery: The newest `Discovery`.
        counters: What the devices of the last discovery share, by counter set and counter; empty: nobody wants to know.
        device_of: Returns the id that the backend uses for a device: without the number of a replica.
        preferences: Which devices to prefer; None: there is no policy.
        deadlines: As given.
        poll_interval: Seconds between discoveries; None: the backend is not polled. A backend's own may change.
        hooks: How the backend's hooks are called.
        measuring: What it measures; None: nothing, or nobody wants to know.
        labelling: What labels it wants for the node; None: nobody wants to know.
        outdated: Returns the conditions that the allocations of pods or claims cause, by device id. It must not block.

    Raises:
        ConfigurationError: An attribute of the backend or a hook's signature is wrong, or thresholds contradict each
            other.
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
        state: SharedState | None = None,
        polls_links: bool = True,
        measures: bool = False,
        wants_labels: bool = False,
        wants_counters: bool = False,
    ) -> None:
        check_attributes(backend)
        check_signatures(backend)
        give_store(backend, None)
        tell_holdings(backend, dict[str, tuple[str, ...]])
        self.backend = backend
        self._resource = backend.resource
        self.deadlines = deadlines or Deadlines()
        self.hooks = Hooks(backend, state)
        self.label = self.hooks.label
        self._lifecycle = BackendLifecycle(
            self.hooks, open_seconds=self.deadlines.open, close_seconds=self.deadlines.close
        )
        self.preferences = _preferences(backend, policy)
        self._polls_links = polls_links and self.hooks.overridden("links")
        self.measuring: Measuring | None = None
        if measures and self.hooks.overridden("measure"):
            from .measuring import Measuring  # late: few plugins pay for it

            self.measuring = Measuring(self.label, backend.measurements)
        self.labelling: Labelling | None = None
        if wants_labels:
            from .labelling import Labelling  # late: few plugins pay for it

            self.labelling = Labelling(self.label)
        self._wants_counters = wants_counters
        self.counters: Mapping[str, Mapping[str, Amount]] = {}
        self.device_of: Callable[[str], str] = backend.device_of if isinstance(backend, WrappedBackend) else str
        self._is_own_interval = poll_interval is ...
        self.poll_interval = backend.poll_interval if poll_interval is ... else poll_interval
        self._check = check
        self.outdated: Callable[[Sequence[Device]], Conditions] = lambda _: {}
        self._policy = policy_of(backend, health_policy or {})
        self._publisher = DiscoveryPublisher(backend, self._policy, observe, self.hooks.state.counts)
        self.discovery = self._publisher.discovery
        self.hooks.waiting = self._publisher.wait
        for slip in slips_in(backend):
            logger.warning("%s", slip)
        self._wake = anyio.Event()
        self._nodes = DeviceNodes(host)
        self._node_faults: Conditions = {}
        self._opened_scope: anyio.CancelScope | None = None
        self._backoff = Backoff()
        self._compared: set[str] = set()
        self._left_out: Mapping[str, Health] = {}
        self._shared_nodes: tuple[tuple[Device, ...], frozenset[str]] = (), frozenset()

    # -- what others ask for -------------------------------------------------------------------------------------------

    @property
    def discovered_at(self) -> float | None:
        """When a discovery succeeded last, on `time.monotonic`'s clock; None: none has."""
        return self._publisher.taken_at

    def rescan(self) -> None:
        """Discover soon. Any number of requests while one discovery runs lead to one more."""
        self._wake.set()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the last discovery that succeeded, as the backend made them."""
        return self._publisher.devices

    @property
    def node_things(self) -> Mapping[str, tuple[str, ...]]:
        """What a container can touch by the devices' nodes; see `kdp.hardware.Host.things_of_node`."""
        return self._nodes.things

    @property
    def shared_nodes(self) -> frozenset[str]:
        """Paths of the device nodes that several devices of the last discovery have."""
        devices = self._publisher.devices
        if self._shared_nodes[0] is not devices:  # made once for a discovery, and only if somebody asks
            counts = Counter(node.host_path for device in devices for node in device.edits.device_nodes)
            self._shared_nodes = devices, frozenset(path for path, count in counts.items() if count > 1)
        return self._shared_nodes[1]

    def judge_again(self) -> None:
        """Judge the devices of the last discovery anew, because what pods were given of them has changed."""
        self._publisher.take_conditions(self._judged(self._publisher.devices, self._node_faults))

    def shortages(self, devices: Iterable[Device], held: Mapping[str, Consumption]) -> dict[str, Condition]:
        """Return why devices cannot be given beside the allocated ones, by id; see `kdp.supervision.counters`."""
        from .counters import shortages  # late: few plugins pay for it

        return shortages(devices, held=held, counters=self.counters, device_of=self.device_of)

    async def call(
        self,
        hook: str,
        *args: Any,
        deadline: float,
        then: Callable[[Any], Any] | None = None,
        work: str | None = None,
        owner: str | None = None,
    ) -> Any:
        """Call a hook for a protocol; as `Hooks.call`, and `NotReady` also closes the backend and opens it again.

        Until it has discovered again no hook is called: it may be closed.
        """
        if self._publisher.not_ready is not None:
            raise NotReady(f"{self.label} is not ready: {self._publisher.not_ready}")
        try:
            return await self.hooks.call(hook, *args, deadline=deadline, then=then, work=work, owner=owner)
        except NotReady as error:
            self._drop(error)
            raise

    # -- the life of the backend ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Supervise until cancelled; then call `shutdown`."""
        async with self._nodes.watch:
            while True:
                self._wake = anyio.Event()
                try:
                    await self._lifecycle.open()
                except (NotReady, HookError) as error:
                    self._drop(error)
                else:
                    opened = time.monotonic()
                    await self._while_open()
                    await self._lifecycle.close()
                    if time.monotonic() - opened > STABLE:
                        self._backoff.reset()
                with anyio.move_on_after(self._backoff.next()):
                    await self._wake.wait()  # SIGHUP, or a device node that came: no need to wait

    async def once(self) -> dict[str, tuple[Device, ...]]:
        """Open and discover once, and return the judged devices by resource; `shutdown` must follow.

        Raises:
            KdpError: The backend is not ready, or a hook misbehaved.
        """
        await self._lifecycle.open()
        found = await self._discover()
        resources: dict[str, list[Device]] = {name: [] for name in found.resources}
        judged = attrs.evolve(found, conditions=self._judged(found.devices, found.conditions))
        for device in self._publisher.judge(judged):
            resources.setdefault(resource_of(device, self.backend), []).append(device)
        return {name: tuple(devices) for name, devices in resources.items()}

    def resource_of(self, device: Device) -> str:
        """Return the resource of a discovered device, also if the class's own attribute raises by now."""
        return device.resource or self._resource or resource_of(device, self.backend)

    async def shutdown(self, seconds: float) -> None:
        """Close the backend if it is open, within so many seconds, and let its threads end."""
        until = time.monotonic() + seconds
        await self._lifecycle.end(seconds)
        await settle_store(self.backend, max(SAVE_LEAST, until - time.monotonic()))
        self._publisher.close()

    async def _while_open(self) -> None:
        """Discover and watch until a hook says `NotReady`."""
        reporter = EventReporter(self._publisher, self.rescan)
        discovered = anyio.Event()
        asked = self.hooks, self._publisher, self.backend
        try:
            with anyio.CancelScope() as self._opened_scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._until_not_ready, partial(self._discover_forever, discovered))
                    tasks.start_soon(self._follow_nodes)
                    if files := watched_files_of(self.backend):
                        from .watched_files import follow_files  # late: few backends have files

                        tasks.start_soon(follow_files, files, self.rescan)
                    if self._polls_links and self.preferences is not None:
                        from .links import follow_links  # late: few backends have links

                        links = partial(follow_links, self.hooks, self._publisher, self.preferences)
                        ask = partial(links, deadline=self.deadlines.links, retry_after=RETRY_AFTER)
                        tasks.start_soon(self._until_not_ready, ask)
                    if self.labelling is not None:
                        ask = partial(self.labelling.follow, *asked, deadline=self.deadlines.labels)
                        tasks.start_soon(self._until_not_ready, ask)
                    wants_watch = self.hooks.overridden("watch")
                    if wants_watch or self.measuring is not None:
                        await discovered.wait()
                    if self.measuring is not None:
                        ask = partial(self.measuring.follow, *asked, deadline=self.deadlines.measure)
                        tasks.start_soon(self._until_not_ready, ask)
                    if wants_watch:
                        tasks.start_soon(self._until_not_ready, partial(self._watch_forever, reporter))
        finally:
            self._opened_scope = None
            reporter.stopping.set()

    async def _until_not_ready(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NotReady as error:
            self._drop(error)

    def _drop(self, error: KdpError) -> None:
        """Note that the backend is not ready, and end what runs while it is open."""
        self._publisher.drop(sentence(error), is_absent=isinstance(error, NoHardware))
        if self.labelling is not None and isinstance(error, NoHardware):
            self.labelling.withdraw()
        if self._opened_scope is not None:
            self._opened_scope.cancel()

    # -- discovery -----------------------------------------------------------------------------------------------------

    async def _discover_forever(self, discovered: anyio.Event) -> None:
        while True:
            self._wake = anyio.Event()
            started = time.monotonic()
            try:
                found = await self._discover()
            except HookError as error:
                self._publisher.fail(sentence(error))
                pause: float | None = min(RETRY_AFTER, self.poll_interval or RETRY_AFTER)
            else:
                self._take(found)
                pause = self.poll_interval
                if self._publisher.wants_probe:
                    pause = min(self._policy.recheck, pause or self._policy.recheck)
                pause = pause and pause_after(time.monotonic() - started, interval=pause)
                if pause and not discovered.is_set():
                    # The backends of a process open at the same moment; in step ever after they would wait for one
                    # another.
                    pause *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
                discovered.set()
            with anyio.move_on_after(pause if pause is not None else float("inf")):
                await self._wake.wait()
            await anyio.sleep(max(0.0, started + RESCAN_GAP - time.monotonic()))

    async def _discover(self) -> Findings:
        found: Findings = await self.hooks.call("discover", deadline=self.deadlines.discover, then=self._examine)
        consumes = any(device.consumes for device in found.devices)
        if self._wants_counters and consumes and self.hooks.overridden("counters"):
            from .counters import examined  # late: few plugins pay for it

            self.counters = await self.hooks.call("counters", deadline=self.deadlines.counters, then=examined)
        return found

    def _examine(self, found: Any) -> Findings:
        """Check the devices of ``discover``, look at their nodes, and save the store. Runs in the hook's thread.

        The backend's attributes are checked again, and read nowhere else later: a vendor may have set one since.
        """
        try:
            check_attributes(self.backend)
        except ConfigurationError as error:
            raise InvalidValueError(str(error)) from None
        save_store(self.backend)  # once more, if the disk has refused values
        if self._is_own_interval:
            self.poll_interval = self.backend.poll_interval
        devices = self._placed(checked_devices(found, self.backend, self._publisher.devices))
        resources = static_resources(self.backend)
        if self._check is not None:
            self._check(devices, resources)
        return Findings(
            devices=devices,
            conditions=self._nodes.faults(devices),
            resources=resources,
            resource=self.backend.resource,
            stale_after=self.backend.stale_after,
        )

    def _placed(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return the devices without those that have no resource because they were never described."""
        left_out = {} if self.backend.resource else {d.id: d.health for d in devices if d.resource is None}
        for name in left_out.keys() - self._left_out.keys():
            logger.error("%s: device %s is left out, as it names no resource: %s", self.label, name, left_out[name])
        self._left_out = left_out
        return tuple(device for device in devices if device.id not in left_out) if left_out else devices

    def _take(self, found: Findings) -> None:
        faults = found.conditions
        if self._nodes.follow(found.devices):  # nobody told what happened to them since they were looked at
            faults = self._nodes.faults(found.devices)
        self._publisher.take(attrs.evolve(found, conditions=self._judged(found.devices, faults)))
        self._warn_of_resources(found.devices)

    def _judged(self, devices: Sequence[Device], faults: Conditions) -> Conditions:
        """Return the faults of nodes, undeclared counters, and the conditions that allocations cause, by device id."""
        self._node_faults = faults
        found = dict(faults)
        if self._wants_counters and any(device.consumes for device in devices):
            from .counters import undeclared  # late: few plugins pay for it

            for device_id, condition in undeclared(devices, self.counters).items():
                found[device_id] = (*found.get(device_id, ()), condition)
        for device_id, conditions in self.outdated(devices).items():
            found[device_id] = (*found.get(device_id, ()), *conditions)
        return found

    def _warn_of_resources(self, devices: Sequence[Device]) -> None:
        """Say once what is probably wrong with the resources that devices are of."""
        resources = {resource_of(device, self.backend) for device in devices}
        if resources == self._compared:
            return
        self._compared = resources
        named = {*static_resources(self.backend)}
        for resource in sorted(resources - named):
            if (meant := slip_of(resource, named - resources)) is not None:
                logger.warning(
                    "%s: devices are of %s, and no device is of %s, which the class names: is one of them misspelt?",
                    *(self.label, resource, meant),
                )
        if len(resources) > 1 and (clash := clashing_variable(devices, self.backend)) is not None:
            effect = "a container that asks for both gets one of them"
            if vars(self.backend).get("is_dra"):
                effect = "a claim for both is refused"
            logger.warning(
                "%s: %s and %s set environment variable %s to different values; %s; name the variable by its resource, "
                "or give device nodes, mounts, or CDI names",
                *(self.label, *clash, effect),
            )

    # -- events --------------------------------------------------------------------------------------------------------

    async def _watch_forever(self, reporter: EventReporter) -> None:
        backoff = Backoff()
        try:
            await self.hooks.idle("watch", deadline=WATCH_SECONDS)
        except HookTimeoutError as error:
            logger.warning(
                "%s: %s, so only polling sees changes; end the hook when report.stopping is set",
                self.label,
                sentence(error),
            )
        while True:
            try:
                await self.hooks.call("watch", reporter, deadline=None)
            except HookError as error:
                logger.warning("%s: %s; calling it again", self.label, sentence(error))
                await anyio.sleep(backoff.next())
            else:
                return

    async def _follow_nodes(self) -> None:
        while True:
            await self._nodes.changed()
            devices = self._publisher.devices
            self._publisher.take_conditions(self._judged(devices, self._nodes.faults(devices)))
            self.rescan()
