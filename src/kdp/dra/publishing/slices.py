"""The ResourceSlices of a pool, made of its devices, and what has to be written so that the API server has them.

`pool_slices` is a pure function: devices and counters go in, slices come out; equal input gives equal bytes. The
slices are filled in the order of the devices, which is the order in which the scheduler tries them
(``k8s.io/dynamic-resource-allocation`` ``structured/internal``): it goes through slices by name and through a slice's
devices from the first.

Counters lie in slices of their own since Kubernetes 1.35; before, in the slice of the devices that consume them, so
that devices with a counter set in common cannot be divided there (`Limits.combined`). The limits are the constants of
``k8s.io/kubernetes`` ``pkg/apis/resource/types.go`` in versions 1.34 to 1.37.

`writes` compares with what is stored. A generation is what consumers take for one state of the pool, so only a change
that one write can make keeps it:

* no slice differs: nothing is written;
* one slice differs, or one is gone, and the number of slices stays: that one is written, the generation stays;
* anything else: all are written with the next generation.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import attrs

from ...errors import InvalidSlicesError, InvalidValueError
from ...model.devices import AttributeValue, Device
from ..names import check_driver_name, device_name, slice_name
from ..render import render_counters, render_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...model.quantities import Amount

API_VERSION = "resource.k8s.io/v1"

DEVICES_PER_SLICE = 64
"""Devices of a slice. A server takes 128 only if none has a taint, a list, or counters, and any may get one."""

_FIRST_OF_COUNTERS = 0x80000
"""The position of the first slice of counters: behind those of all devices."""

_Object = dict[str, Any]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:[.+-].*)?\Z")
OLDEST = (1, 34)
"""The first version with ``resource.k8s.io/v1``."""


@final
@attrs.frozen(kw_only=True)
class Limits:
    """How a version wants its slices to be filled; what else it takes it says itself.

    Attributes:
        version: Major and minor.
        combined: Whether counter sets lie in the slice of the devices that consume them; False: in slices of their own.
        counters_per_slice: Counters of all sets of a slice (combined only).
        consumed_per_slice: Counters that a slice's devices consume (combined only).
        sets_per_slice: Counter sets of a slice (not combined).
    """

    version: tuple[int, int]
    combined: bool = False
    counters_per_slice: int = 32
    consumed_per_slice: int = 1024
    sets_per_slice: int = 8

    @classmethod
    def of(cls, version: str) -> Limits:
        """Return the limits of a server by its version, as ``v1.37.1``; a version newer than kdp counts as the newest.

        Raises:
            InvalidValueError: It is no version, or older than 1.34.
        """
        match = _VERSION.match(version)
        if match is None:
            raise InvalidValueError(
                f"server version {version!r}: must be a version of Kubernetes; for example 'v1.37.1'"
            )
        minor = (int(match[1]), int(match[2]))
        if minor < OLDEST:
            raise InvalidValueError(
                f"server version {version!r}: DRA needs Kubernetes 1.34 or newer; use the device plugin there"
            )
        return cls(version=minor, combined=minor == OLDEST)


@final
@attrs.frozen(kw_only=True)
class Pool:
    """Whose devices they are, and from where they can be used.

    Attributes:
        driver: The driver's name.
        name: The pool's; normally that of the node.
        nodes: The field of the slices that says so: ``{"nodeName": "node-0"}``, ``{"allNodes": True}``, or
            ``{"nodeSelector": {...}}``.
    """

    driver: str = attrs.field(converter=check_driver_name)
    name: str
    nodes: Mapping[str, Any]

    @classmethod
    def of_node(cls, driver: str, node: str) -> Pool:
        """Return the pool of a node's own devices."""
        return cls(driver=driver, name=node, nodes={"nodeName": node})

    @classmethod
    def of_network(cls, driver: str, name: str, labels: Mapping[str, str]) -> Pool:
        """Return a pool of devices that are no node's own, as those of a network or a fabric.

        Args:
            driver: The driver's name.
            name: The pool's.
            labels: What the nodes have that can use them; none: all nodes can.
        """
        if not labels:
            return cls(driver=driver, name=name, nodes={"allNodes": True})
        wanted = [{"key": key, "operator": "In", "values": [labels[key]]} for key in sorted(labels)]
        return cls(
            driver=driver, name=name, nodes={"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": wanted}]}}
        )


