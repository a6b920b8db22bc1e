"""The unix socket on which commands ask a living plugin: where it is, and how its place is taken.

* It has mode 0600 from its first moment: only root, or the user whose process this is, can connect.
* It is bound under a hidden name and gets its own when it answers. So one that refuses connections is a dead one.
* A dead predecessor's socket is replaced, and a living one's is left alone. So is whatever else has the name: a link,
  a file, another user's socket. Nothing is followed.
* Processes that begin at once take turns: each holds the lock of the directory while it looks and replaces.

All functions block for the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from ..errors import KdpError
from ..kubelet.sockets import is_answered, remove_dead
from ..storage import forks, locks
from ..storage.addresses import MAX_SOCKET_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

BACKLOG: Final = 16

_LONGEST_SLUG: Final = 40


class PlaceTakenError(KdpError):
    """The socket cannot be made; the text says why, and what to do."""


def path_in(directory: Path, mode: str, keys: Iterable[str]) -> Path:
    """Return where a process that serves these backends in this mode has its socket, the same at each start."""
    sorted_keys = sorted(set(keys))
    tail = f"-{zlib.crc32(repr((mode, sorted_keys)).encode()):08x}.sock"
    room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(directory)) - 1 - len(tail)
    slug = re.sub(r"[^A-Za-z0-9.-]", "_", sorted_keys[0])[: max(3, min(_LONGEST_SLUG, room))]
    return directory / f"{slug}{tail}"


@final
class OwnSocket:
    """A listening unix socket at a path, which `close` removes again.

    Raises:
        PlaceTakenError: It cannot be made there, or the place is somebody else's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._drafts = f".{zlib.crc32(os.fsencode(path.name)):08x}."
        draft = path.with_name(f"{self._drafts}{os.urandom(2).hex()}")
        if max(len(os.fsencode(each)) for each in (path, draft)) > MAX_SOCKET_PATH_BYTES:
            raise PlaceTakenError(
                f"socket {str(path)!r}: the path is too long for a unix socket; give a shorter one with --socket"
            )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone_in(path.parent):
                self.listening = self._listen(draft)
        except OSError as error:
            raise PlaceTakenError(
                f"socket {str(path)!r}: cannot be made ({error.strerror or error}); give another path with --socket"
            ) from error

    @property
    def is_there(self) -> bool:
        """Whether the name still leads to this socket, as far as that can be told."""
        try:
            return os.path.samestat(os.lstat(self._path), self._made)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Remove the name if it is still this socket's. The listening socket is the caller's to close."""
        with contextlib.suppress(OSError, PlaceTakenError), _alone_in(self._path.parent):
            if os.path.samestat(os.lstat(self._path), self._made):
                os.unlink(self._path)

    def _listen(self, draft: Path) -> socket.socket:
        remove_dead(self._path.parent, lambda name: name.startswith(self._drafts))
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listening.fileno(), 0o600)  # Linux gives the file that `bind` makes the mode of the socket
            listening.bind(os.fspath(draft))
            try:
                listening.listen(BACKLOG)
                forks.keep(listening.fileno())
                self._made = os.lstat(draft)
                _make_room(self._path)
                os.link(draft, self._path, follow_symlinks=False)  # unlike a rename, it replaces nothing
            finally:
                os.unlink(draft)
        except BaseException:
            listening.close()
            raise
        return listening


@contextmanager
def _alone_in(directory: Path) -> Generator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not locks.lock(descriptor):
            raise PlaceTakenError(f"directory {str(directory)!r}: another process is making its socket there")
        yield
    finally:
        locks.close(descriptor)


def _make_room(path: Path) -> None:
    """Remove a dead predecessor's socket.

    Raises:
        PlaceTakenError: Something else is there.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        what = "a link" if stat.S_ISLNK(found.st_mode) else "a file"
        what = f"user {found.st_uid}'s socket" if stat.S_ISSOCK(found.st_mode) else what
        raise PlaceTakenError(f"socket {str(path)!r}: {what} is there, which is left alone; remove it")
    if is_answered(path) is not False:
        raise PlaceTakenError(f"socket {str(path)!r}: another process answers there; end that one")
    os.unlink(path)
