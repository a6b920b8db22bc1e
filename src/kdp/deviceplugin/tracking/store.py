"""`KeptResource`: what is kept of one resource, and for whom. `AllocationStore`: its file, which outlives the process.

The file has the allocations that are not released yet. There is one JSON file for each resource and process, in a
directory outside of the kubelet's (a kubelet up to 1.32 removes every file from the plugin directory)::

    {"version": 1, "resource": "example.com/widget", "plugin_dir": "/var/lib/kubelet/device-plugins",
     "class": "acme_widgets.Widgets",
     "allocations": [{"uid": "6f…", "ids": ["w0"], "state": {}, "seen": false, "pods": [["default", "train-0"]],
                      "given": {"w0": {"nodes": ["/dev/widget0"], "identity": ""}}}]}

``pods`` are those that may hold devices which no list has named, where they are known. ``pod``, ``started`` and
``back`` are of devices that are scrubbed. ``given`` is what the container was given; see `Given`. ``consumes`` is what
the devices take of counters. ``"releases": false`` stands in the file of a backend that is told of no end.
``plugin_dir`` tells the kubelet: what a test's kubelet gave says nothing of the node's.

* It is replaced atomically: a reader finds the old one or the new one, whole.
* Its owner keeps it locked. A file that nobody has locked is a dead process's: the next process takes its allocations
  over, writes them into its own file, then removes the old one. So two instances can overlap, and a process killed at
  any moment loses nothing; at worst an allocation is in both files, and has the same uid in both.
* A file that is broken, of a newer version, or no regular file is set aside under another name, and said: its
  allocations are not released. A directory that cannot be written is said once, and kdp goes on without.

Reading and writing happen in a daemon thread, so that a disk that hangs holds nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import attrs

from ...concurrency.threads import Worker, value_of
from ...model.backend import DeviceBackend
from ...model.devices import Device
from ...startup import shown
from ...storage import files, locks, reading
from ...supervision.backend_validation import class_of
from ...supervision.given import Given
from .allocation_record import AllocationRecord

logger = logging.getLogger(__name__)

VERSION: Final = 1

SAVE_PATIENCE = 1.0
"""Seconds that an Allocate waits for the disk: without it a crash could forget this allocation, nothing worse."""


class _Unreadable(ValueError):
    """Why a file is set aside."""


class _OtherKubeletError(Exception):
    """A file is of another kubelet's allocations, as a test has it."""

    def __init__(self, plugin_dir: str) -> None:
        super().__init__(plugin_dir)
        self.plugin_dir = plugin_dir


@attrs.frozen(eq=False)
class _Document:
    """What is to be in the file.

    Attributes:
        allocations: The allocations.
        taken: Files of other processes that they were in, too.
    """

    allocations: Sequence[AllocationRecord]
    taken: frozenset[Path]


