"""The rules that a plugin must keep whatever happens, judged by what can be seen from outside. No I/O.

1. A reply names the devices that the kubelet chose, and no device is in the replies of two living pods.
2. What a pod holds is not released while the pod lives, also not for an earlier pod unless it is to be scrubbed.
3. What was allocated and is held no more is released, with the state that `allocate` left for that container. Until
   then memory and disk have it in each peace. It is released once. A plugin that is killed in the middle of it may do
   it again. In a peace that lasts, the release comes within `RELEASE_SECONDS`. When `allocate` is called, the disk has
   the devices.
4. A refusal has a cause that the world knows.
5. When all disturbances have ended, one stream is open, no second socket answers, the table equals the hardware, and
   the probe of readiness says that it is. A toy that was taken away may stay in the table, Unhealthy, while the kubelet
   could still name it for a pod. A card that has moved while a pod holds it is judged by rule 10 only.
6. That is so within `READY_SECONDS`. If connections were cut, a kubelet that had just accepted a registration may have
   lost the connection for its stream, which a plugin knows only after `STREAM_SECONDS` (contract section 12, B6).
7. The process ends within `STOP_SECONDS` of SIGTERM, with exit code 0, and leaves nothing behind. It does not end by
   itself.
8. Descriptors, threads and memory of a process do not grow.
9. In each peace the files have the allocations that the living processes have in memory. While both differ, the status
   names a problem; when they agree, it names none.
10. No container has a device node that a container of another living pod has, unless that one's record is excused.
11. `prepare_container` gets the state that `allocate` left for that container. Each hook after it, and the hook that
    is called again because it has failed, gets the state as the hook before left it. Between two containers that start
    on a card which is scrubbed, `released` is called for the first one, whatever the card is called then.

Rule 3 excuses an allocation that was not saved, if the process ended while it could not be saved: it was killed, or the
disk stayed bad until the end of its stop. An allocation that a peace has seen on the disk is never excused. The devices
of an excused allocation may be released with an empty state: the plugin sees at its start that a pod holds them. So may
the devices of an Allocate whose process ended amid the hook: the file has the intent, and nobody knows the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, final

import attrs
from typing_extensions import override

from kdp.allocation.sharing import base_id

READY_SECONDS = 5.0
STREAM_SECONDS = 10.0
STOP_SECONDS = 2.0

RELEASE_SECONDS = 8.0
"""From the beginning of a peace to the last release, in the shortened pace.

The real 60 s have two lists 30 s apart and what precedes them. Here the kubelet may have to settle (2 s), lists come
0.3 s apart, a release that failed is tried again after 3 s at most, and the pod-resources client may pause for 2 s.
"""

SAID_SECONDS = 1.5
"""From a save that fails to the problem in the status: an Allocate waits for the disk for 1 s."""


MORE = {"descriptors": 12.0, "threads": 8.0, "MB": 24.0}
"""What a process may have more than when it was ready first."""


class ProcessJudge:
    """Keeps what was seen of a process, and what broke a rule.

    Attributes:
        violations: Sentences, in the order in which they were found.
        counts: How often what was judged.
        deaths: How many lives of processes have ended.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.deaths = 0

    def broken(self, rule: int, text: str) -> None:
        """Note that a rule is broken."""
        self.violations.append(f"rule {rule}: {text}")

    def died(self, *, excused: bool) -> None:
        """The process was killed. ``excused``: what was not saved could not have been."""
        del excused
        self.deaths += 1

    def stopped(self, seconds: float, code: int | None, *, noise: float, excused: bool) -> None:
        """The process ended so long after SIGTERM; None: it did not. ``excused`` is as in `died`."""
        self.counts["stopped"] += 1
        if code != 0:
            self.broken(7, f"SIGTERM led to exit code {code} after {seconds:.2f} s")
        elif seconds > STOP_SECONDS + noise:
            self.broken(7, f"SIGTERM took {seconds:.2f} s, beside {noise:.2f} s of the machine's noise")
        self.died(excused=excused)

    def grown(self, growth: Sequence[str]) -> None:
        """A process has kept this growth in peace (`growth`)."""
        for text in growth:
            self.broken(8, text)


@attrs.define(kw_only=True)
class Container:
    """What was seen of a container.

    Attributes:
        pod: Its pod.
        number: What `allocate` left in its state.
        resource: Their resource.
        ids: Its devices.
        nodes: The device nodes that it was given.
    """

    pod: str
    number: str
    resource: str
    ids: tuple[str, ...]
    nodes: frozenset[str]


