"""From a process's start to its Register: kdp.run and the command, beside the bare plugin."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .kubelets import RESOURCE
from .processes import Process, program
from .setting import Setting, bare, variables
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COMMAND", "KDP", "rows"]

KDP = str(Path(sys.executable).with_name("kdp"))
COMMAND = [KDP, "run", "benchmarks.programs.widgets:Widgets"]
"""The command as an admin starts it."""


def rows(setting: Setting) -> Iterator[Row]:
    """Start each of them in turn, with warm byte code; the figure is the median of the rounds' ratios."""
    rounds = setting.rounds(25, 4)
    with setting.node() as (root, node):
        commands = {"bare": bare(root), "kdp.run": program("widgets"), "kdp run": COMMAND}
        took: dict[str, list[float]] = {name: [] for name in commands}
        order = list(commands)
        shuffle = setting.random("start").shuffle
        for number in range(rounds + 1):
            shuffle(order)
            for name in order:
                first = len(node.lines)
                with Process(commands[name], environment=variables(root), log=root / "plugin.log") as plugin:
                    seen = node.event("register_received", after=first)
                    node.event("list_received", after=first, resource=RESOURCE)
                    plugin.terminate()
                node.event("disconnected", after=first)
                if number:  # the first round makes the byte code
                    took[name].append(1e3 * (seen["t"] / 1e9 - plugin.started))
        for name, limit in (("kdp.run", 1.9), ("kdp run", 2.4)):
            ratio = statistics.median(a / b for a, b in zip(took[name], took["bare"], strict=True))
            note = f"{spread(took[name])} ms, bare {spread(took['bare'])} ms; {rounds} interleaved rounds"
            yield at_most(f"start: process -> Register, {name}", ratio, limit, "x bare", digits=2, note=note)
