"""A plugin that counts itself on SIGUSR1: which threads are Python's, how many asyncio tasks there are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from typing import TYPE_CHECKING

import kdp

from .widgets import Widgets

if TYPE_CHECKING:
    from types import FrameType


def _count(_number: int, _frame: FrameType | None) -> None:
    try:
        tasks = len(asyncio.all_tasks())
    except RuntimeError:  # the loop does not run yet
        tasks = 0
    threads = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    os.write(1, (json.dumps({"event": "census", "tasks": tasks, "threads": threads}) + "\n").encode())


def main() -> None:
    """Serve, as the variables ``KDP_*`` say."""
    signal.signal(signal.SIGUSR1, _count)
    kdp.run(Widgets())
