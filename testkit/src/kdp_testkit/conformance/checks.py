"""What a check is, what it may say besides what it saw, and how a module lists its checks.

A check is one scenario of a contract, with that contract's number as its id; the sections that rules cite are those of
docs/explanation/kubelet.md. It is a small coroutine that plays the scenario on a scene and returns what the kubelet
saw; it raises `Failed` with what it saw instead, or `NotApplicable` with the reason why nothing can be said. A check
never passes because it could not look.

A module has a list of its own, `Checks`, and enters its coroutines with `Checks.add`; a catalogue joins the lists of
the modules that it names. Importing a module enters nothing anywhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, Literal, TypeVar

import attrs

Route = Literal["kubelet", "watcher"]
"""How a plugin registers: it calls kubelet.sock, or the kubelet's plugin watcher finds its socket."""

Status = Literal["passed", "failed", "not_applicable"]


class Failed(Exception):
    """The plugin did something else than the rule says; the text is what the kubelet saw."""


class NotApplicable(Exception):
    """The scenario cannot be played with this plugin; the text is the reason."""


SceneT = TypeVar("SceneT")
CheckFunction = Callable[[SceneT], Awaitable[str]]

BOTH: tuple[Route, ...] = ("kubelet", "watcher")
KUBELET_SOCK: tuple[Route, ...] = ("kubelet",)
WATCHER: tuple[Route, ...] = ("watcher",)


@attrs.frozen(kw_only=True)
class ConformanceCheck:
    """One scenario.

    Attributes:
        id: The scenario's number, the same for ever.
        name: What holds, in a few words.
        expected: What the kubelet should see.
        rule: Why, with the section of the contract.
        cure: What the plugin's author does about it.
        routes: The ways of registering for which it has a meaning.
        levers: The levers that it needs.
        waits: Seconds that it must wait for nothing; 0: none. Those that wait are left out by ``quick``.
        alone: It measures the process, or disturbs others: nothing runs beside it but what only waits.
        lasts: Seconds that it spends mostly waiting, if they are many: it is started first. Those that wait, if it is
            not alone.
    """

    id: int
    name: str
    expected: str
    rule: str
    cure: str
    routes: tuple[Route, ...] = BOTH
    levers: tuple[str, ...] = ()
    waits: float = 0.0
    alone: bool = False
    lasts: float = attrs.field(default=attrs.Factory(lambda self: 0.0 if self.alone else self.waits, takes_self=True))


@attrs.frozen(kw_only=True)
class Check(ConformanceCheck, Generic[SceneT]):
    """One scenario and the coroutine that plays it.

    Attributes:
        play: Plays it, and returns what was seen.
    """

    play: CheckFunction[SceneT] = attrs.field(repr=False, eq=False)


class Checks(Generic[SceneT]):
    """The checks of one module, in the order in which they stand there."""

    def __init__(self) -> None:
        self._checks: list[Check[SceneT]] = []

    def __iter__(self) -> Iterator[Check[SceneT]]:
        """Go through the checks."""
        return iter(self._checks)

    def add(self, id: int, name: str, **more: Any) -> Callable[[CheckFunction[SceneT]], CheckFunction[SceneT]]:
        """Enter a coroutine into the list; the arguments are `ConformanceCheck`'s."""

        def enter(play: CheckFunction[SceneT]) -> CheckFunction[SceneT]:
            self._checks.append(Check(id=id, name=name, play=play, **more))
            return play

        return enter


def joined(*lists: Checks[SceneT]) -> tuple[Check[SceneT], ...]:
    """Return the checks of several modules in the order of their ids.

    Raises:
        ValueError: Two checks have the same id.
    """
    found: dict[int, Check[SceneT]] = {}
    for check in (each for checks in lists for each in checks):
        if check.id in found:
            raise ValueError(f"two checks have the id {check.id}")
        found[check.id] = check
    return tuple(found[id] for id in sorted(found))
