"""Idle: how often kdp wakes up when nothing happens."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .processes import Process, program, switches
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .setting import Setting

__all__ = ["rows", "wake_ups"]

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
        found = wake_ups(plugins, seconds)
    for poll, (woken, grpc) in found.items():
        total = sum(woken.values())
        polls = 0.0 if poll == "none" else 60 / float(poll)
        limit = 4 + 6 * polls
        yield Row(
            f"idle: wake-ups a minute, {'never polling' if poll == 'none' else f'polling every {poll} s'}",
            f"{total:.1f}",
            f"<= {limit:g}",
            total <= limit,
            f"{seconds} s; {', '.join(f'{name} {count:.1f}' for name, count in woken.items())}; grpc's own {grpc:.0f}",
        )


def wake_ups(plugins: Mapping[str, Process], seconds: float) -> dict[str, tuple[dict[str, float], float]]:
    """Return how often a minute each thread of idle plugins wakes up: kdp's own by name, and gRPC's together."""
    censuses = {name: _census(plugin) for name, plugin in plugins.items()}
    time.sleep(0.5)
    before = {name: switches(plugin.pid) for name, plugin in plugins.items()}
    began = time.monotonic()
    time.sleep(seconds)
    after = {name: switches(plugin.pid) for name, plugin in plugins.items()}
    minutes = (time.monotonic() - began) / 60
    found: dict[str, tuple[dict[str, float], float]] = {}
    for name, names in censuses.items():
        rates = {thread: (count - before[name].get(thread, 0)) / minutes for thread, count in after[name].items()}
        woken = {names[thread]: rate for thread, rate in rates.items() if thread in names}
        found[name] = woken, sum(rate for thread, rate in rates.items() if thread not in names)
    return found


def _census(plugin: Process) -> dict[int, str]:
    """Return the names of the main thread and of kdp's own threads by their native id."""
    plugin.signal(signal.SIGUSR1)
    threads = plugin.event("census")["threads"]
    return {int(thread): name for thread, name in threads.items() if _OF_GRPC not in name}
