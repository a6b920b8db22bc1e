"""Two commits beside each other: what this tree costs, over what another commit costs, in pairs that are interleaved.

Both run on the same Python with the same libraries. A machine that is slow for a while is slow for both, so the median
of the pairs' ratios says more than two runs one after the other.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import tarfile
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .claims import driver
from .idle import wake_ups
from .kubelets import RESOURCE, Client, Nursery, allocate_request, plugin_socket
from .lists import MANY, time_flips
from .processes import REPOSITORY, Process, program
from .programs.names import ids
from .restarts import Outcome, bury, live, look
from .setting import bare, variables
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .setting import Setting

__all__ = ["other_tree", "rows"]

MOST = 1.03
"""What a commit may cost more; less than the noise of one figure, not of a median of pairs."""

STOCK = 1000
"""Allocations in the file of a busy node, and more than any has."""

CALLS = 100

_UNITS = {
    "start": "ms",
    "first list": "ms",
    "flip": "ms",
    "restart": "ms",
    "wake-ups": "a minute",
    "threads": "",
    "descriptors": "",
    "tasks": "",
    "memory": "MB",
    "Allocate": "ms",
    "Allocate, 1,000 records": "ms",
    "Prepare": "ms",
    "stop": "ms",
}


@attrs.frozen
class _Side:
    """One of the two.

    Attributes:
        root: Its tree.
    """

    root: Path

    def run(self, command: list[str], root: Path, **more: str) -> Process:
        """Start one of its programs as a plugin."""
        path = f"{self.root / 'src'}:{self.root}"
        environment = {**variables(root), "KDP_LOG_LEVEL": "error", "PYTHONPATH": path, **more}
        return Process(command, environment=environment, log=root / "plugin.log", folder=self.root)


@contextmanager
def other_tree(revision: str) -> Iterator[Path]:
    """Unpack a commit into a temporary folder.

    Raises:
        SystemExit: There is no such commit here.
    """
    command = ["git", "-C", str(REPOSITORY), "archive", revision, "src", "benchmarks"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"--against {revision}: {done.stderr.decode().strip()}; fetch the commit, or name another one")
    with tempfile.TemporaryDirectory(prefix="kdp-bench-") as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder)  # noqa: S202 - our own
        yield Path(folder)


def rows(setting: Setting, revision: str) -> Iterator[Row]:
    """Measure this tree and a commit in turn; a figure is the median of the pairs' ratios."""
    with other_tree(revision) as folder:
        sides = {"this": _Side(REPOSITORY), revision: _Side(folder)}
        found: dict[str, dict[str, list[float]]] = {side: {name: [] for name in _UNITS} for side in sides}
        bares: list[float] = []
        order = list(sides)
        shuffle = setting.random("against").shuffle
        for number in range(setting.rounds(10, 3) + 1):
            shuffle(order)
            pair = {name: _figures(setting, sides[name], bares) for name in order}
            if number:  # the first pair makes the byte code
                for name, figures in pair.items():
                    for figure, value in figures.items():
                        found[name][figure].append(value)
        for name, side in sides.items():  # once: a commit may take a minute to make that many
            found[name]["Allocate, 1,000 records"].append(_stocked(setting, side))
        woken = _woken(setting, sides)
    for name, rate in woken.items():
        found[name]["wake-ups"].append(rate)
    for figure, unit in _UNITS.items():
        ours, theirs = (found[side][figure] for side in sides)
        ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
        note = f"{spread(ours)} {unit}".strip() + f", {revision} {spread(theirs)}; {len(ours)} pairs"
        yield at_most(f"against {revision}: {figure}", ratio, MOST, "x", digits=2, note=note)
    ours = found["this"]["start"]
    ratio = statistics.median(ours) / statistics.median(bares)
    yield at_most(
        "start: process -> Register, kdp.run", ratio, 1.7, "x bare", digits=2, note=f"bare {spread(bares)} ms"
    )