@attrs.frozen(kw_only=True)
class Calls:
    """How many hooks have counted their calls in the state of an allocation.

    Attributes:
        saved: Those that are surely on the disk.
        last: All of them.
        deaths: How many lives of processes had ended when the last of them was called.
    """

    saved: int = 0
    last: int = 0
    deaths: int = 0


class Judge(ProcessJudge):
    """Judges a device plugin by its hooks, its pods, and its files.

    Args:
        scrubs: Whether its devices are scrubbed between two pods.
        shares: Whether several pods may have one device.
    """

    def __init__(self, *, scrubs: bool = False, shares: bool = False) -> None:
        super().__init__()
        self._scrubs = scrubs
        self._shares = shares
        self._allocated: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {}
        self._released: Counter[str] = Counter()
        self._owed: set[str] = set()
        self._unsaved: set[str] = set()
        self._excused: dict[str, set[str]] = {}
        self._intended: dict[str, set[str]] = {}
        self._former_names: dict[str, str] = {}
        self._emptied: set[str] = set()
        self._repeated: set[str] = set()
        self._given: dict[str, Container] = {}
        self._held: dict[str, dict[str, Container]] = {}
        self._released_in: dict[str, int] = {}
        self._prepared: dict[tuple[str, ...], str | None] = {}
        self._dirty: dict[str, str] = {}
        self._calls: dict[str, Calls] = {}
        self._shared: set[str] = set()
        self._listed: set[str] = set()

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def allocated(self, number: str, ids: Sequence[str], nodes: Collection[str], *, is_intended: bool = True) -> None:
        """The hook `allocate` returned an allocation with this number in its state.

        ``is_intended``: When it was called, a file had the devices without a state, or could not have them.
        """
        if not is_intended:
            self.broken(3, f"allocate was called for {tuple(ids)}, and no file had the intent")
        self._allocated[number] = tuple(ids), frozenset(nodes)

    def counted(self, number: str | None, ids: Sequence[str], calls: int | None, *, hook: str) -> None:
        """A hook has found a state, in which it has counted its call: one more than the hook before it has left."""
        given = self._allocated.get(number or "")
        if number is None or calls is None or given is None or len(ids) < len(given[0]):
            return  # a part of it that was released apart has the state of before
        known = self._calls.get(number, Calls())
        least = known.last if known.deaths == self.deaths else known.saved
        most = known.last if known.deaths == self.deaths else calls  # a hook that ran at the end has said nothing
        if not least < calls <= most + 1:
            self.broken(11, f"{hook} of {tuple(ids)} ({number}) is call {calls} by the state, and {known} were before")
        self._calls[number] = Calls(saved=known.saved, last=calls, deaths=self.deaths)

    def prepared(self, number: str | None, ids: Sequence[str]) -> None:
        """The hook `prepare_container` was called with this number in the state; `None` if the state was empty."""
        self.counts["prepared"] += 1
        wanted = tuple(sorted(ids))
        self._prepared[wanted] = number
        for container in () if self._shares else self._holding(wanted):
            self._check_state("prepare_container", container, number)
        if not self._scrubs or number is None:
            return
        for node in self._allocated[number][1] if number in self._allocated else ():
            before = self._dirty.get(node, number)
            if before != number and before not in self._excused and not self._shares:
                self.broken(11, f"a container starts with {node} ({wanted}, {number}), and {before} was not released")
            self._dirty[node] = number

    def released(self, number: str | None, ids: Sequence[str], nodes: Sequence[str] = ()) -> None:
        """The hook `released` was called, with the nodes that the devices have now."""
        self.counts["released"] += 1
        if number is None:
            self._presumed(ids, nodes)
            return
        if number not in self._allocated:
            self.broken(3, f"released was called with state {number!r}, which allocate never left")
            return
        given, given_nodes = self._allocated[number]
        is_part = number in self._shared and set(ids) < set(given)
        # A device that has moved is released under the name that its node has now.
        pairs = zip(ids, nodes, strict=True) if len(nodes) == len(ids) else ()
        is_moved = bool(nodes) and all(device in given or node in given_nodes for device, node in pairs)
        if sorted(ids) != sorted(given) and not is_moved and not is_part:
            self.broken(3, f"{number} was allocated for {given}, and released for {tuple(ids)}")
        for pod, containers in self._held.items():
            if number in containers:
                self.broken(2, f"{tuple(ids)} were released while pod {pod} held them")
            for later in () if self._scrubs or self._shares else containers.values():
                if later.number not in {number, *self._excused, *self._unsaved} and not later.nodes.isdisjoint(nodes):
                    self.broken(2, f"{tuple(ids)} ({number}) were released while pod {pod} held them ({later.number})")
        if number in self._released and self._released_in[number] == self.deaths:
            self.broken(3, f"{number} ({tuple(ids)}) was released twice in one life of the process")
        self._released[number] += 1
        self._released_in[number] = self.deaths
        self._excused.pop(number, None)
        self._dirty = {node: dirty for node, dirty in self._dirty.items() if dirty != number}

    def _presumed(self, ids: Sequence[str], nodes: Sequence[str]) -> None:
        """Take a release with an empty state: it is of an allocation that was excused, and ended.

        A device that has moved since is released under its present name, so its node tells which one it was.
        """
        if len(nodes) == len(ids):
            ids = [self._former(device, node) for device, node in zip(ids, nodes, strict=True)]
        self._emptied.update(ids)
        exact = next((uid for uid, devices in self._intended.items() if devices == set(ids)), None)
        if exact is not None:
            del self._intended[exact]
            return
        for device in ids:
            numbers = [number for number, devices in self._excused.items() if device in devices]
            intent = next((uid for uid, devices in self._intended.items() if device in devices), None)
            if intent is not None:
                self._intended[intent].discard(device)
            if not numbers and intent is None and device not in self._repeated:
                known = [self._named(each.number) for each in self.unreleased if device in map(base_id, each.ids)]
                text = f"released was called for {tuple(ids)} with an empty state, and no crash could lose {device}"
                self.broken(3, f"{text}; not released are {known}")
            for number in numbers:
                if any(number in containers for containers in self._held.values()):
                    self.broken(2, f"{device} was released with an empty state while a pod held it")
                self._excused[number].discard(device)
                if not self._excused[number]:
                    self._released[number] += 1
                    self._released_in[number] = self.deaths

    def _former(self, device: str, node: str) -> str:
        """Return a device's name in an excused allocation or an intent: its own, or the earlier name of its node."""
        if any(device in devices for devices in (*self._excused.values(), *self._intended.values())):
            return device
        others = (
            devices for number, devices in self._excused.items() if node in self._allocated.get(number, ((), ()))[1]
        )
        return next((min(devices) for devices in others if devices), self._former_names.get(node, device))

    # -- pods ----------------------------------------------------------------------------------------------------------

    def admitted(
        self,
        pod: str,
        ids: Sequence[str],
        envs: Mapping[str, str],
        nodes: Collection[str],
        *,
        resource: str,
        saved: bool,
    ) -> None:
        """A pod was given devices with these variables and nodes; ``saved``: files could be written."""
        self.counts["admitted"] += 1
        number, told = envs.get("TOY_NUMBER", ""), envs.get("TOYS", "")
        if set(told.split(",")) != {base_id(device) for device in ids}:
            self.broken(1, f"pod {pod} holds {sorted(ids)}, and its container was told {told!r}")
        for other, containers in self._held.items():
            for held in containers.values():
                if other != pod and set(held.ids) & set(ids):
                    self.broken(1, f"pods {other} and {pod} both hold {sorted(set(held.ids) & set(ids))}")
                elif other != pod and held.nodes & set(nodes) and not self._shares and held.number not in self._excused:
                    both = sorted(held.nodes & set(nodes))
                    self.broken(10, f"pods {other} ({held.ids}) and {pod} ({tuple(ids)}) both have {both}")
        if number not in self._allocated:
            self.broken(1, f"pod {pod} was given {number!r}, which allocate never returned")
        self._owed.add(number)
        if not saved:
            self._unsaved.add(number)
        if self._shares:
            self._note_shared(number, {base_id(device) for device in ids})
        container = Container(pod=pod, number=number, resource=resource, ids=tuple(sorted(ids)), nodes=frozenset(nodes))
        self._held.setdefault(pod, {})[number] = self._given[number] = container

    def _note_shared(self, number: str, devices: set[str]) -> None:
        """Note which containers share a device: only the last of them is released with it."""
        for other in self.unreleased:
            if other.number != number and not devices.isdisjoint(map(base_id, other.ids)):
                self._shared |= {number, other.number}

    def replied(self, ids: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Return the variables and nodes of the last allocation of exactly these devices; none if there is none."""
        known = sorted({base_id(device) for device in ids})
        for number, (devices, nodes) in reversed(self._allocated.items()):
            if sorted({base_id(device) for device in devices}) == known:
                return {"TOY_NUMBER": number, "TOYS": ",".join(known)}, sorted(nodes)
        return {}, []

    @property
    def held_nodes(self) -> set[str]:
        """The device nodes that pods have."""
        return {node for held in self._held.values() for each in held.values() for node in each.nodes}

    def started(self, pod: str, envs: Mapping[str, str], *, saved: bool = True) -> None:
        """The container of a pod has started with these variables, so `prepare_container` was called for it.

        ``saved``: files could be written.
        """
        for container in self._held.get(pod, {}).values():
            if saved and (calls := self._calls.get(container.number)):
                self._calls[container.number] = attrs.evolve(calls, saved=calls.last)
            if envs.get("TOY_NUMBER") != container.number:
                told = f"was told {envs.get('TOY_NUMBER')!r} at its start"
                self.broken(1, f"pod {pod} has {container.ids} with the number {container.number}, and {told}")
            known = tuple(sorted({base_id(device) for device in container.ids}))
            if known not in self._prepared:
                self.broken(11, f"pod {pod} has started with {container.ids} without prepare_container")
            else:
                self._check_state("prepare_container", container, self._prepared[known])

    def _check_state(self, hook: str, container: Container, number: str | None) -> None:
        if number != container.number and not (number is None and container.number in self._excused):
            held = f"pod {container.pod} has {container.ids} with the number {container.number}"
            self.broken(11, f"{held}, and {hook} got the number {number}")

    def _holding(self, ids: tuple[str, ...]) -> list[Container]:
        return [each for containers in self._held.values() for each in containers.values() if each.ids == ids]

    def leaving(self, pod: str) -> None:
        """A pod is about to be deleted: from now on what it holds may be released."""
        self._held.pop(pod, None)

    def refused(self, why: str, *, causes: Sequence[str]) -> None:
        """A pod was refused, while these causes for it were there."""
        self.counts["refused"] += 1
        if not causes:
            self.broken(4, f"a pod was refused although nothing was wrong: {why}")

    @property
    def lost(self) -> list[str]:
        """Allocations that are held no more and were not released."""
        held = {number for numbers in self._held.values() for number in numbers}
        return sorted(self._owed - held - set(self._released) - self._shared - self._excused.keys())

    def forgotten(self, known: Collection[str | None]) -> list[str]:
        """Return the allocations that are not released and not among those that memory and disk have."""
        missing = self._owed - set(self._released) - self._shared - self._excused.keys() - set(known)
        return [self._named(number) for number in sorted(missing)]

    @property
    def unreleased(self) -> list[Container]:
        """Containers whose devices others may not have yet."""
        return [self._given[number] for number in self._owed - set(self._released) if number in self._given]

    # -- files ---------------------------------------------------------------------------------------------------------

    def due(self, *, all_: bool, there: Collection[str]) -> list[str]:
        """Return `lost`, or those of them whose devices are surely free.

        The kubelet's list has named them, and no pod has got one of the devices since that may still have it, or a card
        under another name. A device that is not there cannot be scrubbed, so its allocation is not due.

        Args:
            all_: Whether all devices are free.
            there: The toys that exist.
        """
        lost = [number for number in self.lost if not self._scrubs or self._is_there(number, there)]
        if all_:
            return [self._named(number) for number in lost]
        held = {number for containers in self._held.values() for number in containers}
        unclear = [each for each in self.unreleased if each.number in held or each.number not in self._listed]
        taken = {device for each in unclear for device in each.ids}
        cards = {node for each in unclear for node in each.nodes if not self._scrubs}
        return [
            self._named(number)
            for number in lost
            if number in self._listed
            and taken.isdisjoint(self._given[number].ids)
            and cards.isdisjoint(self._given[number].nodes)
        ]

    def _is_there(self, number: str, there: Collection[str]) -> bool:
        return {base_id(device) for device in self._given[number].ids} <= set(there)

    def _named(self, number: str) -> str:
        return f"{number[:6]} of {', '.join(self._given[number].ids)}"

    def survived(self, numbers: Iterable[str | None]) -> None:
        """A process has ended, and these allocations are on the disk."""
        self._unsaved.difference_update(number for number in numbers if number is not None)

    def intended(self, intents: Mapping[str, Collection[str]], nodes: Mapping[str, str] | None = None) -> None:
        """A process has ended, and the disk has the devices of these Allocates without a state, by UID.

        ``nodes``: the node of each toy now.
        """
        self._intended |= {uid: {base_id(device) for device in ids} for uid, ids in intents.items()}
        names = {device for devices in self._intended.values() for device in devices}
        self._former_names |= {node: device for device, node in (nodes or {}).items() if device in names}

    def saved(self, numbers: Mapping[str | None, int | None], *, listed: Collection[str]) -> None:
        """A peace has seen these allocations on the disk, each with the calls of its state.

        ``listed`` are those that a list has named.
        """
        self.counts["compared"] += 1
        held = {number for containers in self._held.values() for number in containers}
        self._listed |= held.intersection(listed)
        self._emptied.clear()
        self._repeated.clear()
        self.survived(numbers)
        for number, calls in numbers.items():
            if number is not None and calls is not None and (known := self._calls.get(number)):
                self._calls[number] = attrs.evolve(known, saved=max(known.saved, calls))

    def files_removed(self, remembered: Collection[str | None]) -> None:
        """Somebody has removed the files: the remembered allocations must be saved again, and the others are lost."""
        self._unsaved |= self._owed - set(self._released)
        self._excuse(self._unsaved - set(remembered))

    def _excuse(self, numbers: Collection[str]) -> None:
        for number in set(numbers) & self._owed - set(self._released):
            self._excused.setdefault(number, {base_id(device) for device in self._given[number].ids})

    @override
    def died(self, *, excused: bool) -> None:
        """The process was killed, or has ended."""
        super().died(excused=excused)
        if excused:
            self._excuse(self._unsaved)
            self._repeated |= self._emptied  # the disk still has them, so the next process releases them again
        self._unsaved.clear()


def growth(first: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Compare what a process has now with what it had when it was ready first; return what is too much."""
    return [
        f"{name} grew from {first[name]:g} to {now[name]:g}"
        for name, most in MORE.items()
        if now[name] > first[name] + most
    ]


class Seen(Protocol):
    """What can be seen of the resources in the kubelet."""

    def differs(self, hardware: Mapping[str, bool], *, moved: Collection[str]) -> str | None:
        """Return what is not as the hardware is (rule 5); `None` if all is.

        Args:
            hardware: Whether each toy is healthy.
            moved: Toys whose card a pod may have under another name.
        """
        ...


@final
@attrs.frozen(kw_only=True)
class Table:
    """What the simulated kubelet has: all of it.

    Attributes:
        devices: Whether each device is healthy.
        streams: Open streams of each resource.
    """

    devices: Mapping[str, bool]
    streams: Mapping[str, int]

    def differs(self, hardware: Mapping[str, bool], *, moved: Collection[str]) -> str | None:
        """See `Seen`."""
        if not self.streams or set(self.streams.values()) != {1}:
            return f"these streams are open: {dict(self.streams)}"
        listed = {each: is_well for each, is_well in self.devices.items() if base_id(each) not in moved}
        names = {base_id(each) for each in listed}
        missing = {each: (None, hardware[each]) for each in sorted(hardware.keys() - names - set(moved))}
        wrong: Mapping[str, object] = missing | {
            each: (is_well, hardware.get(base_id(each)))
            for each, is_well in sorted(listed.items())
            if is_well != hardware.get(base_id(each), False)
        }
        return f"devices are listed otherwise than they are (listed, true): {wrong}" if wrong else None


@final
@attrs.frozen(kw_only=True)
class Counts:
    """What a real device manager says: how many devices there are.

    Attributes:
        capacity: All of them, healthy or not.
        allocatable: The healthy ones.
    """

    capacity: int
    allocatable: int

    def differs(self, hardware: Mapping[str, bool], *, moved: Collection[str]) -> str | None:
        """See `Seen`."""
        healthy = sum(hardware.values())
        if not moved and (self.allocatable != healthy or self.capacity < len(hardware)):
            return (
                f"{self.allocatable} of {self.capacity} are healthy in the kubelet, truly {healthy} of {len(hardware)}"
            )
        return None
