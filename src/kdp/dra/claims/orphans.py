"""`Orphans`: claims whose record is lost, claims that nobody unprepares, and files that were never finished.

Source: DRA contract section 3.4.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from ...cdi import CdiDirectory, parse_spec
from ...cluster.api import ApiError
from ...concurrency.threads import offload
from ...errors import CheckpointError, InvalidValueError
from ...model.names import check_claim_uid
from ...storage import reading
from .cdi_specs import kind_of, record_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ...model.claims import Claim
    from .checkpoint import Record, Store
    from .claim_locks import Locks

logger = logging.getLogger(__name__)


class Orphans:
    """What earlier lives of a driver, and a kubelet that forgets, have left on the disk. asyncio only.

    Args:
        driver: The driver's name.
        store: The records.
        locks: One thing at a time for each claim, in all processes.
        cdi: Where container runtimes find specs.
        fetch: Asks the API for a claim; raises `ApiError`.
    """

    def __init__(
        self,
        driver: str,
        *,
        store: Store,
        locks: Locks,
        cdi: CdiDirectory,
        fetch: Callable[[Claim], Awaitable[Mapping[str, Any]]],
    ) -> None:
        self._driver = driver
        self._kind = kind_of(driver)
        self._store = store
        self._locks = locks
        self._cdi = cdi
        self._fetch = fetch
        self._missing: dict[str, float] = {}

    def known(self) -> list[Record]:
        """Return the records of all claims, also of those that only their CDI specs tell of. Blocks.

        Raises:
            CheckpointError: The disk does not give them.
        """
        records = self._store.all()
        uids = {record.claim.uid for record in records}
        lost = (uid for uid in self._parts() if uid not in uids and _is_uid(uid))
        return [*records, *(record for record in map(self.rebuilt, lost) if record is not None)]

    def _parts(self) -> list[str]:
        """Return the UIDs that CDI specs are of.

        Raises:
            CheckpointError: The directory cannot be read. Taken for empty, a claim's device would look free.
        """
        try:
            return self._cdi.parts(self._kind)
        except OSError as error:
            raise CheckpointError(f"{self._cdi.path} cannot be read: {error.strerror}") from None

    async def recover(self) -> list[str]:
        """Make the records of claims anew that only their CDI specs tell of; returns their UIDs.

        Raises:
            CheckpointError: The disk does not take it.
        """
        made: list[str] = []
        known = {record.claim.uid for record in await offload(self._store.all)}
        for uid in await offload(self._parts):
            if uid in known or not _is_uid(uid):
                continue
            async with self._locks.claim(uid):
                if await offload(lambda uid=uid: self._recover(uid)):  # type: ignore[misc]
                    made.append(uid)
                    logger.warning("%s: claim %s was found again by its CDI spec", self._driver, uid)
        return made

    def _recover(self, uid: str) -> bool:
        record = self.rebuilt(uid)
        if record is None or self._store.read(uid) is not None:
            return False
        self._store.write(record)
        return True

    def rebuilt(self, uid: str) -> Record | None:
        """Return a record made from a claim's CDI spec; None: there is none, or it says nothing. Blocks.

        Raises:
            CheckpointError: It cannot be read now, as without a free file descriptor.
        """
        file = self._cdi.file(self._kind, uid)
        try:
            record = record_of(parse_spec(reading.read(file, follow=False), where=str(file)))
        except (FileNotFoundError, NotADirectoryError, reading.UnusableFileError, InvalidValueError):
            return None
        except OSError as error:
            text = f"{file} cannot be read: {error.strerror}; kdp needs it to undo the claim, and tries again"
            raise CheckpointError(text) from None
        return record if record is not None and record.claim.uid == uid else None

    async def gone(self, *, grace: float) -> list[Claim]:
        """Return claims that left the API so many seconds ago; a claim that cannot be read stays.

        Removes unfinished files, too. Not only at the start: then they are too young.

        Raises:
            CheckpointError: The disk does not say what there is.
        """
        await offload(self._remove_drafts)
        records = await offload(self.known)
        self._missing = {uid: at for uid, at in self._missing.items() if uid in {r.claim.uid for r in records}}
        found: list[Claim] = []
        for claim in [record.claim for record in records]:
            gone = await self._is_gone(claim)
            if gone is None:
                continue
            if not gone:
                self._missing.pop(claim.uid, None)
                continue
            if time.monotonic() - self._missing.setdefault(claim.uid, time.monotonic()) >= grace:
                found.append(claim)
        return found

    def _remove_drafts(self) -> None:
        self._store.remove_drafts()
        self._cdi.remove_drafts()

    async def _is_gone(self, claim: Claim) -> bool | None:
        try:
            item = await self._fetch(claim)
        except ApiError as error:
            return True if error.status == 404 else None
        return bool(item["metadata"]["uid"] != claim.uid)


def _is_uid(name: str) -> bool:
    try:
        check_claim_uid(name)
    except InvalidValueError:
        return False
    return True
