"""`Usage`: asks the kubelet who holds which device, and does what follows from the answers.

One for all resources of a process. What it asks for, and when:

* **List** while something is owed: an allocation whose end is to be told (`DeviceBackend.released`, or a saved state), or
  a vanished device that is still listed. What follows is decided in `holdings`.
* **GetAllocatableResources** five seconds after a stream has opened and every minute while it lives. What follows is
  decided in `belief`: a lasting difference makes a new generation.
* **List** once when a device turns Unhealthy, so that the log can name the pod.
* **List** with the first comparison, and once more when the kubelet must know all its pods: a pod may hold a device that vanished
  before this process came, and that is listed again then (docs/explanation/kubelet.md, B14 and B26).

At most one round of questions a second. Where the API cannot be had that is said once, and all goes on without: vanished
devices stay listed for ten minutes, and nothing is released.

After a kubelet has started it knows its pods only when it has heard from all its sources, and until then lists none,
while their containers run. So a list's silence counts only if the kubelet's pods API says that all are known (1.37 and
later), or if the list names the pod that this process itself runs in, or if the kubelet is ten minutes old.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, final

import anyio
import attrs

from ...concurrency.backoff import Backoff
from ...errors import AllocationError, KdpError, PodResourcesError, sentence
from ...model.backend import Allocation
from ...model.devices import Device, Health
from ...supervision.hooks import check_state
from ..plugin import DevicePlugin
from .allocations import Holdings, Use
from .drift import Belief
from .pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from anyio.abc import TaskGroup

    from ...kubelet import KubeletPaths
    from ...kubelet.podresources import Holder, PodResources, Report
    from ...kubelet.podsapi import PodsWatch
    from ...supervision.supervisor import Supervisor
    from .store import Ledger  # noqa: TC004 - no annotation of these classes is looked at

__all__ = ["Usage"]

logger = logging.getLogger(__name__)

EARLY = 0.005
"""Seconds before it is due at which a look is taken: a timer that fires early must not be set twice."""

AFTER_EVENT = 0.2
"""Seconds from word of a pod to the list: events come in bunches, and the kubelet tells of them before it is done."""

SAID_AFTER = 3
"""How many rounds in a row fail before it is said: a kubelet's restart costs one or two."""


@attrs.define(eq=False)
class _Resource:
    """What is kept of one resource, also when its plugin is gone."""

    plugin: DevicePlugin
    belief: Belief
    generation: int | None = None
    ledger: Ledger | None = None
    is_adopting: bool = False
    devices: dict[str, Device] = attrs.field(factory=dict[str, Device])

    @property
    def is_released(self) -> bool:
        """Whether the vendor wants to know of the end of an allocation."""
        return self.plugin.supervisor.hooks.overridden("released")


@final
class Lease:
    """One Allocate on its way: an async context manager, made by `Usage.allocating`.

    It keeps the Allocate apart from releases and lists; left without `give`, it has failed.
    """

    def __init__(self, usage: Usage, resource: str, ids: Sequence[str], until: float) -> None:
        self._usage = usage
        self._resource = resource
        self._ids = ids
        self._until = until
        self._is_given = False

    async def __aenter__(self) -> Self:
        await self._usage.begin(self._resource, self._ids, self._until)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._usage.end(self._resource, self._ids, given=self._is_given)

    async def give(self, allocation: Allocation) -> None:
        """Note that the kubelet is about to be told yes; returns when that will survive a crash, or after a second."""
        self._is_given = True
        await self._usage.keep(allocation)


