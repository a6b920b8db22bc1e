"""Which devices were allocated, and which of them pods have given back. Sans-IO: no clock, no socket, no task.

The protocol has no deallocation. What there is are the Allocates that went through us and the lists of the
pod-resources API, each of which may be late, wrong or missing. Both go in here with their times; out come the
allocations that have ended, and the vanished devices that no pod holds.

A device is *free* when two complete lists in a row, at least `Pace.gap` apart, did not name it, and no pod can hold it
unnamed. A kubelet names an admitted pod's devices at once, also while its containers wait, except those of plain init
containers. So a device that no list has named since its last Allocate has *suspects*: the pods in the first complete
list after that Allocate which may have been admitted with it. When no suspect is listed any more, the device is free. A
pod is no suspect if the lists have named it since `Pace.admission` before the Allocate. The API tells no UIDs.
Therefore a suspect of an earlier Allocate stays one: a pod made anew under its name may need the same.

Invariants, each with a mutant in the tests that breaks it:

1. No allocation is handed out as ended while one of its devices is held or being allocated.
2. A list speaks only of devices whose last Allocate was over before it was asked for, and only a list of a kubelet that
   knows all its pods (``is_complete``) says by its silence that a device is free.
3. An allocation is handed out once, and again only after it failed.
4. No allocation is lost: it is in `owed` until it was released. Allocations of the same devices that left the same
   state and could not be told in between count as one.
5. A vanished device is let go after two lists without it, `Pace.gap` apart, and never while one names it.
6. While anything is owed there is a next look.
7. An allocation that no list has named ends after two lists without it and without a suspect.
8. If devices are scrubbed, `waits_for` keeps a container from the data of another pod.
9. What a living pod has is not scrubbed.
10. A container that is started again waits for no scrub.
11. No container waits for the end of a pod that has ended.

For such a resource an Allocate proves more. The kubelet gives a device away only after its pod has ended. So every
started allocation of the device has *come back*, although the lists name the device for the next pod by then. It ends
when a list no longer has the former pod, because a kubelet without its checkpoint gives devices of living pods away. If
the kubelet has named the former pod itself, it has its checkpoint. Then the allocation ends at once: a listed pod with
the same name is a new one. An allocation whose container has not started left nothing. It may belong to an init
container of the same pod.

Replicas of one device are at one *place*, and come back when the last of them does. An Allocate of one replica proves
nothing about the pods with the other replicas. So a container waits until a list, asked for after its Allocate, names a
pod with another replica: then both share the device. Otherwise that pod may have ended, and its data must be scrubbed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs

from ...startup import shown
from .allocation_record import AllocationRecord, Key, Pod

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ..options import Pace

FIRST_LOOK = 0.3
"""Seconds from an Allocate to the first list that is to show it: a pod may be short."""

LOOK_AGAIN = 1.0
"""Seconds between two lists while a device that came back waits for the end of its pod."""

RETRY_MOST = 60.0
"""The longest pause before a release is tried again, in first pauses (`Pace.retry`)."""

SCRUB_MOST = 12.0
"""The same for a scrub: nobody can use the device meanwhile."""


@final
@attrs.define
class _Track:
    """What is known of one device."""

    __repr__ = shown

    changed_at: float
    """When its last Allocate ended, or when it vanished."""
    began_at: float = float("-inf")
    """When its last Allocate began; -inf: before this process did."""
    under_way: int = 0
    is_seen: bool = False
    is_named: bool = False
    named_at: float = float("-inf")
    missing_since: float | None = None
    is_missed: bool = False
    suspects: frozenset[Pod] = frozenset()
    has_suspects: bool = False
    """Whether ``suspects`` are those of the last Allocate: a complete list has been taken since."""

    def forget(self, now: float) -> None:
        """Whatever was asked for before now says nothing."""
        self.changed_at = now
        self.missing_since = None
        self.is_missed = self.is_named = False


@final
@attrs.frozen(kw_only=True)
class ListOutcome:
    """What a list led to.

    Attributes:
        ended: Allocations whose devices are free: release each, then call `Allocations.released` or
            `Allocations.failed`.
        gone: Vanished devices that no pod holds.
        held: Vanished devices that a pod holds.
        seen: Resources of which an allocation was seen for the first time, or its suspects were found: what is saved
            has changed.
    """

    __repr__ = shown

    ended: tuple[AllocationRecord, ...]
    gone: frozenset[Key]
    held: frozenset[Key]
    seen: frozenset[str]


def _likeness(use: AllocationRecord) -> object:
    """Return what is equal of allocations that count as one; many may be owed of one device."""
    if not use.state:
        return use.resource, use.ids
    import json  # a plugin whose hooks leave no state starts without it

    return use.resource, use.ids, json.dumps(use.state, sort_keys=True)


class Allocations:
    """Keeps account of all resources of a process.

    Args:
        pace: How often the kubelet is asked.
        boot_id: The boot of the node; "": unknown.
    """

    def __init__(self, pace: Pace, *, boot_id: str = "") -> None:
        self._boot_id = boot_id
        self._gap = pace.gap
        self._look = pace.look
        self._admission = pace.admission
        self._retry = pace.retry
        self._longest_break = 2 * max(pace.look, pace.period)
        self._tracks: dict[Key, _Track] = {}
        self._uses: dict[str, AllocationRecord] = {}
        self._uses_of: dict[Key, dict[str, AllocationRecord]] = {}
        self._alike: dict[object, dict[str, AllocationRecord]] = {}
        self._vanished: dict[Key, None] = {}
        self._listed_at = float("-inf")
        self._pods: dict[Pod, float] = {}
        self._pods_at = self._known_at = float("-inf")
        self._uids: dict[Pod, str] = {}
        self._scrubbed: set[str] = set()
        self._place: dict[str, Callable[[str], str]] = {}
        self._doubted_at: dict[str, float] = {}

    def scrub(self, resource: str) -> None:
        """From now on the devices of this resource are scrubbed between two pods."""
        self._scrubbed.add(resource)

    def share(self, resource: str, place: Callable[[str], str]) -> None:
        """Take the devices of this resource as replicas; ``place`` returns the id of a replica's device."""
        self._place[resource] = place

    def place(self, resource: str, device_id: str) -> str:
        """Return the id of a replica's device; any other id is returned unchanged."""
        place = self._place.get(resource)
        return device_id if place is None else place(device_id)

    def owed(self, resource: str | None = None) -> list[AllocationRecord]:
        """Return the allocations that are not released yet, the oldest first."""
        return [use for use in [*self._uses.values()] if resource is None or use.resource == resource]

    def is_seen(self, use: AllocationRecord) -> bool:
        """Return whether a list has named the devices of an allocation, apart from devices with a later one."""
        tracks = self._own_tracks(use)
        return bool(tracks) and all(track.is_seen and not track.under_way for track in tracks)

    def suspects(self, use: AllocationRecord) -> frozenset[Pod] | None:
        """Return the pods that may hold devices of an allocation unnamed; None: no list has told since its Allocate."""
        unseen = [track for track in self._own_tracks(use) if not track.is_seen or track.under_way]
        if not all(track.has_suspects and not track.under_way for track in unseen):
            return None
        return frozenset[Pod]().union(*(track.suspects for track in unseen))

    def _own_tracks(self, use: AllocationRecord) -> list[_Track]:
        """Return the tracks of the devices without a later allocation."""
        return [self._tracks[key] for key in use.keys if self.newest_of(*key) is use]

    def newest(self, resource: str, ids: Collection[str]) -> AllocationRecord | None:
        """Return the last allocation of exactly these devices."""
        wanted = tuple(sorted(set(ids)))
        return next((use for use in reversed(self._same(resource, wanted)) if use.ids == wanted), None)

    def _same(self, resource: str, ids: Collection[str]) -> list[AllocationRecord]:
        """Return the allocations, the oldest first, among which are all of exactly these devices."""
        return list(self._uses_of.get((resource, next(iter(ids), "")), {}).values())

    def newest_of(self, resource: str, device_id: str) -> AllocationRecord | None:
        """Return the last allocation of a device, alone or with others: the kubelet has forgotten earlier ones."""
        return next(reversed(self._uses_of.get((resource, device_id), {}).values()), None)

    def replaced(self, use: AllocationRecord) -> list[AllocationRecord]:
        """Return earlier allocations of which each device has a later one by now."""
        return [
            other
            for other in self.of(use.resource, use.ids)
            if other is not use
            and not other.is_handed_out
            and all(self.newest_of(*key) is not other for key in other.keys)
        ]

    def is_unexplained(self, resource: str, device_id: str, asked_at: float) -> bool:
        """Return whether a device that a List asked for then has named has no allocation."""
        track = self._tracks.get((resource, device_id))
        is_older = track is None or (not track.under_way and track.changed_at < asked_at)
        return is_older and not self.is_owed(resource, device_id)

    def is_owed(self, resource: str, device_id: str) -> bool:
        """Return whether a device has an allocation that is not released yet."""
        return bool(self._uses_of.get((resource, device_id)))

    def of(self, resource: str, ids: Iterable[str]) -> list[AllocationRecord]:
        """Return the allocations that have one of these devices."""
        found = (self._uses_of.get((resource, device_id), {}) for device_id in ids)
        return [*{uid: use for uses in found for uid, use in uses.items()}.values()]

    def withdraw(self, use: AllocationRecord) -> None:
        """Take back an allocation that was handed out and whose release has not begun: its devices are asked for."""
        use.is_handed_out = False

    def take_back(self, resource: str, ids: Iterable[str], at: tuple[str, float]) -> None:
        """The kubelet gives these devices away: their started allocations have come back.

        Args:
            resource: The resource.
            ids: The devices.
            at: The time of the Allocate; see `AllocationRecord.at`.
        """
        for use in self.of(resource, ids):
            self._came_back(use, at)
            if use.is_back and use.is_known:
                use.pod = None  # it has ended, and a listed pod with its name is a new one

    def doubt(self, resource: str, now: float) -> None:
        """A stream has opened or ended: another kubelet may answer from now on, without the checkpoint."""
        self._doubted_at[resource] = now
        for use in self.owed(resource):
            use.is_known = False

    def _came_back(self, use: AllocationRecord, at: tuple[str, float]) -> None:
        if use.is_started and (not use.is_back or self._when(at) < self._when(use.back_at)):
            use.is_back, use.back_at = True, at

    def waits_for(
        self, resource: str, ids: Collection[str], others: Iterable[AllocationRecord] = ()
    ) -> AllocationRecord | None:
        """Return an allocation that keeps a container with exactly these devices from starting; None: it may start.

        Either the allocation has come back and is not scrubbed, or it is of another replica and its pod may have ended,
        or another process of the plugin has it.

        Args:
            resource: The resource.
            ids: The devices.
            others: What that process has not released, which this one takes over when it has ended.
        """
        theirs = self._overlapping(resource, ids, others)
        wanted = tuple(sorted(set(ids)))
        own = self.newest(resource, ids) or next((use for use in reversed(theirs) if use.ids == wanted), None)
        if own is not None and own.is_started and not own.is_back:
            return None  # a container that is started again
        for use in self._overlapping(resource, ids, self.owed(resource)):
            if use.is_back:
                return use
            if own is not None and use.is_started and not self._shares(use, own):
                return use
        return next(iter(theirs), None)

    def waits_for_process(self, use: AllocationRecord, others: Iterable[AllocationRecord]) -> bool:
        """Return whether an allocation cannot be released yet, as another process of the plugin has the device, too."""
        return any(other.uid != use.uid for other in self._overlapping(use.resource, use.ids, others))

    def _overlapping(
        self, resource: str, ids: Iterable[str], uses: Iterable[AllocationRecord]
    ) -> list[AllocationRecord]:
        """Return those allocations that have one of these devices, or another replica of one."""
        places = {self.place(resource, device_id) for device_id in ids}
        return [use for use in uses if not places.isdisjoint(self.place(resource, each) for each in use.ids)]

    def _shares(self, use: AllocationRecord, own: AllocationRecord) -> bool:
        """Whether the pods of two allocations of one device are known to have it at the same time, or to be one pod."""
        if not set(own.ids).isdisjoint(use.ids):
            return True  # the later Allocate did not take it back, so it is an init container's
        since = max(self._tracks[key].changed_at for key in own.keys)
        return any(self._tracks[key].named_at > since for key in use.keys)

    def withheld(self, resource: str, ids: Iterable[str]) -> dict[str, AllocationRecord]:
        """Return the devices among these that wait for a scrub, each with the allocation that is not scrubbed.

        A device that was given away again is not among them, nor is a replica of a device that is in use.
        """
        back: dict[str, AllocationRecord] = {}
        in_use: dict[str, set[str]] = {}
        for use in self.owed(resource):
            for device_id in use.ids:
                place = self.place(resource, device_id)
                if use.is_back:
                    back.setdefault(place, use)
                elif use.is_started:
                    in_use.setdefault(place, set()).add(device_id)
        found: dict[str, AllocationRecord] = {}
        for device_id in ids if back else ():
            place, newest = self.place(resource, device_id), self.newest_of(resource, device_id)
            is_shared = bool(in_use.get(place, set()) - {device_id})
            if place in back and not is_shared and (newest is None or newest.is_back):
                found[device_id] = back[place]
        return found

    def others(self, resource: str, ids: Collection[str], *, is_over: bool) -> dict[str, tuple[str, ...]]:
        """Return which other replicas of the same devices are allocated, by device.

        Args:
            resource: The resource.
            ids: The replicas of a container.
            is_over: Whether that container has ended. Then replicas of containers that have not started do not count,
                and those that wait for a scrub do: the last of them is scrubbed.
        """
        if resource not in self._place:
            return {}
        found: dict[str, list[str]] = {self.place(resource, device_id): [] for device_id in ids}
        for use in self.owed(resource):
            if use.is_started if is_over else not use.is_back:
                for device_id in sorted(set(use.ids) - set(ids)):
                    found.get(self.place(resource, device_id), []).append(device_id)
        return {place: tuple(dict.fromkeys(names)) for place, names in found.items() if names}

    def is_vanished(self, resource: str, device_id: str) -> bool:
        """Return whether a device is listed although the hardware no longer has it."""
        return (resource, device_id) in self._vanished

    def back(self, now: float) -> list[AllocationRecord]:
        """Hand out the allocations that have come back, if the kubelet gives no list."""
        waiting = (use for use in self._uses.values() if use.is_back and not use.is_handed_out)
        return self._hand_out(use for use in waiting if now >= use.retry_at)

    def under_release(self, resource: str, ids: Iterable[str]) -> AllocationRecord | None:
        """Return an allocation of one of these devices whose release is under way."""
        return next((use for use in self.of(resource, ids) if use.is_handed_out), None)

    @property
    def is_waiting(self) -> bool:
        """Whether lists are of use at all."""
        return bool(self._uses or self._vanished)

    def next_look(self, *, is_settled: bool = False) -> float | None:
        """Return when a list is to be asked for; None: nothing is owed, so none is.

        Args:
            is_settled: Whether all holders of the last list and all suspects run. Then their devices need no look.
        """
        times = [
            self._next_look_at(key, self._tracks[key], owed=True, is_settled=is_settled)
            for use in self._uses.values()
            if not use.is_handed_out
            for key in use.keys
        ]
        times += [
            self._next_look_at(key, self._tracks[key], owed=False, is_settled=is_settled) for key in self._vanished
        ]
        times += [use.retry_at for use in self._uses.values() if use.failures and use.retry_at > self._listed_at]
        times += [
            max(use.retry_at, self._listed_at + LOOK_AGAIN)
            for use in self._uses.values()
            if use.is_back and not use.is_handed_out
        ]
        return min(times, default=None)

    def _next_look_at(self, key: Key, track: _Track, *, owed: bool, is_settled: bool) -> float:
        if self._listed_at <= track.changed_at:
            return track.changed_at + (FIRST_LOOK if owed else 0.0)
        if track.missing_since is not None and not track.is_missed:
            return max(track.missing_since + self._gap, self._listed_at)
        if is_settled and (track.is_named or track.suspects):
            return float("inf")
        if owed and not track.is_seen:  # ever more seldom: it may be an init container's
            return self._listed_at + min(max(1.0, self._listed_at - track.changed_at), self._look)
        return self._listed_at + self._look

    def begin(self, resource: str, ids: Iterable[str], now: float) -> None:
        """An Allocate of these devices begins. `end` must follow."""
        for device_id in ids:
            track = self._tracks.get((resource, device_id))
            if track is None:
                track = self._tracks[resource, device_id] = _Track(now)
            if not track.under_way:
                track.began_at = now
            track.under_way += 1

    def end(self, resource: str, ids: Iterable[str], now: float, *, given: bool) -> None:
        """It is over; ``given``: the kubelet was told yes, so a list must name the devices anew."""
        for device_id in ids:
            track = self._tracks[resource, device_id]
            track.under_way -= 1
            track.forget(now)
            if given:
                track.is_seen = track.has_suspects = False
            self._tidy((resource, device_id))

    def adopt(self, uses: Sequence[AllocationRecord], now: float) -> None:
        """Take allocations that were saved; what is known of a device here is newer."""
        unknown = {key for use in uses for key in use.keys} - self._tracks.keys()
        told_of: dict[Key, list[AllocationRecord]] = {}
        for use in uses:
            for other in self.of(use.resource, use.ids) if use.resource in self._scrubbed else ():
                if other.file != use.file:  # two processes gave the device away; two Allocates of one may be of one pod
                    older, newer = sorted((use, other), key=self._order)
                    self._came_back(older, newer.at)
            self.add(use, now)
            for key in unknown & set(use.keys):
                told_of.setdefault(key, []).append(use)
        for key, told in told_of.items():
            known = [use.suspects for use in told if use.suspects is not None]
            track = self._tracks[key]
            newest = self.newest_of(*key)
            track.is_seen = newest is not None and newest.is_seen  # a list before the newest says nothing of it
            track.suspects = frozenset[Pod]() if track.is_seen else frozenset[Pod]().union(*known)
            track.has_suspects = len(known) == len(told)
            if not track.is_seen and not track.has_suspects and self._pods:  # beside the process that has ended
                track.suspects, track.has_suspects = track.suspects | self._pods.keys(), True

    def add(self, use: AllocationRecord, now: float) -> AllocationRecord | None:
        """Take an allocation, a new one before its `end`; return the older one of two that count as one."""
        for other in self._alike.get(_likeness(use), {}).values():
            if not other.is_handed_out and not other.is_back and not use.is_back:
                if self._order(use) < self._order(other):
                    return use
                self._remove(other)
                self._insert(use, now)
                return other
        self._insert(use, now)
        return None

    def latest(self, uses: Iterable[AllocationRecord]) -> AllocationRecord | None:
        """Return the allocation that was made last, of those without a time the last one; `None` if there is none."""
        return max(reversed([*uses]), key=self._order, default=None)

    def _order(self, use: AllocationRecord) -> tuple[bool, float]:
        return self._when(use.at)

    def _when(self, at: tuple[str, float]) -> tuple[bool, float]:
        """Return the sort key of a time: times of another boot are earlier."""
        return at[0] == self._boot_id, at[1]

    def _insert(self, use: AllocationRecord, now: float) -> None:
        """Take an allocation at its place among those of its devices: one that is taken over may be an older one."""
        self._uses[use.uid] = use
        self._alike.setdefault(_likeness(use), {})[use.uid] = use
        for key in use.keys:
            held = self._uses_of.setdefault(key, {})
            newest = next(reversed(held.values()), use)
            held[use.uid] = use
            if self._order(use) < self._order(newest):
                for each in [each for each in held.values() if self._order(use) < self._order(each)]:
                    held[each.uid] = held.pop(each.uid)
            self._tracks.setdefault(key, _Track(now))

    def split(self, use: AllocationRecord, uid: str, ids: Collection[str]) -> AllocationRecord:
        """Divide an allocation that was handed out; return the new one, which has these of its devices."""
        part = attrs.evolve(use, uid=uid, ids=tuple(sorted(ids)), is_handed_out=False)
        self._remove(use)
        use.ids = tuple(each for each in use.ids if each not in ids)
        for each in (part, use):
            self._insert(each, self._pods_at)
        return part

    def restate(self, use: AllocationRecord, state: Mapping[str, Any]) -> None:
        """Take over the state that a later hook left; a release that got further is tried again soon."""
        self._forget_likeness(use)
        use.state = state
        use.failures = 0
        self._alike.setdefault(_likeness(use), {})[use.uid] = use

    def released(self, use: AllocationRecord) -> None:
        """The backend has cleaned up after this allocation."""
        self._remove(use)
        for key in use.keys:
            self._tidy(key)

    def failed(self, use: AllocationRecord, now: float) -> None:
        """It could not: hand the allocation out again, later."""
        most = SCRUB_MOST if use.is_back else RETRY_MOST
        use.is_handed_out = False
        use.retry_at = now + self._retry * min(most, 2.0 ** min(use.failures, 20))
        use.failures += 1

    def vanished(self, resource: str, ids: Collection[str], now: float) -> None:
        """Take the ids of a resource that are listed although the hardware no longer has them: all of them."""
        before = {key for key in self._vanished if key[0] == resource}
        keys = {(resource, device_id) for device_id in ids}
        for key in before - keys:
            del self._vanished[key]
            self._tidy(key)
        for key in sorted(keys - before):
            self._vanished[key] = None
            self._tracks.setdefault(key, _Track(now)).forget(now)

    def postpone(self, use: AllocationRecord, now: float) -> None:
        """Hand the allocation out again, later: its devices are not there."""
        self.withdraw(use)
        use.retry_at = now + self._retry

    def listed(
        self,
        named: Mapping[Key, tuple[Pod, ...]],
        pods: Collection[Pod],
        *,
        asked_at: float,
        now: float,
        is_complete: bool,
    ) -> ListOutcome:
        """Take an answer of the pod-resources API: the devices that pods hold, each with its pods, and all active pods.

        Its silence means something only if the kubelet knows all its pods (``is_complete``).
        """
        seen: set[str] = set()
        inherited = {pod for track in self._tracks.values() for pod in track.suspects}
        if is_complete:
            self._take_pods(pods, asked_at)
        self._listed_at = max(self._listed_at, asked_at)
        for key, track in self._tracks.items():
            if track.under_way or asked_at <= track.changed_at:
                continue
            if key in named:
                if not track.is_seen:
                    seen.add(key[0])
                track.is_seen = track.is_named = True
                track.named_at = asked_at
                # If a List names two pods, one of them is a guess. Only the wait for a scrub takes it.
                if (key[0] in self._scrubbed or len(named[key]) == 1) and self._name_pod(key, named, asked_at):
                    seen.add(key[0])
                track.suspects = frozenset()
                track.missing_since, track.is_missed = None, False
            elif is_complete:
                track.is_named = False
                if not track.is_seen and not track.has_suspects and self._uses_of.get(key):
                    seen.add(key[0])
                    track.suspects, track.has_suspects = self._find_suspects(track, inherited), True
                track.suspects &= self._pods.keys()
                if track.missing_since is None:
                    track.missing_since = asked_at
                elif asked_at - track.missing_since >= self._gap:
                    track.is_missed = True
        ended = self._hand_out(use for use in self._uses.values() if self._has_ended(use, now))
        gone = frozenset(key for key in self._vanished if self._tracks[key].is_missed)
        held = frozenset(key for key in self._vanished if self._tracks[key].is_named)
        seen |= {use.resource for use in ended if use.is_back}
        owing = {use.resource for use in self._uses.values()}
        return ListOutcome(ended=tuple(ended), gone=gone, held=held, seen=frozenset(seen & owing))

    def _name_pod(self, key: Key, named: Mapping[Key, tuple[Pod, ...]], asked_at: float) -> bool:
        """Note the pod that has a device, with each of its containers; return whether that is new.

        If two pods have the device, the pod without an earlier allocation has the newest. An allocation keeps its pod:
        any other pod has the device from another process. An earlier allocation without a pod may belong to an init
        container of the same pod, unless another pod has one of its devices.
        """
        newest, pods = self.newest_of(*key), named[key]
        if newest is None:
            return False
        earlier = [use for use in self._uses_of[key].values() if use is not newest]
        is_new = newest.pod is None
        if newest.pod is None:
            others = {use.pod for use in earlier}
            newest.pod = next((each for each in pods if each not in others), pods[-1])
        pod = newest.pod
        newest.is_superseded = pod not in pods
        if newest.is_superseded:
            return False
        newest.is_known |= {*pods} == {pod} and asked_at > self._doubted_at.get(key[0], asked_at)
        for use in earlier:
            if use.pod is None and not use.is_back and all(pod in named.get(each, (pod,)) for each in use.keys):
                use.pod, is_new = pod, True
        return is_new

    def _hand_out(self, uses: Iterable[AllocationRecord]) -> list[AllocationRecord]:
        ended = list(uses)
        for use in ended:
            use.is_handed_out = True
            use.is_back |= use.resource in self._scrubbed
            use.pod = None  # if its release is tried again, another pod may have the name
        return ended

    def _has_ended(self, use: AllocationRecord, now: float) -> bool:
        if use.is_handed_out or now < use.retry_at:
            return False
        tracks = [self._tracks[key] for key in use.keys]
        if use.is_back:
            is_free = all(track.changed_at < self._pods_at for track in tracks)
        else:
            is_free = all(track.is_missed and not track.under_way for track in tracks)
            is_free = is_free and all(self._is_accounted_for(use, track) for track in tracks)
        return is_free and not (use.resource in self._scrubbed and self._is_alive(use))

    def _is_accounted_for(self, use: AllocationRecord, track: _Track) -> bool:
        """Whether no pod can hold a device without being listed with it."""
        return track.is_seen or (track.has_suspects and track.suspects <= self._waiting_for(use))

    def _is_alive(self, use: AllocationRecord) -> bool:
        """Whether a pod is listed that had one of the devices, and that does not wait for them to come back."""
        had: set[Pod | None] = set()
        for key in use.keys:
            *others, newest = self._uses_of[key].values()
            had |= {other.pod for other in others if other.is_started or other is use} - {newest.pod}
            is_over = newest.is_known and not self._tracks[key].is_named
            if (newest is use or not use.is_back) and not is_over:
                had.add(newest.pod)
        living = had & self._pods.keys()
        return bool(living) and not living <= self._waiting_for(use)

    def _waiting_for(self, use: AllocationRecord) -> set[Pod]:
        """Return the pods that have the devices, or other replicas of them, now, and cannot start before a scrub.

        One may have the name of the pod before it, as a StatefulSet's has; each would wait for the end of the other.
        Containers of one pod are no such pair: all are allocated before the first of them starts, and they have the
        same devices.
        """
        if use.resource not in self._scrubbed:
            return set()
        since = self._when(use.back_at) if use.is_back else (True, float("inf"))
        later = [
            other
            for other in self._overlapping(use.resource, use.ids, self.owed(use.resource))
            if other.pod is not None and all(self.newest_of(*key) is other for key in other.keys)
            if self._order(other) >= (self._order(use) if set(other.ids).isdisjoint(use.ids) else since)
        ]
        started = {other.pod for other in later if other.is_started}
        return {other.pod for other in later if other is not use and other.pod is not None} - started

    def know_pods(self, running: Mapping[Pod, str], now: float) -> None:
        """Take the running pods with their UIDs in place of a list, so that no later list takes them for new ones."""
        self._begin_pods(now)
        for pod, uid in running.items():
            if self._uids.get(pod, uid) != uid:
                self._pods[pod] = now  # another pod has taken the name
            self._pods.setdefault(pod, now)
        self._uids = dict(running)

    def _begin_pods(self, now: float) -> None:
        if now - self._known_at > self._longest_break:
            self._pods, self._uids = {}, {}
        self._known_at = now

    @property
    def all_suspects(self) -> frozenset[Pod]:
        """Pods that may hold a device although no list names it."""
        return frozenset[Pod]().union(*(track.suspects for track in self._tracks.values()))

    def _take_pods(self, pods: Collection[Pod], asked_at: float) -> None:
        """Note since when each pod has been listed; after a break any pod may be another one of its name."""
        self._begin_pods(asked_at)
        self._pods_at = asked_at
        self._pods = {pod: self._pods.get(pod, asked_at) for pod in pods}

    def _find_suspects(self, track: _Track, inherited: Collection[Pod]) -> frozenset[Pod]:
        latest = track.began_at - self._admission
        return frozenset(pod for pod, since in self._pods.items() if since > latest or pod in inherited)

    def _remove(self, use: AllocationRecord) -> None:
        if self._uses.pop(use.uid, None) is not None:
            self._forget_likeness(use)
            for key in use.keys:
                self._uses_of[key].pop(use.uid, None)

    def _forget_likeness(self, use: AllocationRecord) -> None:
        alike = self._alike.get(_likeness(use), {})
        alike.pop(use.uid, None)
        if not alike:
            self._alike.pop(_likeness(use), None)

    def _tidy(self, key: Key) -> None:
        """Forget what is known of a device that nothing is owed for."""
        if not self._uses_of.get(key):
            self._uses_of.pop(key, None)
            if key not in self._vanished and not self._tracks[key].under_way:
                del self._tracks[key]
