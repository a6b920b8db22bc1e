"""Idle: how often kdp wakes up when nothing happens."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .processes import Process, program, switches
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .setting import Setting

__all__ = ["rows"]

_OF_GRPC = "_poll_wrapper"
"""In the name of the Python thread in which grpc.aio waits for the C core."""


def rows(setting: Setting) -> Iterator[Row]:
    """Leave two plugins alone for a while, one that polls every 5 s and one that never does, side by side."""
    seconds = setting.rounds(60, 6)
    with ExitStack() as stack:
        plugins = {
            poll: stack.enter_context(setting.connected(program("census"), poll=poll))[2] for poll in ("none", "5")
        }
        time.sleep(setting.rounds(5, 2))
        censuses = {poll: _census(plugin) for poll, plugin in plugins.items()}
        time.sleep(0.5)
        before = {poll: switches(plugin.pid) for poll, plugin in plugins.items()}
        began = time.monotonic()
        time.sleep(seconds)
        after = {poll: switches(plugin.pid) for poll, plugin in plugins.items()}
        minutes = (time.monotonic() - began) / 60
    for poll, names in censuses.items():
        woken = {
            names.get(thread, "grpc"): (count - before[poll].get(thread, 0)) / minutes
            for thread, count in after[poll].items()
            if thread in names
        }
        total = sum(woken.values())
        polls = 0.0 if poll == "none" else 60 / float(poll)
        grpc = sum(after[poll][t] - before[poll].get(t, 0) for t in after[poll] if t not in names) / minutes
        limit = 4 + 6 * polls
        yield Row(
            f"idle: wake-ups a minute, {'never polling' if poll == 'none' else f'polling every {poll} s'}",
            f"{total:.1f}",
            f"<= {limit:g}",
            total <= limit,
            f"{seconds} s; {', '.join(f'{name} {count:.1f}' for name, count in woken.items())}; grpc's own {grpc:.0f}",
        )


def _census(plugin: Process) -> dict[int, str]:
    """Return the names of the main thread and of kdp's own threads by their native id."""
    plugin.signal(signal.SIGUSR1)
    threads = plugin.event("census")["threads"]
    return {int(thread): name for thread, name in threads.items() if _OF_GRPC not in name}
