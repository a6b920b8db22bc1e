"""`Journal`: the records of one process in one file, which the process appends to and other processes read.

The file is one JSON document at any time, with a line for each record, so that `tail` shows the latest::

    {"version": 1, "resource": "example.com/widget", "allocations": [
    {"uid": "6f…", "ids": ["w0"], …},
    {"uid": "81…", "ids": ["w1"], …},
    {"uid": "6f…", "gone": true, …}
    ]}

* A record replaces the earlier one with its key. A record that is gone has ``gone`` and the fields in ``gone``, so that
  a version that does not know the field reads an empty record.
* An append writes over the last two lines and puts them behind the new lines. If that fails, the end is put back, and
  the next write replaces the file whole. The file is replaced, too, if most of it is outdated.
* A sync replaces the file if a record is gone. Version 0.1 reads each line in the file of a living process as a record,
  so in a rollback it would wait for the outdated ones until that process ends.
* The owner keeps the file locked. A file without a lock belongs to a process that has ended, or whose machine has.
* `read` takes a damaged line for a damaged record, and never for a damaged file.

All functions block for the disk. A failure is an `OSError`; then the next call tries the same again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast, final

import attrs

from . import files, locks
from .documents import parse_json
from .reading import MAX_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_END: Final = b"\n]}"

_SLACK: Final = 64 << 10
"""Bytes of outdated lines that no rewrite is worth."""


@final
class Journal:
    """The file of this process. Not for two threads at once.

    Args:
        path: The file. Its directory is made when there is a record.
        head: The fields before the records.
        field: The name of the list of records.
        key: The field of a record that names it.
        gone: Fields of a record that is gone, for versions that do not know ``gone``.
        must_last: Whether the file's name must survive a loss of power.

    Attributes:
        kept: Keys whose records stay in the file after they are gone, because another file still has them.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        *,
        field: str,
        key: str = "uid",
        gone: Mapping[str, Any],
        must_last: bool = False,
    ) -> None:
        self.path = path
        self.kept: set[str] = set()
        self._start = json.dumps({**head, field: []}).encode()[: -len("]}")]
        self._key = key
        self._gone = gone
        self._must_last = must_last
        self._lines: dict[str, bytes] = {}
        self._dropped: dict[str, bytes] = {}
        self._descriptor: int | None = None
        self._size = 0
        self._is_whole = True
        self._unsynced = False
        self._has_gone = False

    @property
    def is_in_place(self) -> bool:
        """Whether the file has its name, or is not needed."""
        if self._descriptor is None:
            return not self._lines
        return locks.is_at(self._descriptor, self.path)

    def write(self, changes: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Put records into the file, or drop them if they are `None`. They survive this process, but no loss of power.

        Raises:
            OSError: They are not in the file, or not all of them. The same changes must be given again.
        """
        lines = {key: self._line(key, record) for key, record in changes.items()}
        for key, record in changes.items():
            self._lines.pop(key, None)
            if record is None:
                self._dropped[key] = lines[key]
            else:
                self._dropped.pop(key, None)
                self._lines[key] = lines[key]
        if not self._lines and not (self.kept & self._dropped.keys()):
            self._remove()
        elif not self._can_append(lines):
            self._rewrite()
        elif lines:
            self._has_gone |= None in changes.values()
            self._append(b"".join(b",\n" + line for line in lines.values()))

    def sync(self) -> None:
        """Make the last write survive a loss of power.

        Raises:
            OSError: It may not.
        """
        if self._unsynced and self._descriptor is not None:
            os.fsync(self._descriptor)
        self._unsynced = False
        if self._has_gone and self._descriptor is not None:
            with contextlib.suppress(OSError):  # the file is right, and the next sync tries again
                self._rewrite()

    def close(self) -> None:
        """Let go of the file, which stays for the next process. A later `write` makes another one."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            locks.close(descriptor)

    def _line(self, key: str, record: Mapping[str, Any] | None) -> bytes:
        value = {self._key: key, "gone": True, **self._gone} if record is None else record
        return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")

    def _can_append(self, lines: Mapping[str, bytes]) -> bool:
        if self._descriptor is None or not self._is_whole or not self.is_in_place:
            return False
        live = sum(map(len, self._lines.values()))
        return self._size + sum(map(len, lines.values())) <= min(2 * live + _SLACK, MAX_BYTES)

    def _append(self, data: bytes) -> None:
        assert self._descriptor is not None
        self._unsynced = True
        self._is_whole = False
        at, data = self._size - len(_END), data + _END
        try:
            if os.pwrite(self._descriptor, data, at) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):  # needs no space
                os.ftruncate(self._descriptor, self._size)
                os.pwrite(self._descriptor, _END, at)
            raise
        self._size = at + len(data)
        self._is_whole = True

    def _rewrite(self) -> None:
        """Replace the file, or make it."""
        self._dropped = {key: line for key, line in self._dropped.items() if key in self.kept}
        data = self._start + b"\n" + b",\n".join([*self._dropped.values(), *self._lines.values()]) + _END
        is_new = self._descriptor is None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before, self._descriptor = self._descriptor, files.replace_locked(self.path, data)
        if before is not None:
            locks.close(before)
        self._size, self._is_whole, self._unsynced, self._has_gone = len(data), True, False, False
        if self._must_last and is_new:  # last: a file that has its name stays locked, also if this fails
            files.sync_names(self.path.parent)

    def _remove(self) -> None:
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            self.close()
        self._dropped.clear()
        self._has_gone = False


