"""Open and read files that anybody may have put there: regular files only, without waiting, up to a size limit.

Other programs write to the node's directories, too. Opening a FIFO waits for a writer, opening a device node may start
the device, and a file may have any size. So a file is looked at before and after it is opened.

What a person names is another matter: ``--config <(sops -d x.yaml)`` is a pipe, and `read_text` reads it. A pipe can be
read once, so the process remembers its text.

All functions block for the disk. Each raises `OSError`; `UnusableFileError` is the one that a retry does not heal.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from typing import Final

MAX_BYTES: Final = 64 << 20
"""Size limit in bytes of a file that kdp writes and reads again."""

MAX_CONFIG_BYTES: Final = 1 << 20
"""Size limit in bytes of a file that a person writes; a ConfigMap cannot be larger."""

PIPE_DEADLINE: Final = 60.0
"""Seconds for a pipe to be written to its end: a program that decrypts may ask a person or a server."""

_CAREFULLY = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device node",
    stat.S_IFBLK: "a device node",
}


_PIPED: Final[dict[str, bytes]] = {}
"""What was read from pipes, by path."""

_PIPING: Final = threading.Lock()


class UnusableFileError(OSError):
    """The path leads to something else than a regular file, or to a file above its size limit; see ``strerror``."""


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, follow: bool = True) -> int:
    """Open a regular file and return its descriptor, which a program that is started does not inherit.

    Args:
        path: The file. With ``O_CREAT`` in the flags it is made with mode 0600 if it is missing.
        flags: As of `os.open`.
        follow: Whether the path may be a link, as each file of a mounted ConfigMap is. In a directory of kdp's own,
            nothing is.

    Raises:
        UnusableFileError: The path leads to something else than a regular file.
        OSError: The file cannot be opened.
    """
    try:
        found = os.stat(path, follow_symlinks=follow)
    except FileNotFoundError:
        pass  # it may be made now
    except ValueError:  # a NUL, or what the file system's encoding lacks
        raise UnusableFileError(errno.EINVAL, "no file can have this name") from None
    else:
        _check(found, path)
    descriptor = os.open(path, flags | _CAREFULLY | (0 if follow else os.O_NOFOLLOW), 0o600)
    try:
        _check(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(descriptor: int) -> None:
    """Refuse an open file that is no regular file; reading one of those may wait, or never end.

    Raises:
        UnusableFileError: It is none.
    """
    _check(os.fstat(descriptor), None)


def _check(found: os.stat_result, path: str | os.PathLike[str] | None) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    code, why = errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, not a regular file"
    if stat.S_ISDIR(found.st_mode):
        code, why = errno.EISDIR, os.strerror(errno.EISDIR)
    raise UnusableFileError(code, why, None if path is None else os.fspath(path))


def read(path: str | os.PathLike[str], *, limit: int = MAX_BYTES, follow: bool = True) -> bytes:
    """Return what a regular file holds. ``follow`` is that of `open_file`.

    Raises:
        UnusableFileError: The path leads to something else than a regular file, or the file has more than ``limit``
            bytes.
        OSError: The file cannot be read.
    """
    descriptor = open_file(path, follow=follow)
    try:
        return read_open(descriptor, limit=limit)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, *, limit: int = MAX_BYTES) -> bytes:
    """Return the rest of an open file.

    Raises:
        UnusableFileError: It has more than ``limit`` bytes.
        OSError: The file cannot be read.
    """
    data = read_start(descriptor, limit + 1)
    if len(data) > limit:
        raise UnusableFileError(errno.EFBIG, f"it has more than {limit} bytes")
    return data


def read_start(descriptor: int, most: int) -> bytes:
    """Return the next bytes of an open file, at most so many.

    Raises:
        OSError: The file cannot be read.
    """
    data = os.read(descriptor, min(most, 65536))  # most files are read in one piece
    if not data:
        return data
    pieces, left = [data], most - len(data)
    while left > 0 and (data := os.read(descriptor, min(left, 1 << 20))):
        pieces.append(data)
        left -= len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_text(path: str | os.PathLike[str], *, limit: int = MAX_CONFIG_BYTES) -> str:
    """Return the text of a file that a person named: UTF-8, with or without a byte order mark. Links are followed.

    A pipe is read to its end, for which it has `PIPE_DEADLINE`. Later calls return the same text.

    Raises:
        UnusableFileError: As of `read`, or the pipe was not written to its end in time.
        OSError: The file cannot be read.
        UnicodeDecodeError: The file is not UTF-8.
    """
    data = _read_pipe(os.fspath(path), limit) if is_pipe(path) else read(path, limit=limit)
    return data.decode("utf-8-sig")


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Return whether a path leads to a FIFO, or to an open pipe as ``/dev/fd/63`` does."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read_pipe(path: str, limit: int) -> bytes:
    with _PIPING:
        if path not in _PIPED:
            descriptor = os.open(path, os.O_RDONLY | _CAREFULLY)
            try:
                _PIPED[path] = _drained(descriptor, limit)
            finally:
                os.close(descriptor)
        return _PIPED[path]


def _drained(descriptor: int, limit: int) -> bytes:
    """Return what a pipe holds to its end."""
    # A FIFO's writer may still come. Where a pipe is opened again, one that is missing has gone, and poll(2) is silent.
    has_writer = os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    coming = select.poll()
    coming.register(descriptor, select.POLLIN)
    until, data = time.monotonic() + PIPE_DEADLINE, b""
    while len(data) <= limit:
        try:
            piece = os.read(descriptor, limit + 1 - len(data))
        except BlockingIOError:
            piece = None
        if piece:
            data += piece
        elif piece is not None and (data or has_writer):
            return data
        elif coming.poll(max(0.0, until - time.monotonic()) * 1000):
            has_writer = True
        else:
            why = f"it is a pipe, and was not written to its end within {PIPE_DEADLINE:g} s"
            raise UnusableFileError(errno.ETIMEDOUT, why)
    raise UnusableFileError(errno.EFBIG, f"it has more than {limit} bytes")
