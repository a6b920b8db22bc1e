"""`Planner`: what to ask the API server next so that it has the slices of a pool. Sans-IO: no clock, no connection.

It is told what is wanted, what the server answers, what the watch brings, and the time; it says one `Action` at a time.

::

    version ──► owner ──► list ──► watch ──► compare ──► write, one after the other ──► wait
       ▲           ▲        ▲                   ▲                    │
       │           │        └── 409, 410, 404 ──┼────────────────────┤
       │           └── a slice was deleted ─────┘                    │
       └── no answer, a watch that broke: after a pause that grows ◄─┘

What holds, whatever happens:

1. Nothing is written while the server has what is wanted.
2. A slice is written at most once a second, and all together at most 20 times a second after a first burst. What the
   server has left out the first time is answered at once: a partition must not be offered without its counters.
3. A request that failed is repeated only after a pause, which grows while it goes on failing.
4. What a write replaces or deletes is named by UID and resource version; slices of other pools and drivers are not
   touched. Before several slices are written, the server has judged all of them, so that none stops half-way.
5. What the server is known not to hold honestly (see `kdp.dra.publishing.feature_gates`) is not sent.
6. When everything goes well again, the server has what is wanted, all in one generation.

All writes are planned from one comparison and then done one after the other; what is wanted meanwhile waits for the end
of the plan, as otherwise a pool that changes all the time would stay incomplete. What somebody else does to the slices
ends the plan at once, as it was made for other objects.

A resource version says which of two states of an object is the newer one (``k8s.io/apimachinery`` promises that from
1.35 on, and all versions do so), so that the watch's echo of our own writes is known as such.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...errors import InvalidValueError
from ...model.devices import AttributeValue, Device
from ...model.quantities import Amount
from ..names import device_name
from .actions import (
    Action,
    Check,
    Create,
    Delete,
    PublisherStatus,
    ReadOwner,
    ReadSlices,
    ReadVersion,
    Update,
    Wait,
    Watch,
    Write,
)
from .feature_gates import PARTITIONS, DroppedField, dropped_fields, publishable
from .pacing import Failures, WriteRate
from .slices import Limits, Memory, Pool, PoolSlice, comes_later, is_same_content, is_stored, pool_slices, writes

if TYPE_CHECKING:
    import random

    from ...cluster.api import ApiError, Slices, WatchEvent

_DEVICE: Final = re.compile(r"\bspec\.devices\[(\d+)\]")

SETTLE: Final = 0.25
"""Seconds without a deletion until slices are made again: a starting kubelet deletes them one by one."""

MOST_SETTLE: Final = 1.0
"""Seconds after which they are made again although the deletions go on."""

OWNER_CHECK: Final = 300.0
"""Seconds after which the node's UID is read again."""

WATCH_GAP: Final = 1.0
"""Seconds between the starts of two watches that ended well."""


@final
@attrs.frozen
class _Input:
    devices: Sequence[Device]
    counters: Mapping[str, Mapping[str, Amount]]
    standard: Mapping[str, Mapping[str, AttributeValue]]


@final
@attrs.frozen
class _Accepted:
    """What was sent, and what the server made of it for good: writing it again would change nothing."""

    sent: Mapping[str, Any]
    stored: Mapping[str, Any]