class AllocationStore:
    """The saved allocations of one resource.

    Args:
        directory: Where the files are; made when it is needed.
        resource: The extended resource.
        plugin_dir: The directory of the kubelet that allocates.
        releases: Whether the backend is told of an allocation's end, so that the file is needed until then.
        scrubs: Whether the file says what must be scrubbed, and so must outlive a loss of power, too.
        class_name: The class of the backend; see `class_of`.

    Attributes:
        has_neighbours: Whether at the last `adopt` a living process had a file here, whose allocations will be nobody's
            when it ends.
        has_lost: Whether a file was set aside that said what pods have of the devices.
        problem: Why the directory cannot be used; None: it can, or there was no need.
    """

    def __init__(
        self,
        directory: Path,
        resource: str,
        plugin_dir: Path,
        *,
        releases: bool = True,
        scrubs: bool = False,
        class_name: str = "",
    ) -> None:
        self.has_neighbours = False
        self.has_lost = False
        self._plugin_dir = os.fspath(plugin_dir)
        self._releases = releases
        self._scrubs = scrubs
        self._class_name = class_name
        self._directory = directory
        self._resource = resource
        self._stem = resource.replace("/", "_")
        self._path = directory / f"{self._stem}.{os.urandom(6).hex()}.json"
        self._descriptor: int | None = None
        self._dead: list[tuple[Path, int]] = []
        self._read_from: set[Path] = set()
        self._taken: frozenset[Path] = frozenset()
        self._worker = Worker(f"kdp-state-{self._stem}")
        self._newest = self._written = _Document((), frozenset())
        self._is_closed = False
        self.problem: str | None = None

    @property
    def files(self) -> frozenset[Path]:
        """The files that this process owns."""
        return frozenset([self._path, *(path for path, _ in self._dead)])

    async def adopt(self) -> list[AllocationRecord]:
        """Return the allocations of dead processes, whose files stay until `take` was called. Blocks for the disk."""
        if self._is_closed:
            return []
        try:
            found, paths, has_neighbours = value_of(await self._worker.submit(self._adopt))
        except RuntimeError as error:
            self._warn(f"{self._directory} is not read: {error}")
            self.has_neighbours = True  # for all that is known
            return []
        # Not before: others who wait for a process would see none while what it left is not taken over yet.
        self.has_neighbours = has_neighbours
        self._read_from |= paths
        return found

    async def neighbours(self) -> list[AllocationRecord]:
        """Return the allocations of processes that live, as they saved them last. Blocks for the disk."""
        try:
            return value_of(await self._worker.submit(self._neighbours))
        except RuntimeError as error:
            self._warn(f"{self._directory} is not read: {error}")
            return []

    def take(self) -> None:
        """Say that each `save` from now on has what `adopt` has returned."""
        self._taken |= self._read_from
        self._read_from.clear()

    async def save(self, allocations: Sequence[AllocationRecord], *, patience: float = SAVE_PATIENCE) -> bool:
        """Replace the file, and remove those that were taken: what they held is in it. Waits at most ``patience``.

        Returns:
            Whether it is on disk. If not, that was said in the log, and the next save makes up for it.
        """
        self._newest = _Document(allocations, self._taken)
        try:
            async with asyncio.timeout(patience):
                saving = self._worker.submit(self._save)
                if self._is_closed:  # what ended late is saved, and does not keep the file from the next one
                    self.close()
                return value_of(await saving)
        except TimeoutError:
            self._warn(f"{self._directory} has not taken the allocations within {patience:g} s")
        except RuntimeError as error:
            self._warn(f"{self._directory} has not taken the allocations: {error}")
        return False

    def close(self) -> asyncio.Future[Any] | None:
        """Let the thread end when it is free; return what is done when another may adopt the file. None: it may now."""
        self._is_closed = True
        if not self._worker.is_started:
            return None
        released = self._worker.submit(self._release)
        self._worker.end()
        return released

    def _adopt(self) -> tuple[list[AllocationRecord], set[Path], bool]:
        files.remove_drafts(self._directory, f"{self._stem}.")
        found: dict[str, AllocationRecord] = {}
        paths: set[Path] = set()
        has_neighbours = False
        for path in self._others():
            try:
                descriptor = reading.open_file(path, follow=False)
            except reading.UnusableFileError as error:
                self._set_aside(path, error)
                continue
            except OSError as error:
                self._warn(f"{path} cannot be read: {error.strerror}")
                continue
            is_dead = locks.lock(descriptor)
            if not is_dead or not locks.is_at(descriptor, path):
                # Its process lives. One that has just replaced its file has let go of what was opened here; only a file
                # that another process took over first is gone.
                has_neighbours = has_neighbours or not is_dead or os.path.lexists(path)
                locks.close(descriptor)
                continue
            try:
                saved = self.read(reading.read_open(descriptor))
            except _OtherKubeletError as other:
                if not os.path.exists(other.plugin_dir):
                    with contextlib.suppress(OSError):  # it is only in the way
                        path.unlink()
                locks.close(descriptor)
                continue
            except (_Unreadable, OSError) as error:
                self._set_aside(path, error)
                locks.close(descriptor)
                continue
            self._dead.append((path, descriptor))
            paths.add(path)
            found.update({each.uid: each for each in saved})
        return list(found.values()), paths, has_neighbours

    def _neighbours(self) -> list[AllocationRecord]:
        found: list[AllocationRecord] = []
        for path in self._others():
            with contextlib.suppress(_OtherKubeletError, _Unreadable, OSError):
                found += self.read(reading.read(path, follow=False))
        return found

    def _others(self) -> Iterable[Path]:
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._warn(f"{self._directory} cannot be read: {error.strerror}")
            return []
        ours = {self._path, *(path for path, _ in self._dead)}
        paths = [
            self._directory / name
            for name in names
            if name.startswith(f"{self._stem}.") and name.endswith(".json") and name.count(".", len(self._stem)) == 2
        ]
        return [path for path in paths if path not in ours]

    def read(self, text: bytes) -> list[AllocationRecord]:
        """Return the allocations in a file's text.

        Raises:
            _Unreadable: The text is not that of a file of this resource and version.
            _OtherKubeletError: The file is of another kubelet's allocations.
        """
        from ...storage.documents import parse_json

        try:
            document = parse_json(text)
            version = document["version"]
            if isinstance(version, int) and version > VERSION:
                raise _Unreadable(f"it has version {version}, but this kdp reads version {VERSION} only")
            if version != VERSION or document["resource"] != self._resource:
                raise _Unreadable(f"it says version {version!r} and resource {document['resource']!r}")
            if (plugin_dir := str(document.get("plugin_dir", self._plugin_dir))) != self._plugin_dir:
                raise _OtherKubeletError(plugin_dir)
            return [self._saved(each) for each in document["allocations"]]
        except _Unreadable:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise _Unreadable(f"it is broken ({type(error).__name__}: {error})") from None

    def _saved(self, each: Mapping[str, Any]) -> AllocationRecord:
        """Return an allocation of a file.

        Raises:
            AttributeError, IndexError, KeyError, TypeError, ValueError: It is none.
        """
        from ...supervision.counters import consumption_of_json  # late: most starts find no allocation

        return AllocationRecord(
            uid=str(each["uid"]),
            resource=self._resource,
            ids=tuple(sorted({str(i) for i in each["ids"]})),
            state=dict(each["state"]),
            given={str(i): Given.of_json(saved) for i, saved in each.get("given", {}).items()},
            consumes={str(i): consumption_of_json(saved) for i, saved in each.get("consumes", {}).items()},
            suspects=frozenset((str(space), str(pod)) for space, pod in each["pods"]) if "pods" in each else None,
            pod=(str(each["pod"][0]), str(each["pod"][1])) if "pod" in each else None,
            is_started=bool(each.get("started", True)),
            is_back=bool(each.get("back", False)),
            is_seen=bool(each["seen"]),
        )

    def _set_aside(self, path: Path, error: _Unreadable | OSError) -> None:
        self.has_lost = True
        why = error.strerror if isinstance(error, OSError) else error
        aside = path.with_name(f"{path.name}.set-aside-{time.time():.0f}")
        try:
            path.rename(aside)
        except OSError as refused:
            self._warn(f"{path} cannot be used: {why}; nor can it be set aside: {refused.strerror}")
            return
        text = f"cannot be used: {why}; set aside as {aside.name}; which pod had which device is not known any more"
        extra = {"resource": self._resource, "path": str(aside)}
        logger.error("%s: the saved allocations in %s %s", self._resource, path, text, extra=extra)

    def _save(self) -> bool:
        newest = self._newest  # which holds all that an older one does, and whose own turn then has nothing to do
        if newest is self._written:
            return True
        try:
            if newest.allocations:
                self._replace(newest.allocations)
            elif self._descriptor is not None:
                self._path.unlink(missing_ok=True)
                self._release()
            for path, descriptor in [each for each in self._dead if each[0] in newest.taken]:
                path.unlink(missing_ok=True)
                locks.close(descriptor)
                self._dead.remove((path, descriptor))
        except OSError as error:
            self._warn(f"{self._directory} cannot be written: {error.strerror}")
            return False
        if self.problem is not None:
            logger.info("%s: allocations are saved again", self._resource, extra={"resource": self._resource})
        self.problem = None
        self._written = newest
        return True

    def _replace(self, allocations: Sequence[AllocationRecord]) -> None:
        import json

        document: dict[str, object] = {
            "version": VERSION,
            "resource": self._resource,
            "plugin_dir": self._plugin_dir,
            "class": self._class_name,
            "allocations": [each.as_json() for each in allocations],
            **({} if self._releases else {"releases": False}),
        }
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")
        before, self._descriptor = self._descriptor, files.replace_locked(self._path, data)
        if before is not None:
            locks.close(before)
        if self._scrubs:  # last: a file that has its name stays locked, also if this fails
            files.sync_names(self._directory)

    def _release(self) -> None:
        """Let go of our file; it stays for the next process, unless it was removed."""
        if self._descriptor is not None:
            locks.close(self._descriptor)
            self._descriptor = None

    def _warn(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            extra = {"resource": self._resource, "path": str(self._directory)}
            text = f"{problem}; what is allocated now is not released if this process is killed"
            logger.warning("%s: %s", self._resource, text, extra=extra)


@final
@attrs.frozen(kw_only=True)
class AllocationOwner:
    """What a resource's backend wants to be kept.

    Attributes:
        wants_release: Whether a hook is told of the end of an allocation.
        has_counters: Whether devices share counters, so that the list depends on what pods have.
        scrubs: Whether a device is withheld until the hook has succeeded for the pod that had it.
        place: Returns the id of a replica's device; None: the devices are not shared.
        adopted: Called when it is known what earlier processes gave.
    """

    __repr__ = shown

    backend: DeviceBackend
    wants_release: bool
    has_counters: bool = False
    scrubs: bool = False
    place: Callable[[str], str] | None = None
    adopted: Callable[[], object]


@final
@attrs.define(eq=False)
class KeptResource:
    """What is kept of one resource, also when its plugin is gone.

    Attributes:
        store: Its file; None: nothing was to be saved yet.
        is_adopting: Whether what earlier processes left is being taken over.
        adopted: Set when that is known.
        devices: Its devices as they were at Allocate.
    """

    __repr__ = shown

    name: str
    owner: AllocationOwner
    store: AllocationStore | None = None
    is_adopting: bool = False
    adopted: asyncio.Event = attrs.field(factory=asyncio.Event)
    devices: dict[str, Device] = attrs.field(factory=dict[str, Device])

    def store_in(self, state_dir: Path | None, plugin_dir: Path) -> AllocationStore | None:
        """Return its file in a directory, the same one each time; None: there is no directory."""
        if self.store is None and state_dir is not None:
            owner = self.owner
            self.store = AllocationStore(
                state_dir,
                self.name,
                plugin_dir,
                releases=owner.wants_release,
                scrubs=owner.scrubs,
                class_name=class_of(owner.backend),
            )
        return self.store


def saved_beside(directory: Path, plugin_dir: Path, own: Collection[Path]) -> list[tuple[str, AllocationRecord]]:
    """Return the allocations in a directory's files that are not ours, each with the class that gave it.

    Blocks for the disk. The class is "" in files of older versions.

    They belong to processes that live beside this one, or to a resource that had another name before. A file that
    cannot be read is left to its owner.

    Args:
        directory: The state directory.
        plugin_dir: The directory of the kubelet that allocates.
        own: The files of this process.
    """
    from ...storage.documents import parse_json

    found: list[tuple[str, AllocationRecord]] = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.glob("*.json")):
            if path not in own and not path.name.startswith("."):
                with contextlib.suppress(_OtherKubeletError, _Unreadable, OSError, ValueError, TypeError, KeyError):
                    text = reading.read(path, follow=False)
                    document = parse_json(text)
                    store = AllocationStore(directory, str(document["resource"]), plugin_dir)
                    found += [(str(document.get("class", "")), each) for each in store.read(text)]
    return found


def is_abandoned(directory: Path, resource: str) -> bool:
    """Return whether a resource has files and no process holds one of them. Blocks for the disk."""
    held: list[bool] = []
    for path in directory.glob(f"{resource.replace('/', '_')}.*.json"):
        with contextlib.suppress(OSError):
            descriptor = reading.open_file(path, follow=False)
            held.append(not locks.lock(descriptor))
            locks.close(descriptor)
    return bool(held) and not any(held)


def why_not_saved(directory: Path) -> str | None:
    """Return why nothing can be saved in a directory, which is made if it is not there; None: it can."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return files.why_no_file(directory)