@final
@attrs.frozen(kw_only=True)
class PoolSlice:
    """One slice as it should be.

    Attributes:
        position: Its place among the pool's slices.
        name: The object's name.
        body: Its ``spec`` without generation and number of slices.
    """

    position: int
    name: str
    body: Mapping[str, Any]

    @property
    def devices(self) -> int:
        """How many devices it has."""
        return len(self.body.get("devices", ()))

    def as_object(self, generation: int, count: int, owners: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the whole object.

        Args:
            generation: The pool's.
            count: The number of slices of the pool.
            owners: References to its owners.
        """
        metadata: _Object = {"name": self.name}
        if owners:
            metadata["ownerReferences"] = [dict(owner) for owner in owners]
        pool = {**self.body["pool"], "generation": generation, "resourceSliceCount": count}
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": {**self.body, "pool": pool},
        }


# -- from devices to slices --------------------------------------------------------------------------------------------


@final
class Memory:
    """What `pool_slices` made of a pool the last time, so that the next time costs what has changed.

    It changes no result. One for each pool; a call that raises leaves it as it was.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._slices: dict[int, PoolSlice] = {}

    def entry(self, device: Device, standard: Mapping[str, AttributeValue]) -> _Entry:
        """Return how a device is called and rendered."""
        known = self._entries.get(device.id)
        if known is not None and _is_rendered_alike(known.device, device) and known.standard == standard:
            return known
        try:
            return _Entry(device, standard, device_name(device.id), render_device(device, standard))
        except InvalidValueError as error:
            raise InvalidSlicesError(f"device {device.id!r}: {error}") from None

    def slice(self, made: PoolSlice) -> PoolSlice:
        """Return the previous slice if this one is the same."""
        known = self._slices.get(made.position)
        return known if known is not None and known == made else made

    def keep(self, entries: Mapping[str, _Entry], slices: Sequence[PoolSlice]) -> None:
        """Remember what was made."""
        self._entries = dict(entries)
        self._slices = {each.position: each for each in slices}


def _is_rendered_alike(before: Device, device: Device) -> bool:
    if before is device:
        return True
    kinds = [[type(value) for value in each.attributes.values()] for each in (before, device)]
    return before == device and kinds[0] == kinds[1]  # 1 equals True


@final
@attrs.frozen
class _Family:
    """Devices that must share a slice, by their names, and how much of each kind of room they take."""

    names: tuple[str, ...]
    weight: tuple[int, ...]


@final
@attrs.frozen
class _Entry:
    device: Device
    standard: Mapping[str, AttributeValue]
    name: str
    rendered: _Object


def pool_slices(
    devices: Sequence[Device],
    *,
    pool: Pool,
    limits: Limits,
    counters: Mapping[str, Mapping[str, Amount]] | None = None,
    standard: Mapping[str, Mapping[str, AttributeValue]] | None = None,
    memory: Memory | None = None,
) -> tuple[PoolSlice, ...]:
    """Return the slices of a pool, at least one.

    Args:
        devices: All its devices, those to be preferred first.
        pool: The pool.
        limits: Those of the server.
        counters: What there is, by counter set and counter.
        standard: The standard attributes of the devices, by their ids.
        memory: What is remembered from call to call; None: nothing.

    Raises:
        InvalidSlicesError: The server would change them and say nothing, or the scheduler would ignore the pool.
    """
    memory = memory or Memory()
    entries = {device.id: memory.entry(device, (standard or {}).get(device.id, {})) for device in devices}
    by_name = {entry.name: entry.rendered for entry in entries.values()}
    _check_counters(devices, counters or {})
    sets = {name: render_counters(name, (counters or {})[name]) for name in sorted(counters or {})}
    if limits.combined:
        room = (DEVICES_PER_SLICE, limits.counters_per_slice, limits.consumed_per_slice)
        groups = _filled(_families(devices, sets), room)
    else:
        groups = _divided([entry.name for entry in entries.values()], DEVICES_PER_SLICE)
    head: _Object = {"driver": pool.driver, "pool": {"name": pool.name}, **pool.nodes}
    found: list[PoolSlice] = []
    for position, names in enumerate(groups):
        body = {**head, "devices": [by_name[name] for name in names]} if names else head
        own = _sets_of(body.get("devices", []), sets) if limits.combined else []
        found.append(_slice(position, {**body, "sharedCounters": own} if own else body))
    if sets and not limits.combined:
        for position, names in enumerate(_divided([*sets], limits.sets_per_slice), _FIRST_OF_COUNTERS):
            found.append(_slice(position, {**head, "sharedCounters": [sets[name] for name in names]}))
    found = [memory.slice(each) for each in found]
    memory.keep(entries, found)
    return tuple(found)


def _slice(position: int, body: _Object) -> PoolSlice:
    return PoolSlice(position=position, name=slice_name(position, body["driver"], body["pool"]["name"]), body=body)


def _divided(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """Fill one slice after the other, at least one."""
    return [names[first : first + most] for first in range(0, max(1, len(names)), most)]


def _filled(families: Iterable[_Family], room: tuple[int, ...]) -> list[Sequence[str]]:
    """Do the same with what cannot be divided; each fits into an empty slice."""
    found: list[list[str]] = [[]]
    taken = (0,) * len(room)
    for family in families:
        taken = tuple(map(operator.add, taken, family.weight))
        if found[-1] and any(map(operator.gt, taken, room)):
            found.append([])
            taken = family.weight
        found[-1] += family.names
    return [*found]


def _families(devices: Sequence[Device], sets: Mapping[str, _Object]) -> list[_Family]:
    """Put devices together that have a counter set in common, in the order of the first of each family."""
    home_of: dict[str, int] = {}
    families: dict[int, list[int]] = {}
    for index, device in enumerate(devices):
        joined = sorted({home_of[name] for name in device.consumes if name in home_of})
        home = joined[0] if joined else index
        members = [*(member for other in joined for member in families.pop(other)), index]
        families[home] = members
        home_of.update({name: home for member in members for name in devices[member].consumes})
    return [_family([devices[index] for index in sorted(families[home])], sets) for home in sorted(families)]


def _family(members: Sequence[Device], sets: Mapping[str, _Object]) -> _Family:
    named = {name for device in members for name in device.consumes}
    shared = sum(len(sets[name]["counters"]) for name in named if name in sets)
    consumed = sum(len(counters) for device in members for counters in device.consumes.values())
    return _Family(tuple(device_name(device.id) for device in members), (len(members), shared, consumed))


def _sets_of(devices: Iterable[Mapping[str, Any]], sets: Mapping[str, _Object]) -> list[_Object]:
    wanted = {each["counterSet"] for device in devices for each in device.get("consumesCounters", ())}
    return [counters for name, counters in sets.items() if name in wanted]


def _check_counters(devices: Sequence[Device], counters: Mapping[str, Mapping[str, Amount]]) -> None:
    """Refuse a device that consumes what is not declared: no server sees that, and the scheduler ignores the pool."""
    for device in devices:
        for name, consumed in device.consumes.items():
            if name not in counters:
                text = f"consumes of the counter set {name!r}, which must be declared: {_few(counters)}"
                raise InvalidSlicesError(f"device {device.id!r}: {text}")
            if unknown := consumed.keys() - counters[name].keys():
                text = f"consumes {min(unknown)!r}, which must be a counter of {name!r}: {_few(counters[name])}"
                raise InvalidSlicesError(f"device {device.id!r}: {text}")


def _few(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "") or "there is none"


# -- what is to be written ---------------------------------------------------------------------------------------------


@final
@attrs.frozen(kw_only=True)
class Writes:
    """What has to be done, in this order.

    Attributes:
        generation: The pool's generation afterwards.
        delete: Stored objects that have no place any more.
        update: The new objects for stored ones, with their UID and resource version.
        create: New objects.
    """

    generation: int
    delete: tuple[Mapping[str, Any], ...] = ()
    update: tuple[Mapping[str, Any], ...] = ()
    create: tuple[Mapping[str, Any], ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is to be done."""
        return bool(self.delete or self.update or self.create)


def writes(
    wanted: Sequence[PoolSlice],
    stored: Iterable[Mapping[str, Any]],
    *,
    last: int = 0,
    owners: Sequence[Mapping[str, Any]] = (),
) -> Writes:
    """Return what has to be written so that the API server has the wanted slices.

    Args:
        wanted: All slices of a pool.
        stored: The objects of this driver and pool that the server has.
        last: The generation that was written last, which consumers may remember also when all slices are gone.
        owners: References to the owners that all objects should have.
    """
    there = {item["metadata"]["name"]: item for item in stored}
    newest = max((item["spec"]["pool"]["generation"] for item in there.values()), default=0)
    names = {each.name for each in wanted}
    count = len(wanted)
    delete = tuple(item for name, item in there.items() if name not in names)
    kept = {name: item for name, item in there.items() if name in names}
    differ = [each for each in wanted if each.name in kept and not is_stored(each, kept[each.name], owners)]
    missing = [each for each in wanted if each.name not in kept]
    is_one_state = all(
        item["spec"]["pool"]["generation"] == newest and item["spec"]["pool"]["resourceSliceCount"] == count
        for item in kept.values()
    )
    is_of_old = all(item["spec"]["pool"]["generation"] < newest for item in delete)
    if kept and is_one_state and is_of_old and newest >= last and len(differ) + len(missing) <= 1:
        generation, update = newest, differ
    else:
        generation, update = max(newest, last) + 1, [each for each in wanted if each.name in kept]
    return Writes(
        generation=generation,
        delete=delete,
        update=tuple(_updated(each.as_object(generation, count, owners), kept[each.name]) for each in update),
        create=tuple(each.as_object(generation, count, owners) for each in missing),
    )


def is_stored(wanted: PoolSlice, stored: Mapping[str, Any], owners: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an object of the server is a slice as it should be; generation and number of slices aside."""
    pool = {"name": stored["spec"]["pool"]["name"]}
    spec = {**stored["spec"], "pool": pool, "devices": [_without_times(d) for d in stored["spec"].get("devices", ())]}
    body = {**wanted.body, "devices": list(wanted.body.get("devices", ()))}
    return spec == body and stored["metadata"].get("ownerReferences", []) == [dict(owner) for owner in owners]


def comes_later(item: Mapping[str, Any]) -> bool:
    """Whether a slice has devices: counters come first, as a server that does not know them must get no partition."""
    return "sharedCounters" not in item["spec"] or "devices" in item["spec"]


def is_same_content(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects differ in nothing that is written here."""
    return bool(
        one["spec"] == other["spec"]
        and one["metadata"].get("ownerReferences", []) == other["metadata"].get("ownerReferences", [])
    )


def _without_times(device: Mapping[str, Any]) -> Mapping[str, Any]:
    if "taints" not in device:
        return device
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}


def _updated(item: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object for a PUT: unchanged taints keep their time, and others keep their fields."""
    metadata = stored["metadata"]
    kept = ("uid", "resourceVersion", "labels", "annotations", "finalizers")
    item["metadata"] |= {key: metadata[key] for key in kept if key in metadata}
    times = {
        (device["name"], *_identity(taint)): taint["timeAdded"]
        for device in stored["spec"].get("devices", ())
        for taint in device.get("taints", ())
        if "timeAdded" in taint
    }
    if "devices" in item["spec"]:
        item["spec"]["devices"] = [_with_times(device, times) for device in item["spec"]["devices"]]
    return item


def _identity(taint: Mapping[str, str]) -> tuple[str, str, str]:
    return taint["key"], taint.get("value", ""), taint["effect"]


def _with_times(device: Mapping[str, Any], times: Mapping[tuple[str, str, str, str], str]) -> Mapping[str, Any]:
    if "taints" not in device:
        return device
    found = [(taint, times.get((device["name"], *_identity(taint)))) for taint in device["taints"]]
    return {**device, "taints": [{**taint, "timeAdded": time} if time else taint for taint, time in found]}