def _figures(setting: Setting, side: _Side, bares: list[float]) -> dict[str, float]:
    """Measure all but the wake-ups once."""
    with setting.node() as (root, node):
        bares.append(_start(side.run(bare(root), root), node))
        found = {"start": _start(side.run(program("widgets"), root), node)}
    with setting.node() as (root, node), side.run(program("driven", str(MANY)), root) as plugin:
        listed = node.event("list_received", healthy=MANY)
        found["first list"] = 1e3 * (listed["t"] / 1e9 - plugin.started)
        node.say(op="pause_reading", id=1, resource=RESOURCE)
        plugin.event("ready")
        client = Client(plugin_socket(root, "kdp"))
        found["flip"] = statistics.median(time_flips(plugin, client, setting.rounds(15, 6)))
        client.close()
    with setting.node() as (root, node), side.run(program("widgets"), root) as plugin:
        node.event("list_received", resource=RESOURCE)
        client = Client(plugin_socket(root, "kdp"))
        client.time_allocate(allocate_request(ids(1)), CALLS)
        found["Allocate"] = 1e3 * statistics.median(client.time_allocate(allocate_request(ids(1)), 3 * CALLS))
        client.close()
        found["stop"] = 1e3 * plugin.terminate()[0]
    with setting.directory() as root, driver(root, side.run) as caller:
        caller.time(1, CALLS // 5)
        found["Prepare"] = 1e3 * statistics.median(caller.time(1, CALLS))
    with setting.directory() as root:
        nursery, outcome = Nursery(root), Outcome()
        with nursery.process, side.run(program("census"), root) as plugin:
            for _ in range(setting.rounds(12, 5)):
                pid, first = live(nursery, outcome, 0.05, 0.2, must_register=True)
                bury(nursery, outcome, root, pid, first)
            pid, _ = live(nursery, outcome, 0.0, 0.2, must_register=True)
            time.sleep(0.2)
            seen = look(plugin)
            nursery.bury(pid)
    found["restart"] = statistics.median(outcome.latencies)
    return found | {
        "threads": seen.threads,
        "descriptors": seen.descriptors,
        "tasks": seen.tasks,
        "memory": seen.rss,
    }


def _stocked(setting: Setting, side: _Side) -> float:
    """Return the ms of an Allocate while the file has `STOCK` allocations of other devices."""
    with setting.node() as (root, node), side.run(program("driven", str(STOCK + 1)), root):
        node.event("list_received", healthy=STOCK + 1)
        client = Client(plugin_socket(root, "kdp"))
        last, *others = ids(STOCK + 1)
        for device_id in others:
            client.allocate([device_id])
        took = statistics.median(client.time_allocate(allocate_request([last]), CALLS))
        client.close()
        return 1e3 * took


def _start(plugin: Process, node: Process) -> float:
    """Return the ms from a process's start to its Register, and end it."""
    first = len(node.lines)
    with plugin:
        seen = node.event("register_received", after=first)
        node.event("list_received", after=first, resource=RESOURCE)
        plugin.terminate()
    node.event("disconnected", after=first)
    return 1e3 * (float(seen["t"]) / 1e9 - plugin.started)


def _woken(setting: Setting, sides: dict[str, _Side]) -> dict[str, float]:
    """Leave a plugin of each side that polls every 5 s alone, side by side; return its wake-ups a minute."""
    with ExitStack() as stack:
        plugins: dict[str, Process] = {}
        for name, side in sides.items():
            root, node = stack.enter_context(setting.node())
            plugins[name] = stack.enter_context(side.run(program("census"), root, KDP_POLL_INTERVAL="5"))
            node.event("list_received", resource=RESOURCE)
        time.sleep(setting.rounds(5, 2))
        found = wake_ups(plugins, setting.rounds(60, 10))
        return {name: sum(woken.values()) for name, (woken, _) in found.items()}
