"""The drawing: the units of the devices, the NUMA nodes that they are near to, and how they are linked, as SVG.

Linked units stand on a ring, and each NUMA node is a part of it. More units than a ring has room for, or units without
links, are tiles in boxes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs

from .markup import Element, element
from .words import count, look_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...operations.status_document import ListedDevice

MOST_ON_RING: Final = 24
MOST_UNITS: Final = 128
MOST_LINKS: Final = 300

WIDTH: Final = 400
_RADIUS: Final = 92.0
_CENTER: Final = (WIDTH / 2, 124.0)
_GAP: Final = 0.1
_COLUMNS: Final = 3

_RANK: Final = ("good", "doubt", "bad")


@final
@attrs.frozen
class Unit:
    """A physical thing that devices are of.

    Attributes:
        name: Its name.
        numa: The NUMA nodes that it is near to.
        look: That of the worst of its devices.
        is_held: Whether a container has one of its devices.
    """

    name: str
    numa: tuple[int, ...]
    look: str
    is_held: bool

    @property
    def told(self) -> str:
        """It in words."""
        health = {"good": "healthy", "doubt": "in doubt", "bad": "unhealthy"}[self.look]
        return f"{self.name}: {health}, {'in use' if self.is_held else 'free'}"


@final
@attrs.frozen
class Link:
    """How well two units are connected; a higher weight is better."""

    one: str
    other: str
    weight: float


def units_of(devices: Iterable[ListedDevice]) -> tuple[Unit, ...]:
    """Return the units of devices as the document has them."""
    found: dict[str, Unit] = {}
    for device in devices:
        look, numa = look_of(device.state), device.numa_nodes
        unit = Unit(device.unit or device.id, numa, look, bool(device.held_by))
        known = found.get(unit.name)
        if known is not None:
            unit = Unit(
                unit.name,
                tuple(sorted({*known.numa, *numa})),
                max(known.look, look, key=_RANK.index),
                known.is_held or unit.is_held,
            )
        found[unit.name] = unit
    return tuple(found.values())


def drawing(units: Sequence[Unit], links: Sequence[Link]) -> Element | None:
    """Return the drawing; None: there is nothing to draw, or too much for a picture."""
    if not 0 < len(units) <= MOST_UNITS:
        return None
    known = {unit.name for unit in units}
    links = [each for each in links if each.one in known and each.other in known and each.weight > 0]
    links = sorted(links, key=lambda each: each.weight)[-MOST_LINKS:]  # the strongest are drawn last, above the others
    groups: dict[tuple[int, ...], list[Unit]] = {}
    for unit in sorted(units, key=lambda each: (not each.numa, each.numa)):
        groups.setdefault(unit.numa, []).append(unit)
    is_ring = bool(links) and len(units) <= MOST_ON_RING
    shapes, height = _ring(groups, links) if is_ring else _boxes(groups)
    return element(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_label=_summary(units, groups, links if is_ring else ()),
        class_="drawing",
    )


def numa_name(numa: Sequence[int]) -> str:
    """Return what a group of units is called."""
    return f"NUMA {', '.join(map(str, numa))}" if numa else "NUMA node not known"


def _summary(units: Sequence[Unit], groups: Iterable[Sequence[int]], links: Sequence[Link]) -> str:
    bad = [unit.name for unit in units if unit.look == "bad"]
    nodes = sum(bool(numa) for numa in groups)
    return "; ".join(
        [
            f"{count(len(units), 'unit', 'units')} on {count(nodes, 'NUMA node', 'NUMA nodes')}"
            if nodes
            else count(len(units), "unit", "units"),
            *([count(len(links), "link", "links")] if links else []),
            *([f"unhealthy: {', '.join(bad)}"] if bad else []),
        ]
    )


# -- a ring ------------------------------------------------------------------------------------------------------------


def _ring(groups: dict[tuple[int, ...], list[Unit]], links: Sequence[Link]) -> tuple[list[Element], float]:
    total = sum(map(len, groups.values()))
    gap = _GAP if len(groups) > 1 else 0.0
    step = (2 * math.pi - gap * len(groups)) / total
    angle = -math.pi / 2 + gap / 2
    bands: list[Element] = []
    names: list[Element] = []
    places: dict[str, float] = {}
    for numa, members in groups.items():
        first = angle
        for unit in members:
            places[unit.name] = angle + step / 2
            angle += step
        bands.append(_band(first, angle, is_whole=len(groups) == 1))
        x, y = _at((first + angle) / 2, _RADIUS - 31) if len(groups) > 1 else (_CENTER[0], _CENTER[1])
        names.append(element("text", numa_name(numa), x=f"{x:.1f}", y=f"{y + 3.5:.1f}", class_="numa"))
        angle += gap
    weights = [each.weight for each in links]
    lines = [_chord(each, places, min(weights), max(weights)) for each in links]
    dots = [_dot(unit, places[unit.name]) for members in groups.values() for unit in members]
    return [*bands, *lines, *(names if any(groups) else []), *dots], 2 * _CENTER[1]


def _at(angle: float, radius: float) -> tuple[float, float]:
    return _CENTER[0] + radius * math.cos(angle), _CENTER[1] + radius * math.sin(angle)


def _band(first: float, last: float, *, is_whole: bool) -> Element:
    """Return the part of the ring that is a NUMA node."""
    if is_whole:
        return element("circle", cx=_CENTER[0], cy=_CENTER[1], r=_RADIUS, class_="band")
    (x1, y1), (x2, y2) = _at(first, _RADIUS), _at(last, _RADIUS)
    is_large = int(last - first > math.pi)
    path = f"M {x1:.1f} {y1:.1f} A {_RADIUS} {_RADIUS} 0 {is_large} 1 {x2:.1f} {y2:.1f}"
    return element("path", d=path, class_="band")


def _chord(link: Link, places: dict[str, float], least: float, most: float) -> Element:
    (x1, y1), (x2, y2) = _at(places[link.one], _RADIUS), _at(places[link.other], _RADIUS)
    x, y = (0.55 * _CENTER[0] + 0.225 * (x1 + x2), 0.55 * _CENTER[1] + 0.225 * (y1 + y2))
    level = 2 if most == least else 1 + round(2 * (link.weight - least) / (most - least))
    return element(
        "path",
        element("title", f"{link.one} to {link.other}: {link.weight:g}"),
        d=f"M {x1:.1f} {y1:.1f} Q {x:.1f} {y:.1f} {x2:.1f} {y2:.1f}",
        class_=f"link level{level}",
    )


def _dot(unit: Unit, angle: float) -> Element:
    (x, y), (label_x, label_y) = _at(angle, _RADIUS), _at(angle, _RADIUS + 17)
    side = math.cos(angle)
    anchor = "start" if side > 0.25 else "end" if side < -0.25 else "middle"
    return element(
        "g",
        element("title", unit.told),
        element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=8),
        _cross(x, y) if unit.look == "bad" else None,
        element("text", _short(unit.name, 12), x=f"{label_x:.1f}", y=f"{label_y + 3.5:.1f}", text_anchor=anchor),
        class_=f"unit {unit.look}{' held' if unit.is_held else ''}",
    )


# -- boxes -------------------------------------------------------------------------------------------------------------


def _boxes(groups: dict[tuple[int, ...], list[Unit]]) -> tuple[list[Element], float]:
    shapes: list[Element] = []
    top, tile = 1.0, (WIDTH - 26 - 8 * (_COLUMNS - 1)) / _COLUMNS
    has_names = any(groups)
    for numa, members in groups.items():
        rows = math.ceil(len(members) / _COLUMNS)
        head = 24 if has_names else 10
        height = head + 34 * rows + 4
        shapes.append(element("rect", x=1, y=f"{top:.0f}", width=WIDTH - 2, height=height, rx=8, class_="box"))
        if has_names:
            shapes.append(element("text", numa_name(numa), x=13, y=f"{top + 17:.0f}", class_="numa start"))
        for i, unit in enumerate(members):
            x, y = 13 + (i % _COLUMNS) * (tile + 8), top + head + 34 * (i // _COLUMNS)
            shapes.append(_tile(unit, x, y, tile))
        top += height + 10
    return shapes, top - 9


def _tile(unit: Unit, x: float, y: float, width: float) -> Element:
    return element(
        "g",
        element("title", unit.told),
        element("rect", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=26, rx=5),
        element("circle", cx=f"{x + 13:.1f}", cy=f"{y + 13:.1f}", r=6),
        _cross(x + 13, y + 13, 2.5) if unit.look == "bad" else None,
        element("text", _short(unit.name, 13), x=f"{x + 24:.1f}", y=f"{y + 16.5:.1f}", text_anchor="start"),
        class_=f"unit tile {unit.look}{' held' if unit.is_held else ''}",
    )


def _cross(x: float, y: float, size: float = 3.2) -> Element:
    path = (
        f"M {x - size:.1f} {y - size:.1f} L {x + size:.1f} {y + size:.1f} "
        f"M {x - size:.1f} {y + size:.1f} L {x + size:.1f} {y - size:.1f}"
    )
    return element("path", d=path, class_="cross")


def _short(name: str, most: int) -> str:
    """Return a name with its middle left out: ids often differ at their ends."""
    if len(name) <= most:
        return name
    begin = (most - 1) // 2
    return f"{name[:begin]}…{name[len(name) - (most - 1 - begin) :]}"
