"""What is remembered of each claim: one file a claim, in a directory that outlives the process.

::

    <data dir>/claims/<claim uid>.json
    {"format":"kdp-dra-claim","version":1,"readable_by":1,"sha256":"…"}
    {"claim":{…},"is_complete":true,"boot_id":"…","parts":[…],"devices":[…],"spec":{…},"config":[…]}

* The digest is over the bytes of the second line as they lie on the disk, so that a field more or less is no damage.
* A file is replaced whole, and synced before it gets its name: a reader finds the old one or the new one. A new
  name and one that goes are synced, too. Where a name stays, a loss of power may bring the old file back; it says less,
  and what it does not say is done again.
* ``started`` is on the disk before the backend is asked to touch hardware, ``complete`` when the CDI spec is there.
  What is only started may be in any state, and both Prepare and Unprepare know what to do with it.
* A later version may add fields: it says by which version its files can still be read, and this one keeps the fields
  that it does not know. Both ways of an update work, forth and back.
* A file that is broken, of another claim than its name says, of a version that says that we cannot read it, or no
  regular file is set aside under another name and said.
* ``over_since`` marks a claim that is unprepared and whose ``released`` is owed. Earlier versions keep the field, and
  see a claim that is only started: they undo it when it leaves the API.
* ``.<claim uid>.json.copy`` is a second copy of a record if only the record has what ``released`` needs: the state that
  a hook left, or a claim that is over and has no CDI spec any more. It is read if the record is damaged or missing.
  The copy is not synced, goes before the record, and may lag one step behind it.

Several processes may work on the same directory, as in a rolling update: `Locks` has one lock for each claim and one
for the whole, as ranges of one file. The kernel drops them when their holder dies.

Everything here blocks for the disk; `kdp.concurrency.threads.offload` takes it off the loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final
from urllib.parse import quote

import attrs

from ...errors import CheckpointError
from ...model.claims import Claim
from ...model.quantities import Quantity
from ...storage import files, reading
from ...supervision.claimed import seal, unseal
from ...supervision.given import Given

if TYPE_CHECKING:
    from pathlib import Path

    from ...supervision.service import HeldClaim

logger = logging.getLogger(__name__)

_ASIDE = ".set-aside-"
_COPY = ".copy"

_T = TypeVar("_T")
_Json = dict[str, Any]

_OF_ALLOCATION: Final = ("request", "pool", "name", "device_id", "share_id", "is_admin", "consumed")
"""Fields of a `Use` that say what the scheduler allocated; the others are the answer to the kubelet."""


@final
@attrs.frozen(kw_only=True)
class Use:
    """One device as a claim has it: a result of the allocation, and what the kubelet is told of it.

    Attributes:
        request: The request's full name.
        pool: The pool's name.
        name: The device's name in the API.
        device_id: Its id here.
        share_id: Which share of it; "": it is not shared.
        is_admin: Whether it is admin access.
        consumed: What the claim has of its capacities.
        cdi_ids: What the container runtime is to add; may be none.
        network: What is known of its network interface, as the API has it.
        given: What of the device its CDI spec names for good.
    """

    request: str
    pool: str
    name: str
    device_id: str
    share_id: str = ""
    is_admin: bool = False
    consumed: Mapping[str, str] = attrs.field(factory=dict[str, str], hash=False)
    cdi_ids: tuple[str, ...] = ()
    network: Mapping[str, Any] = attrs.field(factory=dict[str, Any], hash=False)
    given: Given = attrs.field(factory=Given)

    @property
    def base(self) -> str:
        """The request's name as the kubelet knows it."""
        return self.request.partition("/")[0]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Which result of an allocation it is."""
        return self.request, self.pool, self.name, self.share_id


@final
@attrs.frozen(kw_only=True)
class ClaimPart:
    """What one call of ``allocate`` is about, and what is left of it.

    Attributes:
        request: The request's full name.
        resource: The extended resource that the devices are of.
        uses: Its devices.
        state: What the backend's hooks left.
        is_released: Whether ``released`` was told.
    """

    request: str
    resource: str
    uses: tuple[Use, ...]
    state: Mapping[str, Any] = attrs.field(factory=dict[str, Any], hash=False)
    is_released: bool = False

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, str, str, str], ...]]:
        """Which part of an allocation it is."""
        return self.request, self.resource, tuple(use.key for use in self.uses)

    @property
    def consumed(self) -> Mapping[str, Mapping[str, Quantity]]:
        """What the claim has of the devices' capacities, by device id and capacity."""
        return {
            use.device_id: {name: Quantity(amount) for name, amount in use.consumed.items()}
            for use in self.uses
            if use.consumed
        }

    @property
    def share_id(self) -> Mapping[str, str]:
        """Which shares they are, by device id."""
        return {use.device_id: use.share_id for use in self.uses if use.share_id}

    @property
    def is_admin(self) -> bool:
        """Whether it is admin access, which a request has to all of its devices or to none."""
        return any(use.is_admin for use in self.uses)

    def as_json(self) -> dict[str, Any]:
        """Return what it is about."""
        uses = [{name: getattr(use, name) for name in _OF_ALLOCATION} for use in self.uses]
        return {"request": self.request, "resource": self.resource, "uses": uses}


