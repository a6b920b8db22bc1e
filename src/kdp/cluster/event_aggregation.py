"""`EventAggregator`: which Kubernetes Events are written of all that happens, and when. Sans-IO.

Notices go in with the time. Each is of a *subject*, such as one device, and about a *target*, the Node or a Pod.
`EventAggregator.due` returns what is to be written now, as `Telling`; `EventAggregator.deadline` says when to ask next.
Notices of several subjects with one reason become one Event, and an Event that is told again counts one more.

Invariants:

1. A subject is told at most once in `PERIOD` seconds, however often it changes.
2. About a target, at most `BURST` Events are written at once, and one more for each `PERIOD` that passes.
3. The last notice of a subject is told, at most `PERIOD` seconds after the one before of that subject, or as soon as
   rule 2 lets it. No older notice of the subject is told after it.
4. No Event counts more than has happened: a notice is told at most once, and a repetition only in the Event that has
   the same words.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Self, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMPONENT: Final = "kdp"
"""Who a device plugin is in Events. A DRA driver has its own name there."""

PERIOD: Final = 10.0
"""Seconds between two Events of one subject."""

BURST: Final = 10
"""Events about one target that may be written at once."""

GATHER: Final = 0.2
"""Seconds for which a notice waits for others of the same reason."""

MOST_SINGLE: Final = 3
"""More subjects than this are told in one Event."""

MOST_NAMED: Final = 8
"""Names in the Event of many subjects."""

MOST_SERIES: Final = 256
"""Events whose repetitions are counted; one that is forgotten is written anew."""

_ROUNDING: Final = 1e-6

SERIES_SECONDS: Final = 3000.0
"""Seconds without a repetition after which an Event is forgotten; an API server keeps it for an hour."""


@final
@attrs.frozen
class EventTarget:
    """What an Event is about.

    Attributes:
        kind: ``Node`` or ``Pod``.
        namespace: Where it is; of a Node, where its Events are.
        name: Its name.
        uid: Its UID.
    """

    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of_node(cls, name: str) -> Self:
        """Return a Node."""
        return cls("Node", "default", name, name)

    @classmethod
    def of_pod(cls, namespace: str, name: str, uid: str) -> Self:
        """Return a Pod."""
        return cls("Pod", namespace, name, uid)

    @property
    def reference(self) -> dict[str, str]:
        """The field ``involvedObject``."""
        found = {"apiVersion": "v1", "kind": self.kind, "name": self.name, "uid": self.uid}
        return found if self.kind == "Node" else {**found, "namespace": self.namespace}


@final
@attrs.frozen(kw_only=True)
class Notice:
    """Something that has happened.

    Attributes:
        target: What it is about.
        subject: What has changed, unique for the target.
        reason: Why, in CamelCase.
        message: A sentence.
        together: The sentence if many subjects are told at once, with ``{number}`` and ``{names}``.
        name: The subject's name in that sentence.
        is_warning: Whether somebody should do something.
    """

    target: EventTarget
    subject: str
    reason: str
    message: str
    together: str = "{number} things happened: {names}"
    name: str = ""
    is_warning: bool = True

    @property
    def key(self) -> _Key:
        """What is told at most once in `PERIOD`."""
        return self.target, self.subject

    @property
    def kind(self) -> _Kind:
        """What can be told in one Event."""
        return self.target, self.reason, self.together, self.is_warning


_Key = tuple[EventTarget, str]
_Kind = tuple[EventTarget, str, str, bool]


@final
@attrs.frozen(kw_only=True)
class Telling:
    """One Event that is to be written now.

    Attributes:
        target: What it is about.
        reason: Why, in CamelCase.
        message: A sentence.
        is_warning: Its type.
        first: When it was first so, on the caller's clock.
        last: When it was last so.
        count: How often it was so, with the times that the Event has already.
        event: The name of the Event that has the same words; None: a new one is to be made.
        pending: What it tells.
    """

    target: EventTarget
    reason: str
    message: str
    is_warning: bool
    first: float
    last: float
    count: int
    event: str | None
    pending: tuple[_Pending, ...] = attrs.field(repr=False)

    @property
    def notices(self) -> int:
        """How many notices it stands for, with those that a newer one has replaced."""
        return sum(each.notices for each in self.pending)

    @property
    def words(self) -> _Words:
        """What makes it a repetition of another one."""
        return self.target, self.reason, self.message


_Words = tuple[EventTarget, str, str]


@attrs.define
class _Pending:
    """The newest notice of a subject, which is not told yet; how often it came in the same words, and in any."""

    notice: Notice
    since: float
    last: float
    count: int = 1
    notices: int = 1


@attrs.define
class _Series:
    """An Event that was written."""

    event: str
    first: float
    last: float
    count: int


@final
class EventAggregator:
    """Decides what is told. The time is in seconds on any clock that only grows."""

    def __init__(self) -> None:
        self._pending: dict[_Key, _Pending] = {}
        self._told: dict[_Key, float] = {}
        self._full_at: dict[EventTarget, float] = {}
        """When `BURST` Events may be written about a target again; without an entry: now."""
        self._series: OrderedDict[_Words, _Series] = OrderedDict()

    def add(self, notice: Notice, now: float) -> None:
        """Take a notice."""
        old = self._pending.get(notice.key)
        if old is None:
            self._pending[notice.key] = _Pending(notice, now, now)
        else:
            count = old.count + 1 if old.notice == notice else 1
            self._pending[notice.key] = _Pending(notice, old.since, now, count, old.notices + 1)

    def returned(self, telling: Telling) -> None:
        """Take back what could not be written, unless there is something newer to tell of its subjects."""
        for pending in telling.pending:
            newer = self._pending.setdefault(pending.notice.key, pending)
            if newer is not pending:
                newer.notices += pending.notices

    def written(self, telling: Telling, event: str) -> None:
        """Note under which name an Event was written."""
        self._series[telling.words] = _Series(event, telling.first, telling.last, telling.count)
        self._series.move_to_end(telling.words)
        if len(self._series) > MOST_SERIES:
            self._series.popitem(last=False)

    def forget(self, event: str) -> None:
        """Forget an Event that the API server has no more."""
        for words in [words for words, series in self._series.items() if series.event == event]:
            del self._series[words]

    @property
    def deadline(self) -> float | None:
        """When `due` has something to tell; None: nothing waits."""
        times = [max(self._due_at(key, pending), self._allowed_at(key[0])) for key, pending in self._pending.items()]
        return min(times, default=None)

    def due(self, now: float) -> tuple[Telling, ...]:
        """Return what is to be written now."""
        self._forget_old(now)
        kinds: dict[_Kind, list[_Key]] = {}
        for key, pending in self._pending.items():
            if self._due_at(key, pending) <= now:
                kinds.setdefault(pending.notice.kind, []).append(key)
        told: list[Telling] = []
        for kind, keys in kinds.items():
            full_at = max(now, self._full_at.get(kind[0], now))
            allowed = BURST - (full_at - now) / PERIOD
            is_many = len(keys) > MOST_SINGLE or len(keys) > allowed + _ROUNDING
            groups = [keys] if is_many else [[key] for key in keys]
            if allowed + _ROUNDING < len(groups):
                continue
            self._full_at[kind[0]] = full_at + len(groups) * PERIOD
            told += [self._telling(group, now) for group in groups]
        return tuple(told)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _due_at(self, key: _Key, pending: _Pending) -> float:
        return max(pending.since + GATHER, self._told.get(key, float("-inf")) + PERIOD)

    def _allowed_at(self, target: EventTarget) -> float:
        """Return from when on an Event may be written about a target."""
        return self._full_at.get(target, float("-inf")) - (BURST - 1) * PERIOD

    def _telling(self, keys: Sequence[_Key], now: float) -> Telling:
        taken = [self._pending.pop(key) for key in keys]
        self._told.update(dict.fromkeys(keys, now))
        notice = taken[0].notice
        message, count = notice.message, taken[0].count
        if len(taken) > 1:
            names = _names(each.notice.name for each in taken)
            message, count = notice.together.replace("{number}", str(len(taken))).replace("{names}", names), 1
        telling = Telling(
            target=notice.target,
            reason=notice.reason,
            message=message,
            is_warning=notice.is_warning,
            first=min(each.since for each in taken),
            last=max(each.last for each in taken),
            count=count,
            event=None,
            pending=tuple(taken),
        )
        known = self._series.get(telling.words)
        if known is None:
            return telling
        return attrs.evolve(telling, first=known.first, count=known.count + count, event=known.event)

    def _forget_old(self, now: float) -> None:
        for key in [key for key, at in self._told.items() if now - at >= PERIOD]:
            del self._told[key]
        for words in [words for words, series in self._series.items() if now - series.last >= SERIES_SECONDS]:
            del self._series[words]
        for target in [target for target, full_at in self._full_at.items() if full_at <= now]:
            del self._full_at[target]


def _names(names: Iterable[str]) -> str:
    known = [name for name in dict.fromkeys(names) if name]
    return ", ".join([*known[:MOST_NAMED], *(["..."] if len(known) > MOST_NAMED else [])])
