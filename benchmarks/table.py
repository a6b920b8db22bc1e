"""The table: one row for each figure, judged against what must hold."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Row", "at_most", "quantile", "show"]


@attrs.frozen
class Row:
    """One line.

    Attributes:
        name: What was measured.
        figure: What came out, with its unit.
        must: What it must be; empty: told for comparison only.
        holds: Whether it is that; None: not judged.
        note: How it came about.
    """

    name: str
    figure: str
    must: str = ""
    holds: bool | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """The judgement as a word."""
        return {True: "holds", False: "MISSED", None: ""}[self.holds]


def at_most(name: str, value: float, limit: float, unit: str, *, digits: int = 1, note: str = "") -> Row:
    """Return a row for a figure that must not exceed a limit."""
    space = " " if unit else ""
    return Row(name, f"{value:.{digits}f}{space}{unit}", f"<= {limit:g}{space}{unit}", value <= limit, note)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return a median with its quartiles, as a hint of the machine's noise."""
    low, high = quantile(values, 0.25), quantile(values, 0.75)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def show(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table that can also be read as it is."""
    lines = [("what", "figure", "must", "verdict", "note")]
    lines += [(row.name, row.figure, row.must, row.verdict, row.note) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    text = ["| " + " | ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[4]]) for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|-----")
    return "\n".join(line.rstrip() + " |" for line in text)