@final
@attrs.frozen(kw_only=True)
class Record:
    """One claim.

    Attributes:
        claim: Its names.
        is_complete: Whether it is prepared; otherwise its hardware may be in any state.
        boot_id: The boot of the node in which that was; "": unknown.
        parts: The calls of ``allocate``.
        spec: The CDI spec, as JSON has it, with the nodes as they were declared; None: it needs none.
        config: The parameters that it was prepared with, as the API has them.
        pod_claim: What the pod calls the claim, if it was made of a template; "": it was not.
        class_name: The backend's class; "" if an older version wrote the record.
        over_since: The time of the claim's Unprepare, in seconds since the epoch, if its release is owed; 0: it is not.
        more: Fields of a later version.
    """

    claim: Claim
    is_complete: bool = False
    boot_id: str = ""
    parts: tuple[ClaimPart, ...] = ()
    spec: Mapping[str, Any] | None = None
    config: tuple[Mapping[str, Any], ...] = ()
    pod_claim: str = ""
    class_name: str = ""
    over_since: float = 0.0
    more: Mapping[str, Any] = attrs.field(factory=dict[str, Any])

    @property
    def is_over(self) -> bool:
        """Whether the claim is unprepared, and its release is owed."""
        return self.over_since > 0

    @property
    def uses(self) -> tuple[Use, ...]:
        """The devices that the claim has, in the order of the allocation's results within each request."""
        return tuple(use for part in self.parts for use in part.uses)

    @property
    def owed(self) -> tuple[Use, ...]:
        """Those of which ``released`` has not been told, if there is such a hook."""
        return tuple(use for part in self.parts if not part.is_released for use in part.uses)

    @property
    def held(self) -> HeldClaim:
        """What people want to know of it."""
        from ...supervision.service import HeldClaim  # late: it loads gRPC

        name = f"{self.claim.namespace}/{self.claim.name}"
        ids = tuple(dict.fromkeys(use.device_id for use in self.uses))
        return HeldClaim(name=name, uid=self.claim.uid, devices=ids, is_prepared=self.is_complete, is_over=self.is_over)

    @property
    def keys(self) -> frozenset[tuple[str, str, str, str]]:
        """Which results of an allocation these are; see `Use.key`."""
        return frozenset(use.key for use in self.uses)

    @property
    def needs_copy(self) -> bool:
        """Whether ``released`` needs something that only the record has."""
        return any(not part.is_released and (part.state or self.is_over) for part in self.parts)

    def with_part(self, position: int, part: ClaimPart) -> Record:
        """Return the record with another part at a position."""
        return attrs.evolve(self, parts=(*self.parts[:position], part, *self.parts[position + 1 :]))

    def encode(self) -> bytes:
        """Return the bytes of its file."""
        body = {
            **self.more,
            "claim": attrs.asdict(self.claim, recurse=False),
            "is_complete": self.is_complete,
            "boot_id": self.boot_id,
            "parts": [{**part.as_json(), "state": part.state, "is_released": part.is_released} for part in self.parts],
            "devices": [
                {
                    "request": use.base,
                    "pool": use.pool,
                    "name": use.name,
                    "cdi_ids": use.cdi_ids,
                    "share_id": use.share_id,
                    "network": use.network,
                    "given": use.given.as_json(),
                }
                for use in self.uses
            ],
            "spec": self.spec,
            "config": list(self.config),
            "pod_claim": self.pod_claim,
            "class_name": self.class_name,
            "over_since": self.over_since,
        }
        return seal(body)

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """Return what is in a file.

        Raises:
            CheckpointError: It is broken, or cannot be read by this version; the text says which.
        """
        body = unseal(data)
        try:
            return cls._of_body(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"it is broken ({type(error).__name__}: {error})") from None

    @classmethod
    def _of_body(cls, body: _Json) -> Record:
        own = {field.name for field in attrs.fields(cls)} | {"devices"}
        spec, config = body["spec"], tuple(body["config"])
        if not all(map(_is_object, config if spec is None else (spec, *config))):
            raise TypeError("spec and config must be objects")
        answers = iter(body["devices"])
        is_complete = bool(body["is_complete"])
        # An earlier version that prepared the claim again has kept the field.
        over_since = 0.0 if is_complete else float(body.get("over_since", 0.0))
        return cls(
            claim=typed(Claim, body["claim"]),
            is_complete=is_complete,
            boot_id=str(body["boot_id"]),
            parts=tuple(part_of(each, answers) for each in body["parts"]),
            spec=spec,
            config=config,
            pod_claim=str(body.get("pod_claim", "")),
            class_name=str(body.get("class_name", "")),
            over_since=over_since,
            more={name: value for name, value in body.items() if name not in own},
        )