class Usage:
    """Keeps account of what pods hold. Run `run` in a task group.

    Args:
        paths: The kubelet's directories.
        state_dir: Where allocations are saved; None: nowhere, a killed process forgets them.
        pace: See `Pace`.
    """

    def __init__(self, paths: KubeletPaths, *, state_dir: Path | None = None, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._state_dir = state_dir
        self._paths = paths
        self._pods: PodsWatch | None = None
        self._own_name = socket.gethostname()
        self._holdings = Holdings(gap=self._pace.gap, look=self._pace.look)
        self._resources: dict[str, _Resource] = {}
        self._unasked: set[str] = set()
        self._asked_early = float("-inf")
        self._holders: Mapping[tuple[str, str], Holder] | None = None
        self._wondering: dict[tuple[str, str], None] = {}
        self._ready: dict[Supervisor, dict[str, Use]] = {}
        self._running: dict[str, anyio.Event] = {}
        self._releasing: set[Supervisor] = set()
        self._wake = anyio.Event()
        self._wanted = anyio.Event()
        self._backoff = Backoff(first=1.0, most=30.0)
        self._not_before = float("-inf")
        self._said: str | None = None
        self._adopted_at = float("-inf")
        self._tasks: TaskGroup | None = None
        self._is_stopping = False
        self._pod_changed_at: float | None = None

    # -- what plugins tell ---------------------------------------------------------------------------------------------

    def attach(self, plugin: DevicePlugin) -> None:
        """Take a resource; one that was detached goes on where it was."""
        known = self._resources.get(plugin.resource)
        if known is not None:
            known.plugin, known.generation = plugin, None
            known.belief.lost()
            return
        pace = self._pace
        compared = Belief(lasting=pace.lasting, after_connect=pace.after_connect, period=pace.period, again=pace.again)
        resource = self._resources[plugin.resource] = _Resource(plugin, compared)
        self._unasked.add(plugin.resource)
        if resource.is_released or plugin.supervisor.hooks.overridden("prepare_container"):
            self._ledger(resource)
            self._adopt_soon(resource)

    def detach(self, resource: str) -> None:
        """The resource is not served any more; what is owed of it stays owed."""
        self._resources[resource].belief.lost()
        self._holdings.vanished(resource, (), time.monotonic())

    def session(self, resource: str) -> None:
        """The resource's session has changed its state."""
        known = self._resources[resource]
        generation = known.plugin.connected_generation
        if generation != known.generation:
            known.generation = generation
            if generation is None:
                known.belief.lost()
            else:
                known.belief.connected(time.monotonic())
                self._wake.set()

    def vanished(self, resource: str, ids: frozenset[str]) -> None:
        """These devices of a resource are listed although the hardware no longer has them."""
        self._holdings.vanished(resource, ids, time.monotonic())
        self._look_again()

    def wonder(self, resource: str, ids: Iterable[str]) -> None:
        """Find out who holds these devices, for the log."""
        self._wondering.update(dict.fromkeys((resource, device_id) for device_id in ids))
        self._wake.set()

    def holders(self, resource: str) -> Mapping[str, Holder] | None:
        """Return who holds the resource's devices, as of the last list; None: there was none."""
        if self._holders is None:
            return None
        return {device_id: holder for (name, device_id), holder in self._holders.items() if name == resource}

    # -- allocations ---------------------------------------------------------------------------------------------------

    def allocating(self, resource: str, ids: Sequence[str], *, until: float) -> Lease:
        """Return the context in which an Allocate runs.

        A release of one of its devices that has not begun waits until they are free again; one that runs is waited
        for, and if that takes too long entering the context raises AllocationError.

        Args:
            resource: The extended resource's name.
            ids: The devices.
            until: When to give up waiting, on `time.monotonic`'s clock.
        """
        return Lease(self, resource, ids, until)

    async def begin(self, resource: str, ids: Sequence[str], until: float) -> None:
        """Begin an Allocate, for `Lease`."""
        while (under_release := self._under_release(resource, ids)) is not None:
            with anyio.move_on_after(until - time.monotonic()):
                await self._running[under_release.uid].wait()
                continue
            raise AllocationError(
                f"{resource}: device {under_release.ids[0]} is still being cleaned up after the pod that had it before"
            )
        self._holdings.begin(resource, ids, time.monotonic())

    def end(self, resource: str, ids: Sequence[str], *, given: bool) -> None:
        """End it."""
        self._holdings.end(resource, ids, time.monotonic(), given=given)
        self._look_again()

    def _under_release(self, resource: str, ids: Sequence[str]) -> Use | None:
        """Take back what was handed out and has not begun, and return a use of these devices whose release runs."""
        if not self._holdings.is_owing:
            return None
        wanted = {(resource, device_id) for device_id in ids}
        for ready in self._ready.values():
            for use in [use for use in ready.values() if wanted & set(use.keys)]:
                del ready[use.uid]
                self._holdings.withdraw(use)
        return self._holdings.under_release(resource, ids)

    async def keep(self, allocation: Allocation) -> None:
        """Keep an allocation until it is released, if anybody is interested: see `Lease.give`."""
        resource = self._resources[allocation.resource]
        if not resource.is_released and not allocation.state:
            return
        import uuid

        use = Use(
            uid=uuid.uuid4().hex,
            resource=allocation.resource,
            ids=tuple(sorted(allocation.ids)),
            state=check_state(allocation.state),
        )
        resource.devices.update({device.id: device for device in allocation})
        self._holdings.add(use, time.monotonic())
        await self._save(resource)

    def state(self, resource: str, ids: Sequence[str]) -> dict[str, Any]:
        """Return a copy of the state that the newest allocation of exactly these devices left."""
        use = self._holdings.newest(resource, ids)
        return check_state(use.state) if use is not None else {}

    async def keep_state(self, allocation: Allocation) -> None:
        """Take over the state that a later hook has changed."""
        use = self._holdings.newest(allocation.resource, allocation.ids)
        state = check_state(allocation.state)
        if use is not None and state != use.state:
            use.state = state
            await self._save(self._resources[allocation.resource])
        elif use is None and state:
            await self.keep(allocation)

    # -- the saved state -----------------------------------------------------------------------------------------------

    def _ledger(self, resource: _Resource) -> Ledger | None:
        if resource.ledger is None and self._state_dir is not None:
            from .store import Ledger  # as late as it is made

            resource.ledger = Ledger(self._state_dir, resource.plugin.resource)
        return resource.ledger

    async def _save(self, resource: _Resource) -> None:
        ledger = self._ledger(resource)
        if ledger is not None:
            from .store import Saved

            await ledger.save(
                [
                    Saved(uid=use.uid, ids=use.ids, state=use.state, is_seen=self._holdings.is_seen(use))
                    for use in self._holdings.owed(resource.plugin.resource)
                ]
            )

    def _adopt_soon(self, resource: _Resource) -> None:
        if self._tasks is not None and resource.ledger is not None and not resource.is_adopting:
            resource.is_adopting = True
            self._tasks.start_soon(self._adopt, resource, resource.ledger)

    async def _adopt(self, resource: _Resource, ledger: Ledger) -> None:
        """Take over what dead processes have left; beside one that lives, as in an update, again until it has ended."""
        try:
            while True:
                await self._adopt_once(resource, ledger)
                if not ledger.has_neighbours:
                    return
                await anyio.sleep(self._pace.look)
        finally:
            resource.is_adopting = False

    async def _adopt_once(self, resource: _Resource, ledger: Ledger) -> None:
        name = resource.plugin.resource
        found = await ledger.adopt()
        known = {use.uid for use in self._holdings.owed(name)}
        uses = [
            (Use(uid=saved.uid, resource=name, ids=saved.ids, state=saved.state), saved.is_seen)
            for saved in found
            if saved.uid not in known and saved.ids
        ]
        if uses:
            from ...allocation.shared import remember_held  # late: whoever shares nothing does not pay for it

            remember_held(resource.plugin.supervisor.backend, (i for use, _ in uses for i in use.ids))
        self._holdings.adopt(uses, time.monotonic())
        if found:
            logger.info("%s: allocations taken over: %d", name, len(found), extra={"resource": name})
            await self._save(resource)
            self._look_again()

    # -- life ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask and act until cancelled; call `settle` before."""
        async with anyio.create_task_group() as self._tasks:
            for resource in self._resources.values():
                self._adopt_soon(resource)
            self._tasks.start_soon(self._watch_pods, self._tasks)
            looked_at = float("-inf")
            while True:
                self._wake = anyio.Event()
                due = max(self._next_look(), self._not_before, looked_at + self._pace.between)
                if due > time.monotonic() + EARLY:
                    with anyio.move_on_after(due - time.monotonic()):
                        await self._wake.wait()
                    continue
                looked_at = time.monotonic()
                await self._look()

    async def settle(self, seconds: float) -> None:
        """Begin no release any more, and give those that run a moment."""
        self._is_stopping = True
        with anyio.move_on_after(seconds):
            for running in list(self._running.values()):
                await running.wait()
        for resource in self._resources.values():
            if resource.ledger is not None:
                resource.ledger.close()

    def _look_again(self) -> None:
        if self._holdings.is_waiting:  # most Allocates change nothing that would be looked at sooner
            self._wanted.set()
            self._wake.set()

    def _next_look(self) -> float:
        times = [resource.belief.next_look for resource in self._resources.values()]
        times.append(self._holdings.next_look())
        if self._wondering:
            times.append(time.monotonic())
        if self._pod_changed_at is not None and self._holdings.is_waiting:
            times.append(self._pod_changed_at + AFTER_EVENT)
        return min((when for when in times if when is not None), default=float("inf"))

    @functools.cached_property
    def _client(self) -> PodResources:
        from ...kubelet.podresources import PodResources  # nobody asks before the kubelet has had our list for seconds

        return PodResources(self._paths.pod_resources_socket)

    async def _watch_pods(self, tasks: TaskGroup) -> None:
        while True:
            self._wanted = anyio.Event()
            if not self._holdings.is_waiting:
                await self._wanted.wait()
            if self._pods is None:
                from ...kubelet.podsapi import PodsWatch

                self._pods = PodsWatch(self._paths.pods_api_socket)
                tasks.start_soon(self._follow_pods, self._pods)
            await self._pods.run(lambda: self._holdings.is_waiting)

    async def _follow_pods(self, pods: PodsWatch) -> None:
        version = pods.changes.version
        while True:
            await pods.changes.after(version)
            version = pods.changes.version
            if self._pod_changed_at is None:
                self._pod_changed_at = time.monotonic()
                self._wake.set()

    @property
    def _is_synced(self) -> bool:
        return self._pods is not None and self._pods.is_synced

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """One round of questions."""
        made_at = self._client.made_at()
        self._pod_changed_at = None
        if made_at is None:
            self._missed(f"there is no {self._client.socket}", after=self._pace.absent, said=True)
            return
        now = time.monotonic()
        compare = [r for r in self._resources.values() if r.belief.next_look is not None]
        compare = compare if any((r.belief.next_look or now) <= now for r in compare) else []
        told = [(r, r.generation, r.plugin.inventory.snapshot) for r in compare]
        was_synced = self._is_synced
        settled = time.time() - made_at >= self._pace.settling
        early = bool(self._unasked) and made_at != self._asked_early
        try:
            async with self._client.connect() as calls:
                report = None
                if self._holdings.is_waiting or self._wondering or early or (self._unasked and settled):
                    report = await calls.list(self._resources)
                believed: Mapping[str, frozenset[str]] = await calls.allocatable() if told else {}
        except PodResourcesError as error:
            self._missed(sentence(error), after=self._backoff.next(), said=self._backoff.failures >= SAID_AFTER)
            return
        self._backoff.reset()
        if self._said is not None:
            logger.info("the kubelet's pod-resources API answers again")
            self._said = None
        if report is not None:
            self._asked_early = made_at
            same = self._client.made_at() == made_at
            here = any(name == self._own_name for _, name in report.pods)
            synced = was_synced and self._is_synced
            await self._listed(report, asked_at=now, is_complete=same and (settled or here or synced))
        for resource, generation, snapshot in told:
            if (
                generation == resource.generation
                and snapshot is not None
                and snapshot is resource.plugin.inventory.snapshot
            ):
                healthy = frozenset(d.id for d in snapshot.devices.values() if d.health.is_healthy)
                self._compare(resource, healthy, believed.get(resource.plugin.resource, frozenset()))
            else:
                resource.belief.hurry(time.monotonic())
        if self._holdings.is_waiting and now >= self._adopted_at + self._pace.look:
            self._adopted_at = now
            for resource in self._resources.values():  # of an instance that came later and has ended
                self._adopt_soon(resource)

    def _missed(self, problem: str, *, after: float, said: bool) -> None:
        now = time.monotonic()
        self._not_before = now + after
        self._wondering.clear()
        for resource in self._resources.values():
            resource.belief.postpone(now)
        if said and self._said is None:
            self._said = problem
            released = any(resource.is_released for resource in self._resources.values())
            logger.log(
                logging.WARNING if released else logging.INFO,
                "%s: who holds which device is not known, so %sa vanished device stays listed for ten minutes",
                problem,
                "released() is not called and " if released else "",
            )

    def _compare(self, resource: _Resource, told: frozenset[str], believed: frozenset[str]) -> None:
        difference = resource.belief.compare(told, believed, time.monotonic())
        if difference is not None and resource.generation is not None:
            name = resource.plugin.resource
            logger.warning("%s: %s; registering anew", name, difference, extra={"resource": name})
            resource.plugin.disbelieve(resource.generation, str(difference))

    async def _listed(self, report: Report, *, asked_at: float, is_complete: bool) -> None:
        before, self._holders = self._holders, report.holders
        for key in self._wondering:
            holder = report.holders.get(key)
            if holder is not None:
                pod = f"{holder.namespace}/{holder.pod}"
                extra = {"resource": key[0], "device_id": key[1], "pod": pod}
                logger.warning("%s: device %s, which is unhealthy, is held by %s", *key, holder, extra=extra)
        self._wondering.clear()
        outcome = self._holdings.listed(
            report.holders.keys(), asked_at=asked_at, now=time.monotonic(), is_complete=is_complete
        )
        for name, resource in self._resources.items():
            if held := [device_id for key, device_id in outcome.held if key == name]:
                resource.plugin.hold(held)
            if gone := [device_id for key, device_id in outcome.gone if key == name]:
                resource.plugin.forget(gone)
                # A resource whose last device has gone may have to go too; its owner looks at that when there is news.
                discovery = resource.plugin.supervisor.discovery
                discovery.set(discovery.value)
        for use in outcome.ended:
            held_by = {str(before[key]) for key in use.keys if before and key in before}
            logger.info(
                "%s: given back: %s%s",
                use.resource,
                ", ".join(use.ids),
                f", held before by {', '.join(sorted(held_by))}" if held_by else "",
                extra={"resource": use.resource},
            )
            self._release_soon(use)
        self._adopt_vanished(report, is_complete=is_complete)
        for name in outcome.seen:
            await self._save(self._resources[name])

    def _adopt_vanished(self, report: Report, *, is_complete: bool) -> None:
        """Have devices listed that pods hold, and that no list of this process has had."""
        snapshots = {name: resource.plugin.inventory.snapshot for name, resource in self._resources.items()}
        listed = {
            device_id for snapshot in snapshots.values() if snapshot is not None for device_id in snapshot.devices
        }
        for name in sorted(self._unasked):
            if snapshots[name] is None:
                continue
            held = {
                i: report.numa_nodes.get((key, i), ()) for key, i in report.holders if key == name and i not in listed
            }
            if held:
                self._resources[name].plugin.adopt(held)
            if is_complete:
                self._unasked.discard(name)

    # -- releasing -----------------------------------------------------------------------------------------------------

    def _release_soon(self, use: Use) -> None:
        supervisor = self._resources[use.resource].plugin.supervisor
        self._ready.setdefault(supervisor, {})[use.uid] = use
        if supervisor not in self._releasing:
            assert self._tasks is not None
            self._releasing.add(supervisor)
            self._tasks.start_soon(self._release_all, supervisor)

    async def _release_all(self, supervisor: Supervisor) -> None:
        """Release what is ready of one backend, one after another: its hook takes one call at a time."""
        ready = self._ready[supervisor]
        try:
            while ready and not self._is_stopping:
                use = ready.pop(next(iter(ready)))
                self._running[use.uid] = anyio.Event()
                try:
                    await self._release(use)
                finally:
                    self._running.pop(use.uid).set()
        finally:
            self._releasing.discard(supervisor)

    async def _release(self, use: Use) -> None:
        resource = self._resources[use.resource]
        if resource.is_released:
            supervisor = resource.plugin.supervisor
            if supervisor.discovery.value.problem is not None:  # closed: no hook is called but `open`
                self._holdings.failed(use, time.monotonic())
                return
            limit = supervisor.deadlines.released
            try:
                allocation = Allocation(
                    resource=use.resource,
                    devices=tuple(self._device(resource, device_id) for device_id in use.ids),
                    deadline=time.monotonic() + limit,
                    state=check_state(use.state),
                )
                await supervisor.call("released", allocation, deadline=limit)
            except KdpError as error:
                self._holdings.failed(use, time.monotonic())
                again = use.retry_at - time.monotonic()
                logger.warning("%s: %s: %s; again in %.0f s", use.resource, ", ".join(use.ids), sentence(error), again)
                self._look_again()
                return
            except asyncio.CancelledError:
                self._holdings.withdraw(use)
                raise
        self._holdings.released(use)
        held = {device_id for owed in self._holdings.owed(use.resource) for device_id in owed.ids}
        for device_id in use.ids:
            if device_id not in held:
                resource.devices.pop(device_id, None)
        await self._save(resource)

    @staticmethod
    def _device(resource: _Resource, device_id: str) -> Device:
        """Return a device as it is now, else as it was at Allocate, else what is left of one: its id."""
        snapshot = resource.plugin.inventory.snapshot
        now = snapshot.devices.get(device_id) if snapshot is not None else None
        return (
            now
            or resource.devices.get(device_id)
            or Device(id=device_id, health=Health.unhealthy("the device is gone"))
        )
