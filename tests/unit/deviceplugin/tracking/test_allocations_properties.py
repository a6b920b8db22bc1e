"""Allocations live random lives on a node that is known; every invariant of its head holds, and no mutant survives.

The node: pods hold devices, some in plain init containers that no list names; some come again under their name, and
some hold none and stay; a kubelet that has just started lists nothing. Lists are asked for, and say how it stood at
some moment until they came. `Diary` remembers all that was said and answers the same questions the long way round.
"""

from __future__ import annotations

import itertools
import random
import re
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocation_record as record
from kdp.deviceplugin.tracking import allocations as real

from ...mutants import Mutant, assert_killed, each_mutant, holds, live
from .test_scrub_properties import MUTANTS as OF_SCRUBS

RESOURCES = ["example.com/a", "example.com/b"]
IDS = ["w0", "w1", "w2"]
KEYS = [*itertools.product(RESOURCES, IDS)]
GAP = 30.0
PACE = Pace(gap=GAP)
BREAK = 2 * PACE.look
NOBODY = ("", "")
"""Whom a list names: only scrubs ask."""


@attrs.define(eq=False)
class Pod:
    """What holds devices; ``hidden``: in a plain init container."""

    name: str
    keys: frozenset[record.Key]
    hidden: bool


@attrs.define
class Said:
    """One list."""

    asked_at: float
    named: frozenset[record.Key]
    pods: frozenset[record.Pod]
    complete: bool


@attrs.define(eq=False)
class Diary:
    """All that the holdings were told of one device."""

    changed_at: float = float("-inf")
    given_at: float = float("-inf")
    under_way: int = 0
    began_at: float = float("-inf")
    suspects: frozenset[record.Pod] | None = None
    """Pods that may hold it unnamed, as the lists so far tell; None: none has told since the last Allocate."""
    suspects_before: frozenset[record.Pod] = frozenset()
    known_seen: bool = False
    lists: list[tuple[Said, bool]] = attrs.field(factory=list[tuple[Said, bool]])
    """Each with whether an Allocate had crossed it."""

    def valid(self, since: float) -> list[Said]:
        return [said for said, crossed in self.lists if not crossed and said.asked_at > since]

    def is_seen(self, key: record.Key) -> bool:
        return self.known_seen or any(key in said.named for said in self.valid(self.given_at))

    def is_free(self, key: record.Key) -> bool:
        missing: list[float] = []
        for said in self.valid(self.changed_at):
            if key in said.named:
                missing = []
            elif said.complete:
                missing.append(said.asked_at)
        return len(missing) > 1 and missing[-1] - missing[0] >= GAP

    def is_held(self, key: record.Key) -> bool:
        speaking = [s for s in self.valid(self.changed_at) if s.complete or key in s.named]
        return bool(speaking) and key in speaking[-1].named


