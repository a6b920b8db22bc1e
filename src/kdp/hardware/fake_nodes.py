"""`StandIns`: what a plain directory cannot hold of a node's files: device nodes, attributes that fail, permissions.

An unpacked snapshot, or a tree made for a test, has text files at its top. The first two are part of the snapshot's
format:

* ``DEVNODES``: ``/dev/infiniband/uverbs0 c 231:192 0666``, a line for each device node;
* ``UNREADABLE``: ``/sys/.../speed Invalid argument``, a line for each attribute that fails, with the error's text;
* ``MODES``: ``/sys/.../vendor 0444``, a line for each file whose permissions on the node are others than in the tree.

In their places in the tree stand sockets: a name that is found, listed and watched as any other, needs no right to be
made, and cannot be opened (ENXIO). A caller of `kdp.hardware.Host` meets a device node, or the error.

The files may change at any time (a test lets hardware fail): they are read again when they are others than before.
"""

from __future__ import annotations

import errno as codes
import os
import stat
from typing import TYPE_CHECKING, Generic, TypeVar, final

import attrs

from ..errors import InvalidValueError
from ..storage import reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_T = TypeVar("_T")

NODES = "DEVNODES"
UNREADABLE = "UNREADABLE"
MODES = "MODES"

_CODES = {os.strerror(code): code for code in sorted(codes.errorcode, reverse=True)}
_LONGEST_REASON = max(map(len, _CODES))

_MOST_MAJOR, _MOST_MINOR = 0xFFF, 0xFFFFF
"""As Linux has them (``MINORBITS``)."""


@final
@attrs.frozen
class NodeEntry:
    """A device node that is not there for real.

    Attributes:
        is_block: Whether it is a block device.
        major: Its number.
        minor: Its number.
        mode: Its permissions.
    """

    is_block: bool
    major: int
    minor: int
    mode: int

    @property
    def line(self) -> str:
        """As in DEVNODES, behind the path."""
        return f"{'b' if self.is_block else 'c'} {self.major}:{self.minor} {self.mode:04o}"

    @property
    def file_type(self) -> int:
        """As in a file's mode."""
        return stat.S_IFBLK if self.is_block else stat.S_IFCHR


def errno_of(reason: str) -> int:
    """Return the number of an error by its text; EIO for a text that is no error's ("binary, 4096 bytes")."""
    return _CODES.get(reason, codes.EIO)


def parse_nodes(text: str) -> dict[str, NodeEntry]:
    """Return the device nodes of a DEVNODES by path.

    Raises:
        InvalidValueError: A line is none of the format's.
    """
    found: dict[str, NodeEntry] = {}
    for line in filter(str.strip, text.splitlines()):
        try:
            path, kind, number, mode = line.rsplit(" ", 3)
            major, minor = number.split(":")
            entry = NodeEntry(kind == "b", int(major), int(minor), int(mode, 8))
        except ValueError:
            entry, path, kind = None, "", ""
        if entry is None or not path.startswith("/") or kind not in ("b", "c") or not _is_possible(entry):
            raise InvalidValueError(f"{NODES} has the line {line[:80]!r}; expected 'PATH c MAJOR:MINOR MODE'")
        found[path] = entry
    return found


def _is_possible(entry: NodeEntry) -> bool:
    return 0 <= entry.major <= _MOST_MAJOR and 0 <= entry.minor <= _MOST_MINOR and 0 <= entry.mode <= 0o7777


def parse_unreadable(text: str) -> dict[str, tuple[int, str]]:
    """Return number and text of the errors of an UNREADABLE by path.

    Raises:
        InvalidValueError: A line is none of the format's.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in filter(str.strip, text.splitlines()):
        # A path may have spaces, so the line's end decides: whether it is the text of an error. A line has no bound, so
        # only as many of its last characters count as the longest such text has.
        ends = range(max(0, len(line) - _LONGEST_REASON - 1), len(line))
        known = (at for at in ends if line[at] == " " and line[at + 1 :] in _CODES)
        at = next(known, line.find(" "))
        path, reason = line[:at], line[at + 1 :]
        if at < 0 or not path.startswith("/"):
            raise InvalidValueError(f"{UNREADABLE} has the line {line[:80]!r}; expected 'PATH ERROR'")
        found[path] = (errno_of(reason), reason)
    return found


def parse_modes(text: str) -> dict[str, int]:
    """Return the permissions of a MODES by path; its lines are kdp's own."""
    return {path: int(mode, 8) for path, _, mode in (line.rpartition(" ") for line in text.splitlines())}


def owned_mode(mode: int) -> int:
    """Return a file's permissions in the tree, where its owner may always read and write it."""
    return mode | 0o600


def make_stand_in(place: Path) -> None:
    """Put the stand-in for a device node or an unreadable attribute there; what is there is replaced."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    os.mknod(place, stat.S_IFSOCK | 0o600)


@final
class StandIns:
    """The stand-ins of a directory. Thread-safe: what was read is replaced whole."""

    def __init__(self, root: Path) -> None:
        self._nodes = _Listed(root / NODES, parse_nodes)
        self._unreadable = _Listed(root / UNREADABLE, parse_unreadable)
        self._modes = _Listed(root / MODES, parse_modes)

    @classmethod
    def of(cls, root: Path) -> StandIns | None:
        """Return those of a directory; None: it is none with stand-ins."""
        there = os.path.isfile(root / NODES) and os.path.isfile(root / UNREADABLE)
        return cls(root) if there else None

    @property
    def nodes(self) -> dict[str, NodeEntry]:
        """The device nodes by path, links followed. A node is there only while its stand-in is, too."""
        return self._nodes.now()

    def mode_on_node(self, path: str, mode: int) -> int:
        """Return the mode that a file of the tree has on the node; links are followed already."""
        recorded = self._modes.now().get(path) if stat.S_ISREG(mode) else None
        if recorded is None or owned_mode(recorded) != stat.S_IMODE(mode):  # changed in the tree since
            return mode
        return stat.S_IFREG | recorded

    def check_readable(self, path: str) -> None:
        """Raise the error with which reading this fails, if it does; links are followed already."""
        error = self._unreadable.now().get(path)
        if error is not None:
            raise OSError(*error, path)


class _Listed(Generic[_T]):
    """A text file at the top of the tree, read again when it has changed."""

    def __init__(self, file: Path, parse: Callable[[str], dict[str, _T]]) -> None:
        self._file = file
        self._parse = parse
        self._read: tuple[object, dict[str, _T]] = (None, {})

    def now(self) -> dict[str, _T]:
        try:
            found = os.stat(self._file)
            signature = (found.st_ino, found.st_mtime_ns, found.st_size)
            if signature != self._read[0]:
                self._read = (signature, self._parse(reading.read(self._file).decode()))
        except FileNotFoundError:  # the tree is being removed
            return {}
        return self._read[1]
