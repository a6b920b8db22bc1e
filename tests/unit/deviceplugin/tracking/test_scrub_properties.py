"""Pods write on devices that are scrubbed and look for what others wrote, on a node that is known.

A kubelet admits pods, some with an init container that has the same device. It gives a device away as soon as its pod
has ended, or while the pod lives, if it has lost its checkpoint. One device has two replicas. Lists come when they
come; the plugin is killed at any moment.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocations as real

from ...mutants import Mutant, assert_killed, each_mutant, holds, live

R: Final = "example.com/scratch"
IDS: Final = ["s0::0", "s0::1", "s1", "s2"]
PACE: Final = Pace()


@attrs.define(eq=False)
class Pod:
    """A pod, its containers that are still to start, each with its devices, and its allocations."""

    name: str
    ids: tuple[str, ...]
    waiting: list[tuple[str, ...]]
    started: list[tuple[str, ...]] = attrs.field(factory=list, init=False)
    uids: list[str]
    is_hidden: bool
    """Whether only a plain init container has the devices, so that no list names them."""
    is_named: bool = False
    """Whether a list has named it."""
    is_forgotten: bool = False
    """Whether the kubelet has lost the checkpoint in which its devices were."""

    def works_on(self, place: str) -> bool:
        """Whether it may have written to a device."""
        return any(place_of(each) == place for ids in self.started for each in ids)


def place_of(device_id: str) -> str:
    return device_id.partition("::")[0]


class Node(RuleBasedStateMachine):
    module: ClassVar[ModuleType] = real

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.numbers = itertools.count(1)
        self.pods: list[Pod] = []
        self.written: dict[str, int] = {}
        self.epochs = dict.fromkeys(map(place_of, IDS), 0)
        self.running: dict[str, Any] = {}
        self.others: list[Any] = []  # what the process that is about to end has saved
        self.ending: Any = None  # that process, which still lists
        self.updates = 0
        self.holdings = self.made()

    def made(self) -> Any:
        holdings = self.module.Allocations(PACE)
        holdings.scrub(R)
        holdings.share(R, place_of)
        holdings.doubt(R, self.now)
        return holdings

    # -- the kubelet ---------------------------------------------------------------------------------------------------

    def admit(self, rng: random.Random) -> None:
        taken = {i for pod in self.pods if not pod.is_forgotten for i in pod.ids}
        free = [i for i in IDS if i not in taken]
        if not free:
            return
        ids = tuple(sorted(rng.sample(free, min(len(free), rng.choice([1, 1, 2])))))
        shares = rng.choice(["main", "main", "init and main", "init"])
        calls = [ids] if shares != "init and main" else [ids[:1], ids]
        uids: list[str] = []
        for each in calls:
            self.holdings.take_back(R, each, ("", self.now))
            self.holdings.begin(R, each, self.now)
            use = self.module.AllocationRecord(
                uid=f"u{next(self.numbers)}", resource=R, ids=each, state={}, is_started=False, at=("", self.now)
            )
            uids.append(use.uid)
            self.holdings.add(use, self.now)
            self.holdings.end(R, each, self.now, given=True)
            self.now += 0.01
        name = "hidden-0" if shares == "init" else "set-0"  # some come again under their name, and are what they were
        name = rng.choice([name, f"once-{next(self.numbers)}"])
        if shares == "init" and self.updates:
            name = f"once-{next(self.numbers)}"  # one that comes again around an update is taken for the one before
        if name in [pod.name for pod in self.pods]:
            name = f"once-{next(self.numbers)}"
        self.pods.append(Pod(name, ids, [*calls], uids, is_hidden=shares == "init"))

    def start(self, rng: random.Random) -> None:
        waiting = [pod for pod in self.pods if pod.waiting]
        if not waiting:
            return
        pod = rng.choice(waiting)
        ids = pod.waiting[0]
        if self.holdings.waits_for(R, ids, self.others) is not None:
            return  # the kubelet tries again
        record = self.holdings.newest(R, ids)
        if record is not None:
            record.is_started = True
        pod.started.append(pod.waiting.pop(0))
        for place in {place_of(each) for each in ids}:
            epoch = self.epochs[place]
            found = self.written.get(place, epoch)
            holds(8, found == epoch, f"{pod.name} reads on {place} what was left in epoch {found} of {epoch}")
            self.written[place] = epoch

    def start_again(self, rng: random.Random) -> None:
        pods = [pod for pod in self.pods if pod.started and not pod.is_forgotten]
        if pods:
            ids = rng.choice(rng.choice(pods).started)
            waits = self.holdings.waits_for(R, ids, self.others) is not None
            holds(10, not waits, f"a container with {ids} waits for what it left itself")

    def end(self, rng: random.Random) -> None:
        """A pod ends. When nobody has a device any more, what comes later is another epoch."""
        if self.pods:
            pod = self.pods.pop(rng.randrange(len(self.pods)))
            for place in {place_of(each) for each in pod.ids}:
                if not any(place_of(each) == place for other in self.pods for each in other.ids):
                    self.epochs[place] += 1

    def forget(self, rng: random.Random) -> None:
        """A new kubelet has lost the checkpoint, and gives devices of living pods away.

        The old one was asked for a list before.
        """
        if rng.random() < 0.3 and self.ending is None and all(pod.is_named for pod in self.pods):
            for pod in self.pods:
                pod.is_forgotten = True
                pod.waiting.clear()  # what starts now starts without its devices
            self.holdings.doubt(R, self.now)

    # -- the plugin ----------------------------------------------------------------------------------------------------

    def look(self, rng: random.Random) -> None:
        self.now += rng.choice([0.1, 1.0, 16.0, 31.0])
        self.take_list(is_complete=rng.random() < 0.8)

    def take_list(self, *, is_complete: bool) -> None:
        told = [pod for pod in self.pods if not pod.is_hidden and not pod.is_forgotten]
        named = {(R, i): (("default", pod.name),) for pod in told for i in pod.ids}
        pods = frozenset(("default", pod.name) for pod in self.pods)
        for pod in told:
            pod.is_named = True
        for each in (self.holdings, self.ending):
            if each is not None:
                outcome = each.listed(named, pods, asked_at=self.now, now=self.now, is_complete=is_complete)
                if each is self.holdings:
                    self.came_back(outcome.ended)
                else:
                    self.others = self.saved(each)
        self.now += 0.01

    def came_back(self, ended: tuple[Any, ...]) -> None:
        for use in ended:
            alone = [i for i in use.ids if i == place_of(i) and self.holdings.newest_of(R, i) is use]
            holds(8, self.holdings.withheld(R, alone).keys() == set(alone), f"{alone} came back, and are offered")
        self.running.update({use.uid: use for use in ended})

    def scrub(self, rng: random.Random) -> None:
        if not self.running:
            return
        use = self.running.pop(rng.choice(sorted(self.running)))
        if self.holdings.waits_for_process(use, self.others):
            self.holdings.postpone(use, self.now)
        elif rng.random() < 0.3:
            self.holdings.failed(use, self.now)
        else:
            self.release(use)

    def release(self, use: Any) -> None:
        holds(9, not any(use.uid in pod.uids for pod in self.pods), f"{use.uid} is released, and its pod lives")
        for place in {place_of(each) for each in use.ids} - self.holdings.others(R, use.ids, is_over=True).keys():
            living = [pod.name for pod in self.pods if pod.works_on(place)]
            holds(9, not living, f"{place} is scrubbed, on which {living} work")
            self.written.pop(place, None)
        self.holdings.released(use)

    def update(self, rng: random.Random) -> None:
        """A new process serves while the one before still runs, and only lists; or that one ends."""
        if rng.random() > 0.3:
            return
        if self.ending is not None:
            self.take_over()
        elif not any(pod.is_forgotten for pod in self.pods):  # the new process knows nothing of them
            self.updates += 1
            self.ending = self.holdings
            self.others = self.saved(self.ending)
            self.running.clear()
            self.holdings = self.made()

    def take_over(self) -> None:
        self.holdings.adopt(self.others, self.now)
        self.others, self.ending = [], None
        for pod in self.pods:
            pod.is_named = False  # by a list that was asked for since

    def crash(self, rng: random.Random) -> None:
        """The newest process dies, and the one that is about to end may die with it."""
        if rng.random() < 0.7:
            return
        saved = self.saved(self.holdings)
        if self.ending is not None and rng.random() < 0.5:
            saved = [*self.others, *saved]
            self.others, self.ending = [], None
            for pod in self.pods:
                pod.is_named = False
        self.running.clear()
        self.holdings = self.made()
        self.holdings.adopt(saved, self.now)

    def settle(self, rng: random.Random) -> None:
        """Nothing happens any more but lists and scrubs: then no container waits for a pod that has ended.

        Where another pod may have the devices unnamed, it may wait until that one has ended, too. So it may where a
        process has not seen itself that the pod, whose name another one has now, had the device.
        """
        if rng.random() > 0.3:
            return
        if self.ending is not None:
            self.take_over()
        for _ in range(4):
            self.now += PACE.gap + 1.0
            self.take_list(is_complete=True)
            while self.running:
                self.release(self.running.popitem()[1])
        for pod in self.pods:
            others = {place_of(each) for other in self.pods if other is not pod for each in other.ids}
            for ids in pod.waiting[:1]:
                if others.isdisjoint(map(place_of, ids)):
                    use = self.holdings.waits_for(R, ids)
                    record = self.holdings.newest(R, ids)
                    is_later = record is not None and use is not None and record.at > use.at
                    own = {("default", pod.name)} if is_later and not pod.is_hidden else set[tuple[str, str]]()
                    names = {("default", other.name) for other in self.pods} - own
                    is_explained = use is not None and (
                        (not use.is_back and self.holdings.all_suspects - own)
                        or any(other.pod in names and not other.is_known for other in self.holdings.of(R, use.ids))
                    )
                    holds(11, use is None or is_explained, f"{pod.name} waits for {use}, the pod of which has ended")

    def saved(self, holdings: Any) -> list[Any]:
        file = f"file{next(self.numbers)}"
        return [
            self.module.AllocationRecord(
                uid=use.uid,
                at=use.at,
                resource=R,
                ids=use.ids,
                state=use.state,
                file=file,
                is_seen=holdings.is_seen(use),
                suspects=holdings.suspects(use),
                pod=use.pod,
                is_started=use.is_started,
                is_back=use.is_back,
                back_at=use.back_at,
            )
            for use in holdings.owed()
        ]

    ACTIONS = (
        *(admit, admit, start, start, start, start_again, end),
        *(look, look, look, scrub, scrub, crash, forget, update, settle),
    )

    @rule(number=st.integers(0, 2**64 - 1), steps=st.integers(5, 80))
    def live(self, number: int, steps: int) -> None:
        rng = random.Random(number)  # noqa: S311 - no secret
        for _ in range(steps):
            rng.choice(self.ACTIONS)(self, rng)


def run(*, examples: int, module: ModuleType = real, number: int = 0) -> None:
    live(Node, examples=examples, steps=4, number=number, shrinks=module is real, module=module)


def test_no_pod_reads_what_another_one_left() -> None:
    run(examples=400)


MUTANTS = [
    Mutant(
        8,
        "an Allocate says nothing of the pod before",
        "if use.is_started and (not use.is_back",
        "if False and (not use.is_back",
    ),
    Mutant(
        8,
        "an equal allocation replaces one that came back",
        "if not other.is_handed_out and not other.is_back and not use.is_back:",
        "if not other.is_handed_out:",
    ),
    Mutant(
        8,
        "what ended without an Allocate is withdrawn",
        "            use.is_back |= use.resource in self._scrubbed\n",
        "",
    ),
    Mutant(
        9, "what an init container left has come back", "if use.is_started and (not use.is_back", "if (not use.is_back"
    ),
    Mutant(
        9,
        "nobody asks whether the pod lives",
        "use.resource in self._scrubbed and self._is_alive(use)",
        "False",
    ),
    Mutant(
        9,
        "the pod is not known",
        "newest.pod = next(",
        "_ = next(",
    ),
    Mutant(
        8,
        "every pod with another replica counts as alive",
        "return any(self._tracks[key].named_at > since for key in use.keys)",
        "return True",
    ),
    Mutant(
        8,
        "a list from before the Allocate shows that it lives",
        "self._tracks[key].named_at > since",
        "self._tracks[key].is_named",
    ),
    Mutant(
        8,
        "processes that end together are taken for one",
        "if other.file != use.file:",
        "if other.file and not use.file or use.file and not other.file:",
    ),
    Mutant(
        11,
        "a pod that waits is waited for",
        "bool(living) and not living <= self._waiting_for(use)",
        "bool(living)",
    ),
    Mutant(
        11,
        "a pod that waits may have it unnamed",
        "track.suspects <= self._waiting_for(use)",
        "not track.suspects",
    ),
    Mutant(
        11,
        "a pod that has not started keeps a device",
        "if other.is_started or other is use}",
        "}",
    ),
    Mutant(11, "a new pod of a name is the old one", "if use.is_back and use.is_known:", "if False:"),
    Mutant(
        9,
        "a kubelet without its checkpoint is trusted",
        "            use.is_known = False\n",
        "            pass\n",
    ),
    Mutant(
        9,
        "a container of the same pod counts as one that waits",
        'self._when(use.back_at) if use.is_back else (True, float("inf"))',
        "self._order(use)",
    ),
    Mutant(
        11,
        "a pod waits for its name if it has another replica",
        "(self._order(use) if set(other.ids).isdisjoint(use.ids) else since)",
        "since",
    ),
    Mutant(8, "nobody waits for a process that ends", "return next(iter(theirs), None)", "return None"),
    Mutant(
        9,
        "what a process that ends gave is cleaned up",
        "return any(other.uid != use.uid for",
        "return any(False for",
    ),
    Mutant(
        8,
        "what another process gave before has not come back",
        "self._came_back(older, newer.at)",
        "pass",
    ),
    Mutant(
        9,
        "what is taken over is the newest",
        "return at[0] == self._boot_id, at[1]",
        "return True, 0.0",
    ),
    Mutant(
        10,
        "a container that starts again waits for a process",
        "next((use for use in reversed(theirs) if use.ids == wanted), None)",
        "None",
    ),
    Mutant(8, "who is about to start has a replica", "if use.is_started if is_over", "if True if is_over"),
    Mutant(9, "nobody has another replica", "if use.is_started if is_over", "if False if is_over"),
    Mutant(
        10,
        "a container that starts again waits",
        "if own is not None and own.is_started and not own.is_back:",
        "if False:",
    ),
]


@each_mutant(MUTANTS)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    module = mutant.load("kdp.deviceplugin.tracking.allocations")
    assert_killed(mutant, (partial(run, examples=60, module=module, number=number) for number in range(60)))
