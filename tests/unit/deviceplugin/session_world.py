"""Where a session lives in the tests: a world that obeys physics, and chaos, where anything is said in any order.

The world is the kubelet with its restarts, its Register calls that are answered late, wrongly or never, its streams,
and the driver that obeys the session's commands and brings it the events through one mailbox, later than they happened.
At the end of each life the world becomes healthy, and the session must be connected soon.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from types import ModuleType
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from typing_extensions import override

from kdp.concurrency.backoff import Backoff
from kdp.deviceplugin import session as real
from kdp.deviceplugin.session import State

from ..mutants import InvariantBrokenError, holds

Pair = tuple[str, str]

ANSWERS = (
    "Served",
    "ServeFailed",
    "Contacted",
    "Registered",
    "RegisterFailed",
    "StreamOpened",
    "StreamClosed",
    "DriftDetected",
    "Closed",
)
EVENTS = ("ListReady", "KubeletHere", "KubeletGone", *ANSWERS, "Tick", "Stop")
LATE = "late answer"
STATES = tuple(state.name for state in State)

REGISTER_TIMEOUT = 15.0
"""Seconds after which the driver's Register call ends by itself."""


def event_name(event: Any, generation: int) -> str:
    """Return the event's column in the table; an answer of another generation than the current one is late."""
    name = type(event).__name__
    return LATE if name in ANSWERS and event.generation != generation else name


class Watched:
    """A session whose every step is checked, from what it was told alone."""

    def __init__(self, module: ModuleType, *, watcher: bool, hits: Counter[Pair]) -> None:
        self.module = module
        self.hits = hits
        self.session = module.Session(backoff=Backoff(rng=random.Random(1)), watcher=watcher)  # noqa: S311 - jitter
        self.served: list[int] = []
        self.registered: list[int] = []
        self.open = Counter[int]()
        self.closing: set[int] = set()
        self.closed: set[int] = set()

    @property
    def state(self) -> str:
        state: str = self.session.state.name
        return state

    @property
    def live(self) -> int:
        """How many streams of the current generation live, as far as the session was told."""
        current = self.session.generation
        return 0 if current not in self.served or current in self.closing else self.open[current]

    def handle(self, event: Any, now: float) -> list[Any]:
        current = self.session.generation
        self.hits[self.state, event_name(event, current)] += 1
        name = type(event).__name__
        if name in ANSWERS and event.generation in self.served and event.generation not in self.closed:
            if name == "StreamOpened" and event.generation not in self.closing:
                self.open[event.generation] += 1
            elif name == "StreamClosed" and self.open[event.generation]:
                self.open[event.generation] -= 1
            elif name == "Closed" and event.generation in self.closing:
                self.closed.add(event.generation)
                self.open[event.generation] = 0
        was_stopped = self.state == "STOPPED"
        commands: list[Any] = self.session.handle(event, now)
        for command in commands:
            holds(5, not was_stopped, f"{command} after the stop")
            match type(command).__name__:
                case "Serve":
                    holds(2, command.generation not in self.served, f"{command} is not the first of its generation")
                    alive = set(self.served) - self.closed
                    holds(4, not alive, f"{command} while {alive} are served")
                    self.served.append(command.generation)
                case "Register":
                    holds(1, not +self.open, f"{command} while streams live: {+self.open}")
                    holds(2, command.generation not in self.registered, f"{command} is not the first")
                    holds(4, command.generation == self.served[-1], f"{command} of a generation that is not served")
                    self.registered.append(command.generation)
                case _:
                    holds(4, command.generation == self.served[-1], f"{command} of a generation that is not served")
                    ends = +self.open if self.state != "STOPPED" and name != "DriftDetected" else None
                    holds(3, not ends, f"{command} although streams live: {ends}")
                    self.closing.add(command.generation)
        holds(4, self.state != "STOPPED" or set(self.served) == self.closing, "a server is left behind")
        connected = self.state == "CONNECTED"
        if self.state != "STOPPED":
            holds(3, connected == (self.live > 0), f"{self.state} with {self.live} streams")
        if connected:
            holds(3, self.session.streams == self.live, f"counts {self.session.streams} streams of {self.live}")
        due = name == "Tick" and self.session.deadline is not None and self.session.deadline <= now
        holds(5, not due, "what was due is due again")
        holds(5, self.session.deadline is None or self.state not in ("CONNECTED", "STOPPED"), "a deadline for nothing")
        return commands


