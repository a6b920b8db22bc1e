"""A kubelet that is killed and started again a thousand times."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import attrs

from .kubelets import Nursery
from .processes import Process, descriptors, memory, program
from .setting import Setting, variables
from .table import Row, at_most, quantile, spread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Look", "Outcome", "bury", "live", "look", "rows"]

MAX_LISTEN_DELAY = 0.3
MOST_AFTER_LISTENING = 0.2
"""How long after its listen(2), at most, a kubelet's instant of death is drawn."""

PATIENCE = 10.0
"""Seconds after which a kubelet that nobody has registered with counts as lost."""

FAIR_CHANCE = 0.1
"""A kubelet that is to die earlier than this after its listen(2) may die unregistered; any other lives until it is."""

TOO_LATE = 100
"""Milliseconds to the Register that are never to be exceeded; whatever is, is told with the plugin's log."""

SETTLED = 10
"""Restarts before the first look at the process: by then every path has been taken."""


@attrs.frozen
class Look:
    """What a process has; memory in MB."""

    threads: int
    descriptors: int
    tasks: int
    rss: float


@attrs.define
class Outcome:
    """What came of all the kubelets; times in ms after listen(2)."""

    latencies: list[float] = attrs.field(factory=list)
    lists: list[float] = attrs.field(factory=list)
    floor: list[float] = attrs.field(factory=list)
    looks: list[Look] = attrs.field(factory=list)
    unlistened: int = 0
    early: int = 0
    lost: int = 0


def rows(setting: Setting) -> Iterator[Row]:
    """Restart the kubelet; the instants of death and the delays depend on the seed only."""
    restarts = setting.rounds(1000, 35)
    chance = setting.random("restarts")
    found = Outcome()
    with setting.directory() as root:
        nursery = Nursery(root)
        directory = str(root / "device-plugins")
        with (
            nursery.process as kubelets,
            Process(program("census"), environment=variables(root), log=root / "plugin.log") as plugin,
            Process(program("bare_register", directory)) as bare,
        ):
            pid, _ = live(nursery, Outcome(), 0.0, 0.0, must_register=True)  # the plugin starts: does not count
            nursery.bury(pid)
            for number in range(restarts):
                delay = chance.uniform(0, MAX_LISTEN_DELAY)
                lifetime = chance.uniform(0, delay + MOST_AFTER_LISTENING)
                is_looked_at = number >= SETTLED and number % setting.rounds(25, 5) == 0
                pid, first = live(nursery, found, delay, lifetime, must_register=is_looked_at)
                if is_looked_at:
                    _event(kubelets, "list_received", first, PATIENCE)
                    time.sleep(0.1)
                    found.looks.append(look(plugin))
                    found.floor.append(_time_bare(bare, kubelets))
                bury(nursery, found, root, pid, first)
            alive = plugin.is_alive
        ours = [line["endpoint"] for line in kubelets.lines if line["event"] == "register_received"]
        names = [name for name in ours if name.startswith("kdp-")]
    yield from _judge(found, restarts, alive, len(names) - len(set(names)))


def live(nursery: Nursery, found: Outcome, delay: float, lifetime: float, *, must_register: bool) -> tuple[int, int]:
    """Start a kubelet and let it live so long, longer if it has not been registered with though it had the chance."""
    pid, first = nursery.bear(delay)
    time.sleep(lifetime)
    dead = time.monotonic()
    listening = _event(nursery.process, "listening", first, 0.0)
    registered = _event(nursery.process, "register_received", first, 0.0)
    if registered is None and (must_register or (listening is not None and dead - listening > FAIR_CHANCE)):
        _event(nursery.process, "listening", first, PATIENCE)
        found.lost += _event(nursery.process, "register_received", first, PATIENCE) is None
    return pid, first


def bury(nursery: Nursery, found: Outcome, root: Path, pid: int, first: int) -> None:
    """Kill a kubelet and write down what it has seen."""
    nursery.bury(pid)
    listening, registered, listed = (
        _event(nursery.process, name, first, 0.0) for name in ("listening", "register_received", "list_received")
    )
    if listening is None:
        found.unlistened += 1
    elif registered is None:
        found.early += 1
    else:
        found.latencies.append(1e3 * (registered - listening))
        if found.latencies[-1] > TOO_LATE:
            last = (root / "plugin.log").read_text().splitlines()[-8:]
            print(
                f"registered after {found.latencies[-1]:.0f} ms; the plugin's log ends:",
                *last,
                sep="\n  ",
                file=sys.stderr,
            )
        if listed is not None:
            found.lists.append(1e3 * (listed - listening))


def _judge(found: Outcome, restarts: int, alive: bool, again: int) -> Iterator[Row]:
    note = (
        f"{len(found.latencies)} registered, {found.unlistened} killed before they listened, {found.early} less than "
        f"{1e3 * FAIR_CHANCE:.0f} ms after; a process each, SIGKILL at random instants"
    )
    holds = found.lost == 0 and alive and again == 0
    yield Row(
        f"restarts: lost of {restarts:,}", str(found.lost), "0", holds, f"{note}; {again} socket names used twice"
    )
    note = f"p99 {quantile(found.latencies, 0.99):.1f} ms; first list p50 {statistics.median(found.lists):.1f} ms"
    note += f"; a bare Register to one that listens already {spread(found.floor)} ms"
    yield at_most("restarts: listening -> registered, p50", statistics.median(found.latencies), 3, "ms", note=note)
    yield at_most("restarts: listening -> registered, max", max(found.latencies), TOO_LATE, "ms")
    quarter = max(1, len(found.looks) // 4)
    for name in ("threads", "descriptors", "tasks"):
        values = [getattr(look, name) for look in found.looks]
        start, end = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        note = (
            f"medians of the first and last {quarter} of {len(values)} looks; least {min(values)}, most {max(values)}"
        )
        yield Row(f"restarts: {name}", f"{start:g} -> {end:g}", "flat", end <= start, note)
    first, last = found.looks[0].rss, found.looks[-1].rss
    note = f"{first:.1f} -> {last:.1f} MB, from restart {SETTLED} on"
    yield at_most("restarts: RSS growth", last - first, 3, "MB", digits=2, note=note)


def _time_bare(bare: Process, kubelets: Process) -> float:
    """Return the ms from a bare client's first line to the kubelet's hearing of it."""
    first, heard = len(bare.lines), len(kubelets.lines)
    bare.say()
    seen = kubelets.event("register_received", after=heard, endpoint="bare.sock")
    return (seen["t"] - bare.event("began", after=first)["t"]) / 1e6  # type: ignore[no-any-return]


def _event(process: Process, name: str, first: int, timeout: float) -> float | None:
    """Return when the newest kubelet told this, in seconds; None: it did not."""
    line: dict[str, Any] | None = process.wait_line(
        lambda line: line.get("event") == name and line.get("endpoint") != "bare.sock", after=first, timeout=timeout
    )
    return None if line is None else line["t"] / 1e9


def look(plugin: Process) -> Look:
    """Return what the plugin has now."""
    first = len(plugin.lines)
    plugin.signal(signal.SIGUSR1)
    tasks = plugin.event("census", after=first)["tasks"]
    threads = len(os.listdir(f"/proc/{plugin.pid}/task"))
    return Look(threads, descriptors(plugin.pid), tasks, memory(plugin.pid))
