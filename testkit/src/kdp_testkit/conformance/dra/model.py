"""The list of all checks of DRA drivers, and how a check enters it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from ..model import ConformanceCheck
from ..model import Play as PlayOfPlugin

if TYPE_CHECKING:
    from .scene import DraScene

__all__ = ["REGISTRY", "check"]

Play = Callable[["DraScene"], Awaitable[str]]

REGISTRY: dict[int, ConformanceCheck] = {}


def check(id: int, name: str, *, expected: str, rule: str, cure: str, waits: float = 0.0) -> Callable[[Play], Play]:
    """Enter a coroutine into the list of checks.

    Args:
        id: The scenario's number, the same for ever.
        name: What holds, in a few words.
        expected: What should be seen.
        rule: Why: what kubelet, scheduler or API server do.
        cure: What the driver's author does about it.
        waits: Seconds that it must wait for nothing.
    """

    def enter(play: Play) -> Play:
        if id in REGISTRY:
            raise ValueError(f"two checks have the id {id}")
        REGISTRY[id] = ConformanceCheck(
            id=id, name=name, expected=expected, rule=rule, cure=cure, play=cast("PlayOfPlugin", play), waits=waits
        )
        return play

    return enter
