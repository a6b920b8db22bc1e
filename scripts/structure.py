"""Draws who imports whom in kdp and its test kit, as SVG, and prints the counts: ``make structure``.

A room is a folder or a file directly below a package. Rooms stand on floors: each one floor above the highest room that
it imports. All imports count, also those for type checkers only and those within functions. ``make structure ROOM=dra``
draws the inside of one room. ``--check`` exits with 1 if files form a circle or an arrow runs back up.

An arrow runs back up if it breaks the layers that ``pyproject.toml`` declares. Where no layers are declared, it does if
it closes a circle of rooms.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import statistics
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import attrs
import grimp

Arrow = tuple[str, str]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kdp", "kdp_testkit")

SIZE = (156, 46)
GAP = (26, 62)
LANE = 14
MARGIN = 28
STYLE = """
  text { font-family: "DejaVu Sans", Verdana, sans-serif; font-size: 12px; fill: #1f2933; text-anchor: middle }
  .title { font-size: 17px; font-weight: bold; text-anchor: start }
  .count { font-size: 12px; text-anchor: start; fill: #52606d }
  .lines { font-size: 10px; fill: #52606d }
  .room { fill: #f0f4f8; stroke: #486581 }
  .circle { fill: #ffe3e3; stroke: #cf1124; stroke-width: 2 }
  .arrow { fill: none; stroke: #829ab1; stroke-width: 1.2 }
  .up { fill: none; stroke: #cf1124; stroke-width: 2 }
"""


@attrs.frozen(kw_only=True)
class Structure:
    """What is inside one package: its rooms, the arrows between them, and the files below.

    Attributes:
        package: The package's full name.
        floors: The rooms' names below the package, from the lowest floor up.
        arrows: Each pair of an importing and an imported room.
        typing: Those arrows that only type checkers follow.
        upward: Those arrows that run back up.
        circles: Groups of files that import each other, directly or not, by full name.
        files: Lines by each file's full name.
    """

    package: str
    floors: tuple[tuple[str, ...], ...]
    arrows: frozenset[Arrow]
    typing: frozenset[Arrow]
    upward: frozenset[Arrow]
    circles: tuple[tuple[str, ...], ...]
    files: Mapping[str, int]

    @property
    def rooms(self) -> dict[str, int]:
        """Return each room's lines."""
        lines = {room: 0 for floor in self.floors for room in floor}
        for file, count in self.files.items():
            room = room_of(file, self.package)
            if room is not None:
                lines[room] += count
        return lines

    @property
    def is_sound(self) -> bool:
        """Whether no files form a circle and no arrow runs back up."""
        return not self.circles and not self.upward

    def report(self) -> str:
        """Return the counts, and each circle and each arrow that runs back up, as lines."""
        rooms = self.rooms
        largest_room = max(rooms, key=rooms.__getitem__)
        largest_file = max(self.files, key=self.files.__getitem__)
        lines = sum(self.files.values())
        rows = {
            "rooms": f"{len(rooms)} on {len(self.floors)} floors",
            "arrows": f"{len(self.arrows)}, {len(self.typing)} of them for type checkers only",
            "arrows that run back up": f"{len(self.upward)}",
            "circles of files": f"{len(self.circles)}",
            "files": (
                f"{len(self.files)}, with {lines} lines, {statistics.median(self.files.values()):.0f} in the median"
            ),
            "largest file": f"{largest_file}, {self.files[largest_file]} lines",
            "largest room": f"{largest_room}, {rooms[largest_room]} lines, {rooms[largest_room] / lines:.0%} of all",
        }
        found = [f"  {label:<26}{text}" for label, text in rows.items()]
        found += [f"  back up: {importer} -> {imported}" for importer, imported in sorted(self.upward)]
        found += [f"  circle: {', '.join(circle)}" for circle in self.circles]
        return "\n".join([self.package, *found])


def room_of(module: str, package: str) -> str | None:
    """Return the room of a package in which a module lies; None: it is the package itself, or outside."""
    inside = module.removeprefix(f"{package}.")
    return None if inside == module else inside.partition(".")[0]


def examine(package: str, *, layers: Sequence[str] = ()) -> Structure:
    """Return the structure of an installed package.

    Args:
        package: Its full name.
        layers: What import-linter's contract says of its rooms, from the highest layer down.
    """
    top = package.partition(".")[0]
    whole = grimp.build_graph(top, cache_dir=None)
    at_run_time = grimp.build_graph(top, cache_dir=None, exclude_type_checking_imports=True)
    inside = {name for name in whole.modules if name == package or name.startswith(f"{package}.")}
    arrows = _arrows(whole, inside, package)
    children = {name.rpartition(".")[2] for name in whole.find_children(package)}
    files = {name: len(_source(name).read_text().splitlines()) for name in inside if not name.endswith("_pb2")}
    if layers:
        upward = {arrow for arrow in arrows if _breaks(arrow, layers)}
    else:
        closing = whole.nominate_cycle_breakers(package)
        upward = {arrow for pair in closing if (arrow := _arrow(*pair, package)) is not None}
    of_files = {name: whole.find_modules_directly_imported_by(name) & inside for name in inside}
    return Structure(
        package=package,
        floors=_floors(children, arrows),
        arrows=frozenset(arrows),
        typing=frozenset(arrows - _arrows(at_run_time, inside, package)),
        upward=frozenset(upward),
        circles=tuple(group for group in _circles(of_files) if len(group) > 1),
        files=files,
    )


def _source(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return Path(spec.origin)


def _arrow(importer: str, imported: str, package: str) -> Arrow | None:
    ends = room_of(importer, package), room_of(imported, package)
    return None if ends[0] is None or ends[1] is None or ends[0] == ends[1] else (ends[0], ends[1])


def _arrows(graph: grimp.ImportGraph, inside: Iterable[str], package: str) -> set[Arrow]:
    pairs = ((name, imported) for name in inside for imported in graph.find_modules_directly_imported_by(name))
    return {arrow for pair in pairs if (arrow := _arrow(*pair, package)) is not None}


def _breaks(arrow: Arrow, layers: Sequence[str]) -> bool:
    heights = {room: -depth for depth, layer in enumerate(layers) for room in re.findall(r"\w+", layer)}
    importer, imported = (heights.get(room) for room in arrow)
    if importer is None or imported is None:
        return False  # the contract exempts it
    return importer < imported or (importer == imported and "|" in layers[-importer])


def _circles(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the strongly connected components (Tarjan's algorithm): those that reach no other come first."""
    found: list[tuple[str, ...]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            position = stack.index(node)
            found.append(tuple(sorted(stack[position:])))
            del stack[position:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def _floors(rooms: Iterable[str], arrows: Iterable[Arrow]) -> tuple[tuple[str, ...], ...]:
    below: dict[str, set[str]] = {room: set() for room in rooms}
    for importer, imported in arrows:
        below[importer].add(imported)
    height: dict[str, int] = {}
    for group in _circles(below):  # a group comes after all that it imports
        outside = {other for room in group for other in below[room]} - {*group}
        height |= dict.fromkeys(group, max((height[other] + 1 for other in outside), default=0))
    count = max(height.values(), default=-1) + 1
    return tuple(tuple(sorted(room for room in height if height[room] == floor)) for floor in range(count))


# -- the drawing -------------------------------------------------------------------------------------------------------


def drawing(structures: Sequence[Structure]) -> str:
    """Return the structures as one SVG, below each other."""
    panels: list[str] = []
    width = bottom = 0.0
    for structure in structures:
        panel, size = _panel(structure)
        panels.append(f'<g transform="translate({MARGIN} {bottom + MARGIN:.0f})">\n{panel}\n</g>')
        width, bottom = max(width, size[0]), bottom + size[1] + MARGIN
    head = f'width="{width + 2 * MARGIN:.0f}" height="{bottom + MARGIN:.0f}"'
    tips = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
        for name, color in (("tip", "#829ab1"), ("tip-up", "#cf1124"))
    )
    body = "\n".join(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {head}>\n<style>{STYLE}</style>\n<defs>{tips}</defs>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _panel(structure: Structure) -> tuple[str, tuple[float, float]]:
    height = {room: floor for floor, rooms in enumerate(structure.floors) for room in rooms}
    drawn = _without_detours(structure.arrows, height)
    ways = {arrow: _way(arrow, height) for arrow in sorted(drawn)}
    rows = _ordered(structure.floors, ways)
    widths = [sum(SIZE[0] + GAP[0] if place in height else LANE + GAP[0] for place in row) for row in rows]
    full = max(*widths, 620.0)
    top = 64.0
    middle: dict[str, tuple[float, float]] = {}
    for floor, row in enumerate(rows):
        x = (full - widths[floor]) / 2
        y = top + (len(rows) - 1 - floor) * (SIZE[1] + GAP[1]) + SIZE[1] / 2
        for place in row:
            wide = (SIZE[0] if place in height else LANE) + GAP[0]
            middle[place] = (x + wide / 2, y)
            x += wide
    lines = structure.rooms
    rounds = {room_of(file, structure.package) for circle in structure.circles for file in circle}
    hidden = len(structure.arrows) - len(drawn)
    counts = (
        f"{len(lines)} rooms, {len(rows)} floors, {len(structure.arrows)} arrows ({hidden} not drawn: a longer path "
        f"says the same), {len(structure.upward)} back up, {len(structure.circles)} circles of files (red rooms)"
    )
    parts = [
        f'<text class="title" x="0" y="16">{escape(structure.package)}</text>',
        f'<text class="count" x="0" y="38">{counts}</text>',
        *(_line(way, middle, is_up=arrow in structure.upward) for arrow, way in ways.items()),
    ]
    size = f'width="{SIZE[0]}" height="{SIZE[1]}" rx="5"'
    for room, (x, y) in ((room, middle[room]) for room in height):
        kind = "circle" if room in rounds else "room"
        parts += [
            f'<rect class="{kind}" x="{x - SIZE[0] / 2:.0f}" y="{y - SIZE[1] / 2:.0f}" {size}/>',
            f'<text x="{x:.0f}" y="{y - 2:.0f}">{escape(room)}</text>',
            f'<text class="lines" x="{x:.0f}" y="{y + 14:.0f}">{lines[room]} lines</text>',
        ]
    return "\n".join(parts), (full, top + len(rows) * (SIZE[1] + GAP[1]) - GAP[1])


def _without_detours(arrows: Iterable[Arrow], height: Mapping[str, int]) -> set[Arrow]:
    """Return the arrows without those that a path over other rooms implies; an arrow on one floor always stays."""
    below: dict[str, set[str]] = {room: set() for room in height}
    for importer, imported in arrows:
        if height[importer] > height[imported]:
            below[importer].add(imported)
    reached: dict[str, set[str]] = {}
    for room in sorted(height, key=height.__getitem__):
        reached[room] = below[room].union(*(reached[other] for other in below[room]))
    return {
        (importer, imported)
        for importer, imported in arrows
        if height[importer] == height[imported]
        or not any(imported in reached[other] for other in below[importer] - {imported})
    }


def _way(arrow: Arrow, height: Mapping[str, int]) -> tuple[str, ...]:
    """Return the places that an arrow passes: its two rooms, and a lane on each floor between them."""
    importer, imported = arrow
    lanes = (f"{importer}>{imported}>{floor}" for floor in range(height[importer] - 1, height[imported], -1))
    return (importer, *lanes, imported)


def _ordered(floors: Sequence[Sequence[str]], ways: Mapping[Arrow, Sequence[str]]) -> list[list[str]]:
    """Return the places of each floor in an order in which few arrows cross: each near those that it is joined to."""
    rows = [list(floor) for floor in floors]
    joined: dict[str, set[str]] = {}
    for way in ways.values():
        for lane in way[1:-1]:
            rows[int(lane.rpartition(">")[2])].append(lane)
        for one, other in pairwise(way):
            joined.setdefault(one, set()).add(other)
            joined.setdefault(other, set()).add(one)
    for _ in range(24):
        at = {place: index / max(len(row) - 1, 1) for row in rows for index, place in enumerate(row)}
        for order in (rows, rows[::-1]):
            for row in order:
                row.sort(
                    key=lambda place: statistics.fmean([at[near] for near in joined.get(place, ())] or [at[place]])
                )
                at |= {place: index / max(len(row) - 1, 1) for index, place in enumerate(row)}
    return rows


def _line(way: Sequence[str], middle: Mapping[str, tuple[float, float]], *, is_up: bool) -> str:
    half = SIZE[1] / 2
    (x, y), (end_x, end_y) = middle[way[0]], middle[way[-1]]
    if y == end_y:  # on one floor: an arc above it
        top, over = y - half, y - half - 18 - abs(end_x - x) / 16
        path = f"M{x:.0f} {top:.0f}C{x:.0f} {over:.0f} {end_x:.0f} {over:.0f} {end_x:.0f} {top:.0f}"
    else:
        path = f"M{x:.0f} {y + half:.0f}"
        for place in way[1:]:
            to_x, to_y = middle[place]
            path += f"C{x:.0f} {y + half + 28:.0f} {to_x:.0f} {to_y - half - 28:.0f} {to_x:.0f} {to_y - half:.0f}" + (
                "" if place == way[-1] else f"V{to_y + half:.0f}"
            )
            x, y = to_x, to_y
    kind, tip = ("up", "tip-up") if is_up else ("arrow", "tip")
    return f'<path class="{kind}" marker-end="url(#{tip})" d="{path}"/>'


# -- the program -------------------------------------------------------------------------------------------------------


def declared(project: Path) -> dict[str, list[str]]:
    """Return the layers that a pyproject.toml declares for import-linter, by package, from the highest down."""
    contracts = tomllib.loads(project.read_text())["tool"]["importlinter"]["contracts"]
    return {
        container: each["layers"] for each in contracts if each["type"] == "layers" for container in each["containers"]
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw and print; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--room", help="draw the inside of this room of kdp, or of this package")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "structure.svg", help="the SVG's file")
    parser.add_argument("--check", action="store_true", help="draw nothing; exit 1 if there is a circle or an arrow up")
    given = parser.parse_args(arguments)
    layers = declared(ROOT / "pyproject.toml")
    chosen = [given.room if given.room.startswith(PACKAGES) else f"kdp.{given.room}"] if given.room else [*PACKAGES]
    known = {path.name for path in (ROOT / "src/kdp").iterdir() if (path / "__init__.py").exists()}
    if given.room and not given.room.startswith(PACKAGES) and given.room.partition(".")[0] not in known:
        parser.error(f"there is no room {given.room!r} in kdp; there are {', '.join(sorted(known))}")
    found = [examine(package, layers=layers.get(package, ())) for package in chosen]
    if given.check:
        faulty = [structure for structure in found if not structure.is_sound]
        for structure in faulty:
            print(structure.report())
        return int(bool(faulty))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(drawing(found[::-1]))
    print(*(structure.report() for structure in found), sep="\n\n")
    print(f"\n{os.path.relpath(given.out)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
