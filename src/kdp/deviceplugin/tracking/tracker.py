"""`Tracker`: finds out which pod holds which device, and returns what follows from it.

One for all resources of a process. Facts about the resources go in (`Tracker.attach`, `Tracker.listed`, ...), and
`Tracker.look` returns `Decisions`, which its caller carries out. What is asked for, and when:

* **List** while something is owed: an allocation whose end is to be told (`DeviceBackend.released`, or a saved state),
  or a vanished device that is still listed. What follows is decided in `allocations`.
* **GetAllocatableResources** five seconds after a stream has opened and every 30 s while it lives. What follows is
  decided in `drift`: a lasting difference makes a new generation.
* **List** with each comparison if a backend has `DeviceBackend.released`: which pods were there before an Allocate
  tells which of them may hold its devices.
* No List for `Pace.settled` if the kubelet's pods API (1.37 and later) shows that all holders and suspects of the last
  List run, and if no Allocate has come since. Then the pods API lists the pods.
* **List** when a device turns Unhealthy, so that the log can name the pod, and when somebody needs to know it; at
  `Pace.follow`, if somebody looks at who holds what.
* **List** with the first comparison, and again when the kubelet must know all its pods: a pod may hold a device that
  vanished before this process came, and that is listed again then (docs/explanation/kubelet.md, B14 and B26).

At most one round of questions a second. If the API is missing, that is logged once, and all goes on without: vanished
devices stay listed for ten minutes, and nothing is released.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import anyio
import attrs

from ...concurrency.observable import Observable
from ...kubelet.list_guard import ListGuard
from ...model.devices import Device, Health
from ...startup import shown
from ..inventory import ListSnapshot
from ..options import ManagerOptions, Pace
from .allocation_record import AllocationRecord
from .allocations import Allocations
from .drift import DriftDetector
from .polling import ListAnswer, PodResourcesPoller, Unanswered
from .records import AllocationRecords

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ...kubelet.podresources import Holder, Report
    from .double_holders import DoubleHolders
    from .drift import ResourceView
    from .holder_log import HolderLog
    from .store import AllocationOwner

logger = logging.getLogger(__name__)

EARLY = 0.005
"""Seconds before it is due at which a look is taken: a timer that fires early must not be set twice."""

AFTER_EVENT = 0.2
"""Seconds from word of a pod to the list: events come in bunches, and the kubelet tells of them before it is done."""

PATIENCE = 0.7
"""Seconds that `look_at_holders` waits for the kubelet, which answers in milliseconds unless it throttles."""


@attrs.define(eq=False)
class _Resource:
    """What is known of one resource, also when its plugin is gone."""

    __repr__ = shown

    drift: DriftDetector
    snapshot: ListSnapshot | None = None
    generation: int | None = None
    is_unasked: bool = True
    """Whether no complete list has told which devices pods hold that were never listed."""
    unknown: frozenset[str] = frozenset()
    """Ids that the kubelet took for healthy at the last look, and that are in none of our lists."""
    strangers: frozenset[str] = frozenset()
    """Those of them that it has taken for healthy at two looks in a row: another plugin has listed them."""


@final
@attrs.frozen(kw_only=True)
class Decisions:
    """What follows from one round of questions.

    Attributes:
        held: Vanished devices that pods hold, by resource: keep them listed.
        gone: Vanished devices that no pod holds, by resource: drop them.
        unlisted: Devices that pods hold and that were never listed, by resource, each with its NUMA nodes: list them as
            vanished.
        ended: Allocations that pods have given back: release each.
        unknown: Devices that pods hold and that no allocation has, by resource: take them for allocated.
        contested: Resources with a device that has got a second holder, or lost one: offer their devices again.
        reregistrations: Resources that need a new generation, because the kubelet's view of them stays wrong: each with
            the generation whose list the kubelet does not have, and the difference, for the log.
    """

    __repr__ = shown

    held: Mapping[str, Sequence[str]] = attrs.field(factory=dict[str, "Sequence[str]"])
    gone: Mapping[str, Sequence[str]] = attrs.field(factory=dict[str, "Sequence[str]"])
    unlisted: Mapping[str, Mapping[str, Sequence[int]]] = attrs.field(factory=dict[str, "Mapping[str, Sequence[int]]"])
    ended: Sequence[AllocationRecord] = ()
    unknown: Mapping[str, Sequence[str]] = attrs.field(factory=dict[str, "Sequence[str]"])
    contested: frozenset[str] = frozenset()
    reregistrations: Mapping[str, tuple[int, str]] = attrs.field(factory=dict[str, "tuple[int, str]"])


class Tracker:
    """Tracks what pods hold. Run `run` in a task group, and call `look` again and again.

    Attributes:
        records: The allocations that are not released yet.
        guard: Keeps Lists away from Allocates.
        holders_asked_at: When `holders` was asked for, on `time.monotonic`'s clock; None: there was no list.
    """

    def __init__(self, options: ManagerOptions, *, boot_id: str = "") -> None:
        self._history = options.history
        self._pace = options.pace or Pace()
        self._always_lists = options.follows_pods
        self._allocations = Allocations(self._pace, boot_id=boot_id)
        self.records = AllocationRecords(
            self._allocations,
            plugin_dir=options.paths.device_plugin_dir,
            state_dir=options.state_dir,
            period=self._pace.look,
            boot_id=boot_id,
        )
        self.guard = ListGuard(options.paths.pod_resources_dir)
        self._poller = PodResourcesPoller(options.paths, self._pace, self.guard)
        self._resources: dict[str, _Resource] = {}
        self._holders: Mapping[tuple[str, str], tuple[Holder, ...]] | None = None
        self._is_complete = False
        self._double_holders: DoubleHolders | None = None
        self.holders_asked_at: float | None = None
        self._wants_holders = False
        self._without_holder: dict[tuple[str, str], None] = {}
        self._news: Observable[None] = Observable(None)
        self._rounds: Observable[None] = Observable(None)
        self._looked_at = float("-inf")
        self._adopted_at = float("-inf")

    @functools.cached_property
    def _holder_log(self) -> HolderLog | None:
        """The log of holders. `None` if neither a history nor DEBUG needs it."""
        if self._history is None and not logger.isEnabledFor(logging.DEBUG):
            return None
        from .holder_log import HolderLog  # late: a start has no list yet

        return HolderLog(self._history)

    # -- facts ---------------------------------------------------------------------------------------------------------

    def attach(self, resource: str, owner: AllocationOwner) -> None:
        """Take a resource that is served from now on; one that was detached goes on where it was."""
        known = self._resources.get(resource)
        if known is None:
            self._resources[resource] = _Resource(DriftDetector(self._pace))
        else:
            known.generation = known.snapshot = None
            known.drift.lost()
        self.records.attach(resource, owner)

    def detach(self, resource: str) -> None:
        """The resource is not served any more; what is owed of it stays owed."""
        self._resources[resource].drift.lost()
        self._allocations.vanished(resource, (), time.monotonic())

    def connected(self, resource: str, generation: int | None) -> None:
        """The kubelet holds a stream of this generation; None: it holds none."""
        known = self._resources[resource]
        if generation != known.generation:
            known.generation = generation
            if generation is None:
                known.drift.lost()
            else:
                known.drift.connected(time.monotonic())
                self._poller.retry()
                self._news.set(None)

    def listed(self, resource: str, snapshot: ListSnapshot | None, vanished: Collection[str]) -> None:
        """The resource's list is this one, and these of its devices are no longer in the hardware."""
        self._resources[resource].snapshot = snapshot
        self._allocations.vanished(resource, vanished, time.monotonic())
        if self._allocations.is_waiting:
            self._news.set(None)

    @property
    def resources(self) -> Collection[str]:
        """The resources that are served, or whose allocations are not released yet."""
        return self._resources.keys()

    def failed(self, resource: str, ids: Iterable[str]) -> None:
        """These devices became unhealthy: the log names the pods that hold them."""
        self._without_holder.update(dict.fromkeys((resource, device_id) for device_id in ids))
        self._news.set(None)

    def holders(self, resource: str) -> Mapping[str, tuple[Holder, ...]] | None:
        """Return the containers that hold the resource's devices, as of the last list; None: there was none."""
        if self._holders is None:
            return None
        return {device_id: holders for (name, device_id), holders in self._holders.items() if name == resource}

    def recent_holders(self, resource: str) -> Mapping[str, tuple[Holder, ...]] | None:
        """Return `holders`. `None` also if the last list is a minute old, and no other reason keeps it fresh."""
        asked_at = self.holders_asked_at
        is_recent = asked_at is not None and time.monotonic() < asked_at + self._pace.look
        return self.holders(resource) if is_recent or self._needs_pods else None

    def follow_holders(self) -> None:
        """Ask the kubelet for holders from now on, also if nothing is owed. Any thread may call it."""
        self._always_lists = True

    def held(self, resource: str) -> dict[str, tuple[str, ...]]:
        """Return the devices that containers have, by the last list or an Allocate since. Any thread may call it."""
        holders = self.holders(resource) or {}
        ids = {*holders, *self.records.held(resource)}
        return {each: tuple(dict.fromkeys(f"{h.namespace}/{h.pod}" for h in holders.get(each, ()))) for each in ids}

    def pods_of(self, resource: str, device_id: str) -> str:
        """Return the names of the pods that hold a device, as of the last list; "": none is known."""
        holders = (self._holders or {}).get((resource, device_id), ())
        return " and ".join(dict.fromkeys(f"{holder.namespace}/{holder.pod}" for holder in holders))

    async def other_holder(self, resource: str, ids: Iterable[str]) -> tuple[str, str] | None:
        """Return one of these devices, and the pod that still has it although the kubelet gives it away.

        A kubelet up to 1.37 gives a device to a second pod if a List came during the first pod's Allocate
        (`kdp.kubelet.list_guard`). A kubelet that gives a device away in good order has dropped the entry of the pod
        that had it, and so Get names it no more.
        """
        holders = self._holders or {}
        had = [(each, (holder.namespace, holder.pod)) for each in ids for holder in holders.get((resource, each), ())]
        has = await self._poller.devices_of({pod for _, pod in had}) if had else {}
        return next(((each, "/".join(pod)) for each, pod in had if (resource, each) in has.get(pod, ())), None)

    def double_holders(self, resource: str) -> Mapping[str, str]:
        """Return the resource's devices with two pods, each with the names of the pods."""
        return {} if self._double_holders is None else self._double_holders.of(resource)

    def device_of(self, resource: str, device_id: str) -> str:
        """Return the id of a replica's device; any other id is returned unchanged."""
        return self._allocations.place(resource, device_id)

    def want_holders(self) -> None:
        """Somebody needs to know now who holds what: the kubelet is asked soon, and once."""
        self._wants_holders = True
        self._news.set(None)

    async def look_at_holders(self) -> None:
        """Ask the kubelet for the holders, unless its last list is recent. Wait `PATIENCE` seconds at most."""
        now = time.monotonic()
        is_recent = self.holders_asked_at is not None and now < self.holders_asked_at + self._pace.follow
        if is_recent or self._is_settled(now):
            return
        self.want_holders()
        with anyio.move_on_after(PATIENCE):
            while self._wants_holders:
                await self._rounds.after(self._rounds.version)

    @property
    def kubelet_problem(self) -> str | None:
        """Why the kubelet seems to hang; None: it answers."""
        return self._poller.hang.problem

    @property
    def has_pod_resources(self) -> bool | None:
        """Whether the kubelet's pod-resources API has a socket; `None` before the first question."""
        return self._poller.is_there

    def strangers(self, resource: str) -> str | None:
        """Return by which ids another plugin of the resource is known; None: by none."""
        known = self._resources.get(resource)
        return None if known is None or not known.strangers else _strange(known.strangers)

    def view(self, resource: str) -> ResourceView | None:
        """Return how the kubelet sees a resource; None: that was not compared."""
        known = self._resources.get(resource)
        return None if known is None else known.drift.view

    def device(self, resource: str, device_id: str) -> Device:
        """Return a device as it is now, else as it was at Allocate, else what is left of one: its id."""
        snapshot = self._resources[resource].snapshot
        now = snapshot.devices.get(device_id) if snapshot is not None else None
        gone = Device(id=device_id, health=Health.unhealthy("the device is gone"))
        return now or self.records.device(resource, device_id) or gone

    def is_there(self, resource: str, device_id: str) -> bool:
        """Return whether the hardware has a device."""
        snapshot = self._resources[resource].snapshot
        is_listed = snapshot is not None and device_id in snapshot.devices
        return is_listed and not self._allocations.is_vanished(resource, device_id)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow what makes a look due, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.records.run)
            tasks.start_soon(self._poller.watch_pods, lambda: self._needs_pods, self._news)
            for source in (self.records.changes, self._poller.pod_changes):
                tasks.start_soon(self._follow, source)

    async def _follow(self, source: Observable[None]) -> None:
        version = source.version
        while True:
            await source.after(version)
            version = source.version
            if self._is_settled(time.monotonic()):
                self._poller.pod_changed_at = None  # the pod held no device
            self._news.set(None)

    @property
    def _needs_pods(self) -> bool:
        return self._allocations.is_waiting or self.records.is_releasing or self._always_lists

    def _is_settled(self, now: float) -> bool:
        """Whether a new List would be equal to the last one."""
        running = self._poller.running
        if running is None or self._holders is None or self.holders_asked_at is None or not self._is_complete:
            return False
        is_fresh = self.guard.allocated_at < self.holders_asked_at > now - self._pace.settled
        holding = {(holder.namespace, holder.pod) for holders in self._holders.values() for holder in holders}
        return is_fresh and running.keys() >= holding | self._allocations.all_suspects

    def _next_look(self) -> float:
        is_settled = self._is_settled(time.monotonic())
        times = [resource.drift.next_look for resource in self._resources.values()]
        times.append(self._allocations.next_look(is_settled=is_settled))
        if is_settled and self.holders_asked_at is not None and self._needs_pods:
            times.append(self.holders_asked_at + self._pace.settled)
        if self._without_holder or self._wants_holders:
            times.append(time.monotonic())
        if self._poller.pod_changed_at is not None and self._needs_pods and not is_settled:
            times.append(self._poller.pod_changed_at + AFTER_EVENT)
        return min((when for when in times if when is not None), default=float("inf"))

    # -- asking --------------------------------------------------------------------------------------------------------

    async def look(self) -> Decisions:
        """Wait until a round of questions is due, ask it, and return what follows."""
        while True:
            version = self._news.version
            due = max(self._next_look(), self._poller.not_before, self._looked_at + self._pace.between)
            if due <= time.monotonic() + EARLY:
                self._looked_at = time.monotonic()
                decisions = await self._look()
                self._rounds.set(None)
                return decisions
            with anyio.move_on_after(due - time.monotonic()):
                await self._news.after(version)

    async def _look(self) -> Decisions:
        now = time.monotonic()
        compared = {name: r for name, r in self._resources.items() if r.drift.next_look is not None}
        if not any((r.drift.next_look or now) <= now for r in compared.values()):
            compared = {}
        sent = {name: (r.generation, r.snapshot) for name, r in compared.items()}
        is_settled = self._is_settled(now)
        if is_settled and self._poller.running is not None:
            self._allocations.know_pods(self._poller.running, now)
        is_owed = (self._allocations.next_look(is_settled=is_settled) or float("inf")) <= now + EARLY
        answer = await self._poller.ask(
            self._resources,
            wants_list=bool(self._without_holder)
            or self._wants_holders
            or (is_owed if is_settled else self._needs_pods),
            wants_settled_list=any(resource.is_unasked for resource in self._resources.values()),
            wants_allocatable=bool(sent),
        )
        self._wants_holders &= isinstance(answer, ListAnswer) and answer.report is None  # an Allocate has run
        if isinstance(answer, Unanswered):
            self._unanswered(answer)
            return Decisions(ended=self._allocations.back(now))
        decisions = Decisions() if answer.report is None else self._decide(answer, answer.report)
        reregistrations = {
            name: found
            for name, (generation, snapshot) in sent.items()
            if (found := self._compare(name, generation, snapshot, answer.allocatable.get(name, frozenset())))
        }
        if self._allocations.is_waiting and now >= self._adopted_at + self._pace.look:
            self._adopted_at = now
            self.records.adopt()  # of an instance that came later and has ended
        return attrs.evolve(decisions, reregistrations=reregistrations)

    def _unanswered(self, why: Unanswered) -> None:
        self._without_holder.clear()
        for resource in self._resources.values():
            if why.is_silent:
                resource.drift.ask_again(time.monotonic())
            else:
                resource.drift.postpone(time.monotonic())
        if why.is_news:
            level, also = logging.INFO, ""
            if self.records.is_releasing:
                level, also = logging.WARNING, "released() is not called and "
            elif self.records.is_counting:
                level, also = logging.WARNING, "what shares counters with a device that was given stays unhealthy and "
            text = (
                f"kdp cannot see which pod holds which device, so {also}a vanished device stays listed for ten minutes"
            )
            logger.log(level, "%s: %s", why.problem, text)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _compare(
        self, name: str, generation: int | None, snapshot: ListSnapshot | None, accepted: frozenset[str]
    ) -> tuple[int, str] | None:
        resource, now = self._resources[name], time.monotonic()
        if generation != resource.generation or snapshot is None or snapshot is not resource.snapshot:
            resource.drift.postpone(now, is_outdated=True)
            return None
        self._look_for_strangers(name, resource, accepted - snapshot.devices.keys())
        healthy = frozenset(d.id for d in snapshot.devices.values() if d.health.is_healthy)
        difference = resource.drift.compare(healthy, accepted, now, foreign=len(resource.strangers))
        if difference is None or generation is None:
            return None
        logger.warning("%s: %s; registering anew", name, difference, extra={"resource": name})
        return generation, difference

    @staticmethod
    def _look_for_strangers(name: str, resource: _Resource, unknown: frozenset[str]) -> None:
        """Say that another plugin has the resource, too, if the kubelet has ids of it at two looks in a row."""
        before = resource.strangers
        resource.strangers, resource.unknown = resource.unknown & unknown, unknown
        if resource.strangers and not before:
            logger.warning("%s: %s", name, _strange(resource.strangers), extra={"resource": name})
        elif before and not resource.strangers:
            text = "the kubelet no longer has devices of another plugin"
            logger.info("%s: %s", name, text, extra={"resource": name})

    def _decide(self, answer: ListAnswer, report: Report) -> Decisions:
        before, self._holders, self.holders_asked_at = self._holders, report.holders, answer.asked_at
        self._is_complete = answer.is_complete
        self._name_holders(report)
        if self._holder_log is not None:
            self._holder_log.listed(report.holders, is_complete=answer.is_complete)
        outcome = self._allocations.listed(
            {
                key: tuple((holder.namespace, holder.pod) for holder in holders)
                for key, holders in report.holders.items()
            },
            report.pods,
            asked_at=answer.asked_at,
            now=time.monotonic(),
            is_complete=answer.is_complete,
        )
        for record in outcome.ended:
            if not record.failures and not record.is_said:  # else it is no news
                record.is_said = True
                own = {key for key in record.keys if self._allocations.newest_of(*key) is record}
                _log_end(record, {key: holders for key, holders in (before or {}).items() if key in own})
        self.records.save(outcome.seen)
        if outcome.ended or self.records.is_starting:
            self.records.offers.set(None)
        return Decisions(
            held=_by_resource(outcome.held),
            gone=_by_resource(outcome.gone),
            unlisted=self._unlisted(report, is_complete=answer.is_complete),
            ended=outcome.ended,
            unknown=self.records.unknown(report.holders, answer.asked_at) if answer.is_complete else {},
            contested=self._note_double_holders(report, is_complete=answer.is_complete),
        )

    def _note_double_holders(self, report: Report, *, is_complete: bool) -> frozenset[str]:
        if self._double_holders is None:
            if all(len(holders) == 1 for holders in report.holders.values()):
                return frozenset()
            from .double_holders import DoubleHolders  # late: it is hardly ever needed

            self._double_holders = DoubleHolders()
        return self._double_holders.listed(report, is_complete=is_complete)

    def _name_holders(self, report: Report) -> None:
        for key in self._without_holder:
            for holder in report.holders.get(key, ()):
                pod = f"{holder.namespace}/{holder.pod}"
                extra = {"resource": key[0], "device_id": key[1], "pod": pod}
                logger.warning("%s: device %s, which is unhealthy, is held by %s", *key, holder, extra=extra)
        self._without_holder.clear()

    def _unlisted(self, report: Report, *, is_complete: bool) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return devices that pods hold, and that no list of their resource has had."""
        snapshots = {name: r.snapshot for name, r in self._resources.items() if r.snapshot is not None}
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for name in sorted(name for name in snapshots if self._resources[name].is_unasked):
            listed = snapshots[name].devices
            held = {
                i: report.numa_nodes.get((key, i), ()) for key, i in report.holders if key == name and i not in listed
            }
            if held:
                found[name] = held
            self._resources[name].is_unasked = not is_complete
        return found


def _strange(ids: frozenset[str]) -> str:
    return (
        f"another plugin serves this resource as well: the kubelet has {len(ids)} devices that are not ours, as "
        f"{min(ids)}; stop one of the two"
    )


def _log_end(record: AllocationRecord, holders: Mapping[tuple[str, str], tuple[Holder, ...]]) -> None:
    held_by = {str(holder) for key in record.keys for holder in holders.get(key, ())}
    before = f", held before by {', '.join(sorted(held_by))}" if held_by else ""
    text = f"given back: {', '.join(record.ids)}{before}"
    logger.info("%s: %s", record.resource, text, extra={"resource": record.resource})


def _by_resource(keys: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for resource, device_id in keys:
        found.setdefault(resource, []).append(device_id)
    return found
