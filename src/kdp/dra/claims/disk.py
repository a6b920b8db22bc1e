"""`ClaimFiles`: all that the disk has of a driver's claims, their records, CDI specs, and metadata files.

A claim whose record is lost is found again by its CDI spec. The processes of a driver work on its claims one after the
other, by `Locks`.

Source: DRA contract section 3.4.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ...cdi import parse_spec
from ...errors import CheckpointError, InvalidValueError
from ...model.names import check_claim_uid
from ...storage import locks, reading
from ...storage.files import why_no_file
from ...supervision.claimed import CLAIMS, SERIALIZE
from .cdi_specs import current, kind_of, record_of
from .checkpoint import Store
from .metadata import MetadataFiles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from ...cdi import CdiDirectory
    from ...hardware import Host
    from ...model.devices import Device
    from .checkpoint import Record

LOCK_PATIENCE = 30.0
"""Seconds that another process may work on a claim before we give up; the kubelet waits for 45."""

LOCK_PAUSE = 0.02
_WHOLE = 0


class ClaimFiles:
    """The files of one driver's claims. All methods block for the disk.

    Args:
        driver: The driver's name.
        directory: The driver's data directory; several processes may share it.
        cdi: Where container runtimes find specs.
        host: The node's files.

    Attributes:
        store: The records.
        metadata: What containers are told of their devices.
        locks: Held by who works on them.
    """

    def __init__(self, driver: str, *, directory: Path, cdi: CdiDirectory, host: Host) -> None:
        self.store = Store(directory / CLAIMS)
        self.metadata = MetadataFiles(directory, driver=driver, host=host)
        self.locks = Locks(directory / SERIALIZE)
        self._kind = kind_of(driver)
        self._cdi = cdi
        self._host = host

    def read(self, uid: str) -> Record | None:
        """Return what is remembered of a claim, by its record or, without one, by its CDI spec; None: nothing is.

        Raises:
            CheckpointError: The disk does not say, as without a free file descriptor.
        """
        return self.store.read(uid) or self._rebuilt(uid)

    def known(self) -> list[Record]:
        """Return the records of all claims, also of those that only their CDI specs tell of.

        Raises:
            CheckpointError: The disk does not give them. Taken for empty, a claim's device would look free.
        """
        records = self.store.all()
        uids = {record.claim.uid for record in records}
        try:
            parts = self._cdi.parts(self._kind)
        except OSError as error:
            raise CheckpointError(f"{self._cdi.path} cannot be read: {error.strerror}") from None
        lost = (uid for uid in parts if uid not in uids and _is_uid(uid))
        return [*records, *(record for record in map(self._rebuilt, lost) if record is not None)]

    def recover(self, uid: str) -> bool:
        """Write the record of a claim that only its CDI spec tells of; return whether it still was so.

        Raises:
            CheckpointError: The disk does not take it.
        """
        record = self._rebuilt(uid)
        if record is None or self.store.read(uid) is not None:
            return False
        self.store.write(record)
        return True

    def _rebuilt(self, uid: str) -> Record | None:
        """Return a record made from a claim's CDI spec; None: there is none, or it says nothing."""
        file = self._cdi.file(self._kind, uid)
        try:
            record = record_of(parse_spec(reading.read(file, follow=False), where=str(file)))
        except (FileNotFoundError, NotADirectoryError, reading.UnusableFileError, InvalidValueError):
            return None
        except OSError as error:
            text = f"{file} cannot be read: {error.strerror}; kdp needs it to undo the claim, and tries again"
            raise CheckpointError(text) from None
        return record if record is not None and record.claim.uid == uid else None

    def write(self, record: Record, known: Mapping[str, Device], *, must_last: bool = True) -> None:
        """Write a claim's CDI spec, and then its record; see `Store.write`.

        Raises:
            CdiWriteError: The spec is not written.
            CheckpointError: The record is not.
        """
        self.write_spec(record, known)
        self.store.write(record, must_last=must_last)

    def write_spec(self, record: Record, known: Mapping[str, Device]) -> None:
        """Write a claim's CDI spec as it is to be seen now, of these devices.

        Raises:
            CdiWriteError: It is not written.
        """
        spec = current(record, known, self._host)
        if spec is None:
            self.remove_spec(record.claim.uid)
        else:
            self._cdi.write(spec, record.claim.uid)

    def remove_spec(self, uid: str) -> bool:
        """Remove a claim's CDI spec; return whether there was one.

        Raises:
            CdiWriteError: It is still there.
        """
        return self._cdi.remove_part(self._kind, uid)

    def has_spec(self, uid: str) -> bool:
        """Return whether a claim's CDI spec is there; somebody may have removed it."""
        return self._cdi.file(self._kind, uid).exists()

    def remove(self, uid: str) -> bool:
        """Remove a claim's CDI spec, its metadata, and then its record; return whether it had a spec or a record.

        Raises:
            CdiWriteError: The spec is still there.
            CheckpointError: Something else is.
        """
        had_spec = self.hide(uid)
        return self.store.remove(uid) or had_spec

    def hide(self, uid: str) -> bool:
        """Remove what containers get of a claim, its CDI spec and its metadata; return whether it had a spec.

        Raises:
            CdiWriteError: The spec is still there.
            CheckpointError: The metadata is.
        """
        had_spec = self.remove_spec(uid)
        self.metadata.remove(uid)
        return had_spec

    def remove_drafts(self) -> None:
        """Remove what processes have left that were killed while they wrote."""
        self.store.remove_drafts()
        self._cdi.remove_drafts()

    def obstacles(self, *, surely: bool) -> Mapping[str, str]:
        """Return why no claim can be prepared, whatever it asks for, by directory: ``cdi``, ``claims``.

        ``surely`` is that of `kdp.storage.files.why_no_file`.
        """
        found: dict[str, str] = {}
        for directory, name, what in ((self._cdi.path, "cdi", "CDI files"), (self.store.directory, "claims", "claims")):
            why = why_no_file(directory, surely=surely)
            if why is not None:
                text = f"{what} cannot be written in {directory} ({why}); mount it writable"
                found[name] = f"no claim can be prepared: {text}"
        return found


