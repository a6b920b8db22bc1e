"""The rules that a DRA driver must keep whatever happens, judged by what can be seen from outside. No I/O.

1. No device is in two claims that are prepared at the same time.
2. An answer names the devices that were allocated. Its CDI ids resolve as long as the claim is prepared, in each peace
   to the device nodes that the cards have. The next answer is the same one, and neither `allocate` nor
   `prepare_container` is called again. Before the first answer `prepare_container` was called for each request, with
   the number that `allocate` left. If somebody damages the claim's record, and no second file has the same, both are
   called again, and the number changes.
3. `released` is called for each request that was allocated, once Unprepare was asked for. In peace that takes
   `RELEASE_SECONDS`. It is called once, with the number that `allocate` left in this boot, and never while the claim is
   prepared. A driver that was killed may do it again. Until it has returned, no other claim is prepared with a device
   of the request. A claim that is allocated anew, without an Unprepare of what it had, ends in the same way. Each hook
   gets the state as the hook before has left it, also one that is called again because it has failed.
4. A refusal has a cause that the world knows.
5. When all disturbances have ended, the slices equal the hardware, one instance is registered and connected, one pair
   of sockets answers, and the probe of readiness says that it is ready.
6. That is so within `READY_SECONDS`.
7. The process ends within `STOP_SECONDS` of SIGTERM, with exit code 0, and leaves nothing behind.
8. Descriptors, threads and memory of a process do not grow.
9. When `allocate` is called, a record on the disk says that the claim is started, and has what `allocate` left for
   the requests before.
10. An Unprepare is answered within `UNPREPARE_SECONDS`.

A claim is prepared from the answer that says so until its Unprepare is asked for, or until it leaves the API. From then
on `released` is allowed. The claim has its devices until `released` was called for all of its requests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import attrs
from tests.chaos.judge import Calls, ProcessJudge

RELEASE_SECONDS = 8.0
"""From the beginning of a peace to the last release: a release that failed is tried again after a pause."""

UNPREPARE_SECONDS = 2.0

Device: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Pool, device, and CDI ids, as an answer has them."""


@attrs.define(kw_only=True)
class Life:
    """What was seen of one claim.

    Attributes:
        name: Its name.
        wanted: The devices that were allocated, by request.
        answer: What the driver answered last; None: it is not prepared.
        numbers: What `allocate` has said, by request, newest last.
        saved: The number of each request in the answer.
        pre_started: The requests for which `prepare_container` was called in this boot.
        owed: The requests that were allocated, and not released since.
        released: In which life of the process each request was released last.
        calls: How many hooks have counted their calls in the state of each request.
        may_go: Whether it may be released.
        undoing: How many calls are under way that undo it.
        is_begun: Whether a Prepare was asked for, and no Unprepare succeeded since.
        is_damaged: Whether its only record was damaged, so that its numbers may be lost.
        is_unprepared: Whether an Unprepare has succeeded, and no Prepare was asked for since.
        is_of_former_boot: Whether the node has booted since it was prepared.
    """

    name: str
    wanted: Mapping[str, tuple[str, ...]]
    answer: tuple[Device, ...] | None = None
    numbers: dict[str, list[str]] = attrs.field(factory=dict[str, list[str]])
    saved: dict[str, str] = attrs.field(factory=dict[str, str])
    pre_started: set[str] = attrs.field(factory=set[str])
    owed: set[str] = attrs.field(factory=set[str])
    released: dict[str, int] = attrs.field(factory=dict[str, int])
    calls: dict[str, Calls] = attrs.field(factory=dict[str, Calls])
    may_go: bool = False
    undoing: int = 0
    is_begun: bool = False
    is_damaged: bool = False
    is_unprepared: bool = False
    is_of_former_boot: bool = False

    @property
    def devices(self) -> set[str]:
        """All devices that were allocated."""
        return {device for devices in self.wanted.values() for device in devices}

    def has(self, request: str, ids: Collection[str]) -> bool:
        """Return whether these devices were allocated to a request."""
        return {*ids} == {*self.wanted.get(request, ())}


