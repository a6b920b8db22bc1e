"""The labels of this node as files for Node Feature Discovery (NFD), whose local source reads them each minute.

* A file is replaced whole; its draft is hidden, and NFD passes hidden files over.
* It expires ten minutes after it was written, by NFD's directive ``# +expiry-time=``, and is renewed when half of that
  is over. So labels of a plugin that is gone for good vanish, and one that crashes keeps its labels through the longest
  pause of the kubelet, five minutes.
* Of two pods of a rolling update, the new one writes before the old one ends. So a process leaves a file alone that
  another one has written after it, and does not remove it at its end.

NFD's documentation, "Customization guide", section "Local feature source".
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import re
import time
from typing import TYPE_CHECKING, Final, final

import anyio

from ..concurrency.threads import Worker, value_of
from ..errors import in_one_line
from ..storage import files
from ..storage.reading import read
from .status_facts import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..supervision.labelling import Labelling
    from ..supervision.service import Service

logger = logging.getLogger(__name__)

EXPIRY: Final = 600.0
"""Seconds after which NFD no longer counts what was written."""

LOOK_PAUSE: Final = 30.0
"""Seconds between two looks at the file, which somebody may have removed; and after which a failed write is tried
again."""

PATIENCE: Final = 5.0
"""Seconds after which a file system that does not answer is a reason in the status."""

AT_THE_END: Final = 0.3
"""Seconds that the removal at the end gets."""

PREFIX: Final = "kdp-"
"""How the names of the files begin."""

_MOST_BYTES: Final = 1 << 16
"""NFD reads no larger file."""

_WRITTEN: Final = "# Written by kdp, process "
"""How a file begins."""

_LONGEST_NAME: Final = 200
_NO_DIRECTORY: Final = "there is no such directory; install Node Feature Discovery, or mount its directory there"


def file_name(key: str) -> str:
    """Return the name of a backend's file, of what its other files on the node are named by."""
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9.-]', '_', key)[:_LONGEST_NAME]}"


def is_written_by_kdp(path: Path) -> bool:
    """Return whether a file says that kdp has written it; blocks for the disk."""
    try:
        return read(path, limit=_MOST_BYTES, follow=False).startswith(_WRITTEN.encode())
    except OSError:
        return False


@final
class FeatureFile:
    """One file. Its methods block for the disk.

    Args:
        path: Where it is.
        now: The time in seconds since the epoch.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._owner = os.urandom(8).hex()
        self._labels: Mapping[str, str] = {}
        self._written: bytes | None = None
        self._until = 0.0

    def keep(self, labels: Mapping[str, str]) -> None:
        """Have these labels in the file, with some time left; without labels there is no file.

        Raises:
            OSError: It cannot be written.
        """
        if not labels:
            self.remove()
            return
        now = self._now()
        held = self._held()
        if self._written is not None and held is not None and held != self._written and self._is_renewed():
            return
        is_fresh = EXPIRY / 2 < self._until - now <= EXPIRY  # a clock that was set back makes it look younger
        if is_fresh and labels == self._labels and held == self._written:
            return
        data = self._text(labels, now + EXPIRY).encode()
        try:
            files.replace(self.path, data, mode=0o644)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, _NO_DIRECTORY, str(self.path.parent)) from None
        self._labels, self._written, self._until = dict(labels), data, now + EXPIRY

    def remove(self) -> None:
        """Remove the file, unless it is another process's.

        Raises:
            OSError: It cannot be removed.
        """
        if self._written is not None and self._held() == self._written:
            files.remove(self.path)
        self._written = None

    def clear_drafts(self) -> None:
        """Remove what killed processes left."""
        files.remove_drafts(self.path.parent, self.path.name)

    def _held(self) -> bytes | None:
        """Return what the file holds; None: it is not there, or is none that kdp has written."""
        try:
            return read(self.path, limit=_MOST_BYTES)
        except OSError:
            return None

    def _is_renewed(self) -> bool:
        """Return whether the process that has written the file is most likely there, as one that renews it is."""
        try:
            return abs(self._now() - self.path.stat().st_mtime) < 0.75 * EXPIRY
        except OSError:
            return False

    def _text(self, labels: Mapping[str, str], until: float) -> str:
        lines = "".join(f"{name}={value}\n" for name, value in sorted(labels.items()))
        return f"{_WRITTEN}{os.getpid()}, {self._owner}\n# +expiry-time={moment(until)}\n{lines}"


@final
class FeatureFiles:
    """The files of one process, one for each backend.

    Args:
        directory: NFD's directory.
        keys: What the backends' files on the node are named by, in their order.
    """

    def __init__(self, directory: Path, keys: Sequence[str]) -> None:
        self._directory = directory
        self._files = [FeatureFile(directory / file_name(key)) for key in keys]
        self._labellings: list[Labelling | None] = [None for _ in keys]
        self._problems: list[str | None] = [None for _ in keys]

    async def run(self, service: Service) -> None:
        """Keep the files until cancelled; then remove them. A fault of the disk is a reason in `as_json`, no end."""
        async with anyio.create_task_group() as tasks:
            for index, supervisor in enumerate(service.supervisors):
                if supervisor.labelling is not None:
                    self._labellings[index] = supervisor.labelling
                    tasks.start_soon(self._follow, index, supervisor.label, supervisor.labelling)

    def as_json(self) -> dict[str, object]:
        """Return what the status says of the labels."""
        return {
            "directory": str(self._directory),
            "files": [
                {
                    "file": file.path.name,
                    "labels": dict(labelling.newest.value.values or {}) if labelling is not None else {},
                    "reason": problem or (labelling.newest.value.problem if labelling is not None else None),
                }
                for file, labelling, problem in zip(self._files, self._labellings, self._problems, strict=True)
            ],
        }

    async def _follow(self, index: int, label: str, labelling: Labelling) -> None:
        file = self._files[index]
        worker = Worker(f"kdp-{label}.labels-file")
        newest = labelling.newest
        try:
            await self._do(index, label, worker, file.clear_drafts)
            while True:
                version = newest.version
                if newest.value.values is not None:
                    await self._do(index, label, worker, functools.partial(file.keep, newest.value.values))
                with anyio.move_on_after(LOOK_PAUSE):
                    await newest.after(version)
        finally:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(AT_THE_END):
                    await self._do(index, label, worker, file.remove, is_last=True)
                worker.end()

    async def _do(
        self, index: int, label: str, worker: Worker, call: Callable[[], None], *, is_last: bool = False
    ) -> None:
        """Do one piece of work in the file's thread, and note what is wrong with it; the last one removes the file."""
        problem: str | None = None
        done = worker.submit(call)
        # A call that hangs is waited for, so that no other is queued behind it.
        finished, _ = await asyncio.wait({done}, timeout=PATIENCE)
        if not finished:
            self._note(index, label, f"{self._directory}: the file system does not answer")
            await asyncio.wait({done})
        try:
            value_of(done.result())
        except OSError as error:
            problem = f"{self._directory}: {error.strerror or error}"
        except Exception as error:
            problem = in_one_line(error)
            logger.exception("%s: the file with the node's labels failed", label)
        if not is_last or problem is not None:
            self._note(index, label, problem)

    def _note(self, index: int, label: str, problem: str | None) -> None:
        before, self._problems[index] = self._problems[index], problem
        if problem is not None and problem != before:
            logger.warning("%s: the node's labels are not written: %s", label, problem)
        elif problem is None and before is not None:
            logger.info("%s: the node's labels are written again", label)