def _is_uid(name: str) -> bool:
    try:
        check_claim_uid(name)
    except InvalidValueError:
        return False
    return True


class Locks:
    """Locks that processes share: one for each claim, one for the whole. asyncio only.

    Ranges of bytes of one file, by open file descriptions, so that the kernel gives them back when a process dies. A
    lock of the whole file excludes all of them; drivers that are written with the Go helper take that one.

    Args:
        file: The file; made when it is needed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held = WeakValueDictionary[int, asyncio.Lock]()  # a lock that nobody holds or awaits is forgotten

    def claim(self, uid: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Work on a claim alone."""
        digest = hashlib.sha256(uid.encode(errors="surrogatepass")).digest()
        return self._range(1 + int.from_bytes(digest[:7], "big"), f"claim {uid}")

    def whole(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Compare all claims with one another, alone; to be held briefly, inside a claim's."""
        return self._range(_WHOLE, "the claims")

    @contextlib.asynccontextmanager
    async def _range(self, start: int, what: str) -> AsyncGenerator[None]:
        lock = self._held.get(start) or self._held.setdefault(start, asyncio.Lock())
        async with lock:  # first in first out among ourselves
            descriptor = await self._acquire(start, what)
            try:
                yield
            finally:
                locks.close(descriptor)

    async def _acquire(self, start: int, what: str) -> int:
        until = time.monotonic() + LOCK_PATIENCE
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = locks.open_file(self._file)
        except OSError as error:
            raise CheckpointError(f"{self._file} cannot be opened: {error.strerror}; mount it writable") from None
        try:
            while not locks.lock(descriptor, start):
                if time.monotonic() > until:
                    raise CheckpointError(
                        f"another process of this driver has worked on {what} for {LOCK_PATIENCE:g} s; it is tried "
                        "again"
                    )
                await asyncio.sleep(LOCK_PAUSE)
        except BaseException:
            locks.close(descriptor)
            raise
        return descriptor