@final
@attrs.frozen(kw_only=True)
class Contents:
    """The text of a journal.

    Attributes:
        head: The fields before the records.
        records: The records by their key, in the order of their last change.
        gone: The keys of records that are gone.
        damaged: Texts of lines that are no record.
    """

    head: Mapping[str, Any]
    records: Mapping[str, Mapping[str, Any]]
    gone: Collection[str]
    damaged: tuple[str, ...] = ()


class NoRecordsError(ValueError):
    """The text has no list of records, as a later version may write it.

    Attributes:
        head: Its fields.
    """

    def __init__(self, text: str, head: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.head = head


def read(text: bytes, *, field: str, key: str = "uid") -> Contents:
    """Return the contents of a journal, also of one that a crash cut off.

    Args:
        text: The bytes of the file.
        field: The name of the list of records.
        key: The field of a record that names it.

    Raises:
        NoRecordsError: It has no list of records.
        ValueError: The start is not that of a journal.
    """
    head: dict[str, Any] = {}
    damaged: list[str] = []
    try:
        head |= dict(parse_json(text))
        entries = [*head.pop(field)]
    except KeyError:
        raise NoRecordsError(f"it has no list {field!r}", head) from None
    except TypeError:
        raise ValueError(f"it is no JSON object with a list {field!r}") from None
    except ValueError as error:
        start, _, rest = text.partition(b"\n")
        try:
            head = dict(parse_json(start + b"]}"))
            del head[field]
        except (ValueError, TypeError, KeyError):
            raise error from None
        entries, damaged = _entries(rest)
    records: dict[str, Mapping[str, Any]] = {}
    gone: set[str] = set()
    for entry in entries:
        record = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        name = record.get(key)
        if not isinstance(name, str):
            damaged.append(json.dumps(entry))
            continue
        records.pop(name, None)
        if record.get("gone") is True:
            gone.add(name)
        else:
            gone.discard(name)
            records[name] = record
    return Contents(head=head, records=records, gone=gone, damaged=tuple(damaged))


def _entries(rest: bytes) -> tuple[list[Any], list[str]]:
    """Return the records of single lines, and the lines that are none."""
    entries: list[Any] = []
    damaged: list[str] = []
    for line in rest.split(b"\n"):
        line = line.strip().removesuffix(b",")
        if line in (b"", b"]", b"]}"):
            continue
        try:
            entries.append(parse_json(line))
        except ValueError:
            damaged.append(line.decode(errors="replace"))
    return entries, damaged
