"""The device table of one resource: what the kubelet is to be told, and when. Sans-IO: no clock, no socket, no task.

Devices go in (`Inventory.update`), an immutable `ListSnapshot` comes out, and `Inventory.next` tells each ListAndWatch
stream whether to send, to wait, or to sleep. The wire encoding is a function given from outside.

Invariants, each with a mutant in the tests that breaks it:

1. The message of a snapshot equals its table: each id once, with its health and, if all have one, its topology.
2. No event loses a device: an id that vanished from the hardware stays, Unhealthy, until its tombstone expires, is
   forgotten, or it comes back (contract section 9: the kubelet shows a vanished id as healthy to the pod that holds
   it).
3. The version grows exactly when the message changes; handles, edits and reasons are replaced without a new version.
4. A refused list changes nothing: the table and the message before stay in force.
5. A list that is accepted fits 4 MiB also if every device turns Unhealthy (contract section 5).
6. A stream gets the first change at once, later ones at least `MIN_GAP` apart, and the last state always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import final

import attrs

from ..errors import InvalidValueError, ListTooLargeError
from ..model.devices import Device, Health
from ..startup import shown
from ..supervision.change_log import Transition
from ..supervision.conditions import VANISHED, health_of

MAX_LIST_BYTES = 4_194_304
"""What grpc-go receives in one message; the kubelet does not raise it (contract section 0.1)."""

MIN_GAP = 0.055
"""Seconds between two lists of a burst: at most 19 in any second (contract section 13, scenario 8, allows 20)."""

TOMBSTONE_SECONDS = 600.0
"""Seconds for which a vanished device stays listed without the pod-resources API (docs/explanation/decisions.md)."""

GONE = "the device is gone"
"""The reason of a tombstone."""

Encode = Callable[[Device, bool], bytes]
"""Turns a device, with its topology or without, into its bytes in the list message."""


@final
@attrs.frozen(kw_only=True)
class ListChange:
    """What an update did, for logs and observers.

    Attributes:
        transitions: New devices and changes of health, in the table's order.
        removed: Ids that have left the list.
        topology_lost_by: The first device without a NUMA node that makes the whole resource lose its topology, when
            that has just begun; else None.
        on_wire: Whether the kubelet is to be told.
    """

    __repr__ = shown

    transitions: tuple[Transition, ...]
    removed: tuple[str, ...]
    topology_lost_by: str | None
    on_wire: bool


_NOTHING = ListChange(transitions=(), removed=(), topology_lost_by=None, on_wire=False)


@final
@attrs.define
class ListSnapshot:
    """The table at one moment.

    Attributes:
        version: Grows when the message changes.
        devices: All listed devices by id, tombstones among them as Unhealthy. A newer snapshot of the same version
            may hold newer handles, edits and reasons.
    """

    __repr__ = shown

    version: int
    devices: Mapping[str, Device]


@final
@attrs.define
class Cursor:
    """How far one stream is.

    Attributes:
        version: The last version sent; None: nothing yet.
        sent_at: When.
    """

    __repr__ = shown

    version: int | None = None
    sent_at: float = float("-inf")


class Inventory:
    """The versioned device table of one resource.

    Args:
        encode: See `Encode`.
        worst_case: Bytes of an encoded device if it were Unhealthy, given its bytes and whether it is healthy.
        tombstone_seconds: How long a vanished device stays listed as Unhealthy.
        max_bytes: The kubelet's limit for one message.

    Attributes:
        snapshot: The newest state; None until the first update was accepted.
    """

    def __init__(
        self,
        *,
        encode: Encode,
        worst_case: Callable[[bytes, bool], int],
        tombstone_seconds: float = TOMBSTONE_SECONDS,
        max_bytes: int = MAX_LIST_BYTES,
    ) -> None:
        self._encode = encode
        self._worst_case = worst_case
        self._tombstone_seconds = tombstone_seconds
        self._max_bytes = max_bytes
        self._table: dict[str, Device] = {}
        self._tombstones: dict[str, float] = {}
        self._with_topology = True
        self._pieces: dict[str, bytes] = {}
        self._message: bytes | None = None
        self._worst: dict[str, int] = {}
        self._worst_total = 0
        self.snapshot: ListSnapshot | None = None

    @property
    def message(self) -> bytes:
        """The serialised ListAndWatchResponse of the newest snapshot: made once, shared by all streams."""
        if self._message is None:
            self._message = b"".join(self._pieces.values())
        return self._message

    @property
    def tombstones(self) -> frozenset[str]:
        """Ids that are listed although the hardware no longer has them."""
        return frozenset(self._tombstones)

    @property
    def next_expiry(self) -> float | None:
        """When the next tombstone expires; None: there is none."""
        return min(self._tombstones.values(), default=None)

    def update(
        self, devices: Iterable[Device], now: float, *, answering: Mapping[str, Health] | None = None
    ) -> ListChange:
        """Take the whole truth about the hardware.

        Args:
            devices: All devices of this resource that are there; ids are unique (the caller has checked).
            now: The time in seconds on any clock that only grows.
            answering: The health of vanished devices that pods hold and whose hardware answers under another name, by
                id: a kubelet that starts again refuses the container of an Unhealthy device.

        Raises:
            ListTooLargeError: All of them Unhealthy would not fit the kubelet's limit. Nothing has changed.
        """
        table = {device.id: device for device in devices}
        tombstones: dict[str, float] = {}
        for device_id in [device_id for device_id in self._table if device_id not in table]:
            until = self._tombstones.get(device_id, now + self._tombstone_seconds)
            health = (answering or {}).get(device_id) or _gone(now)
            device = self._table[device_id]
            if device_id not in self._tombstones or device.health != health:
                device = attrs.evolve(device, health=health)
            if until > now:
                tombstones[device_id] = until
                table[device_id] = device
        return self._replace(table, tombstones)

    def hold(self, ids: Iterable[str], now: float) -> None:
        """Keep these tombstones: a pod holds the devices now, so the time after which they go begins anew."""
        for device_id in ids:
            if device_id in self._tombstones:
                self._tombstones[device_id] = now + self._tombstone_seconds

    def adopt(
        self, held: Mapping[str, Sequence[int]], now: float, *, answering: Mapping[str, Health] | None = None
    ) -> ListChange:
        """List as tombstones the devices that pods hold and the hardware lacks: an earlier process listed them.

        Ids that are listed already, and what no device can be, are passed over.

        Args:
            held: The NUMA nodes of those devices by id, as the process before told them: at its next start the kubelet
                would refuse their pods without.
            now: As in `update`.
            answering: As in `update`.
        """
        found: dict[str, Device] = {}
        for device_id in [device_id for device_id in held if device_id not in self._table]:
            with suppress(InvalidValueError):
                health = (answering or {}).get(device_id) or _gone(now)
                found[device_id] = Device(id=device_id, health=health, numa_nodes=held[device_id])
        if not found or self.snapshot is None:
            return _NOTHING
        until = dict.fromkeys(found, now + self._tombstone_seconds)
        return self._replace({**self._table, **found}, {**self._tombstones, **until})

    def forget(self, ids: Iterable[str]) -> ListChange:
        """Drop these tombstones now: no pod holds them any more, or they now belong to another resource."""
        dropped = self._tombstones.keys() & set(ids)
        if not dropped:
            return _NOTHING
        table = {device_id: device for device_id, device in self._table.items() if device_id not in dropped}
        tombstones = {device_id: until for device_id, until in self._tombstones.items() if device_id not in dropped}
        return self._replace(table, tombstones)

    def next(self, cursor: Cursor, now: float) -> ListSnapshot | float | None:
        """Tell a stream what to do: send this snapshot, wait so many seconds, or sleep until the next change (None)."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.version == cursor.version:
            return None
        wait = cursor.sent_at + MIN_GAP - now
        return snapshot if wait <= 0 else wait

    def _replace(self, table: dict[str, Device], tombstones: dict[str, float]) -> ListChange:
        before = self._table
        lost_by = _topology_lost_by(table, tombstones)
        with_topology = lost_by is None
        anew = with_topology != self._with_topology
        pieces: dict[str, bytes] = {}
        transitions: list[Transition] = []
        # Ten thousand devices are compared by identity, in one go; what follows looks at those that differ.
        for device_id in [i for i, device in table.items() if anew or before.get(i) is not device]:
            device, old = table[device_id], before.get(device_id)
            if old is None or old.health != device.health:
                transitions.append(Transition(device=device, before=old.health if old else None))
            if old is None or anew or _wire_view(old) != _wire_view(device):
                piece = self._encode(device, with_topology)
                if piece != self._pieces.get(device_id):
                    pieces[device_id] = piece
        removed = tuple([device_id for device_id in before if device_id not in table])
        worst = {
            device_id: self._worst_case(piece, table[device_id].health.is_healthy)
            for device_id, piece in pieces.items()
        }
        total = self._worst_total + sum(worst.values())
        total -= sum(self._worst.get(device_id, 0) for device_id in (*worst, *removed))
        if total > self._max_bytes:
            if tombstones:  # what is gone must not keep out what is there: the oldest tombstones give way
                over = total - self._max_bytes
                for device_id in sorted(tombstones, key=tombstones.__getitem__):
                    over -= worst.get(device_id) or self._worst[device_id]
                    del tombstones[device_id], table[device_id]
                    if over <= 0:
                        break
                return self._replace(table, tombstones)
            raise self._too_large(table, worst, total)

        for device_id in removed:
            del self._pieces[device_id], self._worst[device_id]
        self._pieces.update(pieces)
        self._worst.update(worst)
        self._worst_total = total
        newly_lost_by = lost_by if self._with_topology else None
        self._table, self._tombstones, self._with_topology = table, tombstones, with_topology
        version = self.snapshot.version if self.snapshot else 0
        on_wire = version == 0 or bool(pieces or removed)
        if on_wire:
            version += 1
            self._message = None
        self.snapshot = ListSnapshot(version, MappingProxyType(table))
        return ListChange(
            transitions=tuple(transitions), removed=removed, topology_lost_by=newly_lost_by, on_wire=on_wire
        )

    def _too_large(self, table: Mapping[str, Device], worst: Mapping[str, int], total: int) -> ListTooLargeError:
        fits, size = 0, 0
        for device_id in table:
            size += worst.get(device_id) or self._worst[device_id]
            if size > self._max_bytes:
                break
            fits += 1
        return ListTooLargeError(
            f"{len(table)} devices can need {total} bytes in one list, the kubelet takes {self._max_bytes}: "
            f"{fits} of them fit; declare fewer or coarser devices, fewer replicas, or shorter ids",
            fits=fits,
        )


def _gone(now: float) -> Health:
    return health_of(VANISHED.because(GONE, now))


def _wire_view(device: Device) -> tuple[bool, tuple[int, ...]]:
    return device.health.is_healthy, device.numa_nodes


def _topology_lost_by(table: Mapping[str, Device], tombstones: Mapping[str, float]) -> str | None:
    """Return the first device without a NUMA node if others have one: it costs the whole resource its topology.

    The kubelet never counts such a device towards a NUMA mask, so mixed reporting makes requests unsatisfiable under
    strict policies (contract section 8). Tombstones have no say.
    """
    without = [device_id for device_id, device in table.items() if not device.numa_nodes]
    if len(without) == len(table):
        return None
    return next((device_id for device_id in without if device_id not in tombstones), None)