class Node(RuleBasedStateMachine):
    module: ClassVar[ModuleType] = real
    exact: ClassVar[bool] = True
    """Whether the diary is asked, too; a mutant's doings come to light there before they do harm."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.holdings = self.module.Allocations(PACE)
        self.diaries: dict[record.Key, Diary] = {}
        self.pods: list[Pod] = []
        self.lists: list[Said] = []
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.names: list[str] = []
        """The pods of those calls."""
        self.owed: dict[str, Any] = {}
        self.out: dict[str, Any] = {}
        self.vanished: dict[record.Key, None] = {}
        self.numbers = itertools.count(1)
        self.complete = True
        self.lied = False
        self.whole = True

    def diary(self, key: record.Key) -> Diary:
        return self.diaries.setdefault(key, Diary())

    @property
    def held(self) -> set[record.Key]:
        return {key for pod in self.pods for key in pod.keys}

    @property
    def known(self) -> set[record.Key]:
        """Devices of which something is remembered."""
        known = {key for use in self.owed.values() for key in use.keys} | self.vanished.keys()
        return known | {(resource, device_id) for resource, ids in self.calls for device_id in ids}

    @property
    def listed(self) -> frozenset[record.Key]:
        return (
            frozenset(key for pod in self.pods if not pod.hidden for key in pod.keys) if self.complete else frozenset()
        )

    @property
    def listed_pods(self) -> frozenset[record.Pod]:
        names = {*self.names, *(pod.name for pod in self.pods)} if self.complete else set[str]()
        return frozenset(("default", name) for name in names)

    # -- events --------------------------------------------------------------------------------------------------------

    def allocate(self, rng: random.Random) -> None:
        resource = rng.choice(RESOURCES)
        free = [i for i in IDS if (resource, i) not in self.held | {(r, i) for r, ids in self.calls for i in ids}]
        ids = tuple(sorted(rng.sample(free, min(len(free), rng.choice([1, 1, 2])))))
        if not ids or self.holdings.under_release(resource, ids) is not None:
            return  # the driver waits for a release that runs
        for key in {(resource, device_id) for device_id in ids} - self.known:
            self.diaries[key] = Diary(changed_at=self.now, given_at=self.now)
        again = {"again-0", "again-1"} - {*self.names, *(pod.name for pod in self.pods)}
        name = rng.choice([*again, f"once-{next(self.numbers)}"])
        self.calls.append((resource, ids))
        self.names.append(name)
        self.holdings.begin(resource, ids, self.now)
        for device_id in ids:
            diary = self.diary((resource, device_id))
            if not diary.under_way:
                diary.began_at = self.now
            diary.under_way += 1

    def answer(self, rng: random.Random) -> None:
        """An Allocate ends: with an error, for an init container, or for a container that lists name."""
        if not self.calls:
            return
        which = rng.randrange(len(self.calls))
        (resource, ids), name = self.calls.pop(which), self.names.pop(which)
        given = rng.random() < 0.8
        keys = frozenset((resource, device_id) for device_id in ids)
        if given:
            use = self.module.AllocationRecord(
                uid=f"u{next(self.numbers)}", resource=resource, ids=ids, state={"n": rng.choice([0, 0, 1])}
            )
            self.add(use)
        self.holdings.end(resource, ids, self.now, given=given)
        for key in keys:
            diary = self.diary(key)
            diary.under_way -= 1
            diary.changed_at = self.now
            if given:
                diary.given_at, diary.known_seen = self.now, False
                diary.suspects, diary.suspects_before = None, diary.suspects or diary.suspects_before
        if given and rng.random() < 0.85:  # else the pod is refused for another reason
            self.pods.append(Pod(name, keys, hidden=name.startswith("again") or rng.random() < 0.2))

    def arrive(self, rng: random.Random) -> None:
        """A pod without devices comes."""
        if len(self.pods) < 8:
            self.pods.append(Pod(f"other-{next(self.numbers)}", frozenset(), hidden=False))

    def add(self, use: Any) -> None:
        self.holdings.add(use, self.now)
        self.note(use)

    def adopt(self, saved: list[Any]) -> None:
        known = self.known
        self.holdings.adopt(saved, self.now)
        for key in {k for use in saved for k in use.keys} - known:
            diary = self.diary(key)
            diary.changed_at = diary.given_at = self.now
            diary.known_seen = [use for use in saved if key in use.keys][-1].is_seen
            told = [use.suspects for use in saved if key in use.keys]
            if None in told:
                diary.suspects_before = frozenset[record.Pod]().union(*(s for s in told if s is not None))
            else:
                diary.suspects = frozenset[record.Pod]().union(*told)
            if diary.known_seen:
                diary.suspects, diary.suspects_before = diary.suspects and frozenset(), frozenset()
        for use in saved:
            self.note(use)

    def note(self, use: Any) -> None:
        for other in list(self.owed.values()):
            same = (other.resource, other.ids, other.state) == (use.resource, use.ids, use.state)
            if same and other.uid not in self.out:
                del self.owed[other.uid]
                break
        self.owed[use.uid] = use

    def end_pod(self, rng: random.Random) -> None:
        if self.pods:
            self.pods.pop(rng.randrange(len(self.pods)))

    def restart(self, rng: random.Random) -> None:
        """A kubelet that knows no pod yet, or one that has heard of all."""
        self.complete = not self.complete

    def crash(self, rng: random.Random) -> None:
        """The plugin is killed: what is saved comes back."""
        saved = [self.copy(use) for use in self.holdings.owed()]
        self.holdings = self.module.Allocations(PACE)
        self.lists.clear()
        self.calls.clear()
        self.names.clear()
        self.owed.clear()
        self.out.clear()
        self.vanished.clear()
        self.diaries.clear()
        self.adopt(saved)

    def copy(self, use: Any) -> Any:
        return self.module.AllocationRecord(
            uid=use.uid,
            resource=use.resource,
            ids=use.ids,
            state=use.state,
            is_seen=self.holdings.is_seen(use),
            suspects=self.holdings.suspects(use),
        )

    def take_over(self, rng: random.Random) -> None:
        """Another instance has ended; what it owed is ours now. It had seen it, and so the pods of it have ended."""
        resource = rng.choice(RESOURCES)
        ids = tuple(sorted(rng.sample(IDS, rng.choice([1, 2]))))
        use = self.module.AllocationRecord(
            uid=f"u{next(self.numbers)}", resource=resource, ids=ids, state={"n": rng.choice([0, 1])}, is_seen=True
        )
        self.adopt([use])

    def lie(self, rng: random.Random) -> None:
        """A list that is wrong: nobody can know then who holds what, but the rules stay the rules."""
        if rng.random() < 0.3:
            self.lied = True
        if self.lied:
            self.now += 0.01
            named = frozenset(k for k in KEYS if rng.random() < 0.3)
            self.deliver(Said(self.now, named, frozenset(p for p in self.listed_pods if rng.random() < 0.5), True))

    def vanish(self, rng: random.Random) -> None:
        resource = rng.choice(RESOURCES)
        ids = frozenset(i for i in IDS if rng.random() < 0.3)
        self.holdings.vanished(resource, ids, self.now)
        before = {key for key in self.vanished if key[0] == resource}
        for key in before - {(resource, i) for i in ids}:
            del self.vanished[key]
        for key in {(resource, i) for i in ids} - before:
            if key not in self.known:
                self.diaries[key] = Diary(given_at=self.now)
            self.vanished[key] = None
            self.diary(key).changed_at = self.now

    def finish(self, rng: random.Random) -> None:
        """A release ends, well or badly, or it is withdrawn before it began."""
        if not self.out:
            return
        uid = rng.choice(sorted(self.out))
        use = self.out.pop(uid)
        match rng.choice(["released", "released", "failed", "withdrawn"]):
            case "released":
                self.holdings.released(use)
                del self.owed[uid]
            case "failed":
                self.holdings.failed(use, self.now)
            case _:
                self.holdings.withdraw(use)

    def look(self, rng: random.Random) -> None:
        """Ask for a list; things happen before it comes, and it says how it stood at one moment of that time."""
        asked_at = self.now
        named, pods, complete = self.listed, self.listed_pods, self.complete
        for _ in range(rng.choice([0, 0, 1, 2])):
            self.now += 0.01
            rng.choice([self.allocate, self.answer, self.end_pod])(rng)
            if rng.random() < 0.5:
                named, pods, complete = self.listed, self.listed_pods, self.complete
        self.now += 0.01
        self.deliver(Said(asked_at, named, pods, complete))

    def suspected(self) -> frozenset[record.Pod]:
        """Return the pods that may hold any device of those known."""
        diaries = [self.diary(key) for key in self.known]
        return frozenset[record.Pod]().union(
            *(d.suspects_before if d.suspects is None else d.suspects for d in diaries)
        )

    def is_listed_since(self, pod: record.Pod, when: float) -> bool:
        """Return whether each list up to now has named a pod since before a time, with no long break between."""
        later: float | None = None
        for said in reversed(self.lists):
            if pod not in said.pods or (later is not None and later - said.asked_at > BREAK):
                return False
            if said.asked_at <= when:
                return True
            later = said.asked_at
        return False

    def suspect(self, said: Said) -> None:
        """Note what a list tells of the pods that may hold devices unnamed."""
        before = self.suspected()
        if said.complete:
            self.lists.append(said)
        owed = {key for use in self.owed.values() for key in use.keys}
        for key in self.known:
            diary = self.diary(key)
            if diary.under_way or said.asked_at <= diary.changed_at:
                continue
            if key in said.named:
                diary.suspects, diary.suspects_before = diary.suspects and frozenset(), frozenset()
            elif said.complete:
                if diary.suspects is None and key in owed and not diary.is_seen(key):
                    latest = diary.began_at - PACE.admission
                    diary.suspects = frozenset(
                        pod for pod in said.pods if pod in before or not self.is_listed_since(pod, latest)
                    )
                diary.suspects_before &= said.pods
                if diary.suspects is not None:
                    diary.suspects &= said.pods

    def deliver(self, said: Said) -> None:
        self.suspect(said)
        for key in KEYS:
            diary = self.diary(key)
            diary.lists.append((said, diary.under_way > 0 or said.asked_at <= diary.changed_at))
        before = {uid: use.retry_at for uid, use in self.owed.items()}
        outcome = self.holdings.listed(
            dict.fromkeys(said.named, (NOBODY,)),
            said.pods,
            asked_at=said.asked_at,
            now=self.now,
            is_complete=said.complete,
        )
        ended = {use.uid for use in outcome.ended}
        for use in outcome.ended:
            held = self.held | {(r, i) for r, ids in self.calls for i in ids}
            holds(1, self.lied or not held & set(use.keys), f"{use.keys} are free, it says, but held are {held}")
            holds(3, use.is_handed_out, f"{use.uid} would be handed out again")
            holds(3, use.uid in self.owed and self.out.get(use.uid) is not use, f"{use.uid} is handed out again")
        expected = {
            uid
            for uid, use in self.owed.items()
            if uid not in self.out
            and self.now >= before[uid]
            and all(
                (self.diary(k).is_seen(k) or self.diary(k).suspects == frozenset())
                and self.diary(k).is_free(k)
                and not self.diary(k).under_way
                for k in use.keys
            )
        }
        unseen = {uid for uid in expected - ended if not all(self.diary(k).is_seen(k) for k in self.owed[uid].keys)}
        holds(7, not self.exact or not unseen, f"{unseen} were never named and have no suspect, it says {ended}")
        holds(2, not self.exact or ended == expected, f"ended are {expected}, it says {ended}")
        self.out.update({use.uid: use for use in outcome.ended})
        gone = {key for key in self.vanished if self.diary(key).is_free(key)}
        holds(5, not self.exact or outcome.gone == gone, f"vanished and free are {gone}, it says {set(outcome.gone)}")
        kept = {key for key in self.vanished if self.diary(key).is_held(key)}
        holds(5, not self.exact or outcome.held == kept, f"vanished and held are {kept}, it says {set(outcome.held)}")
        self.check()

    def check(self) -> None:
        owed = {use.uid for use in self.holdings.owed()}
        holds(4, owed == self.owed.keys(), f"owed are {set(self.owed)}, it says {owed}")
        waiting = any(uid not in self.out for uid in self.owed) or bool(self.vanished)
        when = self.holdings.next_look()
        holds(
            6,
            (when is not None) == waiting or bool(self.calls),
            f"the next look is {when}, something is owed: {waiting}",
        )

    ACTIONS = (
        allocate,
        allocate,
        answer,
        answer,
        end_pod,
        end_pod,
        arrive,
        restart,
        crash,
        vanish,
        finish,
        take_over,
        lie,
        look,
        look,
        look,
        look,
    )

    @rule(number=st.integers(0, 2**64 - 1), steps=st.integers(5, 60))
    def live(self, number: int, steps: int) -> None:
        rng = random.Random(number)  # noqa: S311 - no secret
        self.whole = False  # what is broken here is not to be hidden by what the teardown finds then
        for _ in range(steps):
            action = rng.choice(self.ACTIONS)
            if action in (Node.crash, Node.take_over, Node.lie) and rng.random() < 0.8:
                continue
            action(self, rng)
            self.check()
            self.now += rng.choice([0.0, 0.1, 1.0, 16.0, 31.0, 61.0])
        self.whole = True

    @override
    def teardown(self) -> None:
        """All pods end; everything is handed out soon, with no more looks than that takes."""
        if not self.whole:
            return
        rng = random.Random(1)  # noqa: S311 - no secret
        self.complete = True
        while self.calls:
            self.answer(rng)
        self.now += 0.01
        self.deliver(Said(self.now, self.listed, self.listed_pods, True))
        self.pods.clear()
        began = self.now
        for _ in range(40):
            for use in list(self.out.values()):
                self.holdings.released(use)
                del self.owed[use.uid], self.out[use.uid]
            for resource in RESOURCES:
                gone = {
                    i
                    for i in IDS
                    if (resource, i) in self.vanished and self.diary((resource, i)).is_free((resource, i))
                }
                left = frozenset(i for i in IDS if (resource, i) in self.vanished) - gone
                self.holdings.vanished(resource, left, self.now)
                for device_id in gone:
                    del self.vanished[resource, device_id]
            when = self.holdings.next_look()
            if when is None:
                break
            self.now = max(self.now + 1.0, when)
            self.deliver(Said(self.now, frozenset(), frozenset(), True))
        seen = [use for use in self.owed.values() if self.holdings.is_seen(use)]
        holds(6, not seen, f"{seen} were listed, and are not released {self.now - began} s later")
        holds(7, not self.owed, f"{self.owed} have no pod, and are not released {self.now - began} s later")
        holds(6, not self.vanished, f"{set(self.vanished)} are still listed {self.now - began} s later")


def run(*, examples: int, module: ModuleType = real, number: int = 0, exact: bool = True) -> None:
    live(Node, examples=examples, steps=4, number=number, shrinks=module is real, module=module, exact=exact)


def test_the_holdings_are_right_about_the_node() -> None:
    run(examples=300)


MUTANTS = [
    Mutant(
        1,
        "an init container's device looks free",
        "is_free = is_free and all(self._is_accounted_for(use, track) for track in tracks)",
        "pass",
    ),
    Mutant(
        1,
        "a pod that comes again under its name is none",
        "if since > latest or pod in inherited)",
        "if since > latest)",
    ),
    Mutant(
        1,
        "only pods that came after an Allocate are suspects",
        "latest = track.began_at - self._admission",
        "latest = track.changed_at",
    ),
    Mutant(
        1,
        "a new Allocate keeps the suspects of before",
        "track.is_seen = track.has_suspects = False",
        "track.is_seen = False",
    ),
    Mutant(
        1,
        "suspects that were saved are forgotten",
        "frozenset[Pod]() if track.is_seen else frozenset[Pod]().union(*known)",
        "frozenset[Pod]()",
    ),
    Mutant(
        1,
        "suspects that were not saved are none",
        "track.has_suspects = len(known) == len(told)",
        "track.has_suspects = True",
    ),
    Mutant(
        1,
        "a kubelet that knows no pod clears its suspects",
        "        if is_complete:\n            self._take_pods(pods, asked_at)\n",
        "        self._take_pods(pods, asked_at)\n",
    ),
    Mutant(
        1,
        "a device that is given again counts as seen",
        "                track.is_seen = track.has_suspects = False\n",
        "                track.has_suspects = False\n",
    ),
    Mutant(1, "a kubelet that knows no pod is believed", "            elif is_complete:\n", "            else:\n"),
    Mutant(
        2,
        "a list that crossed an Allocate is believed",
        "if track.under_way or asked_at <= track.changed_at:",
        "if track.under_way:",
    ),
    Mutant(2, "one list is enough", "elif asked_at - track.missing_since >= self._gap:", "else:"),
    Mutant(
        2,
        "two lists that are not in a row",
        "                track.missing_since, track.is_missed = None, False\n",
        "",
    ),
    Mutant(3, "handed out twice", "            use.is_handed_out = True\n", "            pass\n"),
    Mutant(4, "equal ones are all kept", "                self._remove(other)\n", "                pass\n"),
    Mutant(4, "other states are the same", ", json.dumps(use.state, sort_keys=True)", ""),
    Mutant(
        4,
        "one that is being released is the same",
        "            if not other.is_handed_out and not other.is_back and not use.is_back:",
        "            if True:",
    ),
    Mutant(
        5,
        "a vanished device needs to have been listed",
        "if self._tracks[key].is_missed)",
        "if self._tracks[key].is_missed and self._tracks[key].is_seen)",
    ),
    Mutant(
        5,
        "a vanished device goes after the first list",
        "if self._tracks[key].is_missed)",
        "if self._tracks[key].missing_since)",
    ),
    Mutant(
        6,
        "nobody looks for what has vanished",
        "        times += [\n            self._next_look_at(key, self._tracks[key], owed=False, is_settled=is_settled) "
        "for key in self._vanished\n        ]\n",
        "",
    ),
    Mutant(
        6,
        "a failure is never tried again",
        "        use.is_handed_out = False\n        use.retry_at",
        "        use.retry_at",
    ),
    Mutant(
        7,
        "an allocation must have been named",
        "return track.is_seen or (track.has_suspects and track.suspects <= self._waiting_for(use))",
        "return track.is_seen",
    ),
    Mutant(
        7,
        "a suspect that has ended stays one",
        "                track.suspects &= self._pods.keys()\n",
        "",
    ),
    Mutant(
        7,
        "each pod is a suspect",
        "frozenset(pod for pod, since in self._pods.items() if since > latest or pod in inherited)",
        "frozenset(self._pods)",
    ),
]


@each_mutant(MUTANTS)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    module = mutant.load("kdp.deviceplugin.tracking.allocations")
    assert_killed(
        mutant, (partial(run, examples=60, module=module, number=number, exact=number % 2 == 0) for number in range(60))
    )


def test_each_invariant_has_a_mutant() -> None:
    assert {mutant.invariant for mutant in (*MUTANTS, *OF_SCRUBS)} == set(range(1, 12))
    assert sorted(re.findall(r"^(\d+)\. ", real.__doc__ or "", re.MULTILINE), key=int) == [str(n) for n in range(1, 12)]
