"""`HookNote`: which hooks of this process run, for the process that starts after a crash.

A crash in a vendor's C library ends a process without a line about the hook that ran, and so does a kill for want of
memory. So each call of a hook writes a note in a file that outlives the process, and the next container of the pod
finds it.

The file is only in memory, as ``/run/kdp`` of a pod is: a hook must not wait for a disk. It is locked while its process
lives.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final, final

from ..storage import locks
from ..storage.mounts import is_in_memory

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_SIZE: Final = 1024
"""Size of the file in bytes; each write replaces the whole file."""

_FIRST: Final = "pid "


@final
class HookNote:
    """The note of this process. Any thread may use it.

    Attributes:
        before: What the process before has left, if it ended while hooks ran: its id, and the hooks. Else `None`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._running: list[str] = []
        first, *hooks = os.pread(descriptor, _SIZE, 0).decode(errors="replace").split("\n")
        hooks = [name for each in hooks if (name := each.strip())]
        self.before = (first.removeprefix(_FIRST).strip(), hooks) if first.startswith(_FIRST) and hooks else None
        self._write()

    @contextlib.contextmanager
    def running(self, hook: str) -> Generator[None]:
        """Return the context in which a hook runs."""
        with self._lock:
            self._running.append(hook)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(hook)
                self._write()

    def close(self) -> None:
        """Remove the file: the process ends in order, whatever still hangs."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._path.unlink()
            locks.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        if self._descriptor < 0 or os.getpid() != self._process:  # closed, or in a child that a hook has forked
            return
        text = "\n".join([f"{_FIRST}{self._process}", *self._running]).encode(errors="replace")[: _SIZE - 1]
        os.pwrite(self._descriptor, text.ljust(_SIZE - 1) + b"\n", 0)


def open_note(path: Path) -> HookNote | None:
    """Return the note at a path; `None` if its directory is not in memory, or another process has it."""
    try:
        if not is_in_memory(path.parent):
            return None
        descriptor = locks.open_file(path)
    except OSError:
        return None
    if not locks.lock(descriptor):
        locks.close(descriptor)
        return None
    return HookNote(path, descriptor)
