"""`EvictionPlanner`: which pods are asked to go because a device of theirs has failed, and when. Sans-IO.

Facts go in with the time, and `EvictionPlanner.step` returns what is to be done. Whoever does it answers with
`EvictionPlanner.described` and `EvictionPlanner.answered`.

::

    WAITING ─────Describe────► DESCRIBING ──AskHolders──► CONFIRMING ──Evict──► EVICTING ──accepted──► DONE
       ▲      a device has failed   │                         │                    │
       │      for long enough       │ not this pod, not now   │ no longer so       │ refused
       └─────── after a pause ──────┴─────────────────────────┴────────────────────┘

Invariants, each with a mutant in the tests that breaks it:

1. A pod is asked to go only while a device that it holds has failed, without a break, for `EvictionPolicy.after`
   seconds.
2. What is known is fresh: the kubelet was asked who holds what after the API server had described the pod, it names the
   pod, and the description was asked for at most `FRESH` seconds before.
3. The kubelet is ready: it holds a stream of the device's resource, and the Node was Ready when it was described.
4. At most `EvictionPolicy.limit` pods are asked to go in any hour. One that has surely refused does not count.
5. One pod is asked at a time. One that has accepted is left alone while it holds a device, and one that was refused for
   the pause.
6. The request has the UID of the pod that was described. A pod that ends, runs elsewhere, or cannot be evicted is not
   asked.
7. While a pod may be asked, there is a next step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, final

import attrs

FRESH: Final = 30.0
"""Seconds for which a description counts."""

HOUR: Final = 3600.0

FIRST_PAUSE: Final = 10.0
LONGEST_PAUSE: Final = 300.0
"""Seconds until a pod that was refused is asked again: at first, and at most. An answer may name a longer pause."""

Device = tuple[str, str]
"""Resource and id."""

Outcome = Literal["accepted", "gone", "blocked", "failed", "unknown"]
"""How a request ended: the pod goes; it is no longer there; a PodDisruptionBudget or the load forbids it now; it was
refused for another reason; nobody knows."""


@final
@attrs.frozen(order=True)
class PodName:
    """A pod.

    Attributes:
        namespace: Its namespace.
        name: Its name.
    """

    namespace: str
    name: str


@final
@attrs.frozen(kw_only=True)
class EvictionPolicy:
    """When pods are asked to go.

    Attributes:
        after: Seconds for which a device must have failed.
        limit: Pods in an hour.
        is_dry: Whether the API server is asked to do as if.
    """

    after: float
    limit: int
    is_dry: bool = False


@final
@attrs.frozen(kw_only=True)
class EvictionFacts:
    """What this process knows.

    Attributes:
        failed: Devices that have failed, and why.
        connected: Resources of which the kubelet holds a stream.
        holders: Who holds devices, as the kubelet said.
        asked_at: When the kubelet was asked that; None: it was not, or did not answer.
    """

    failed: Mapping[Device, str]
    connected: frozenset[str]
    holders: Mapping[Device, PodName]
    asked_at: float | None


@final
@attrs.frozen(kw_only=True)
class Description:
    """What the API server says of a pod and its node.

    Attributes:
        uid: The pod's UID; "": there is no such pod.
        is_node_ready: Whether the Node is Ready.
        obstacle: Why the pod is not to be asked; None: nothing is against it.
    """

    uid: str
    is_node_ready: bool
    obstacle: str | None = None


@attrs.frozen
class _OfPod:
    pod: PodName


class Describe(_OfPod):
    """Ask the API server for the pod and the node; answer with `EvictionPlanner.described`."""


@attrs.frozen
class AskHolders:
    """Ask the kubelet who holds what; the facts will have it."""


@attrs.frozen
class Evict(_OfPod):
    """Ask the Eviction API; answer with `EvictionPlanner.answered`."""

    uid: str
    why: str


@attrs.frozen
class Say:
    """Tell people.

    Attributes:
        pod: Which pod it is about; None: none.
        uid: Its UID, as far as it is known.
        reason: In CamelCase.
        text: A sentence.
        is_warning: Whether somebody should look at it.
    """

    pod: PodName | None
    uid: str
    reason: str
    text: str
    is_warning: bool = True


Command = Describe | AskHolders | Evict | Say


class _State(enum.Enum):
    WAITING = enum.auto()
    DESCRIBING = enum.auto()
    CONFIRMING = enum.auto()
    EVICTING = enum.auto()
    DONE = enum.auto()


@attrs.define
class _Pod:
    """What is known of a pod that holds a device which has failed for long enough."""

    state: _State = _State.WAITING
    until: float = float("-inf")
    refusals: int = 0
    uid: str = ""
    asked_at: float = 0.0
    described_at: float = 0.0
    said: str = ""

    def pause(self, now: float, seconds: float = FIRST_PAUSE) -> None:
        self.state, self.until = _State.WAITING, now + seconds


@final
class EvictionPlanner:
    """Decides which pods are asked to go, for one node. The time is in seconds on any clock that only grows.

    Args:
        policy: When pods are asked to go.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._facts = EvictionFacts(failed={}, connected=frozenset(), holders={}, asked_at=None)
        self._since: dict[Device, float] = {}
        self._pods: dict[PodName, _Pod] = {}
        self._busy: PodName | None = None
        self._asked: list[float] = []
        self._is_limited = False
        self._said: list[Say] = []

    @property
    def asked(self) -> Sequence[float]:
        """When pods were asked to go, as far as it counts for the limit."""
        return tuple(self._asked)

    def remember(self, asked: Iterable[float]) -> None:
        """Count what a process before has asked. Call it before the first `step`."""
        self._asked = sorted(asked)

    # -- facts ---------------------------------------------------------------------------------------------------------

    def observe(self, facts: EvictionFacts, now: float) -> None:
        """Take what is known now."""
        self._facts = facts
        self._since = {device: self._since.get(device, now) for device in facts.failed}

    def recovered(self, device: Device) -> None:
        """A device is healthy again, if only for a moment: its time begins anew."""
        self._since.pop(device, None)
        self._facts = attrs.evolve(self._facts, failed={d: why for d, why in self._facts.failed.items() if d != device})

    def described(self, pod: PodName, found: Description | str, *, asked_at: float, now: float) -> None:
        """The API server has described a pod, or not.

        Args:
            pod: As in `Describe`.
            found: What it says; a sentence: why it says nothing.
            asked_at: When it was asked.
            now: The time.
        """
        known = self._pods[pod]
        known.uid = "" if isinstance(found, str) else found.uid
        why: str | None = None
        if isinstance(found, str):
            self._say_once(known, Say(pod, "", "EvictionFailed", f"not evicted yet: {found}"))
        elif found.obstacle is not None:
            why = found.obstacle
        elif not found.is_node_ready:
            why = "the node is not Ready"
        elif found.uid:
            known.state, known.asked_at, known.described_at = _State.CONFIRMING, asked_at, now
            return
        if why is not None:
            self._say_once(known, Say(pod, known.uid, "NotEvicted", f"not evicted: {why}", is_warning=False))
        self._put_off(known, now)

    def answered(self, pod: PodName, outcome: Outcome, text: str, *, retry_after: float, now: float) -> None:
        """The Eviction API has answered.

        Args:
            pod: As in `Evict`.
            outcome: How it ended.
            text: The API server's words.
            retry_after: Seconds that it asks to wait; 0: it does not say.
            now: The time.
        """
        known = self._pods[pod]
        self._busy = None
        if outcome == "accepted":
            known.state = _State.DONE
            return
        if outcome != "unknown":
            self._asked.pop()
        if outcome != "gone":
            reason = "EvictionBlocked" if outcome == "blocked" else "EvictionFailed"
            self._say_once(known, Say(pod, known.uid, reason, f"not evicted yet: {text}"))
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(known.refusals, 16))
        known.refusals += 1
        known.pause(now, max(retry_after, pause))

    # -- what follows --------------------------------------------------------------------------------------------------

    def step(self, now: float) -> tuple[Command, ...]:
        """Return what is to be done now. Call it after each fact, and every few seconds."""
        targets = self._targets(now)
        self._drop_others(targets, now)
        said, self._said = self._said, []
        if self._busy is not None:
            return (*said, *self._go_on(self._busy, targets, now))
        ready = [pod for pod in targets if self._may_begin(self._pods.setdefault(pod, _Pod()), now)]
        if not ready:
            self._is_limited = False
            return tuple(said)
        if not self._has_room(now):
            if not self._is_limited:
                self._is_limited = True
                text = f"evictions within an hour have reached the limit of {self._policy.limit}; pods that wait: "
                said.append(Say(None, "", "EvictionLimit", f"{text}{len(ready)}"))
            return tuple(said)
        self._is_limited = False
        pod = min(ready, key=lambda each: (min(self._since[device] for device in targets[each]), each))
        self._pods[pod].state, self._busy = _State.DESCRIBING, pod
        return (*said, Describe(pod))

    def _go_on(self, pod: PodName, targets: Mapping[PodName, list[Device]], now: float) -> tuple[Command, ...]:
        known = self._pods[pod]
        if known.state is not _State.CONFIRMING:
            return ()
        if pod not in targets or now - known.asked_at > FRESH:
            self._put_off(known, now)
            return ()
        asked_at = self._facts.asked_at
        if asked_at is None or asked_at <= known.described_at:
            return (AskHolders(),)
        known.state = _State.EVICTING
        self._asked.append(now)
        return (Evict(pod, known.uid, self._why(targets[pod], now)),)

    def _targets(self, now: float) -> dict[PodName, list[Device]]:
        """Return the pods that hold devices which have failed for long enough, and which devices these are."""
        found: dict[PodName, list[Device]] = {}
        for device, since in self._since.items():
            pod = self._facts.holders.get(device)
            if pod is not None and now - since >= self._policy.after and device[0] in self._facts.connected:
                found.setdefault(pod, []).append(device)
        return found

    def _drop_others(self, targets: Mapping[PodName, list[Device]], now: float) -> None:
        holding = frozenset(self._facts.holders.values())
        for pod, known in tuple(self._pods.items()):
            is_over = now >= known.until and not (known.state is _State.DONE and pod in holding)
            if is_over and pod != self._busy and pod not in targets:
                del self._pods[pod]

    @staticmethod
    def _may_begin(known: _Pod, now: float) -> bool:
        return known.state is _State.WAITING and now >= known.until

    def _has_room(self, now: float) -> bool:
        self._asked = [at for at in self._asked if now - at < HOUR]
        return len(self._asked) < self._policy.limit

    def _why(self, devices: list[Device], now: float) -> str:
        resource, device_id = min(devices, key=lambda device: (self._since[device], device))
        more = f" (and {len(devices) - 1} more)" if len(devices) > 1 else ""
        seconds = now - self._since[resource, device_id]
        reason = self._facts.failed[resource, device_id]
        return f"device {device_id} of {resource}{more} has failed for {seconds:.0f} s: {reason}"

    def _put_off(self, known: _Pod, now: float) -> None:
        self._busy = None
        known.pause(now)

    def _say_once(self, known: _Pod, say: Say) -> None:
        if say.text != known.said:
            known.said = say.text
            self._said.append(say)