def part_of(fields: _Json, answers: Iterable[_Json] = ()) -> ClaimPart:
    """Return a part of a claim as it was saved.

    Args:
        fields: The part.
        answers: What the kubelet is told of its devices and those of the parts behind it, if they are known.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of the wrong type.
    """
    told = iter(answers)
    uses = tuple(_use_of(use, next(told, dict[str, Any]())) for use in fields["uses"])
    return typed(ClaimPart, {"state": {}, "is_released": False, **fields, "uses": uses})


def _use_of(fields: _Json, answer: _Json) -> Use:
    given = Given.of_json(answer["given"]) if answer.get("given") else Given()
    told = {"cdi_ids": tuple(answer.get("cdi_ids", ())), "network": answer.get("network", {}), "given": given}
    return typed(Use, {**fields, **told})


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "tuple[str, ...]": _are_texts,
    "tuple[Use, ...]": lambda value: isinstance(value, tuple),
    "Given": lambda value: isinstance(value, Given),
    "Mapping[str, str]": lambda value: _is_object(value) and _are_texts(value.values()),
    "Mapping[str, Any]": _is_object,
}
"""What JSON may have for a field, by the annotation of the field."""


def typed(cls: type[_T], fields: _Json) -> _T:
    """Return an object of those fields that this version knows.

    Raises:
        TypeError: A field is missing, or is of another type than the class says.
    """
    known = {field.name: str(field.type) for field in attrs.fields(cast("Any", cls))}
    given = {name: value for name, value in fields.items() if name in known}
    for name, value in given.items():
        if not _FITS[known[name]](value):
            raise TypeError(f"{cls.__name__}.{name} must be {known[name]}")
    return cls(**given)


def _is_of(name: str, file: Path) -> bool:
    """Return whether a file is a claim's record, its copy, a record that was set aside, or a killed process's draft."""
    return name == file.name or name.startswith((f"{file.name}{_ASIDE}", f".{file.name}."))


def _copy_of(file: Path) -> Path:
    return file.with_name(f".{file.name}{_COPY}")


def _write_copy(file: Path, data: bytes | None) -> None:
    """Write the copy of a record; `None`: it needs none."""
    copy = _copy_of(file)
    with contextlib.suppress(OSError):  # the record is on the disk, so the caller has not failed
        if data is None:
            copy.unlink(missing_ok=True)
        else:
            files.replace(copy, data, sync="nothing")


