"""How many faults are remembered: a backend that reports new kinds or ids for ever must not take all memory. Sans-IO.

What is left out can only keep a device Unhealthy, never heal it. If a device has too many kinds of fault, it gets one
more fault, which no `clear` takes back. Faults of ids that no device has are forgotten, the oldest first: nobody is
offered such a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .conditions import FURTHER

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.conditions import Condition

MOST_KINDS: Final = 32
"""Kinds of faults that one device or unit can have at once."""

MOST_UNKNOWN: Final = 2048
"""Ids that no device has, with faults: those of devices that are to come."""

_BEYOND: Final = "\0further"
"""The key of the fault that stands for all further kinds; no backend can name it, because its kinds are printable."""

_FURTHER: Final = f"more than {MOST_KINDS} kinds of faults at once; restart the plugin, and report fewer kinds"


def keep(faults: dict[str, dict[str, Condition]], name: str, fault: Condition) -> None:
    """Remember a fault of a device or unit, or that there are too many."""
    kinds = faults.setdefault(name, {})
    if fault.kind in kinds or len(kinds) < MOST_KINDS:
        kinds[fault.kind] = fault
    else:
        kinds[_BEYOND] = FURTHER.because(_FURTHER, fault.since)


def forget_unknown(faults: dict[str, dict[str, Condition]], devices: int, is_known: Callable[[str], bool]) -> int:
    """Forget faults of unknown ids if there are too many; return of how many ids.

    Half of them go at once, so that a call costs little on average.

    Args:
        faults: All faults, by id or unit; the oldest first.
        devices: How many devices there are; each has an id and a unit.
        is_known: Whether a device has this id or unit.
    """
    if len(faults) <= MOST_UNKNOWN + 2 * devices:
        return 0
    unknown = [name for name in faults if not is_known(name)]
    gone = unknown[: max(0, len(unknown) - MOST_UNKNOWN // 2)]
    for name in gone:
        del faults[name]
    return len(gone)
