"""`KeptResource`: the allocations of one resource, and their backend. `AllocationStore`: their file.

The file has the allocations without a release. It is a `kdp.storage.journal.Journal`: one JSON document for
each resource and process, in a directory outside of the kubelet's (a kubelet up to 1.32 removes every file from the
plugin directory)::

    {"version": 1, "resource": "example.com/widget", "plugin_dir": "/var/lib/kubelet/device-plugins",
     "class": "acme_widgets.Widgets", "allocations": [
    {"uid": "6f…", "ids": ["w0"], "state": {}, "seen": false, "pods": [["default", "train-0"]],
     "given": {"w0": {"nodes": ["/dev/widget0"], "identity": ""}}, "numa": {"w0": [0]}, "at": ["8d2e…", 5123.25]}
    ]}

``pods`` are the known pods that may hold a device, although no list has named it. ``pod``, ``started``, and
``back`` occur if devices are scrubbed. ``given`` has the container's things; see `Given`. ``consumes`` has the amounts
of counters, and ``numa`` the NUMA nodes in the kubelet's list. ``at`` is the boot and the second of the Allocate.
``"releases": false`` marks the file of a backend without ``released``. ``plugin_dir`` names the kubelet, because
the allocations of a test's kubelet are not the node's.

* Memory has the desired allocations, and each change of them has a number. The file gets each one as it is at the time
  of the write, so an allocation that ends within 100 ms leaves no line. One thread writes until the last number is
  durable. kdp repeats a failed save with pauses, and ``problem`` has the reason until a save succeeds.
* A change is on the disk within 100 ms. `AllocationStore.saved` writes immediately, and waits.
* The owner keeps its file locked. A file without a lock belongs to a dead process: the next process takes its
  allocations over, writes them into its own file, and then removes the old file. So two instances can overlap, and a
  kill at any moment loses nothing. At worst an allocation is in both files, with the same uid.
* A damaged record costs only itself. A file with a damaged start or a newer version gets another name. The log names
  both, and the kubelet's list then fills the gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...concurrency.backoff import Backoff
from ...concurrency.observable import Observable
from ...concurrency.threads import Worker, value_of
from ...model.backend import DeviceBackend
from ...model.devices import Device
from ...startup import shown
from ...storage import files, locks, reading
from ...supervision.backend_validation import class_of
from ...supervision.given import Given
from .allocation_record import AllocationRecord

if TYPE_CHECKING:
    from pathlib import Path

    from ...storage.journal import Contents, Journal

logger = logging.getLogger(__name__)

VERSION: Final = 1

SAVE_PATIENCE = 1.0
"""Seconds that an Allocate waits for the disk: without it a crash could forget this allocation, nothing worse."""

SAVE_DELAY = 0.05
"""Seconds until a change is written if no caller waits: several changes then cost one write and one sync."""

_MOST_SHOWN: Final = 500
"""Characters of a damaged record in the log."""


class _Unreadable(ValueError):
    """Why a file is set aside."""


class _OtherKubeletError(Exception):
    """A file is of another kubelet's allocations, as a test has it."""

    def __init__(self, plugin_dir: str) -> None:
        super().__init__(plugin_dir)
        self.plugin_dir = plugin_dir


