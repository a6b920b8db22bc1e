"""Memory: the import, the idle process, and a stream that nobody reads."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from .kubelets import RESOURCE
from .processes import Process, memory, program
from .start import COMMAND
from .table import Row, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .setting import Setting

__all__ = ["rows"]

_IMPORT = """
import json, sys, kdp
status = open("/proc/self/status").read()
print(json.dumps({"event": "imported", "rss": int(status.split("VmRSS:")[1].split()[0]),
                  "grpc": sorted({name for name in sys.modules if name.partition(".")[0] in ("grpc", "google")})}))
"""


def rows(setting: Setting) -> Iterator[Row]:
    """Measure one after another; memory has little noise."""
    yield from _imported()
    yield from _idle(setting)
    yield _slow_stream(setting)


def _imported() -> Iterator[Row]:
    with Process([sys.executable, "-c", _IMPORT]) as process:
        line = process.event("imported")
    yield at_most("memory: import kdp, RSS", line["rss"] / 1024, 20, "MB")
    loaded = line["grpc"]
    yield Row("memory: import kdp loads grpc or protobuf", ", ".join(loaded) or "no", "no", not loaded)


def _idle(setting: Setting) -> Iterator[Row]:
    found: dict[str, tuple[float, float]] = {}
    commands = {"bare": None, "kdp.run": program("widgets"), "kdp run": COMMAND}
    for name, command in commands.items():
        with setting.connected(command) as (_, _, plugin):
            time.sleep(setting.rounds(3, 1))
            found[name] = memory(plugin.pid, "RssAnon"), memory(plugin.pid)
    note = f"bare {found['bare'][0]:.1f} anonymous, {found['bare'][1]:.1f} RSS"
    yield at_most("memory: idle kdp.run, anonymous", found["kdp.run"][0], 24, "MB", note=note)
    yield at_most("memory: idle kdp.run, RSS", found["kdp.run"][1], 45, "MB", note=note)
    yield at_most("memory: idle kdp run, RSS", found["kdp run"][1], 55, "MB", note=note)


def _slow_stream(setting: Setting) -> Row:
    """Let a kubelet stop reading while 10,000 changes happen."""
    devices, changes = 1000, setting.rounds(10_000, 1000)
    with setting.connected(program("driven", str(devices))) as (_, node, plugin):
        plugin.event("ready")
        size = node.event("list_received")["size_bytes"] / 2**20
        _flip(plugin, changes // 5, devices)  # the heap grows to what so many changes need, read or not
        node.say(op="pause_reading", id="pause", resource=RESOURCE)
        node.event("reply", id="pause")
        before = memory(plugin.pid)
        _flip(plugin, changes, devices)
        grown = memory(plugin.pid) - before
    return at_most(
        f"memory: a stream that reads nothing for {changes:,} changes",
        grown,
        round(2 * size + 2, 2),
        "MB",
        digits=2,
        note=f"growth of RSS; {devices} devices, a list is {size:.3f} MB",
    )


def _flip(plugin: Process, flips: int, devices: int, period: float = 0.0) -> None:
    first = len(plugin.lines)
    plugin.say(flips=flips, period=period, devices=devices)
    plugin.event("flipped", after=first, timeout=120.0)
