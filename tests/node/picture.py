"""Draws panels of the dashboard as an SVG, from what a real Prometheus answered to their queries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape

import attrs

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, COLUMNS, GAP = 340, 210, 3, 10
LEFT, TOP, BOTTOM = 44, 42, 62
"""Of a panel: room for the numbers, the title, and the legend."""

COLORS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
MOST_LINES: Final = 4
TAIL: Final = 5.0
"""Seconds that are shown after the last change."""


@attrs.frozen
class Chart:
    """One panel.

    Attributes:
        title: What it shows.
        scene: What happened meanwhile.
        unit: Of the values.
        lines: The points of each line, by its legend.
    """

    title: str
    scene: str
    unit: str
    lines: Mapping[str, Points]


def legend_of(pattern: str, labels: Mapping[str, str]) -> str:
    """Return a legend as Grafana makes it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), pattern).strip() or "value"


def drawn(charts: Sequence[Chart]) -> str:
    """Return the picture."""
    rows = math.ceil(len(charts) / COLUMNS)
    width, height = COLUMNS * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP) + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10">\n'
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>\n'
    )
    parts = [
        f'<g transform="translate({_place(number % COLUMNS, WIDTH)} {_place(number // COLUMNS, HEIGHT)})">\n'
        f"{_panel(chart)}</g>\n"
        for number, chart in enumerate(charts)
    ]
    return f"{head}{''.join(parts)}</svg>\n"


def _place(number: int, size: int) -> int:
    return GAP + number * (size + GAP)


def _panel(chart: Chart) -> str:
    lines = {name: [point for point in points if math.isfinite(point[1])] for name, points in chart.lines.items()}
    # Those that change most come first; the others would hide them.
    shown = sorted((name for name in lines if lines[name]), key=lambda name: -len({value for _, value in lines[name]}))
    shown = shown[:MOST_LINES]
    began = min(points[0][0] for points in lines.values() if points)
    ended = min(max(_last_change(lines[name]) for name in shown) + TAIL, max(lines[name][-1][0] for name in shown))
    lines = {name: [point for point in lines[name] if point[0] <= ended] for name in shown}
    top = max((value for name in shown for _, value in lines[name]), default=1) or 1
    across, down = WIDTH - LEFT - 10, HEIGHT - TOP - BOTTOM

    def x(when: float) -> float:
        return round(LEFT + (when - began) / (ended - began) * across, 1)

    def y(value: float) -> float:
        return round(TOP + down - value / top * down, 1)

    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="3" fill="#fff" stroke="#ddd"/>\n',
        f'<text x="8" y="15" font-weight="bold" fill="#222">{escape(chart.title)}</text>\n',
        f'<text x="8" y="28" fill="#777">{escape(chart.scene)}</text>\n',
    ]
    for part in (0, 0.5, 1):
        value = top * part
        parts.append(f'<line x1="{LEFT}" y1="{y(value)}" x2="{WIDTH - 10}" y2="{y(value)}" stroke="#e5e5e5"/>\n')
        text = f"{value:.3g} {chart.unit}".strip()
        parts.append(f'<text x="{LEFT - 4}" y="{y(value) + 3}" text-anchor="end" fill="#777">{text}</text>\n')
    for place, name in enumerate(shown):
        color = COLORS[place % len(COLORS)]
        path = _steps([(x(when), y(value)) for when, value in lines[name]])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>\n')
        base = HEIGHT - BOTTOM + 16 + place * 12
        parts.append(f'<rect x="{LEFT}" y="{base - 7}" width="8" height="8" fill="{color}"/>\n')
        parts.append(f'<text x="{LEFT + 12}" y="{base}" fill="#444">{escape(name)}</text>\n')
    return "".join(parts)


def _last_change(points: Points) -> float:
    """Return when a line is level for good."""
    changed = (when for (_, before), (when, after) in pairwise(points) if before != after)
    return max(changed, default=points[0][0])


def _steps(points: Points) -> str:
    """Return the points of a line, without those in the middle of a level part."""
    kept = [
        point
        for place, point in enumerate(points)
        if place in (0, len(points) - 1) or not points[place - 1][1] == point[1] == points[place + 1][1]
    ]
    return " ".join(f"{left:g},{down:g}" for left, down in kept)