class Store:
    """The records of one driver. All methods block.

    Args:
        directory: Where the files are; made when it is needed.

    Attributes:
        set_aside: Claims whose record was broken.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.set_aside: list[str] = []
        self._known: dict[str, Record] = {}
        # `all` may run beside a write: what it has read before is not what is known afterwards.
        self._lock = threading.RLock()

    @property
    def known(self) -> tuple[Record, ...]:
        """The records, as far as this process has seen. It does not block."""
        return tuple(dict(self._known).values())

    @property
    def held(self) -> tuple[HeldClaim, ...]:
        """The claims that have a record, as far as this process has seen. It does not block."""
        return tuple(record.held for record in self.known)

    def _file(self, uid: str) -> Path:
        return self.directory / f"{quote(uid, safe='')}.json"

    def read(self, uid: str) -> Record | None:
        """Return a claim's record; None: there is none, or none that can be read: that one is set aside.

        Raises:
            CheckpointError: The disk does not give it.
        """
        return self._read(self._file(uid))

    def all(self) -> list[Record]:
        """Return all records, in the order of their UIDs.

        Raises:
            CheckpointError: The disk does not give them.
        """
        with self._lock:
            try:
                names = os.listdir(self.directory)  # `Path.glob` takes one that cannot be read for empty
            except FileNotFoundError:
                names = []
            except OSError as error:
                raise self._error(self.directory, "read", error) from None
            copied = (name[1:].removesuffix(_COPY) for name in names if name.endswith(f".json{_COPY}"))
            own = (name for name in names if name.endswith(".json"))
            found = sorted({name for name in (*copied, *own) if not name.startswith(".")})
            records = [record for name in found if (record := self._read(self.directory / name)) is not None]
            self._known = {record.claim.uid: record for record in records}
            return records

    def write(self, record: Record, *, must_last: bool = True) -> None:
        """Replace a claim's record; when it returns, it is on the disk.

        Args:
            record: The record.
            must_last: Whether a new one must outlive a loss of power; otherwise there may be none after it.

        Raises:
            CheckpointError: It is not, and the old one is still there.
        """
        file = self._file(record.claim.uid)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync: files.Sync = "name" if must_last and not file.exists() else "content"
            with self._lock:
                data = record.encode()
                files.replace(file, data, sync=sync)
                self._known[record.claim.uid] = record
                _write_copy(file, data if record.needs_copy else None)
        except OSError as error:
            raise self._error(file, "written", error) from None

    def draft(self, record: Record) -> files.Draft:
        """Write what is to replace a claim's record later; see `kdp.storage.files.draft`.

        Raises:
            CheckpointError: It cannot be written.
        """
        file = self._file(record.claim.uid)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return files.draft(file, record.encode())
        except OSError as error:
            raise self._error(file, "written", error) from None

    def commit(self, draft: files.Draft, record: Record) -> None:
        """Let a draft replace a claim's record.

        Raises:
            CheckpointError: The old record is still there.
        """
        with self._lock:
            try:
                draft.commit()
                self._known[record.claim.uid] = record
                _write_copy(draft.file, record.encode() if record.needs_copy else None)
            except OSError:  # somebody took it for a dead process's
                self.write(record)

    def remove(self, uid: str) -> bool:
        """Forget a claim whose lock is held, also what was set aside of it. Return whether there was anything.

        Raises:
            CheckpointError: It is still there.
        """
        file = self._file(uid)
        with self._lock:
            try:
                # The record goes last: a copy without a record would be taken for one.
                names = [name for name in os.listdir(self.directory) if _is_of(name, file)]
                names.sort(key=file.name.__eq__)
                for path in (self.directory / name for name in names):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        files.remove(path)
            except FileNotFoundError:
                names = []
            except OSError as error:
                raise self._error(file, "removed", error) from None
            self._known.pop(uid, None)
        self.set_aside = [each for each in self.set_aside if each != file.name.removesuffix(".json")]
        return bool(names)

    def remove_drafts(self) -> None:
        """Remove what processes have left that were killed while they wrote."""
        files.remove_drafts(self.directory)

    def _read(self, file: Path) -> Record | None:
        try:
            return self._decoded(file, file)
        except FileNotFoundError:
            return self._copied(file)
        except (CheckpointError, reading.UnusableFileError) as problem:
            error = problem.strerror if isinstance(problem, OSError) else problem
            aside = file.with_name(f"{file.name}{_ASIDE}{time.time_ns()}")
            try:
                file.rename(aside)
            except OSError as refused:
                raise CheckpointError(f"{file}: {error}; nor can it be set aside: {refused.strerror}") from None
            logger.error("%s: %s; set aside as %s", file, error, aside.name, extra={"path": str(aside)})
            if (name := file.name.removesuffix(".json")) not in self.set_aside:
                self.set_aside.append(name)
            copy = self._copied(file)
            if copy is not None:
                logger.warning("%s: read from its copy %s", file, _copy_of(file).name, extra={"path": str(file)})
            return copy
        except OSError as error:
            raise self._error(file, "read", error) from None

    def _copied(self, file: Path) -> Record | None:
        """Return what the copy of a missing record says; `None` if there is no copy, or a damaged one."""
        try:
            return self._decoded(_copy_of(file), file)
        except (FileNotFoundError, CheckpointError, reading.UnusableFileError):
            return None
        except OSError as error:
            raise self._error(_copy_of(file), "read", error) from None

    def _decoded(self, path: Path, file: Path) -> Record:
        """Return what a path says about the claim that has a file.

        Raises:
            CheckpointError: It is broken, or of another claim.
            OSError: It cannot be read.
        """
        record = Record.decode(reading.read(path, follow=False))
        if self._file(record.claim.uid).name != file.name:
            raise CheckpointError(f"it is of claim {record.claim.uid!r}, which has another file")
        return record

    @staticmethod
    def _error(path: Path, what: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{path} cannot be {what}: {error.strerror}; kdp must keep there what claims hold across a restart"
        )
