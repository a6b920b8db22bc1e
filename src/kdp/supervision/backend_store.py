"""`BackendStore`: the values that a backend keeps on the node, as a fault that only an administrator may take back.

One JSON file for each backend, in the state directory::

    {"version": 1, "class": "Widgets", "values": {"latched": ["w0"]}}

* An assignment changes the value in memory, replaces the file, and returns. If the disk refuses, the value stays in
  memory, the log says so once, and the next discovery and the stop try again.
* Each change reads the file under its lock and changes one value of it: during a rolling update two processes write.
* A file that cannot be read is set aside, and said.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
import time
from collections.abc import Generator, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final, final

import anyio
from typing_extensions import override

from ..concurrency.threads import run
from ..model.backend import WrappedBackend
from ..storage import files, locks, reading
from ..storage.documents import parse_json
from .hooks import check_state

if TYPE_CHECKING:
    from pathlib import Path

    from ..model.backend import DeviceBackend

logger = logging.getLogger(__name__)

VERSION: Final = 1

_WAIT: Final = 5.0
"""Seconds for another process that holds the lock, which takes it for a few milliseconds."""

_PAUSE: Final = 0.005


@final
class BackendStore(MutableMapping[str, Any]):
    """Values that JSON can carry, by name. Each value that it returns is a copy. It blocks for the disk.

    Any thread may use it.

    Args:
        path: The file; `None` if the values are only in memory.
        owner: The class of the backend.
        writes: Whether this process changes the file; if not, its own changes end with it.

    Attributes:
        owner: As given.
    """

    def __init__(self, path: Path | None, owner: str, *, writes: bool = True) -> None:
        self._path = path
        self._writes = writes
        self.owner = owner
        self._lock = threading.RLock()
        self._values: dict[str, Any] = {}
        self._unsaved: dict[str, Any] = {}
        self._removed: set[str] = set()
        self._seen: tuple[int, ...] | None = None
        self._problem: str | None = None

    @override
    def __getitem__(self, name: str) -> Any:
        with self._lock:
            self._look()
            return check_state(self._values, "the store")[name]

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        value = check_state({name: value}, "the store")[name]
        with self._lock:
            self._values[name] = self._unsaved[name] = value
            self._removed.discard(name)
            self.save()

    @override
    def __delitem__(self, name: str) -> None:
        with self._lock:
            self._look()
            del self._values[name]
            self._unsaved.pop(name, None)
            self._removed.add(name)
            self.save()

    @override
    def __iter__(self) -> Iterator[str]:
        with self._lock:
            self._look()
            return iter([*self._values])

    @override
    def __len__(self) -> int:
        with self._lock:
            self._look()
            return len(self._values)

    @override
    def __repr__(self) -> str:
        return f"<the store of {self.owner}: {', '.join(self) or 'empty'}>"

    @property
    def unsaved(self) -> list[str]:
        """The names of the values that the file lacks, or has too many. It does not block."""
        return [] if self._path is None or not self._writes else sorted({*self._unsaved, *self._removed})

    def save(self) -> None:
        """Write the changes that the file lacks. A failure is logged once; the next call tries again."""
        with self._lock:
            if self._path is None or not self._writes or not (self._unsaved or self._removed):
                return
            try:
                self._write(self._path)
            except OSError as error:
                self._complain(f"what it keeps is not saved in {self._path}: {error.strerror}; trying again")
            else:
                self._unsaved.clear()
                self._removed.clear()
                if self._problem is not None:
                    logger.info("%s: what it keeps is saved in %s now", self.owner, self._path)
                self._problem = None

    def _look(self) -> None:
        """Take the changes of other processes."""
        if self._path is None:
            return
        try:
            mark = files.mark_of(os.lstat(self._path))
            if mark != self._seen:
                self._merge(self._read(self._path))
                self._seen = mark
        except FileNotFoundError:
            self._merge({})
        except OSError as error:
            self._complain(f"what it has kept in {self._path} is not to be read: {error.strerror}")

    def _merge(self, saved: dict[str, Any]) -> None:
        self._values = {name: value for name, value in saved.items() if name not in self._removed} | self._unsaved

    def _read(self, path: Path) -> dict[str, Any]:
        """Return the values of the file; one that makes no sense is set aside."""
        text = reading.read(path, follow=False)
        if not text:  # another process makes it
            return {}
        try:
            document = parse_json(text)
            if document["version"] > VERSION:
                raise ValueError(f"it has version {document['version']}, and this kdp reads up to {VERSION}")
            return check_state(dict(document["values"]), "the store")
        except (ValueError, TypeError, KeyError) as error:
            if not self._writes:
                self._complain(f"{path} is damaged ({error})")
                return {}
            aside = path.with_name(f"{path.name}.set-aside-{time.time():.0f}")
            os.rename(path, aside)
            self._complain(f"{path} is damaged ({error}), and set aside as {aside.name}; what it kept is lost")
            return {}

    def _write(self, path: Path) -> None:
        import json  # few classes keep values, and the others start without it

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            self._merge(self._read(path))
            document = {"version": VERSION, "class": self.owner, "values": self._values}
            files.replace(path, json.dumps(document).encode(), sync="name")
            self._seen = files.mark_of(os.lstat(path))

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("%s: %s", self.owner, problem)
        self._problem = problem


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock of a file, and make the file if it is missing.

    Raises:
        OSError: It cannot be opened, or another process does not let go of it.
    """
    until = time.monotonic() + _WAIT
    while True:
        descriptor = locks.open_file(path)
        try:
            # A process that has replaced the file holds the lock of the old one.
            if locks.lock(descriptor) and locks.is_at(descriptor, path):
                yield
                return
        finally:
            locks.close(descriptor)
        if time.monotonic() > until:
            raise OSError(errno.EAGAIN, "another process holds its lock")
        time.sleep(_PAUSE)