@final
class AllocationStore:
    """The saved allocations of one resource. asyncio only; only `adopt` and `neighbours` wait for the disk.

    Args:
        directory: Where the files are; made when it is needed.
        resource: The extended resource.
        plugin_dir: The directory of the kubelet that allocates.
        releases: Whether the backend has ``released``, which needs the file until the end of the allocation.
        scrubs: Whether devices are scrubbed between two pods, so that the file must survive a loss of power.
        class_name: The class of the backend; see `kdp.supervision.backend_validation.class_of`.
        image: Returns an allocation as the file has it.

    Attributes:
        has_neighbours: Whether another process had a locked file here at the last `adopt`.
        has_lost: Whether saved allocations were damaged.
        problem: Why the directory cannot be used; `None` if it can, or if there was no need.
        changes: Changes with ``problem``, and when more is durable.
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
        image: Callable[[AllocationRecord], Mapping[str, Any]] = AllocationRecord.as_json,
    ) -> None:
        self.has_neighbours = False
        self.has_lost = False
        self.problem: str | None = None
        self.changes: Observable[None] = Observable(None)
        self._plugin_dir = os.fspath(plugin_dir)
        self._directory = directory
        self._resource = resource
        self._stem = resource.replace("/", "_")
        self._path = directory / f"{self._stem}.{os.urandom(6).hex()}.json"
        self._head: dict[str, Any] = {
            "version": VERSION,
            "resource": resource,
            "plugin_dir": self._plugin_dir,
            "class": class_name,
            **({} if releases else {"releases": False}),
        }
        self._scrubs = scrubs
        self._image = image
        self._worker = Worker(f"kdp-state-{self._stem}")
        self._journal: Journal | None = None
        self._writer: asyncio.Task[None] | None = None
        # What is desired, and how far it is on the disk. Numbers of changes; see the module.
        self._pending: dict[str, AllocationRecord | None] = {}
        self._images: dict[str, Mapping[str, Any] | None] = {}  # None while a write runs, or after it failed
        self._unsaved: dict[str, tuple[str, ...]] = {}
        self._desired = self._written = self._durable = self._failed = 0
        self._write_at = self._sync_at = float("inf")
        self._is_urgent = asyncio.Event()
        # Files of dead processes: locked by this one, handed out by `adopt`, and their allocations being in this file.
        self._dead: dict[Path, tuple[int, list[AllocationRecord]]] = {}
        self._taken: dict[Path, int] = {}
        self._is_closed = False

    @property
    def files(self) -> frozenset[Path]:
        """The files that this process owns."""
        return frozenset([self._path, *self._dead])

    # -- what is desired -----------------------------------------------------------------------------------------------

    def put(self, record: AllocationRecord) -> None:
        """Have an allocation in the file soon, as it is then."""
        self._pending[record.uid] = record
        self._unsaved[record.uid] = record.ids
        self._desire(SAVE_DELAY)

    def drop(self, uid: str) -> None:
        """Have an allocation leave the file soon."""
        self._pending.pop(uid, None)
        if uid not in self._images:
            self._unsaved.pop(uid, None)
            return
        self._pending[uid] = None
        self._unsaved.setdefault(uid, tuple((self._images[uid] or {}).get("ids", ())))
        self._desire(SAVE_DELAY)

    def match(self, records: Iterable[AllocationRecord]) -> None:
        """Have exactly these allocations in the file soon."""
        unknown = {*self._images, *self._pending}
        for record in records:
            unknown.discard(record.uid)
            if record.uid in self._pending or self._images.get(record.uid) != self._image(record):
                self.put(record)
        for uid in unknown:
            self.drop(uid)

    def _desire(self, delay: float) -> None:
        self._desired += 1
        due = time.monotonic() + delay
        self._write_at, self._sync_at = min(self._write_at, due), min(self._sync_at, due)
        self._start()

    def _start(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name=f"save {self._resource}")

    @property
    def behind(self) -> frozenset[str]:
        """The ids of devices with an allocation that is not on the disk as it should be."""
        return frozenset(device_id for ids in self._unsaved.values() for device_id in ids)

    async def saved(self, *, synced: bool = True, patience: float = SAVE_PATIENCE) -> bool:
        """Wait until all changes so far are in the file, at most ``patience`` seconds; return whether they are.

        If not, the log says so, and the store goes on trying.

        Args:
            synced: Whether they must survive a loss of power, and not only the end of the process.
            patience: The seconds.
        """
        number = self._desired
        now = time.monotonic()
        self._write_at = min(self._write_at, now)
        if synced:
            self._sync_at = min(self._sync_at, now)
        self._is_urgent.set()
        failed = self._failed
        try:
            async with asyncio.timeout(patience):
                while (self._durable if synced else self._written) < number:
                    if self._failed != failed:
                        return False
                    await self.changes.after(self.changes.version)
        except TimeoutError:
            self._warn(f"{self._directory} has not taken the allocations within {patience:g} s")
            return False
        return True

    def look(self) -> None:
        """Have the file written again soon if somebody removed it, and taken-over files removed."""
        if (self._images or self._pending) and not self._is_closed:
            self._desire(0.0)

    async def close(self, patience: float) -> frozenset[str]:
        """Write the remaining changes, and let another process adopt the file.

        Returns:
            The ids of the devices with an allocation that is not on the disk after ``patience`` seconds.
        """
        self._is_closed = True
        self._sync_at = self._write_at = time.monotonic()
        self._is_urgent.set()
        if self._journal is not None or self._pending or self._dead:
            self._desired += 1  # also a file that another program has removed
            self._start()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=patience)
        return self.behind

    # -- the writer ----------------------------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        """Write until the file has the last change, and end. The next change starts it again."""
        backoff = Backoff()
        while self._durable < self._desired or self._taken:
            if (pause := min(self._write_at if self._pending else float("inf"), self._sync_at) - time.monotonic()) > 0:
                self._is_urgent.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if pause == float("inf") else pause):
                        await self._is_urgent.wait()
                continue
            try:
                await self._write_once()
            except (OSError, RuntimeError) as error:
                self._failed += 1
                why = error.strerror if isinstance(error, OSError) else error
                self._warn(f"{self._directory} cannot be written: {why}")
                self.changes.set(None)
                self._write_at = self._sync_at = time.monotonic() + backoff.next()
            else:
                backoff.reset()
        if self._is_closed:
            value_of(await self._worker.submit(self._let_go))
            self._worker.end()  # it has nothing to do, so no second thread can overtake it

    async def _write_once(self) -> None:
        """Write the changes so far, and sync them if that is due.

        Raises:
            OSError: The disk did not take them.
            RuntimeError: No thread can be started.
        """
        number, pending, self._pending = self._desired, self._pending, {}
        self._write_at = float("inf")
        images = {uid: None if record is None else self._image(record) for uid, record in pending.items()}
        changes = {uid: image for uid, image in images.items() if image is None or self._images.get(uid) != image}
        self._images |= dict.fromkeys(changes)
        is_synced = self._sync_at <= time.monotonic()
        taken = [path for path, at in self._taken.items() if at <= number] if is_synced else []
        if is_synced:
            self._sync_at = float("inf")
        try:
            value_of(await self._worker.submit(lambda: self._journaled(changes, taken, is_synced=is_synced)))
        except BaseException:
            self._pending = {**pending, **self._pending}
            if is_synced:
                self._sync_at = time.monotonic()
            raise
        for uid, image in changes.items():
            if image is None:
                del self._images[uid]
            else:
                self._images[uid] = image
        self._written = number
        if is_synced:
            self._note_durable(number, taken)
        self.changes.set(None)

    def _note_durable(self, number: int, taken: Sequence[Path]) -> None:
        self._durable = number
        self._unsaved = {uid: ids for uid, ids in self._unsaved.items() if uid in self._pending}
        for path in taken:
            self._taken.pop(path, None)
        if self._durable < self._desired:  # meanwhile
            self._sync_at = min(self._sync_at, time.monotonic() + SAVE_DELAY)
            self._write_at = min(self._write_at, self._sync_at)
        if self.problem is not None:
            logger.info("%s: allocations are saved again", self._resource, extra={"resource": self._resource})
        self.problem = None

    def _journaled(
        self, changes: Mapping[str, Mapping[str, Any] | None], taken: Sequence[Path], *, is_synced: bool
    ) -> None:
        if self._journal is None:
            from ...storage.journal import Journal  # late: most starts find no allocation

            # The fields are those that version 0.1 asks for; it takes over no allocation without devices.
            gone: dict[str, Any] = {"ids": [], "state": {}, "seen": True}
            self._journal = Journal(self._path, self._head, field="allocations", gone=gone, must_last=self._scrubs)
        self._journal.kept = {record.uid for _, records in self._dead.values() for record in records}
        self._journal.write(changes)
        if not is_synced:
            return
        self._journal.sync()
        for path in [path for path in taken if path in self._dead]:
            path.unlink(missing_ok=True)
            locks.close(self._dead.pop(path)[0])
        if taken:
            self._journal.kept = {record.uid for _, records in self._dead.values() for record in records}
            self._journal.write({})

    def _let_go(self) -> None:
        if self._journal is not None:
            self._journal.close()

    # -- other processes -----------------------------------------------------------------------------------------------

    async def adopt(self) -> list[AllocationRecord]:
        """Return the allocations of dead processes, whose files stay until `take` was called. Blocks for the disk."""
        if self._is_closed:
            return []
        try:
            self.has_neighbours = value_of(await self._worker.submit(self._adopt))
        except RuntimeError as error:
            self._warn(f"{self._directory} is not read: {error}")
            self.has_neighbours = True  # for all that is known
        # The caller may have cancelled an earlier call, so its files count, too.
        waiting = [records for path, (_, records) in self._dead.items() if path not in self._taken]
        return [*{each.uid: each for records in waiting for each in records}.values()]

    async def neighbours(self) -> list[AllocationRecord]:
        """Return the allocations of processes that live, as they saved them last. Blocks for the disk."""
        try:
            return value_of(await self._worker.submit(self._neighbours))
        except RuntimeError as error:
            self._warn(f"{self._directory} is not read: {error}")
            return []

    def take(self) -> None:
        """Have the files of the adopted allocations removed as soon as all changes so far are durable."""
        taken = [path for path in self._dead if path not in self._taken]
        if taken:
            self._desire(0.0)
            self._taken |= dict.fromkeys(taken, self._desired)

    def _adopt(self) -> bool:
        """Read and lock the files of dead processes; return whether a living one has a file."""
        files.remove_drafts(self._directory, f"{self._stem}.")
        has_neighbours = False
        found: dict[Path, tuple[int, Contents]] = {}
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
                found[path] = descriptor, self.contents(reading.read_open(descriptor))
            except _OtherKubeletError as other:
                if not os.path.exists(other.plugin_dir):
                    with contextlib.suppress(OSError):  # it is only in the way
                        path.unlink()
                locks.close(descriptor)
            except (_Unreadable, OSError) as error:
                self._set_aside(path, error)
                locks.close(descriptor)
        gone = {uid for _, contents in found.values() for uid in contents.gone}
        for path, (descriptor, contents) in found.items():
            records, damaged = self._records(contents)
            for text in damaged:
                self._tell_damaged(path, text)
            for record in records:
                record.file = path.name
            if damaged and self._scrubs:  # their last lines, with the start of the container, may be missing
                for record in records:
                    record.is_started = record.is_seen = record.is_back = True
            self._dead[path] = descriptor, [each for each in records if each.uid not in gone]
        return has_neighbours

    def _neighbours(self) -> list[AllocationRecord]:
        found: list[AllocationRecord] = []
        for path in self._others():
            with contextlib.suppress(_OtherKubeletError, _Unreadable, OSError):
                found += self._records(self.contents(reading.read(path, follow=False)))[0]
        return found

    def _others(self) -> Iterable[Path]:
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._warn(f"{self._directory} cannot be read: {error.strerror}")
            return []
        ours = self.files
        paths = [self._directory / name for name in names if is_allocation_file(name, self._stem)]
        return [path for path in paths if path not in ours]

    def contents(self, text: bytes) -> Contents:
        """Return the records in the bytes of a file.

        Raises:
            _Unreadable: The file belongs to another resource or version, or is damaged.
            _OtherKubeletError: Another kubelet has the allocations.
        """
        from ...storage.journal import NoRecordsError, read

        try:
            contents = read(text, field="allocations")
        except NoRecordsError as error:
            self._check(error.head)  # a later version may have no list
            raise _Unreadable(f"it is broken ({error})") from None
        except ValueError as error:
            raise _Unreadable(f"it is broken ({type(error).__name__}: {error})") from None
        self._check(contents.head)
        return contents

    def _check(self, head: Mapping[str, Any]) -> None:
        """Check the fields of a file before its records.

        Raises:
            _Unreadable, _OtherKubeletError: As of `contents`.
        """
        version = head.get("version")
        if isinstance(version, int) and version > VERSION:
            raise _Unreadable(f"it has version {version}, but this kdp reads version {VERSION} only")
        if version != VERSION or head.get("resource") != self._resource:
            raise _Unreadable(f"it says version {version!r} and resource {head.get('resource')!r}")
        if (plugin_dir := str(head.get("plugin_dir", self._plugin_dir))) != self._plugin_dir:
            raise _OtherKubeletError(plugin_dir)

    def checked(self, contents: Contents) -> list[AllocationRecord]:
        """Return the allocations of a file, without the damaged ones.

        Raises:
            _Unreadable, _OtherKubeletError: As of `contents`.
        """
        self._check(contents.head)
        return self._records(contents)[0]

    def _records(self, contents: Contents) -> tuple[list[AllocationRecord], list[str]]:
        """Return the allocations of a file, and the texts of those that are damaged."""
        records: list[AllocationRecord] = []
        damaged = list(contents.damaged)
        for each in contents.records.values():
            try:
                record = self._saved(each)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                damaged.append(f"{each!r} ({type(error).__name__}: {error})")
            else:
                records += [record] if record.ids else []
        return records, damaged

    def _saved(self, each: Mapping[str, Any]) -> AllocationRecord:
        """Return an allocation of a file.

        Raises:
            AttributeError, IndexError, KeyError, TypeError, ValueError: It is none.
        """
        from ...supervision.counters import consumption_of_json  # late: most starts find no allocation

        at, back_at = (
            (str(boot), float(second)) for boot, second in (each.get(n, ("", 0.0)) for n in ("at", "back_at"))
        )
        return AllocationRecord(
            uid=str(each["uid"]),
            resource=self._resource,
            ids=tuple(sorted({str(i) for i in each["ids"]})),
            state=dict(each["state"]),
            given={str(i): Given.of_json(saved) for i, saved in each.get("given", {}).items()},
            consumes={str(i): consumption_of_json(saved) for i, saved in each.get("consumes", {}).items()},
            numa_nodes={str(i): tuple(map(int, nodes)) for i, nodes in each.get("numa", {}).items()},
            suspects=frozenset((str(space), str(pod)) for space, pod in each["pods"]) if "pods" in each else None,
            pod=(str(each["pod"][0]), str(each["pod"][1])) if "pod" in each else None,
            is_started=bool(each.get("started", True)),
            is_back=bool(each.get("back", False)),
            is_seen=bool(each["seen"]),
            at=at,
            back_at=back_at,
        )

    def _tell_damaged(self, path: Path, text: str) -> None:
        self.has_lost = True
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
        extra = {"resource": self._resource, "path": str(path)}
        text = "a saved allocation is damaged and left out"
        logger.error("%s: %s: %s in %s", self._resource, text, shown, path, extra=extra)

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
        leaves_state: Whether a hook may leave a state that ``released`` needs.
        adopted: Called when it is known what earlier processes gave.
    """

    __repr__ = shown

    backend: DeviceBackend
    wants_release: bool
    has_counters: bool = False
    scrubs: bool = False
    place: Callable[[str], str] | None = None
    leaves_state: bool = False
    adopted: Callable[[], object]

    @property
    def is_asked_for(self) -> bool:
        """Whether each allocation has a record, also without a state and without nodes."""
        return self.wants_release or self.has_counters or self.place is not None


