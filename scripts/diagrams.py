"""Draws the pictures of README and docs as SVG into docs/pictures: ``make pictures``.

Each function below is one picture, with coordinates in pixels. A picture brings its own background, and is dark if the
reader prefers that. ``--check`` writes nothing and says what would change, with exit code 1; ``make lint`` runs it.
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from itertools import pairwise
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs/pictures"

Point = tuple[float, float]

LINE = 17
"""From one line of text to the next."""
CORNER = 8
"""The radius at which arrows turn."""

STYLE = """
  :root { --ground: #ffffff; --ink: #1f2328; --faint: #59636e; --edge: #818b98; --frame: #d1d9e0; --fill: #f6f8fa;
    --yours: #ddf4ff; --yours-edge: #0969da; --good: #dafbe1; --good-edge: #1a7f37;
    --bad: #ffebe9; --bad-edge: #cf222e }
  @media (prefers-color-scheme: dark) {
    :root { --ground: #15181d; --ink: #e6edf3; --faint: #9da7b3; --edge: #7d8590; --frame: #3d444d; --fill: #21262d;
      --yours: #12304f; --yours-edge: #4493f8; --good: #14351f; --good-edge: #3fb950;
      --bad: #47191c; --bad-edge: #f85149 }
  }
  text { font: 13px "Segoe UI", Roboto, Helvetica, Arial, "DejaVu Sans", sans-serif }
  text { fill: var(--ink); text-anchor: middle }
  .name { font-weight: 600 }
  .caption { font-size: 12px; font-weight: 600; fill: var(--faint); text-anchor: start }
  .label { font-size: 12px; stroke: var(--ground); stroke-width: 4px; stroke-linejoin: round; paint-order: stroke }
  .start { text-anchor: start }
  .end { text-anchor: end }
  .ground { fill: var(--ground); stroke: var(--frame) }
  .frame { fill: none; stroke: var(--frame); stroke-width: 1.5 }
  .box, .note { fill: var(--fill); stroke: var(--edge) }
  .yours { fill: var(--yours); stroke: var(--yours-edge) }
  .good { fill: var(--good); stroke: var(--good-edge) }
  .bad { fill: var(--bad); stroke: var(--bad-edge) }
  .arrow { fill: none; stroke: var(--edge); stroke-width: 1.5; marker-end: url(#head) }
  .dashed { stroke-dasharray: 5 4 }
  .life { stroke: var(--frame); stroke-width: 1.5; stroke-dasharray: 3 4 }
  .head, .dot { fill: var(--edge) }
"""


@attrs.frozen
class Box:
    """A box, by its center and its size; its sides are where arrows begin and end."""

    x: float
    y: float
    width: float
    height: float

    def left(self, y: float | None = None) -> Point:
        """Return a point on the left side, its middle by default."""
        return (self.x - self.width / 2, self.y if y is None else y)

    def right(self, y: float | None = None) -> Point:
        """Return a point on the right side, its middle by default."""
        return (self.x + self.width / 2, self.y if y is None else y)

    def top(self, x: float | None = None) -> Point:
        """Return a point on the upper side, its middle by default."""
        return (self.x if x is None else x, self.y - self.height / 2)

    def bottom(self, x: float | None = None) -> Point:
        """Return a point on the lower side, its middle by default."""
        return (self.x if x is None else x, self.y + self.height / 2)


class Drawing:
    """A picture with its title, which is read aloud instead of it."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._title = title
        self._size = (width, height)
        self._parts: list[str] = []

    def frame(self, x: float, y: float, width: float, height: float, caption: str = "") -> Box:
        """Draw a frame around what belongs together, by its upper left corner."""
        self._parts.append(f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="10"/>')
        self._parts.append(f'<text class="caption" x="{x + 12}" y="{y + 20}">{escape(caption)}</text>' * bool(caption))
        return Box(x + width / 2, y + height / 2, width, height)

    def box(self, x: float, y: float, text: str, *, width: float = 130, height: float = 0, kind: str = "box") -> Box:
        """Draw a box with lines of text around a center; the first is its name, unless it is a note."""
        lines = text.split("\n")
        box = Box(x, y, width, height or 24 + LINE * len(lines))
        (left, _), (_, top) = box.left(), box.top()
        self._parts.append(
            f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}" height="{box.height:g}" rx="6"/>'
        )
        self._lines(x, y, lines, "" if kind == "note" else "name", "")
        return box

    def arrow(self, *points: Point, dashed: bool = False) -> None:
        """Draw an arrow through points, round at the corners."""
        path = [f"M{points[0][0]:g} {points[0][1]:g}"]
        for before, at, after in zip(points, points[1:], points[2:], strict=False):
            (x1, y1), (x2, y2) = _towards(at, before), _towards(at, after)
            path.append(f"L{x1:g} {y1:g}Q{at[0]:g} {at[1]:g} {x2:g} {y2:g}")
        path.append(f"L{points[-1][0]:g} {points[-1][1]:g}")
        self._parts.append(f'<path class="arrow{" dashed" * dashed}" d="{"".join(path)}"/>')

    def label(self, x: float, y: float, text: str, anchor: str = "") -> None:
        """Write lines of text around a point; `anchor` is "start", "end", or nothing for the middle."""
        kind = f"label {anchor}".strip()
        self._lines(x, y, text.split("\n"), kind, kind)

    def dot(self, x: float, y: float) -> Point:
        """Draw where a state machine begins."""
        self._parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="6"/>')
        return (x, y)

    def life(self, x: float, top: float, bottom: float) -> None:
        """Draw the line below somebody who takes part in a sequence."""
        self._parts.append(f'<path class="life" d="M{x} {top}V{bottom}"/>')

    def svg(self) -> str:
        """Return the picture."""
        width, height = self._size
        size = f'width="{width}" height="{height}"'
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} viewBox="0 0 {width} {height}">',
                f"<title>{escape(self._title)}</title>",
                f"<style>{STYLE}</style>",
                f'<defs>{head}<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
                f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
                *filter(None, self._parts),
                "</svg>",
                "",
            ]
        )

    def _lines(self, x: float, y: float, lines: list[str], first: str, others: str) -> None:
        top = y - LINE * (len(lines) - 1) / 2 + 4.5
        for number, line in enumerate(lines):
            kind = f' class="{name}"' if (name := others if number else first) else ""
            self._parts.append(f'<text{kind} x="{x:g}" y="{top + LINE * number:g}">{escape(line)}</text>')


def _towards(at: Point, other: Point) -> Point:
    """Return where an arrow leaves its straight way for a corner."""
    length = abs(other[0] - at[0]) + abs(other[1] - at[1])
    share = min(CORNER, length / 2) / length
    return (at[0] + (other[0] - at[0]) * share, at[1] + (other[1] - at[1]) * share)


# -- the pictures ------------------------------------------------------------------------------------------------------


def kdp() -> Drawing:
    """Draw the way from hardware to a pod."""
    drawing = Drawing("From hardware through your class and kdp to a pod, by device plugin or by DRA", 984, 330)
    hardware = drawing.box(82, 165, "hardware\n/dev, /sys,\na vendor's library", width=132)
    drawing.frame(186, 20, 166, 290, "your code")
    backend = drawing.box(269, 174, "DeviceBackend\ndiscover\nwatch\nallocate", width=134, height=240, kind="yours")
    runtime = drawing.frame(424, 20, 314, 290, "kdp")
    health = drawing.box(496, 98, "health\nof each device", width=120)
    inventory = drawing.box(496, 212, "inventory\nof all devices", width=120)
    plugin = drawing.box(656, 96, "device plugin\nListAndWatch\nAllocate", width=136, kind="good")
    driver = drawing.box(656, 232, "DRA driver\nResourceSlices\nprepare", width=136, kind="good")
    kubelet = drawing.box(820, 134, "kubelet", width=92, height=176)
    server = drawing.box(820, 276, "API server", width=92)
    pod = drawing.box(932, 134, "pod\nwith its\ndevices", width=80)
    drawing.arrow(hardware.right(), backend.left(165))
    drawing.arrow(backend.right(98), health.left())
    drawing.label(388, 87, "devices")
    drawing.arrow(runtime.left(276), backend.right(276))
    drawing.label(388, 265, "allocate")
    drawing.arrow(health.bottom(), inventory.top())
    drawing.arrow(inventory.right(204), (572, 204), (572, 96), plugin.left())
    drawing.arrow(inventory.right(222), driver.left(222))
    drawing.arrow(plugin.right(84), kubelet.left(84))
    drawing.arrow(kubelet.left(108), plugin.right(108))
    drawing.arrow(kubelet.left(212), driver.right(212))
    drawing.arrow(driver.right(262), (754, 262), (754, 276), server.left())
    drawing.arrow(server.top(), kubelet.bottom())
    drawing.arrow(kubelet.right(), pod.left())
    return drawing


def data() -> Drawing:
    """Draw the way of the data inside kdp, and back."""
    drawing = Drawing("The way of the data from the hardware to the kubelet, and the way of a request back", 780, 440)
    hardware = drawing.box(94, 90, "hardware\n/dev, /sys, libraries", width=150)
    drawing.frame(190, 20, 570, 120, "supervisor: one for each backend")
    discover = drawing.box(278, 90, "discover, watch\nthe vendor's code", width=142, kind="yours")
    health = drawing.box(476, 90, "health\nnamed conditions", width=142)
    discovery = drawing.box(672, 90, "discovery\nall devices, judged", width=150)
    drawing.frame(190, 172, 570, 248, "plugin: one for each resource")
    inventory = drawing.box(672, 240, "inventory\nversions, tombstones,\nsize guard", width=164)
    cursors = drawing.box(444, 240, "cursors\none for each stream", width=164)
    servicer = drawing.box(278, 328, "servicer", width=110)
    hook = drawing.box(672, 362, "allocate\nthe vendor's code,\nor a merge", width=150, height=100, kind="yours")
    wire = drawing.box(444, 386, "wire\nchecks, protobuf", width=150)
    kubelet = drawing.box(92, 313, "kubelet", width=90, height=190)
    drawing.arrow(hardware.right(90), discover.left())
    drawing.arrow(discover.right(), health.left())
    drawing.arrow(health.right(), discovery.left())
    drawing.arrow(discovery.bottom(), inventory.top())
    drawing.arrow(inventory.left(), cursors.right())
    drawing.arrow(cursors.left(), kubelet.right(240))
    drawing.label(260, 229, "ListAndWatch")
    drawing.arrow(kubelet.right(328), servicer.left())
    drawing.label(180, 317, "Allocate")
    drawing.arrow(servicer.right(), hook.left(328))
    drawing.arrow(inventory.left(262), (560, 262), (560, 290), (310, 290), servicer.top(310), dashed=True)
    drawing.label(470, 302, "the same snapshot")
    drawing.arrow(hook.left(386), wire.right())
    drawing.arrow(wire.left(), kubelet.right(386))
    drawing.label(250, 375, "reply")
    return drawing


def session() -> Drawing:
    """Draw the states of a resource's session with its kubelet."""
    drawing = Drawing("The states of the session between one resource and its kubelet", 780, 580)
    frame = drawing.frame(20, 20, 740, 470)
    rows = {"WAITING": 70, "SERVING": 170, "REGISTERING": 260, "AWAITING_STREAM": 350, "CONNECTED": 440}
    states = {
        name: drawing.box(230, y, name, width=160, kind="good" if name == "CONNECTED" else "box")
        for name, y in rows.items()
    }
    lost = drawing.box(680, 305, "LOST", width=100, height=311, kind="bad")
    stopped = drawing.box(390, 544, "STOPPED", width=160)
    drawing.arrow(drawing.dot(50, 70), states["WAITING"].left())
    drawing.arrow(lost.top(), (680, 70), states["WAITING"].right())
    drawing.label(510, 59, "the old server is closed")
    onward = {
        "WAITING": "there is a list and a kubelet that listens,\nand no pause is left",
        "SERVING": "the socket answers",
        "REGISTERING": "Register was accepted",
        "AWAITING_STREAM": "the kubelet opened ListAndWatch",
    }
    for before, after in pairwise(states):
        drawing.arrow(states[before].bottom(), states[after].top())
        drawing.label(242, (rows[before] + rows[after]) / 2, onward[before], "start")
    losses = {
        "SERVING": "the socket could not be made",
        "REGISTERING": "refused, or no answer",
        "AWAITING_STREAM": "no stream for 10 s, or a new kubelet",
        "CONNECTED": "its last stream ended",
    }
    for name, text in losses.items():
        drawing.arrow(states[name].right(), lost.left(rows[name]))
        drawing.label(470, rows[name] - 11, text)
    drawing.arrow(states["REGISTERING"].left(), (120, 260), (120, 440), states["CONNECTED"].left())
    drawing.label(112, 350, "the stream\ncame before\nthe answer", "end")
    drawing.arrow(frame.bottom(), stopped.top())
    drawing.label(402, 506, "stop, in every state", "start")
    return drawing


def supervision() -> Drawing:
    """Draw the states of a backend."""
    drawing = Drawing("The states of one backend and its hardware", 780, 560)
    rows = {"OPENING": 60, "UNKNOWN": 180, "KNOWN": 290, "FAILING": 400, "STALE": 500}
    frame = drawing.frame(20, 135, 480, 405)
    kinds = {"KNOWN": "good", "STALE": "bad"}
    states = {name: drawing.box(270, y, name, width=120, kind=kinds.get(name, "box")) for name, y in rows.items()}
    paused = drawing.box(700, 200, "PAUSED", width=110, height=320, kind="bad")
    opening, unknown, known, failing, stale = states.values()
    drawing.arrow(drawing.dot(60, 60), opening.left())
    drawing.arrow(opening.right(50), paused.left(50))
    drawing.label(490, 39, "open raised, or hangs for 60 s")
    drawing.arrow(paused.left(74), opening.right(74))
    drawing.label(490, 88, "after 0.1 s growing to 5 s, with jitter")
    drawing.arrow(opening.bottom(), unknown.top())
    drawing.label(282, 110, "discover failed, and nothing is known yet", "start")
    drawing.arrow(opening.left(70), (190, 70), (190, 280), known.left(280))
    drawing.label(182, 225, "discover returned\ndevices", "end")
    drawing.arrow(unknown.bottom(), known.top())
    drawing.label(282, 235, "discover returned devices", "start")
    drawing.arrow(known.bottom(290), failing.top(290))
    drawing.label(302, 345, "discover raised, hangs,\nor returned nonsense", "start")
    drawing.arrow(failing.top(250), known.bottom(250))
    drawing.label(242, 345, "it returned\ndevices", "end")
    drawing.arrow(failing.bottom(), stale.top())
    drawing.label(282, 450, "the same for stale_after, 30 s", "start")
    drawing.arrow(stale.left(), (150, 500), (150, 300), known.left(300))
    drawing.label(142, 400, "discover returned\ndevices", "end")
    drawing.arrow(frame.right(250), paused.left(250))
    drawing.label(572, 228, "a hook raised\nNotReady")
    return drawing


def conditions() -> Drawing:
    """Draw what makes a device unhealthy."""
    drawing = Drawing("A device is healthy if none of five conditions is against it", 780, 340)
    texts = (
        "discover says Unhealthy",
        "its device node is gone, or is none",
        "a fault of its id or unit, by kind, not cleared",
        "discovery is stale, or the backend not ready",
        "it is missing from the list",
    )
    question = drawing.box(488, 170, "any of them?", width=120)
    for row, text in enumerate(texts):
        said = drawing.box(182, 46 + 62 * row, text, width=328, height=42, kind="note")
        bend = [(396, said.y), (396, 170)] if said.y != question.y else []
        drawing.arrow(said.right(), *bend, question.left())
    healthy = drawing.box(690, 90, "Healthy", width=130, kind="good")
    unhealthy = drawing.box(690, 250, "Unhealthy\nwith all reasons", width=130, kind="bad")
    drawing.arrow(question.top(), (488, 90), healthy.left())
    drawing.label(560, 79, "no")
    drawing.arrow(question.bottom(), (488, 250), unhealthy.left())
    drawing.label(560, 239, "yes")
    return drawing


def health() -> Drawing:
    """Draw the states of a device's health."""
    drawing = Drawing("The states of a device's health, listed Healthy on the left, Unhealthy on the right", 860, 524)
    listed = drawing.frame(50, 60, 268, 380, "listed Healthy")
    drawing.frame(540, 60, 300, 380, "listed Unhealthy")
    healthy = drawing.box(200, 175, "HEALTHY", width=130, height=150, kind="good")
    suspect = drawing.box(200, 356, "SUSPECT", width=130, height=56, kind="good")
    recovering = drawing.box(636, 125, "RECOVERING", width=130, kind="bad")
    unhealthy = drawing.box(636, 278, "UNHEALTHY", width=130, height=176, kind="bad")
    quarantined = drawing.box(636, 408, "QUARANTINED", width=130, kind="bad")
    drawing.arrow(drawing.dot(200, 24), healthy.top())
    drawing.label(216, 24, "first seen, no fault", "start")
    drawing.arrow(drawing.dot(736, 312), unhealthy.right(312))
    drawing.label(716, 340, "first seen\nwith a fault", "start")
    drawing.arrow(recovering.left(), healthy.right(125))
    drawing.label(430, 114, "successes reached")
    drawing.arrow(healthy.right(205), unhealthy.left(205))
    drawing.label(430, 194, "a fault")
    drawing.arrow(unhealthy.left(240), healthy.right(240))
    drawing.label(430, 261, "cleared, and no bad probe\nto recover from")
    drawing.arrow(suspect.right(352), unhealthy.left(352))
    drawing.label(430, 341, "failures reached, or a fault")
    drawing.arrow(healthy.bottom(170), suspect.top(170))
    drawing.label(162, 288, "a bad probe,\nfailures not\nreached", "end")
    drawing.arrow(suspect.top(230), healthy.bottom(230))
    drawing.label(238, 288, "a good\nprobe", "start")
    drawing.arrow(unhealthy.top(611), recovering.bottom(611))
    drawing.label(604, 168, "a good\nprobe", "end")
    drawing.arrow(recovering.bottom(661), unhealthy.top(661))
    drawing.label(669, 168, "a bad probe,\nor a fault", "start")
    drawing.arrow(listed.right(408), quarantined.left())
    drawing.label(430, 397, "a fault, one flap too many")
    drawing.arrow(quarantined.right(), (824, 408), (824, 125), recovering.right())
    drawing.label(816, 240, "hold_down\nover, too few\ngood probes", "end")
    drawing.arrow(quarantined.bottom(), (636, 482), (28, 482), (28, 175), healthy.left())
    drawing.label(332, 498, "hold_down without a fault")
    return drawing


def sequence(title: str, people: tuple[str, ...], steps: tuple[tuple[str, str, str], ...]) -> Drawing:
    """Draw who says what to whom, in order.

    Args:
        title: What is read aloud.
        people: Who takes part, from the left.
        steps: Who begins, who is spoken to, and the text; nobody: the first one does something alone. A text that
            begins with "< " is an answer.
    """
    gap, top, row = 214, 34, 44
    height = top + 48 + row * len(steps)
    drawing = Drawing(title, 60 + gap * (len(people) - 1) + 130, height)
    places = {name: 95 + gap * number for number, name in enumerate(people)}
    for name, x in places.items():
        drawing.life(x, top + 20, height - 16)
        drawing.box(x, top, name, width=130, height=36, kind="yours" if name in ("plugin", "driver") else "box")
    for number, (one, other, text) in enumerate(steps):
        y = top + 62 + row * number
        here = places[one]
        if not other:
            drawing.box(here, y - 4, text, width=24 + 7.2 * len(text), height=30, kind="note")
            continue
        there = places[other]
        drawing.arrow((here, y), (there, y), dashed=text.startswith("< "))
        drawing.label((here + there) / 2, y - 12, text.removeprefix("< "))
    return drawing


def with_a_device_plugin() -> Drawing:
    """Draw how a pod gets its device by the device plugin protocol."""
    return sequence(
        "With a device plugin, the kubelet chooses the devices",
        ("plugin", "kubelet", "API server", "scheduler"),
        (
            ("plugin", "kubelet", "Register"),
            ("kubelet", "plugin", "ListAndWatch"),
            ("plugin", "kubelet", "< all devices, with health"),
            ("kubelet", "API server", "status: example.com/gpu: 8"),
            ("scheduler", "API server", "binds the pod to a node"),
            ("API server", "kubelet", "< the pod"),
            ("kubelet", "", "chooses device ids"),
            ("kubelet", "plugin", "Allocate(ids)"),
            ("plugin", "kubelet", "< nodes, mounts, variables"),
            ("kubelet", "", "admits the pod, starts the container"),
        ),
    )


def with_dra() -> Drawing:
    """Draw how a pod gets its device by DRA."""
    return sequence(
        "With DRA, the scheduler chooses the devices",
        ("driver", "kubelet", "API server", "scheduler"),
        (
            ("driver", "kubelet", "socket in plugins_registry"),
            ("driver", "API server", "ResourceSlices: devices with attributes"),
            ("API server", "", "stores a claim, and a pod that names it"),
            ("scheduler", "API server", "writes node and devices"),
            ("API server", "kubelet", "< the pod"),
            ("kubelet", "driver", "NodePrepareResources"),
            ("driver", "API server", "reads the claim: devices, parameters"),
            ("driver", "kubelet", "< CDI device names"),
            ("kubelet", "", "starts the container with them"),
            ("API server", "kubelet", "< the last pod of the claim ends"),
            ("kubelet", "driver", "NodeUnprepareResources"),
        ),
    )


ALL = {
    "kdp": kdp,
    "data": data,
    "session": session,
    "supervision": supervision,
    "conditions": conditions,
    "health": health,
    "with-a-device-plugin": with_a_device_plugin,
    "with-dra": with_dra,
}


def main() -> int:
    """Write the pictures, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what would change")
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    drawn = {PICTURES / f"{name}.svg": draw().svg() for name, draw in ALL.items()}
    wrong = [path for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        if given.check:
            print(f"{path.relative_to(ROOT)} is not what scripts/diagrams.py draws; run `make pictures`")
        else:
            path.write_text(drawn[path])
            print(f"{path.relative_to(ROOT)} written")
    strangers = sorted({*PICTURES.iterdir()} - {*drawn})
    for path in strangers:
        print(f"{path.relative_to(ROOT)} is drawn by nobody; remove it")
    return 1 if strangers or (wrong and given.check) else 0


if __name__ == "__main__":
    sys.exit(main())
