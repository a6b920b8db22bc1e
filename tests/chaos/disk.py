"""A disk that fails on command: the vendor's process wraps those calls of `os` that change files of kdp.

A command is one line: a number of its own, then ``CALL=WHAT`` for each call that is to misbehave. WHAT is the name of
an error (``EIO``), or the seconds that the call takes. ``kill=N`` ends the process with SIGKILL before the N-th call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

DISK: Final = ".disk"
CALLS: Final = ("fsync", "open", "rename", "replace", "unlink", "write", "pwrite", "mkdir", "ftruncate")
EROFS: Final = " ".join(f"{call}=EROFS" for call in ("open", "rename", "replace", "unlink", "write", "pwrite", "mkdir"))
EIO: Final = "fsync=EIO write=EIO pwrite=EIO"
NO_RENAME: Final = "rename=EIO replace=EIO"
NO_UNLINK: Final = "unlink=EIO"
NO_SPACE: Final = "fsync=ENOSPC write=ENOSPC pwrite=ENOSPC"


@final
class FaultyDisk:
    """The disk below some directories.

    Args:
        command: The file with the command; the disk is well if the file is missing.
        directories: Where kdp keeps its files.
    """

    def __init__(self, command: Path, directories: Sequence[str]) -> None:
        self._command = command
        self._directories = tuple(directories)
        self._lock = threading.Lock()
        self._number = ""
        self._calls = 0

    def install(self) -> None:
        """Wrap the calls."""
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*positional: Any, **named: Any) -> Any:
            if self._is_ours(name, positional):
                self._obey(name)
            return call(*positional, **named)

        return wrapped

    def _is_ours(self, name: str, positional: Sequence[Any]) -> bool:
        if not positional or (name == "open" and not _changes(positional[1:])):
            return False
        path: Any = positional[0]
        if isinstance(path, int):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{path}")
        return str(path).startswith(self._directories)

    def _obey(self, name: str) -> None:
        try:
            number, *parts = self._command.read_text().split()
        except (OSError, ValueError):
            return
        told = dict(part.split("=") for part in parts)
        with self._lock:
            if number != self._number:
                self._number, self._calls = number, 0
            self._calls += 1
            if self._calls == int(told.get("kill", -1)):
                os.kill(os.getpid(), signal.SIGKILL)
        what = told.get(name)
        if what is None:
            return
        if what[0].isdigit():
            time.sleep(float(what))
        else:
            code = int(getattr(errno, what))
            raise OSError(code, os.strerror(code))


def _changes(flags: Sequence[Any]) -> bool:
    return bool(flags) and bool(int(flags[0]) & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