class DraJudge(ProcessJudge):
    """Judges a DRA driver by its hooks, its answers, and its files.

    Attributes:
        lives: What was seen of each claim, by UID. What was seen of it before it was allocated anew stands there as
            well, by the UID with a number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[str, Life] = {}
        self._former: dict[str, list[Life]] = {}

    def allocated_by_scheduler(self, uid: str, name: str, wanted: Mapping[str, tuple[str, ...]]) -> None:
        """A claim was made, and the scheduler has allocated devices to it."""
        self.lives[uid] = Life(name=name, wanted=wanted)

    def reallocated(self, uid: str, wanted: Mapping[str, tuple[str, ...]]) -> None:
        """A claim has other devices now, and no Unprepare has ended what it had."""
        before = self.lives[uid]
        before.may_go, before.answer = True, None
        former = self._former.setdefault(uid, [])
        former.append(before)
        self.lives[f"{uid} {len(former)}"] = before
        self.lives[uid] = Life(name=before.name, wanted=wanted)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def allocated(self, uid: str, request: str, number: str, ids: Sequence[str], *, is_recorded: bool) -> None:
        """The hook `allocate` has returned. ``is_recorded``: when it was called, the disk had the claim as started."""
        life = self._known("allocate", uid, request, ids)
        if life is None:
            return
        if life.answer is not None and not life.is_damaged and not life.may_go:
            self.broken(2, f"allocate was called for {life.name}/{request}, which is prepared")
        if not is_recorded:
            self.broken(9, f"allocate was called for {life.name}/{request}, and no record has what was before")
        life.numbers.setdefault(request, []).append(number)
        life.owed.add(request)
        life.released.pop(request, None)

    def counted(self, uid: str, request: str, ids: Sequence[str], calls: int | None, *, hook: str) -> None:
        """A hook has found a state, in which it has counted its call."""
        life = self._known(hook, uid, request, ids)
        if life is None or calls is None:
            return
        known = life.calls.get(request, Calls())
        least = known.last if known.deaths == self.deaths else known.saved
        most = known.last if known.deaths == self.deaths else calls  # a hook that ran at the end has said nothing
        if not least < calls <= most + 1 and not life.is_damaged:
            text = f"{hook} of {life.name}/{request} is call {calls} by the state"
            self.broken(3, f"{text}, and {known} were before")
        life.calls[request] = Calls(saved=known.saved, last=calls, deaths=self.deaths)

    def pre_started(self, uid: str, request: str, number: str | None, ids: Sequence[str]) -> None:
        """The hook `prepare_container` was called."""
        life = self._known("prepare_container", uid, request, ids)
        if life is None:
            return
        if life.answer is not None and not life.is_damaged and not life.may_go:
            self.broken(2, f"prepare_container was called for {life.name}/{request}, which is prepared")
        left = life.numbers.get(request, [])[-1:]
        if [number] != left:
            self.broken(2, f"prepare_container of {life.name}/{request} has the number {number}, allocate left {left}")
        life.pre_started.add(request)

    def released(self, uid: str, request: str, number: str | None, ids: Sequence[str]) -> None:
        """The hook `released` was called."""
        self.counts["released"] += 1
        life = self._known("released", uid, request, ids)
        if life is None:
            return
        if life.answer is not None and not life.may_go:
            self.broken(3, f"{life.name}/{request} was released while it was prepared")
        saved = life.saved.get(request)
        if saved is not None and number != saved and not (life.is_damaged and number is None):
            self.broken(3, f"{life.name}/{request} was released with the number {number}, allocate had left {saved}")
        if number is not None and number not in life.numbers.get(request, ()):
            when = "in this boot" if life.is_of_former_boot else "ever"
            self.broken(3, f"{life.name}/{request} was released with {number}, which allocate has not left {when}")
        if life.released.get(request) == self.deaths:
            self.broken(3, f"{life.name}/{request} was released twice in one life of the process")
        life.released[request] = self.deaths
        life.calls.pop(request, None)
        life.saved.pop(request, None)
        life.pre_started.discard(request)
        life.owed.discard(request)
        if not life.owed:
            life.answer = None

    def _known(self, hook: str, uid: str, request: str, ids: Sequence[str]) -> Life | None:
        life = self.lives.get(uid)
        if hook == "released":
            former = (each for each in self._former.get(uid, ()) if request in each.owed and each.has(request, ids))
            life = next(former, life)
        if life is None:
            self.broken(1, f"{hook} was called for claim {uid}, which there never was")
        elif not life.has(request, ids):
            self.broken(2, f"{hook} was called for {life.name}/{request} with {ids}, allocated is {life.wanted}")
        return life

    # -- Prepare -------------------------------------------------------------------------------------------------------

    def asked(self, uid: str) -> None:
        """A Prepare is asked for: from now on its requests count as touched, and may be released again."""
        if uid in self.lives:
            self.lives[uid].released.clear()
            self.lives[uid].is_begun = True
            self.lives[uid].is_unprepared = False

    def prepared(self, uid: str, answer: Sequence[Device], envs: Mapping[str, Mapping[str, str]] | None) -> None:
        """A Prepare was answered.

        Args:
            uid: The claim's UID.
            answer: Its devices.
            envs: What the claim's CDI spec gives, by CDI id; None: there is no spec, or none that can be read.
        """
        self.counts["prepared"] += 1
        life = self.lives.get(uid)
        if life is None:
            self.broken(1, f"claim {uid} was prepared, which there never was")
            return
        devices = [device for _, device, _ in answer]
        if sorted(devices) != sorted(life.devices):
            self.broken(2, f"{life.name} was answered {devices}, allocated is {life.wanted}")
        if missing := life.wanted.keys() - life.pre_started:
            self.broken(2, f"{life.name} was answered before prepare_container was called for {sorted(missing)}")
        for other in self.holders(life.devices, beside=uid):
            self.broken(1, f"{other.name} and {life.name} both are prepared, with {other.devices & life.devices}")
        if life.answer is not None and tuple(answer) != life.answer:
            self.broken(2, f"{life.name} was answered {life.answer}, and then {tuple(answer)}")
        self._resolved(life, answer, envs)
        numbers: dict[str, str] = {}
        for env in (envs or {}).values():
            numbers |= {name[7:].lower(): text for name, text in env.items() if name.startswith("NUMBER_")}
        if envs is not None and numbers.keys() != life.wanted.keys():
            self.broken(2, f"{life.name} has the numbers of {sorted(numbers)}, allocated is {life.wanted}")
        for former in self._former.get(uid, ()):
            if former.owed:
                self.broken(3, f"{life.name} is prepared anew, and {sorted(former.owed)} of before were not released")
        for other, owed in self._owing(life):
            self.broken(3, f"{life.name} is prepared with {sorted(owed & life.devices)}, not released for {other.name}")
        for request, number in numbers.items():
            if life.answer is not None and not life.is_damaged and number != life.saved.get(request, number):
                self.broken(2, f"{life.name}/{request} had the number {life.saved[request]}, and now has {number}")
            if number not in life.numbers.get(request, ()):
                self.broken(2, f"{life.name}/{request} has the number {number}, which allocate never left")
        life.answer, life.saved, life.is_damaged = tuple(answer), numbers, False
        life.may_go = life.undoing > 0
        life.calls = {request: attrs.evolve(known, saved=known.last) for request, known in life.calls.items()}

    def resolves(self, uid: str, envs: Mapping[str, Mapping[str, str]] | None) -> None:
        """Judge the CDI spec of a claim that is prepared."""
        life = self.lives[uid]
        if life.answer is not None:
            self._resolved(life, life.answer, envs)

    def outdated(self, uid: str, nodes: Mapping[str, Sequence[str]] | None, now: Mapping[str, str]) -> list[str]:
        """Return the devices of a prepared claim whose device node in its CDI spec is not the one that they have now.

        Args:
            uid: The claim's UID.
            nodes: The device nodes that the spec gives, by CDI id; `None` if it cannot be read.
            now: The node that each device has.
        """
        life = self.lives[uid]
        return [
            f"{device} of {life.name} has {now[device]}, and a container is given {given}"
            for _, device, cdi_ids in life.answer or ()
            if device in now
            and (given := sorted({node for each in cdi_ids for node in (nodes or {}).get(each, ())})) != [now[device]]
        ]

    def _resolved(self, life: Life, answer: Sequence[Device], envs: Mapping[str, Mapping[str, str]] | None) -> None:
        if envs is None:
            self.broken(2, f"{life.name} is prepared, and has no CDI spec that can be read")
            return
        for _, device, cdi_ids in answer:
            told = {text for each in cdi_ids for name, text in envs.get(each, {}).items() if name.startswith("TOY_")}
            if told != {device}:
                self.broken(2, f"{life.name}: the CDI ids {cdi_ids} of {device} give a container {sorted(told)}")

    def holders(self, devices: Collection[str], *, beside: str) -> list[Life]:
        """Return the other claims that have one of these devices by an answer."""
        return [
            life
            for uid, life in self.lives.items()
            if uid != beside and life.answer is not None and not life.devices.isdisjoint(devices)
        ]

    def begun(self, devices: Collection[str], *, beside: str) -> list[str]:
        """Return the UIDs of other claims that may have one of these devices, because something was begun for them."""
        return [
            uid
            for uid, life in self.lives.items()
            if uid != beside and (life.is_begun or life.owed) and not life.devices.isdisjoint(devices)
        ]

    def refused(self, why: str, *, causes: Sequence[str]) -> None:
        """Something was refused, while these causes for it were there."""
        self.counts["refused"] += 1
        if not causes:
            self.broken(4, f"refused although nothing was wrong: {why}")

    # -- Unprepare -----------------------------------------------------------------------------------------------------

    def leaving(self, uid: str) -> None:
        """An Unprepare is asked for, or the claim leaves the API: from now on it may be released."""
        if uid in self.lives:
            self.lives[uid].may_go = True

    def unprepared(self, uid: str) -> None:
        """An Unprepare was answered without an error. What is left of the claim is judged in the next peace."""
        self.counts["unprepared"] += 1
        life = self.lives.get(uid)
        if life is None:
            return
        if not life.owed:
            life.saved.clear()
        life.answer = None
        life.is_begun = False
        life.is_unprepared = True

    def answered(self, seconds: float, *, noise: float) -> None:
        """An Unprepare was answered after so many seconds."""
        if seconds > UNPREPARE_SECONDS + noise:
            self.broken(10, f"an Unprepare took {seconds:.1f} s, beside {noise:.2f} s of the machine's noise")

    def rebooted(self) -> None:
        """The node boots again: hardware is as if nothing had been, and no state of before counts."""
        for life in self.lives.values():
            life.pre_started.clear()
            life.calls.clear()
            life.is_of_former_boot = life.is_of_former_boot or bool(life.numbers)
            life.answer = None
            life.saved.clear()
            life.numbers.clear()

    def _owing(self, life: Life) -> list[tuple[Life, set[str]]]:
        """Return the unprepared claims that owe a release of devices of a claim, each with all devices it owes."""
        found = [
            (other, {device for request in other.owed for device in other.wanted[request]})
            for other in self.lives.values()
            if other is not life and other.is_unprepared
        ]
        return [(other, owed) for other, owed in found if owed & life.devices]

    @property
    def owed_devices(self) -> set[str]:
        """The devices that no claim may have before their release."""
        ended = [life for life in self.lives.values() if life.is_unprepared]
        return {device for life in ended for request in life.owed for device in life.wanted[request]}

    @property
    def owed_after_unprepare(self) -> list[str]:
        """Requests whose claim is unprepared, and that were not released."""
        return sorted(f"{each.name}/{name}" for each in self.lives.values() if each.is_unprepared for name in each.owed)

    @property
    def unprepared_claims(self) -> list[str]:
        """The UIDs of claims of which nothing may be left."""
        return [uid for uid, life in self.lives.items() if life.is_unprepared and not life.owed]

    @property
    def lost(self) -> list[str]:
        """Requests of claims that may go, and were not released."""
        return sorted(f"{life.name}/{request}" for life in self.lives.values() if life.may_go for request in life.owed)