@final
@attrs.define(eq=False)
class KeptResource:
    """The file, devices, and records of one resource, also after the end of its plugin.

    Attributes:
        store: Its file; `None` before the first save.
        is_adopting: Whether a take-over of the files of ended processes runs.
        adopted: Set after the first take-over.
        devices: Its devices as they were at Allocate.
        intended: The records of Allocates that run a hook, by uid.
        is_unfilled: Whether a List may name devices with a forgotten allocation.
        mark: The mark of the directory at the last take-over; see `AllocationRecords.mark`.
    """

    __repr__ = shown

    name: str
    owner: AllocationOwner
    image: Callable[[AllocationRecord], Mapping[str, Any]]
    store: AllocationStore | None = None
    is_adopting: bool = False
    adopted: asyncio.Event = attrs.field(factory=asyncio.Event)
    devices: dict[str, Device] = attrs.field(factory=dict[str, Device])
    intended: dict[str, AllocationRecord] = attrs.field(factory=dict[str, AllocationRecord])
    is_unfilled: bool = True
    mark: int | None = None

    @property
    def has_neighbours(self) -> bool:
        """Whether another process of this plugin had a file at the last look."""
        return self.store is not None and self.store.has_neighbours

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
                image=self.image,
            )
        return self.store


def is_allocation_file(name: str, stem: str) -> bool:
    """Return whether a file is one of allocations, by its name: others of the same resource lie beside it."""
    return re.fullmatch(rf"{re.escape(stem)}\.[0-9a-f]+\.json", name) is not None


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
    found: list[tuple[str, AllocationRecord]] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):
            path = directory / name
            if path not in own and not name.startswith(".") and name.endswith(".json"):
                with contextlib.suppress(_OtherKubeletError, _Unreadable, OSError, ValueError):
                    from ...storage.journal import read

                    contents = read(reading.read(path, follow=False), field="allocations")
                    store = AllocationStore(directory, str(contents.head.get("resource")), plugin_dir)
                    found += [(str(contents.head.get("class", "")), each) for each in store.checked(contents)]
    return found


def is_abandoned(directory: Path, resource: str) -> bool:
    """Return whether a resource has files and no process holds one of them. Blocks for the disk."""
    held: list[bool] = []
    stem = resource.replace("/", "_")
    for path in [each for each in directory.glob(f"{stem}.*.json") if is_allocation_file(each.name, stem)]:
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