NUMBERS = st.integers(0, 2**64 - 1)
"""Each stands for a row of random events: many of them are found so, and few, well chosen, by hypothesis itself."""


class Chaos(RuleBasedStateMachine):
    """Any event at any time, of this generation, an older or an impossible one."""

    module: ClassVar[ModuleType] = real
    hits: ClassVar[Counter[Pair]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.watched: Watched | None = None

    @rule(
        watcher=st.booleans(),
        first=st.sampled_from([None, *(state.name for state in State if state is not State.STOPPED)]),
        name=st.sampled_from(EVENTS * 4).filter(lambda name: name != "Stop") | st.sampled_from(EVENTS),
        offset=st.sampled_from([0, 0, 0, 0, 0, -1, -2, 1]),
        identity=st.integers(0, 2),
        permanent=st.booleans(),
        seconds=st.sampled_from([0.0, 0.0, 0.01, 1.0, 11.0, 61.0]),
    )
    def say(
        self, watcher: bool, first: str | None, name: str, offset: int, identity: int, permanent: bool, seconds: float
    ) -> None:
        """One arbitrary event, often after a few sensible ones that lead to a certain state."""
        self.watched = watched = self.watched or Watched(self.module, watcher=watcher, hits=self.hits)
        for _ in range(8):
            if first is None or watched.state in (first, "STOPPED"):
                break
            self.progress(watched)
        self.now += seconds
        kind = getattr(self.module, name)
        generation = watched.session.generation + offset
        match name:
            case "ListReady" | "KubeletGone" | "Tick" | "Stop":
                event = kind()
            case "KubeletHere":
                event = kind(identity)
            case "ServeFailed":
                event = kind(generation, "no room")
            case "DriftDetected":
                event = kind(generation, "all devices are missing")
            case "RegisterFailed":
                event = kind(generation, "no", permanent=permanent)
            case _:
                event = kind(generation)
        watched.handle(event, self.now)

    @rule(watcher=st.booleans(), number=NUMBERS)
    def say_much(self, watcher: bool, number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - no secret
        for _ in range(15):
            self.say(
                watcher=watcher,
                first=rng.choice([None, *STATES[:-1]]),
                name=rng.choice(EVENTS if rng.random() < 0.3 else EVENTS[:-1]),
                offset=rng.choice([0, 0, 0, 0, -1, -2, 1]),
                identity=rng.randrange(3),
                permanent=rng.random() < 0.5,
                seconds=rng.choice([0.0, 0.0, 0.01, 1.0, 11.0, 61.0]),
            )

    @classmethod
    def tour(cls) -> None:
        """Say everything once in every state."""
        for first, name, offset, watcher in itertools.product(STATES, EVENTS, [0, -1], [False, True]):
            chaos = cls()
            stopped = first == "STOPPED"
            for said, state in (("Stop", "CONNECTED"), (name, first))[not stopped :]:
                chaos.say(
                    watcher=watcher,
                    first=state,
                    name=said,
                    offset=offset,
                    identity=1,
                    permanent=watcher,
                    seconds=1.0,
                )

    def progress(self, watched: Watched) -> None:
        module, session = self.module, watched.session
        match watched.state:
            case "WAITING":
                self.now = max(self.now, session.deadline or 0.0)
                for event in (module.ListReady(), module.KubeletHere(0), module.Tick()):
                    watched.handle(event, self.now)
            case "SERVING":
                watched.handle(module.Served(session.generation), self.now)
            case "REGISTERING":
                watched.handle(module.Registered(session.generation), self.now)
            case "AWAITING_STREAM":
                watched.handle(module.StreamOpened(session.generation), self.now)
            case "CONNECTED":
                watched.handle(module.StreamClosed(session.generation), self.now)
            case _:
                watched.handle(module.Closed(session.generation), self.now)


UNTIL = [None, *(state for state in STATES if state != "STOPPED")]
ACTIONS = [
    "deliver",
    "time passes",
    "tick",
    "list",
    "stop",
    "notice",
    "wipe",
    "kubelet starts",
    "kubelet dies",
    "kubelet restarts",
    "kubelet is touched",
    "serve fails",
    "register answered",
    "register refused",
    "register refused for good",
    "old call ends",
    "watcher walks",
    "stranger",
    "stream closes",
    "all streams close",
    "disbelieved",
]

DELIVERED = [0, 1, 30]
PASTS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "lost, but its call is still under way": ("register answered", "register refused"),
    "a call is left over": ("old call ends", "stop", "wipe", "all streams close"),
    "a stranger was first": ("kubelet dies", "serve fails"),
    "stopped": ("list", "notice", "tick", "stop"),
}


class World(RuleBasedStateMachine):
    """A node: what happens happens at once, what the session hears of it comes through the mailbox, in order."""

    module: ClassVar[ModuleType] = real
    watcher: ClassVar[bool] = False
    hits: ClassVar[Counter[Pair]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.watched = Watched(self.module, watcher=self.watcher, hits=self.hits)
        self.mailbox: deque[Any] = deque()
        self.starts = 0
        self.kubelet: int | None = None
        self.seen: int | None = None
        self.heard: int | None = None
        self.serving: int | None = None
        self.published = False
        self.server: int | None = None
        self.calls: dict[int, tuple[int | None, float]] = {}
        self.visible: set[int] = set()
        self.accepted: set[tuple[int, int]] = set()
        self.streams: list[tuple[int, int | None]] = []
        self.unanswered = False
        self.served_for_it: set[int] = set()
        self.list_said = False
        self.stopping = False

    @property
    def current(self) -> int:
        """The session's generation."""
        generation: int = self.watched.session.generation
        return generation

    # -- the driver --------------------------------------------------------------------------------------------------

    def post(self, name: str, *args: Any, **more: Any) -> None:
        self.mailbox.append(getattr(self.module, name)(*args, **more))

    def handle(self, event: Any) -> None:
        watched, name, before = self.watched, type(event).__name__, self.watched.state
        new_kubelet = name == "KubeletHere" and event.identity != self.heard
        if name == "KubeletHere":
            self.heard = event.identity
        elif name == "KubeletGone":
            self.heard, self.unanswered = None, False
        elif name == "ServeFailed" and event.generation in self.served_for_it:
            self.unanswered = False  # not for want of a kubelet
        commands = watched.handle(event, self.now)
        if new_kubelet:
            self.unanswered = True
            holds(6, before != "AWAITING_STREAM" or watched.state == "LOST", "it waits for the kubelet of before")
        for command in commands:
            self.obey(command)
        if watched.state in ("CONNECTED", "STOPPED"):
            self.unanswered = False
        if self.unanswered and watched.session.deadline is not None:
            pause = watched.session.deadline - self.now
            longest = real.CROSSED_DEADLINE if watched.state == "AWAITING_STREAM" else 0.0
            holds(6, pause <= longest, f"the new kubelet must wait {pause} s")

    def obey(self, command: Any) -> None:
        generation = command.generation
        match type(command).__name__:
            case "Serve":
                holds(4, self.server is None and self.serving is None, f"{command} while another server lives")
                self.serving = generation
                if self.unanswered:
                    self.served_for_it.add(generation)
            case "Register":
                holds(1, not [s for s in self.streams if s[1] is not None], f"{command} while streams live")
                self.calls[generation] = (self.kubelet, self.now)
                self.visible.add(generation)
                self.unanswered = False
            case _:
                slow = generation % 2 == 0  # whether the streams tell of their end before the server or after it
                streams, self.streams = self.streams, []
                self.serving = self.server = None
                if self.watcher:
                    self.calls.clear()  # nobody can ask a socket that is not there
                if slow:
                    self.post("Closed", generation)
                for _ in streams:
                    self.post("StreamClosed", generation)
                if not slow:
                    self.post("Closed", generation)

    def deliver(self, many: int) -> None:
        for _ in range(min(many, len(self.mailbox))):
            self.handle(self.mailbox.popleft())

    def notice(self) -> None:
        """Look at the directory; looking twice tells the same twice."""
        self.seen = self.kubelet
        if not self.watcher:
            if self.kubelet is None:
                self.post("KubeletGone")
            else:
                self.post("KubeletHere", self.kubelet)
        if self.watched.state in ("REGISTERING", "AWAITING_STREAM") and self.current not in self.visible:
            self.post("RegisterFailed", self.current, "the socket was removed")

    def serve(self, *, fails: bool) -> None:
        if self.serving is None:
            return
        generation, self.serving = self.serving, None
        if fails and not self.published:
            self.post("ServeFailed", generation, "no room")
        else:
            self.server = generation
            self.post("Served", generation)
        self.published = False

    # -- the kubelet -------------------------------------------------------------------------------------------------

    def kubelet_starts(self) -> None:
        """It wipes all sockets first."""
        if self.kubelet is None:
            self.starts += 1
            self.kubelet = self.starts
            self.visible.clear()

    def kubelet_dies(self, calls: str) -> None:
        """Its streams end; calls under way fail, were answered just before, or fail when the next kubelet is there."""
        if self.kubelet is None:
            return
        dead, self.kubelet = self.kubelet, None
        for stream in [s for s in self.streams if s[1] == dead]:
            self.streams.remove(stream)
            self.post("StreamClosed", stream[0])
        for generation, (kubelet, _) in list(self.calls.items()):
            if kubelet == dead and calls != "hang":
                self.end_call(generation, None if calls == "answered" else "connection lost")

    def kubelet_is_touched(self) -> None:
        """Its socket looks like another one (somebody has relabelled it), but it is the same kubelet."""
        if self.kubelet is None:
            return
        self.starts += 1
        old, self.kubelet = self.kubelet, self.starts
        self.streams = [(g, self.kubelet if k == old else k) for g, k in self.streams]
        self.accepted = {(g, self.kubelet if k == old else k) for g, k in self.accepted}
        self.calls = {g: (self.kubelet if k == old else k, since) for g, (k, since) in self.calls.items()}

    def end_call(self, generation: int, failure: str | None, *, permanent: bool = False) -> None:
        kubelet, _ = self.calls.pop(generation)
        if failure is not None:
            self.post("RegisterFailed", generation, failure, permanent=permanent)
            return
        if kubelet is not None:
            self.accepted.add((generation, kubelet))
        self.post("Registered", generation)

    def answer(self, generation: int, failure: str | None, *, stream_first: bool, permanent: bool = False) -> None:
        """Answer Register; the stream may open before the answer has arrived, also if the answer is lost."""
        if generation not in self.calls:
            return
        kubelet, since = self.calls[generation]
        if self.watcher:
            if self.kubelet is None:
                return  # nobody looks at the directory
            kubelet = self.kubelet
            self.calls[generation] = (kubelet, since)
            self.post("Contacted", generation)
        if kubelet is not None and kubelet == self.kubelet and generation == self.server and stream_first:
            self.streams.append((generation, kubelet))
            self.post("StreamOpened", generation)
        self.end_call(generation, failure if kubelet is not None else "nobody is there", permanent=permanent)

    def old_call_ends(self, failure: str | None, heard: bool) -> None:
        """End a call of a generation that is no more; it may have been on its way for long."""
        old = [generation for generation in self.calls if generation != self.current]
        if old and not self.watcher:
            self.end_call(old[0], failure)
            if heard:
                self.handle(self.mailbox.pop())

    def watcher_walks(self, outcome: int) -> None:
        """The plugin watcher meets a socket that it knows: after its restart, or because a call has failed."""
        if not self.watcher or self.kubelet is None or self.server is None or self.server not in self.visible:
            return
        self.post("Contacted", self.server)
        if outcome == 0:
            self.accepted.add((self.server, self.kubelet))
            self.post("Registered", self.server)
        elif outcome == 1:
            self.post("RegisterFailed", self.server, "again no")
        elif outcome == 2:
            self.calls.pop(self.server, None)  # it has looked, and will never say more

    def stream_opens(self) -> bool:
        """The kubelet opens one stream for each registration that it has accepted, and never another."""
        if self.server is None or self.kubelet is None or (self.server, self.kubelet) not in self.accepted:
            return False
        self.accepted.remove((self.server, self.kubelet))
        self.streams.append((self.server, self.kubelet))
        self.post("StreamOpened", self.server)
        return True

    def stranger_opens(self, briefly: bool) -> None:
        """Somebody with a debugging tool has found the socket, perhaps before the driver says that it is there."""
        generation = self.server or self.serving
        if generation is None:
            return
        self.published = self.serving is not None
        self.streams.append((generation, None))
        self.post("StreamOpened", generation)
        if briefly:
            self.stream_closes()
            self.serve(fails=False)

    def stream_closes(self) -> None:
        if self.streams:
            generation, _ = self.streams.pop()
            self.post("StreamClosed", generation)

    def is_disbelieved(self, choice: int) -> None:
        """The kubelet has a stream and does not believe it; what was found out may come when the stream has ended."""
        if self.watched.state != "CONNECTED":
            return
        generation = self.current
        while choice in (1, 2) and self.streams:
            self.stream_closes()
        if choice == 2:
            self.deliver(30)
        if choice == 3:
            self.stopping = True
            self.post("Stop")
        self.post("DriftDetected", generation, "all devices are missing")

    # -- lives ---------------------------------------------------------------------------------------------------------

    def one_thing_goes_well(self) -> bool:
        """Let the next thing happen as it should; return whether there was one that takes no time."""
        current = self.current
        if self.mailbox:
            self.deliver(1)
        elif self.kubelet is None:
            self.kubelet_starts()
            self.notice()
        elif not self.list_said:
            self.list_said = True
            self.post("ListReady")
        elif self.seen != self.kubelet:
            self.notice()
        elif self.serving is not None:
            self.serve(fails=False)
        elif current in self.calls and (self.watcher or self.calls[current][0] == self.kubelet):
            self.answer(current, None, stream_first=False)
        else:
            return self.stream_opens()
        return True

    def goes_well_until(self, state: str | None) -> None:
        if state == "WAITING":
            self.kubelet_dies("hang")
            self.notice()
            if not self.watcher and self.current in self.calls:
                self.end_call(self.current, "connection lost")
            self.deliver(20)
            return
        for _ in range(25):
            if state is None or self.watched.state == state:
                return
            if state == "LOST" and self.watched.state == "CONNECTED" and self.streams:
                self.stream_closes()
            elif not self.one_thing_goes_well():
                return

    @rule(
        until=st.sampled_from(UNTIL),
        action=st.sampled_from(ACTIONS),
        choice=st.integers(0, 3),
        noticed=st.booleans(),
        delivered=st.sampled_from(DELIVERED),
    )
    def happens(self, until: str | None, action: str, choice: int, noticed: bool, delivered: int) -> None:
        """All goes well up to some state, and then something happens."""
        self.goes_well_until(until)
        match action:
            case "time passes":
                self.now += (0.05, 3.0, 11.0, 70.0)[choice]
                deadline = self.watched.session.deadline
                if not self.mailbox and deadline is not None and self.now >= deadline:
                    self.handle(self.module.Tick())
            case "tick":
                self.handle(self.module.Tick())
            case "list":
                if choice == 3:
                    self.stream_closes()
                self.list_said = True
                self.post("ListReady")
            case "stop":  # a second signal is no news
                self.stopping |= noticed and choice > 1
                if self.stopping:
                    while choice == 3 and self.streams:
                        self.stream_closes()
                    self.post("Stop")
                    self.serve(fails=delivered == 0)
                    self.watcher_walks(delivered)
                    self.stranger_opens(briefly=choice == 3)
                    self.answer(self.current, "no" if delivered == 1 else None, stream_first=False)
            case "wipe":
                self.visible.clear()
                if choice == 0:  # and the kubelet, which has dialed it before, goes on
                    self.notice()
                    self.answer(self.current, None, stream_first=True)
            case "kubelet starts":
                self.kubelet_starts()
            case "kubelet dies":
                self.kubelet_dies(("fail", "fail", "answered", "hang")[choice])
            case "kubelet restarts":
                self.kubelet_dies(("fail", "hang", "answered", "hang")[choice])
                self.kubelet_starts()
            case "kubelet is touched":
                self.kubelet_is_touched()
            case "serve fails":
                self.serve(fails=True)
            case "register answered":
                self.answer(self.current, None, stream_first=choice % 2 == 0)
            case "register refused" | "register refused for good":
                self.answer(self.current, "no", stream_first=choice == 0, permanent=action.endswith("good"))
            case "old call ends":
                if choice == 3 and noticed:
                    self.stopping = True
                    self.post("Stop")
                    self.deliver(30)
                self.old_call_ends(None if choice % 2 else "timeout", heard=choice > 1)
            case "watcher walks":
                self.watcher_walks(choice)
            case "stranger":
                self.stranger_opens(briefly=choice % 2 == 0)
            case "stream closes":
                self.stream_closes()
            case "all streams close":
                while self.streams:
                    self.stream_closes()
                if choice == 0:
                    self.watcher_walks(3)
            case "disbelieved":
                self.is_disbelieved(choice)
            case _:
                self.deliver(choice)
        if noticed or action == "notice":
            self.notice()
        self.deliver(delivered)

    @rule(number=NUMBERS)
    def much_happens(self, number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - no secret
        for _ in range(15):
            self.happens(
                until=rng.choice(UNTIL),
                action=rng.choice(ACTIONS),
                choice=rng.randrange(4),
                noticed=rng.random() < 0.5,
                delivered=rng.choice(DELIVERED),
            )
            self.there_is_a_next_step()

    @classmethod
    def tour(cls) -> None:
        """Live every life of one action; and some with a past: a second generation, a stranger, a stop."""
        everything = itertools.product(PASTS, UNTIL, ACTIONS, range(4), [False, True], DELIVERED)
        for past, until, action, choice, noticed, delivered in everything:
            if past is not None and action not in PASTS[past]:
                continue
            world = cls()
            match past:
                case "lost, but its call is still under way" | "a call is left over":
                    world.happens(until="REGISTERING", action="wipe", choice=1, noticed=True, delivered=30)
                    world.deliver(30)
                    if past == "a call is left over":
                        world.happens(until=None, action="time passes", choice=1, noticed=False, delivered=0)
                case "a stranger was first":
                    world.happens(until="SERVING", action="stranger", choice=1, noticed=False, delivered=30)
                case "stopped":
                    world.happens(until="CONNECTED", action="stop", choice=2, noticed=True, delivered=30)
            world.happens(until=until, action=action, choice=choice, noticed=noticed, delivered=delivered)
            world.there_is_a_next_step()
            world.teardown()

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def there_is_a_next_step(self) -> None:
        session, state = self.watched.session, self.watched.state
        current = session.generation
        heard = any(event_name(event, current) in ANSWERS for event in self.mailbox)
        match state:
            case "WAITING":
                missing = not session._list_ready or (session._kubelet is None and not self.watcher)
                ok = session.deadline is not None or missing
            case "SERVING":
                ok = self.serving is not None or heard
            case "REGISTERING":
                ok = session.deadline is not None if self.watcher else current in self.calls or heard
            case "AWAITING_STREAM":
                ok = session.deadline is not None
            case "LOST":
                ok = heard
            case _:
                ok = True
        holds(5, ok, f"{state} without a next step")

    @override
    def teardown(self) -> None:
        """From now on all is well: connected after few steps and in bounded time, or stopped for good."""
        session = self.watched.session
        for generation, _ in [stream for stream in self.streams if stream[1] is None]:
            self.streams.remove((generation, None))
            self.post("StreamClosed", generation)
        begun = self.now
        ignored = False
        for _ in range(100 + len(self.mailbox)):
            if self.watched.state in ("STOPPED", "CONNECTED") and not self.mailbox:
                break
            if self.watcher and not ignored and session.generation in self.calls:
                del self.calls[session.generation]
                ignored = True  # one socket is looked at and never registered
            if self.one_thing_goes_well():
                continue
            self.there_is_a_next_step()
            if session.generation in self.calls:  # it was asked of a kubelet that is gone
                self.now = max(self.now, self.calls[session.generation][1] + REGISTER_TIMEOUT)
                self.end_call(session.generation, "timeout")
                continue
            holds(5, session.deadline is not None, f"{self.watched.state}: nothing will ever happen")
            if self.watcher and self.server is not None and session.deadline - self.now > 5.0:
                self.now += 5.0  # a kubelet that asks again and again, and never opens a stream, must not postpone it
                self.post("Contacted", self.server)
            else:
                self.now = max(self.now, session.deadline)
                self.handle(self.module.Tick())
        else:
            raise InvariantBrokenError(f"invariant 5: not connected after 100 steps, but {self.watched.state}")
        took = self.now - begun
        holds(5, took <= real.REFUSED_PAUSE + real.UNNOTICED_DEADLINE + 30.0, f"connected only after {took} s")
        holds(5, self.stopping or self.watched.state == "CONNECTED", "stopped without being told")


class WatcherWorld(World):
    """The same with the plugin watcher's route: Register makes the socket visible, the kubelet comes by itself."""

    watcher = True