@final
class Planner:
    """Says what to do next for one pool.

    Call `next`, do what it says, tell the result by `done` or `failed`, and so on. `want`, `observed` and `watch_ended`
    may be called at any time between.

    Args:
        pool: The pool.
        owner: The node that owns the slices; None: nobody does.
        rng: Where jitter comes from; tests give a seeded one.
    """

    def __init__(self, pool: Pool, *, owner: str | None = None, rng: random.Random | None = None) -> None:
        self._pool = pool
        self._owner = owner
        # what is wanted
        self._input: _Input | None = None
        self._is_rendered = True
        self._wanted: tuple[PoolSlice, ...] = ()
        self._good: tuple[PoolSlice, ...] = ()  # what the server has had, and will take again
        self._again_at: float | None = None  # when it is asked again for what it has refused
        self._memory = Memory()
        self._withheld: Mapping[str, str] = {}
        self._invalid: str | None = None
        # what is known of the server
        self._version: str | None = None
        self._version_due = True
        self._limits: Limits | None = None
        self._dropped: dict[str, DroppedField] = {}
        self._owners: tuple[Mapping[str, Any], ...] = ()
        self._owner_at: float | None = None if owner is None else 0.0
        self._is_listed = False
        self._stored: dict[str, Mapping[str, Any]] = {}
        self._accepted: dict[str, _Accepted] = {}
        self._floor = 0
        self._newest: dict[str, int] = {}
        self._watch_from = ""
        self._is_watching = False
        self._watch_at = 0.0
        # what is to be done
        self._is_dirty = False
        self._plan: deque[Write | Check] = deque()
        self._under_way: Write | None = None
        self._held: list[WatchEvent] = []
        self._generation = 0
        self._published = (0, 0, 0)
        # when
        self._failures = Failures(rng)
        self._rate = WriteRate()
        self._not_before = 0.0
        self._settle_until = 0.0
        self._settle_since: float | None = None

    @property
    def status(self) -> PublisherStatus:
        """What the server has."""
        generation, count, devices = self._published
        return PublisherStatus(
            generation=generation,
            slices=count,
            devices=devices,
            is_current=bool(generation) and not self._is_dirty and not self._plan and self._invalid is None,
            problem=self._failures.problem or self._invalid,
            withheld=self._withheld,
            dropped=tuple(self._dropped[gate] for gate in sorted(self._dropped)),
            stored=len(self._stored),
        )

    def want(
        self,
        devices: Sequence[Device],
        counters: Mapping[str, Mapping[str, Amount]],
        standard: Mapping[str, Mapping[str, AttributeValue]],
    ) -> None:
        """Say what is wanted from now on; the newest wins. It is judged when the server's version is known."""
        self._input = _Input(devices, counters, standard)
        self._render_anew()

    def _render_anew(self) -> None:
        self._again_at = None
        self._is_rendered = False
        self._is_dirty = True

    # -- what next -----------------------------------------------------------------------------------------------------

    def next(self, now: float) -> Action:
        """Return what to do.

        Args:
            now: Seconds on any clock that never goes back; the same for all methods.
        """
        if now < self._failures.pause_until:
            return Wait(self._failures.pause_until)
        if self._version_due:
            return ReadVersion()
        if self._owner is not None and self._owner_at is not None and now >= self._owner_at:
            return ReadOwner(self._owner)
        if not self._is_listed:
            return ReadSlices()
        if not self._is_watching and now >= self._watch_at:
            self._is_watching = True
            self._watch_at = now + WATCH_GAP
            return Watch(self._watch_from)
        if self._again_at is not None and now >= self._again_at:
            self._render_anew()
        at = None
        if not self._plan and self._is_dirty and self._input is not None:
            at = self._compare(now)
        if self._plan:
            step = self._plan[0]
            self._under_way = None if isinstance(step, Check) else step
            return step
        if at is None and self._is_watching and now >= self._watch_at:
            self._failures.end()
        times = [at, self._again_at, self._owner_at, self._watch_at if now < self._watch_at else None]
        return Wait(min((time for time in times if time is not None), default=None))

    def _compare(self, now: float) -> float | None:
        """Make the plan if anything is to be written and may be now; else return when it may be, None: nothing is."""
        if now < self._not_before:
            return self._not_before
        if self._settle_since is not None:
            if now < self._settle_until:
                return self._settle_until
            self._settle_since = None
        if not self._is_rendered:
            self._render()
        if not self._wanted:
            self._is_dirty = False
            return None
        todo = writes(
            self._wanted, map(self._as_sent, self._stored.values()), last=self._generation, owners=self._owners
        )
        if not todo:
            self._complete(todo.generation)
            return None
        touched = [item["metadata"]["name"] for item in (*todo.delete, *todo.update, *todo.create)]
        at = self._rate.earliest(touched, len(self._wanted), now)
        if at > now:
            self._not_before = at  # what changes until then is compared together
            return at
        update = [Update(item) for item in sorted(todo.update, key=comes_later)]
        create = [Create(item) for item in sorted(todo.create, key=comes_later)]
        judged = [*map(Check, update), *map(Check, create)] if len(touched) > 1 else []
        self._plan = deque([*judged, *(Delete(item) for item in todo.delete), *update, *create])
        self._generation = todo.generation
        self._is_dirty = False
        return None

    def _render(self) -> None:
        assert self._input is not None
        assert self._limits is not None  # nothing is compared before the version is known
        gates_off = self._dropped.keys()
        honest = publishable(self._input.devices, gates_off)
        self._is_rendered = True
        try:
            self._wanted = pool_slices(
                honest.devices,
                pool=self._pool,
                limits=self._limits,
                counters={} if PARTITIONS in gates_off else self._input.counters,
                standard=self._input.standard,
                memory=self._memory,
            )
        except InvalidValueError as error:
            self._invalid = str(error)
        else:
            self._invalid = None
            self._withheld = honest.withheld

    def _as_sent(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a stored object as we sent it, where that is all that the server will ever have of it."""
        accepted = self._accepted.get(item["metadata"]["name"])
        if accepted is None or not is_same_content(accepted.stored, item):
            return item
        metadata = {**item["metadata"], "ownerReferences": accepted.sent["metadata"].get("ownerReferences", [])}
        return {**item, "metadata": metadata, "spec": {**accepted.sent["spec"], "pool": item["spec"]["pool"]}}

    def _complete(self, generation: int) -> None:
        devices = sum(each.devices for each in self._wanted)
        self._published = generation, len(self._wanted), devices
        self._good = self._wanted
        self._generation = generation
        self._is_dirty = False
        if not self._failures.is_of_watch:
            self._failures.problem = None

    # -- what the server answers ---------------------------------------------------------------------------------------

    def done(self, step: Action, result: Any, now: float) -> None:
        """Tell that a step is done.

        Args:
            step: What `next` said.
            result: The version; the node; the `Slices`; the stored object of a write.
            now: The time.
        """
        match step:
            case ReadVersion():
                self._version_is(result, now)
            case ReadOwner(node):
                self._owner_is(node, result["metadata"]["uid"], now)
            case ReadSlices():
                self._slices_are(result)
            case Check():
                self._passed(step)
            case Create(item) | Update(item):
                self._did(step, now)
                self._is_written(item, result)
                self._release(now)
            case Delete(item):
                self._did(step, now)
                self._forget(item)
                self._release(now)
            case Watch() | Wait():
                pass

    def _version_is(self, version: str, now: float) -> None:
        if version != self._version:
            try:
                limits = Limits.of(version)
            except InvalidValueError as error:
                self._failures.add(self._failures.denied, str(error), now)
                return
            if (limits != self._limits or self._dropped or self._again_at is not None) and self._input is not None:
                self._render_anew()
            self._limits = limits
            self._version = version
            self._dropped.clear()  # another version, or another configuration: what it can hold is to be seen
            self._accepted.clear()
        self._version_due = False

    def _owner_is(self, node: str, uid: str, now: float) -> None:
        owners = ({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True},)
        if owners != self._owners:
            self._owners = owners
            self._is_dirty = self._input is not None
            self._plan.clear()
        self._owner_at = now + OWNER_CHECK

    def _slices_are(self, found: Slices) -> None:
        listed = {item["metadata"]["name"]: item for item in found.items if self._is_ours(item)}
        self._floor = _number(found.resource_version)
        # What a living watch has brought meanwhile may be newer than the list; a watch that ended may be of another
        # life of the server, whose versions mean nothing any more.
        newer = {name: at for name, at in self._newest.items() if self._is_watching and at > self._floor}
        kept = {name: item for name, item in self._stored.items() if name in newer}
        self._stored = {name: item for name, item in listed.items() if name not in newer} | kept
        self._newest = newer
        if not self._is_watching:
            self._watch_from = found.resource_version
        self._is_listed = True
        self._is_dirty = self._input is not None
        self._plan.clear()

    def _did(self, step: Write, now: float) -> None:
        """Note a write, whether it went well or not."""
        self._rate.wrote(step.item["metadata"]["name"], now)
        self._passed(step)

    def _passed(self, step: Write | Check) -> None:
        if self._plan and self._plan[0] is step:
            self._plan.popleft()
        else:
            self._is_dirty = True  # the plan was given up while this was under way

    def _is_written(self, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        name = stored["metadata"]["name"]
        version = _number(stored["metadata"]["resourceVersion"])
        if version >= self._newest.get(name, 0):
            self._stored[name] = stored
            self._newest[name] = version
        self._accepted.pop(name, None)
        lost = dropped_fields(sent, stored)
        wanted = next((each for each in self._wanted if each.name == name), None)
        if lost or (wanted is not None and not is_stored(wanted, stored, self._owners)):
            self._accepted[name] = _Accepted(sent, stored)
        news = {field.gate: field for field in lost if field.gate not in self._dropped}
        if news:
            self._dropped |= news
            # What must not be offered without the field is taken back at once, or not sent at all.
            self._rate.hurry(name)
            self._is_rendered = False
            self._is_dirty = True
            self._plan.clear()
        elif not self._plan and not self._is_dirty:
            self._complete(self._generation)

    def _forget(self, item: Mapping[str, Any]) -> None:
        name = item["metadata"]["name"]
        self._stored.pop(name, None)
        self._accepted.pop(name, None)
        self._newest[name] = max(self._newest.get(name, 0), _number(item["metadata"]["resourceVersion"]))
        if not self._plan and not self._is_dirty:
            self._complete(self._generation)

    def failed(self, step: Action, error: ApiError, now: float) -> None:
        """Tell that a step failed."""
        if isinstance(step, Delete) and error.status == 404:
            self.done(step, None, now)
            return
        failures = self._failures
        is_conflict = False
        if isinstance(step, Create | Update | Delete):
            self._did(step, now)
        write = step.write if isinstance(step, Check) else step
        if isinstance(write, Create | Update | Delete):
            self._plan.clear()
            self._is_dirty = True
            is_conflict = error.status == 409 or (error.status == 404 and isinstance(write, Update))
        if is_conflict:
            self._is_listed = False
            is_taken = failures.conflict.failures >= 3
            failures.add(failures.conflict, str(error) if is_taken else failures.problem, now)
        elif isinstance(step, ReadOwner) and error.status == 404:
            text = f"node {step.node!r} is not in the API server: its slices are published when it is"
            failures.add(failures.nobody, text, now)
        elif error.status == 422 and isinstance(write, Create | Update) and self._good and self._wanted != self._good:
            self._invalid = f"{self._whose(str(error), write.item)}{error}"
            self._wanted = self._good  # also where a kubelet wipes the slices
            self._again_at = now + failures.denied.next()
        else:
            failures.add_error(error, now)
            if error.status == 422 and isinstance(write, Create | Update):
                failures.problem = f"{self._whose(str(error), write.item)}{error}"
        self._release(now)

    def _whose(self, text: str, item: Mapping[str, Any]) -> str:
        """Return whose fault the server tells of; empty: no device's."""
        match = _DEVICE.search(text)
        if match is None or self._input is None:
            return ""
        name = item["spec"]["devices"][int(match[1])]["name"]
        ids = {device_name(device.id): device.id for device in self._input.devices}
        return f"device {ids.get(name, name)!r}: "

    def _release(self, now: float) -> None:
        """Take in what the watch has brought of a slice while it was written."""
        self._under_way = None
        held, self._held = self._held, []
        for event in held:
            self.observed(event, now)

    # -- what the watch brings -----------------------------------------------------------------------------------------

    def observed(self, event: WatchEvent, now: float) -> None:
        """Tell an event of the watch."""
        item = event.item
        version = item["metadata"]["resourceVersion"]
        self._watch_from = version
        if event.kind == "BOOKMARK" or not self._is_ours(item):
            return
        name = item["metadata"]["name"]
        if self._under_way is not None and self._under_way.item["metadata"]["name"] == name:
            self._held.append(event)  # the echo may be here before the answer
            return
        if _number(version) <= max(self._floor, self._newest.get(name, 0)):
            return  # the echo of a write of ours, or older than what we have been told
        known = self._stored.get(name)
        self._newest[name] = _number(version)
        if event.kind == "DELETED":
            if known is None:
                return
            del self._stored[name]
            self._settle(now)
        else:
            self._stored[name] = item
            if known is not None and not self._plan and is_same_content(known, item):
                return  # somebody's label
        self._plan.clear()
        self._is_dirty = self._input is not None

    def _settle(self, now: float) -> None:
        """A slice was deleted, by a kubelet that starts or because the node is gone."""
        self._not_before = 0.0
        self._settle_since = now if self._settle_since is None else self._settle_since
        self._settle_until = min(now + SETTLE, self._settle_since + MOST_SETTLE)
        if self._owner is not None:
            self._owner_at = self._settle_until

    def watch_ended(self, error: ApiError | None, now: float) -> None:
        """Tell that the watch is over.

        Args:
            error: Why; None: the server ended it, as it does after some minutes.
            now: The time.
        """
        self._is_watching = False
        if error is None:
            return
        self._is_listed = False
        if error.status == 410:
            self._failures.add(self._failures.conflict, self._failures.problem, now)
            return
        self._version_due = True
        self._failures.is_of_watch = True
        self._failures.add_error(error, now)

    def restart(self) -> None:
        """Tell that the publisher stopped in the middle of a step: the result of that step is not known."""
        self._is_watching = False
        self._is_listed = False
        self._version_due = True
        self._plan.clear()
        self._under_way = None
        self._held.clear()
        self._is_dirty = self._input is not None

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _is_ours(self, item: Mapping[str, Any]) -> bool:
        spec = item["spec"]
        return bool(spec["driver"] == self._pool.driver and spec["pool"]["name"] == self._pool.name)


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdecimal() else 0
