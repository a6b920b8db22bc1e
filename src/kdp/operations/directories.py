"""`Directories`: whether the directories that a process writes to take new files, for metrics. asyncio only.

A look blocks for the disk, so each directory has a thread for it. A disk that does not answer counts as one that takes
no file.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Final, final

import anyio

from ..concurrency import threads
from ..storage.files import why_no_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOOK_PAUSE: Final = 10.0
"""Seconds between two looks."""

PATIENCE: Final = 5.0
"""Seconds within which a disk must answer."""


def why_no_file_in(name: str, place: Path) -> str | None:
    """Return why a directory takes no file; None: it does. kdp makes all but the kubelet's own."""
    if name == "plugins" and not os.path.isdir(place):
        return "there is no such directory"
    return why_no_file(place)


@final
class Directories:
    """Looks regularly at directories while `follow` runs.

    Args:
        places: The directories, by the names that they have in metrics.

    Attributes:
        writable: Whether each took files at the last look; those that were not looked at are missing.
    """

    def __init__(self, places: Mapping[str, Path]) -> None:
        self.writable: dict[str, bool] = {}
        self._places = dict(places)

    async def follow(self) -> None:
        """Look until cancelled."""
        async with anyio.create_task_group() as tasks:
            for name, place in self._places.items():
                tasks.start_soon(self._follow, name, place)

    async def _follow(self, name: str, place: Path) -> None:
        while True:
            looking = threads.begin(functools.partial(why_no_file_in, name, place), name="kdp-disk")
            answered, _ = await asyncio.wait({looking}, timeout=PATIENCE)
            if not answered:
                self.writable[name] = False
                await asyncio.wait({looking})
            why, failure = looking.result()
            if failure is None:  # else no thread could be started, and the next look tries again
                self.writable[name] = why is None
            await anyio.sleep(LOOK_PAUSE)
