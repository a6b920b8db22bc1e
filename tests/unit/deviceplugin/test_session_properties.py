"""The session lives random lives; every invariant of its head holds, and a mutant of each does not survive.

The lives are lived in `World` and in `Chaos` (session_world.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType

from hypothesis.stateful import RuleBasedStateMachine

from kdp.deviceplugin import session as real

from ..mutants import Mutant, assert_killed, each_mutant, live
from ..strategies import EFFORT
from .session_world import EVENTS, LATE, STATES, Chaos, Pair, WatcherWorld, World

_SERVED_ONCE = "Serve is answered once; only a stranger's stream comes before that"
_CLOSED_ONCE = "Close is commanded on the way to LOST or STOPPED, and answered once"
_NOT_KNOWN = "nobody knows the socket before Register"
_GONE = "the server has gone, and all it had to say came before Closed"
_OPEN_FIRST = "a stream that ends was open, and then the state is CONNECTED or a later one"
_CONNECTED_FIRST = "what is disbelieved was connected"
IMPOSSIBLE: dict[Pair, str] = {
    **{(s, "Served"): _SERVED_ONCE for s in ("WAITING", "REGISTERING", "AWAITING_STREAM")},
    **{(s, "ServeFailed"): _SERVED_ONCE for s in STATES if s not in ("SERVING", "STOPPED")},
    **{(s, "Closed"): _CLOSED_ONCE for s in STATES if s not in ("LOST", "STOPPED")},
    **{("SERVING", e): _NOT_KNOWN for e in ("Contacted", "Registered", "RegisterFailed")},
    **{("WAITING", e): _GONE for e in ("Contacted", "StreamOpened")},
    **{(s, "StreamClosed"): _OPEN_FIRST for s in ("SERVING", "REGISTERING", "AWAITING_STREAM")},
    **{(s, "DriftDetected"): _CONNECTED_FIRST for s in ("SERVING", "REGISTERING", "AWAITING_STREAM")},
}
"""Pairs that cannot happen in `World`, with the reason; `Chaos` says them all the same."""


def run(
    machine: type[RuleBasedStateMachine], *, examples: int, module: ModuleType = real, number: int = 0
) -> Counter[Pair]:
    """Live so many lives; the number chooses which."""
    hits: Counter[Pair] = Counter()
    live(machine, examples=examples, steps=12, number=number, shrinks=module is real, module=module, hits=hits)
    return hits


def tour(machine: type[World | Chaos], *, module: ModuleType = real) -> Counter[Pair]:
    """Live the lives that are not left to chance."""
    hits: Counter[Pair] = Counter()
    subject: type[World | Chaos] = type(machine.__name__, (machine,), {"module": module, "hits": hits})
    subject.tour()
    return hits


def table(physical: Counter[Pair], chaos: Counter[Pair]) -> str:
    columns = (*EVENTS, LATE)
    width = max(map(len, columns))
    lines = [f"session: state x event, steps in a possible world + in chaos ({' | '.join(STATES)})"]
    for column in columns:
        cells = (f"{physical[s, column] or '-':>6}+{chaos[s, column]:<5}" for s in STATES)
        lines.append(f"    {column:<{width}} {' '.join(cells)}")
    lines.append("    - impossible there:")
    for reason in dict.fromkeys(IMPOSSIBLE.values()):
        pairs = ", ".join(f"{event} in {state}" for (state, event), why in IMPOSSIBLE.items() if why == reason)
        lines.append(f"      {pairs}: {reason}")
    return "\n".join(lines)


def test_every_state_meets_every_event(record_property: Callable[[str, object], None]) -> None:
    pairs = {(state, column) for state in STATES for column in (*EVENTS, LATE)}
    physical: Counter[Pair] = Counter()
    chaos: Counter[Pair] = Counter()
    worlds: list[tuple[type[World | Chaos], Counter[Pair], int]] = [
        (World, physical, 150),
        (WatcherWorld, physical, 75),
        (Chaos, chaos, 100),
    ]
    for machine, hits, examples in worlds:
        hits += tour(machine)
        hits += run(machine, examples=examples)
    record_property("figure", table(physical, chaos))
    missing = (pairs - physical.keys() - IMPOSSIBLE.keys()) | (pairs - chaos.keys())
    assert EFFORT < 1 or not missing
    assert not physical.keys() & IMPOSSIBLE.keys()


MUTANTS = [
    Mutant(
        1,
        "Register over a stream that came first",
        "case State.SERVING, Served():",
        "case (State.SERVING | State.CONNECTED), Served():",
    ),
    Mutant(
        3,
        "a stream before Register goes unnoticed",
        "case ((State.SERVING | State.REGISTERING | State.AWAITING_STREAM | State.CONNECTED), StreamOpened()):",
        "case ((State.REGISTERING | State.AWAITING_STREAM | State.CONNECTED), StreamOpened()):",
    ),
    Mutant(
        1,
        "a new kubelet is told over a living stream",
        "        elif self.state is State.AWAITING_STREAM:\n",
        "        elif self.state is State.CONNECTED:\n            return [Register(self.generation)]\n"
        "        elif self.state is State.AWAITING_STREAM:\n",
    ),
    Mutant(2, "the same name again", "self.generation += 1", "self.generation = self.generation or 1"),
    Mutant(
        2,
        "the same socket is registered again",
        "return self._lose(reason, now, pause=REFUSED_PAUSE if permanent else self._backoff.next())",
        "return [Register(self.generation)]",
    ),
    Mutant(
        3,
        "Register's answer is taken as proof",
        "self._enter(State.AWAITING_STREAM, deadline=now + (CROSSED_DEADLINE if crossed else STREAM_DEADLINE))",
        "self._enter(State.CONNECTED)",
    ),
    Mutant(3, "one of two streams ends", "if not self.streams:", "if self.streams >= 0:"),
    Mutant(3, "the last stream's end goes unnoticed", "if not self.streams:", "if self.streams < 0:"),
    Mutant(
        4,
        "the next server does not wait for the end of this one",
        "self._enter(State.LOST, deadline=now + pause if pause > 0 else None)",
        "self._enter(State.WAITING, deadline=now + pause if pause > 0 else None)",
    ),
    Mutant(
        4, "a server is left behind", "return [] if was in (State.WAITING, State.LOST) else", "return [] if was else"
    ),
    Mutant(
        5,
        "no deadline for the stream",
        "self._enter(State.AWAITING_STREAM, deadline=now + (CROSSED_DEADLINE if crossed else STREAM_DEADLINE))",
        "self._enter(State.AWAITING_STREAM)",
    ),
    Mutant(
        5,
        "the pause is forgotten at Closed",
        "self._enter(State.WAITING, deadline=self.deadline)\n                return self._advance(now)",
        "self._enter(State.WAITING)",
    ),
    Mutant(
        5,
        "a watcher that asks again and again",
        "Contacted() if self._watcher and not self._contacted:",
        "Contacted() if self._watcher:",
    ),
    Mutant(
        5,
        "a due pause is not ended",
        "        self.deadline = None\n        if self.state is State.AW",
        "        if self.state is State.AW",
    ),
    Mutant(
        6,
        "a new kubelet waits for the pause of the one before",
        "        if self.state in (State.WAITING, State.LOST):\n            self.deadline = None\n        elif",
        "        if",
    ),
    Mutant(
        6,
        "a failure with the kubelet before costs the new one a pause",
        "            pause = 0.0\n",
        "            pass\n",
    ),
    Mutant(
        6,
        "an answer of the kubelet before is believed",
        "CROSSED_DEADLINE if crossed else",
        "STREAM_DEADLINE if crossed else",
    ),
]


@each_mutant(MUTANTS)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    module = mutant.load("kdp.deviceplugin.session")
    machines: list[type[World | Chaos]] = [Chaos, World, WatcherWorld]
    lives = [partial(run, machine, examples=30, module=module, number=n) for n in range(50) for machine in machines]
    tours = [partial(tour, machine, module=module) for machine in machines]
    assert_killed(mutant, (*lives, *tours))


def test_each_invariant_has_a_mutant() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(range(1, 7))
    assert sorted(re.findall(r"^(\d)\. ", real.__doc__ or "", re.MULTILINE)) == list("123456")
