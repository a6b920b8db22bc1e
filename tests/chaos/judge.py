"""The rules that a plugin must keep whatever happens, judged by what can be seen from outside. No I/O.

1. A reply names the devices that the kubelet chose, and no device is in the replies of two living pods.
2. What a pod holds is not released while the pod lives.
3. What was allocated and is held no more is released, with the state that `allocate` left. It is released once. A
   plugin that is killed in the middle of it may do it again. One that is killed while nothing can be written forgets.
4. A refusal has a cause that the world knows.
5. When all disturbances have ended, one stream is open, no second socket answers, the table equals the hardware, and
   the probe of readiness says that it is. A toy that was taken away may stay in the table, Unhealthy, while the kubelet
   could still name it for a pod.
6. That is so within `READY_SECONDS`. If connections were cut, a kubelet that had just accepted a registration may have
   lost the connection for its stream, which a plugin knows only after `STREAM_SECONDS` (contract section 12, B6).
7. The process ends within `STOP_SECONDS` of SIGTERM, with exit code 0, and leaves nothing behind.
8. Descriptors, threads and memory of a process do not grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, final

import attrs
from typing_extensions import override

READY_SECONDS = 5.0
STREAM_SECONDS = 10.0
STOP_SECONDS = 2.0

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

    def died(self) -> None:
        """The process was killed."""
        self.deaths += 1

    def stopped(self, seconds: float, code: int | None, *, noise: float) -> None:
        """The process ended so long after SIGTERM; None: it did not."""
        self.counts["stopped"] += 1
        if code != 0:
            self.broken(7, f"SIGTERM led to exit code {code} after {seconds:.2f} s")
        elif seconds > STOP_SECONDS + noise:
            self.broken(7, f"SIGTERM took {seconds:.2f} s, beside {noise:.2f} s of the machine's noise")
        self.deaths += 1

    def grown(self, growth: Sequence[str]) -> None:
        """A process has kept this growth in peace (`growth`)."""
        for text in growth:
            self.broken(8, text)


class Judge(ProcessJudge):
    """Judges a device plugin by its hooks and by its pods."""

    def __init__(self) -> None:
        super().__init__()
        self._allocated: dict[str, tuple[str, ...]] = {}
        self._released: Counter[str] = Counter()
        self._owed: set[str] = set()
        self._unsaved: set[str] = set()
        self._held: dict[str, dict[str, tuple[str, ...]]] = {}
        self._released_in: dict[str, int] = {}

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def allocated(self, number: str, ids: Sequence[str]) -> None:
        """The hook returned an allocation with this number in its state."""
        self._allocated[number] = tuple(ids)

    def released(self, number: str, ids: Sequence[str]) -> None:
        """The hook was called for an allocation."""
        self.counts["released"] += 1
        if number not in self._allocated:
            self.broken(3, f"released was called with state {number!r}, which allocate never left")
            return
        if sorted(ids) != sorted(self._allocated[number]):
            self.broken(3, f"{number} was allocated for {self._allocated[number]}, and released for {tuple(ids)}")
        for pod, numbers in self._held.items():
            if number in numbers:
                self.broken(2, f"{tuple(ids)} were released while pod {pod} held them")
        if number in self._released and self._released_in[number] == self.deaths:
            self.broken(3, f"{number} ({tuple(ids)}) was released twice in one life of the process")
        self._released[number] += 1
        self._released_in[number] = self.deaths

    # -- pods ----------------------------------------------------------------------------------------------------------

    def admitted(self, pod: str, ids: Sequence[str], envs: Mapping[str, str], *, saved: bool) -> None:
        """A pod was given devices with these variables; ``saved``: files could be written."""
        self.counts["admitted"] += 1
        number, told = envs.get("TOY_NUMBER", ""), envs.get("TOYS", "")
        if told != ",".join(sorted(ids)):
            self.broken(1, f"pod {pod} holds {sorted(ids)}, and its container was told {told!r}")
        for other, numbers in self._held.items():
            for held in numbers.values():
                if other != pod and set(held) & set(ids):
                    self.broken(1, f"pods {other} and {pod} both hold {sorted(set(held) & set(ids))}")
        if number not in self._allocated:
            self.broken(1, f"pod {pod} was given {number!r}, which allocate never returned")
        self._owed.add(number)
        if not saved:
            self._unsaved.add(number)
        self._held.setdefault(pod, {})[number] = tuple(ids)

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
        return sorted(self._owed - held - set(self._released))

    @override
    def died(self) -> None:
        """The process was killed."""
        super().died()
        self._owed -= self._unsaved


def growth(first: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Compare what a process has now with what it had when it was ready first; return what is too much."""
    return [
        f"{name} grew from {first[name]:g} to {now[name]:g}"
        for name, most in MORE.items()
        if now[name] > first[name] + most
    ]


class Seen(Protocol):
    """What can be seen of the resource in the kubelet."""

    def differs(self, hardware: Mapping[str, bool]) -> str | None:
        """Return what is not as the hardware is, where each toy is healthy or not (rule 5); None: all is."""
        ...


@final
@attrs.frozen(kw_only=True)
class Table:
    """What the simulated kubelet has: all of it.

    Attributes:
        devices: Whether each device is healthy.
        streams: Open streams.
    """

    devices: Mapping[str, bool]
    streams: int

    def differs(self, hardware: Mapping[str, bool]) -> str | None:
        """See `Seen`."""
        if self.streams != 1:
            return f"{self.streams} streams are open"
        wrong = {
            each: (self.devices.get(each), hardware.get(each))
            for each in sorted({*self.devices, *hardware})
            if self.devices.get(each, False) != hardware.get(each, False) or each in hardware.keys() - self.devices
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

    def differs(self, hardware: Mapping[str, bool]) -> str | None:
        """See `Seen`."""
        healthy = sum(hardware.values())
        if self.allocatable != healthy or self.capacity < len(hardware):
            return (
                f"{self.allocatable} of {self.capacity} are healthy in the kubelet, truly {healthy} of {len(hardware)}"
            )
        return None
