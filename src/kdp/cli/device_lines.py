"""The table of devices that a living plugin lists, as `kdp status` and `kdp devices` print it.

The library for tables takes too much memory in a plugin's container.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, cast

import click

from .streams import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HEADS: Final = {
    "id": "ID",
    "health": "HEALTH",
    "state": "STATE",
    "since": "SINCE",
    "held_by": "HELD BY",
    "numa_nodes": "NUMA",
    "unit": "UNIT",
    "reason": "REASON",
}


def device_lines(listed: Sequence[Mapping[str, Any]], *, is_terminal: bool) -> Iterator[str]:
    """Return a table of the devices that a status document lists. On a terminal, sick ones are red."""
    columns = {head: [_cell(device, key) for device in listed] for key, head in _HEADS.items()}
    heads = tuple(head for head, cells in columns.items() if any(cells))
    rows = [*zip(*(columns[head] for head in heads), strict=True)]
    for line, device in zip(_aligned([heads, *rows]), [None, *listed], strict=True):
        is_sick = device is not None and device["health"] != "Healthy"
        yield click.style(line, fg="red" if is_sick else None, bold=device is None) if is_terminal else line


def _cell(device: Mapping[str, Any], key: str) -> str:
    value = device.get(key)
    if key == "unit" and value == device["id"]:
        return ""
    if key == "state" and value in ("healthy", "unhealthy"):  # HEALTH says so
        return ""
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value or "")


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Return lines whose columns stand below each other."""
    printed = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printed, strict=True)]
    for row in printed:
        yield "  ".join(itertools.starmap(str.ljust, zip(row, widths, strict=True))).rstrip()
