"""`follow_files`: a discovery as soon as a file of the backend changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..concurrency.threads import offload
from ..hardware import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..model.watched_file import WatchedFile


async def follow_files(files: Sequence[WatchedFile[Any]], rescan: Callable[[], None]) -> None:
    """Follow files until cancelled; where inotify is refused, only a discovery looks at them."""

    def look() -> bool:
        return bool([file for file in files if file.look_again()])  # all of them

    def directories() -> set[str]:
        return {directory for file in files for directory in file.directories()}

    async with DirectoryWatch() as watch:
        while True:
            wanted = await offload(directories)
            for directory in watch.directories - wanted:
                watch.unwatch(directory)
            # A new link may lead elsewhere, so look at the file again whenever a directory is new.
            if not {each for each in wanted - watch.directories if watch.watch(each, writes=True)}:
                await watch.changes()
            if await offload(look):
                rescan()