@functools.cache
def _store_at(path: Path, owner: str, *, writes: bool) -> BackendStore:
    """Return the one store of this process at a path: a reload makes another backend, and keeps unsaved values."""
    return BackendStore(path, owner, writes=writes)


def store_name(key: str) -> str:
    """Return the name of a backend's file; ``key`` is its name in the state directory."""
    return f"{key.replace('/', '_')}.store.json"


def give_store(backend: DeviceBackend, path: Path | None, *, writes: bool = True) -> None:
    """Set ``store`` of a backend, and of the backend that it wraps, unless it has one.

    Args:
        backend: The backend.
        path: The file; `None` if the values end with the process.
        writes: Whether the process serves, and so may change the file.
    """
    if isinstance(backend, WrappedBackend):
        give_store(backend.inner, path, writes=writes)
    elif "store" not in vars(backend):
        owner = type(backend).__name__
        vars(backend)["store"] = BackendStore(None, owner) if path is None else _store_at(path, owner, writes=writes)


def save_store(backend: DeviceBackend) -> None:
    """Write the unsaved values of a backend's store; it blocks for the disk."""
    if (store := _store_of(backend)) is not None:
        store.save()


async def settle_store(backend: DeviceBackend, seconds: float) -> None:
    """Write the unsaved values within so many seconds, and log the names of those that the disk still lacks."""
    store = _store_of(backend)
    if store is None or not store.unsaved:
        return
    with anyio.move_on_after(seconds):
        await run(store.save, name="kdp-disk")
    if unsaved := store.unsaved:
        logger.error("%s: the process ends before the disk has %s of its store", store.owner, ", ".join(unsaved))


def _store_of(backend: DeviceBackend) -> BackendStore | None:
    if isinstance(backend, WrappedBackend):
        return _store_of(backend.inner)
    found = vars(backend).get("store")
    return found if isinstance(found, BackendStore) else None
