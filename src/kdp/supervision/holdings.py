"""Which devices wait because a container can touch them under another name: the one rule for both protocols. Sans-IO.

A kubelet and a scheduler keep accounts of names. Hardware changes its name while a pod holds it: an administrator moves
it to another resource, an upgrade changes the ids, sharing is switched on, a card takes another card's slot. The
accounts see a free device then. So a `Holding` records the things that a container can touch, and `judge` compares them
with the things of the devices that exist now.

A *thing* is the backend's id of a device, a path of a device node, the kernel's number of a node, an isolation group, a
CDI name, or a value of a variable in ``joined_env``. When a container gets a device, each of its things is one of
three, by the devices that discovery listed at that moment:

* a *control* thing: devices of two units have it, and each of them has a thing of its own besides, as ``nvidiactl``;
* *shared*: several devices have it, as the seats of a node, the replicas of a device, or the parts of a card;
* *exclusive*: no other device has it.

An isolation group is never a control thing: VFIO opens a group for one process, so devices of two units exclude each
other.

Invariants, each with a mutant in the tests that breaks it:

1. A device that has an exclusive thing of a holding is withheld, whatever its id, its resource, and its protocol.
2. A control thing withholds no device.
3. A shared thing withholds no device that had it, too, and no new one while one of those still has it: a pool of seats
   may grow, but the parts of another card are new.
4. An exclusive thing becomes a control thing if the holder's device still has it, and both devices have a thing of
   their own: a second card came.
5. If the holder's id means other hardware now, or lost a node, all that have a thing of the holding are withheld.
6. A number of the kernel counts only during the boot in which the container got it. A path counts with the number that
   it has now, because the container opens the path at its next start.
7. A device that a pod holds under its own name is listed as before: a kubelet that restarts refuses a container whose
   device is Unhealthy. Its next Allocate is refused.
8. A foreign holding withholds a device if one of the two has all things of the other: the control nodes of two
   classes, such as ``/dev/vfio/vfio``, look exclusive to each of them.
9. The old name answers for the hardware if a device has all nodes of the holding, and its identity is the same. Without
   an identity the id without a replica's number decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, final

import attrs
from typing_extensions import override

from ..allocation.sharing import base_id
from ..hardware.things import GROUP
from ..model.devices import Device
from ..startup import shown
from .given import Given

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

Name = tuple[str, str]
"""A resource, or a driver, and a device id: what a kubelet or a scheduler calls a device."""

MOST_WITNESSES: Final = 8
"""Ids that are recorded of those that share a thing."""

MOST_COMPARED: Final = 8
"""Units that are compared to find out whether a thing is a control thing."""

_OF_THIS_BOOT: Final = ("c ", "b ", GROUP)
"""How the things begin that the kernel numbers anew at each boot."""

_DEVICE: Final = "device "
"""How the things begin that all devices have: the id, and the id without a replica's number."""


def without_ids(reach: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return things without ids, which two processes may give to different devices."""
    return {thing: ids for thing, ids in reach.items() if not thing.startswith(_DEVICE)}


def id_alone(device_id: str) -> dict[str, tuple[str, ...]]:
    """Return the things of a device of which nothing is known but its id."""
    return {_DEVICE + device_id: ()}


@final
@attrs.frozen(kw_only=True)
class Holding:
    """A device as a container has it.

    Attributes:
        name: The resource or driver, and the device's id there.
        given: The container's things.
        holder: The pod or claim, for people; "": unknown.
        is_foreign: Whether another class gave the device, so that only the record tells of its things.
    """

    __repr__ = shown

    name: Name
    given: Given
    holder: str = ""
    is_foreign: bool = False

    @override
    def __str__(self) -> str:
        resource, device_id = self.name
        return f"held as {device_id} of {resource} by {self.holder or 'a pod'}"


@final
@attrs.frozen
class _Entry:
    """A device that exists now."""

    device: Device
    joined_env: Mapping[str, str]

    def things(self, nodes: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
        """Yield the things of the device."""
        edits = self.device.edits
        yield _DEVICE + self.device.id
        yield _DEVICE + base_id(self.device.id)
        for node in edits.device_nodes:
            yield node.host_path
            yield from nodes.get(node.host_path, ())
        for cdi_name in edits.cdi_devices:
            yield f"cdi {cdi_name}"
        for variable, separator in self.joined_env.items():
            for value in edits.env.get(variable, "").split(separator):
                if value:
                    yield f"{variable}={value}"


class Present:
    """The devices that exist now, by their things. Add the devices of each backend with `add`."""

    def __init__(self) -> None:
        self._entries: dict[Name, _Entry] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._index: dict[str, dict[Name, None]] | None = None
        self._hardware: dict[Name, frozenset[str]] = {}
        self._reaches: dict[Name, tuple[Device, Mapping[str, tuple[str, ...]], bool]] = {}

    def add(
        self,
        devices: Iterable[Device],
        *,
        nodes: Mapping[str, tuple[str, ...]],
        resource_of: Callable[[Device], str],
        joined_env: Mapping[str, str],
    ) -> None:
        """Add the devices of a backend.

        Args:
            devices: The devices.
            nodes: The things of each device node by its path; see `kdp.hardware.Host.things_of_node`.
            resource_of: Returns the resource, or the driver, of a device.
            joined_env: As `DeviceBackend.joined_env`.
        """
        self._index = None
        self._hardware.clear()
        self._reaches.clear()
        self._nodes.update(nodes)
        for device in devices:
            self._entries[resource_of(device), device.id] = _Entry(device, joined_env)

    def look(self, paths: Iterable[str], look: Callable[[str], tuple[str, ...]]) -> None:
        """Look at nodes that no device has now."""
        for path in paths:
            if path not in self._nodes:
                self._nodes[path] = look(path)
                self._reaches.clear()

    def get(self, name: Name) -> Device | None:
        """Return the device that has this name; `None` if there is none."""
        entry = self._entries.get(name)
        return None if entry is None else entry.device

    def named(self, device_id: str) -> Name | None:
        """Return the name of the device that has an id, which is unique in a process, in whatever resource."""
        having = self.having(_DEVICE + device_id)
        return next((name for name in having if name[1] == device_id), None)

    def things_at(self, path: str) -> tuple[str, ...]:
        """Return the things behind a path now."""
        return self._nodes.get(path, ())

    def having(self, thing: str) -> Mapping[Name, None]:
        """Return the devices that have a thing, in discovery's order."""
        if self._index is None:
            self._index = {}
            for name, entry in self._entries.items():
                for each in entry.things(self._nodes):
                    self._index.setdefault(each, {})[name] = None
        return self._index.get(thing, {})

    def given(
        self,
        name: Name,
        device: Device,
        joined_env: Mapping[str, str],
        *,
        named: Collection[str] = (),
        shared: Collection[str] = (),
        boot_id: str = "",
    ) -> Given:
        """Return the record of a device that a container gets now.

        Args:
            name: Its name.
            device: The device as its container gets it.
            joined_env: As `DeviceBackend.joined_env`.
            named: As in `Given.of`.
            shared: As in `Given.of`.
            boot_id: As `Given.boot_id`.
        """
        known = self._reaches.get(name)
        if known is None or known[0] is not device:
            found = self._reach(name, device, joined_env)
            known = self._reaches[name] = device, found, self._shares_identity(device, found)
        _, reach, shares_identity = known
        return Given.of(device, named, shared, reach=reach, boot_id=boot_id, shares_identity=shares_identity)

    def _shares_identity(self, device: Device, reach: Mapping[str, tuple[str, ...]]) -> bool:
        names = {self.named(device_id) for ids in reach.values() for device_id in ids}
        sharers = [self._entries[each].device for each in names if each is not None]
        return bool(device.identity and sharers) and all(each.identity == device.identity for each in sharers)

    def _reach(self, name: Name, device: Device, joined_env: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Return the things of a device that withhold others from now on, each with the ids of some that share it."""
        things = tuple(dict.fromkeys(_Entry(device, joined_env).things(self._nodes)))
        own = self.hardware(things)
        found: dict[str, tuple[str, ...]] = {}
        for thing in things:
            if not thing.startswith(GROUP) and self._is_control(thing, device.unit, own):
                continue
            others = (
                other[1]
                for other in self.having(thing)
                if other[1] != device.id
                and (not thing.startswith(GROUP) or self._entries[other].device.unit == device.unit)
            )
            found[thing] = tuple(islice(others, MOST_WITNESSES))
        return found

    def _is_control(self, thing: str, unit: str, own: frozenset[str]) -> bool:
        """Return whether a device of another unit has a thing, and each of the two has a thing of its own."""
        compared: set[str] = {unit}
        for name in self.having(thing):
            other = self._entries[name].device.unit
            if other in compared:
                continue
            if not self._hardware_of(name) <= own and not own <= self._hardware_of(name):
                return True
            compared.add(other)
            if len(compared) > MOST_COMPARED:
                break  # a node with a thousand seats
        return False

    def are_apart(self, one: Name, other: Name) -> bool:
        """Return whether each of two devices has a thing that the other lacks."""
        return self.is_apart(other, self._hardware_of(one))

    def is_apart(self, name: Name, things: frozenset[str]) -> bool:
        """Return whether a device has a thing that is none of these, and lacks one of them."""
        own = self._hardware_of(name)
        return not own <= things and not things <= own

    def _hardware_of(self, name: Name) -> frozenset[str]:
        found = self._hardware.get(name)
        if found is None:
            found = self._hardware[name] = self.hardware(self._entries[name].things(self._nodes))
        return found

    def hardware(self, things: Iterable[str]) -> frozenset[str]:
        """Return the things that tell hardware apart: no id, and two paths with one number are one thing."""
        return frozenset(
            thing
            for thing in things
            if not thing.startswith(_DEVICE) and (not thing.startswith("/") or not self._nodes.get(thing))
        )


@final
@attrs.frozen(kw_only=True)
class Judgment:
    """What follows from the holdings for the devices that exist now.

    Attributes:
        withheld: The devices that no other container may get, each with the holding.
        successors: The holdings whose id discovery no longer lists, each with the devices that have all its nodes now.
        answering: Those of them whose successors are the same hardware.
    """

    __repr__ = shown

    withheld: Mapping[Name, Holding] = attrs.field(factory=dict[Name, Holding])
    successors: Mapping[Name, tuple[Device, ...]] = attrs.field(factory=dict["Name", "tuple[Device, ...]"])
    answering: Mapping[Name, tuple[Device, ...]] = attrs.field(factory=dict["Name", "tuple[Device, ...]"])


def judge(present: Present, holdings: Iterable[Holding], *, boot_id: str) -> Judgment:
    """Compare holdings with the devices that exist now.

    Args:
        present: The devices, with the things of each path that a holding names.
        holdings: The devices that containers have.
        boot_id: The boot of the node; "": unknown, and counts as the boot of each holding.
    """
    withheld: dict[Name, Holding] = {}
    successors: dict[Name, tuple[Device, ...]] = {}
    answering: dict[Name, tuple[Device, ...]] = {}
    for holding in holdings:
        reach = _reach_now(holding.given, present, boot_id)
        blocked = _blocked_by_foreign if holding.is_foreign else _blocked
        others = dict.fromkeys(name for name in blocked(present, holding, reach) if name != holding.name)
        for name in others:
            withheld.setdefault(name, holding)
        if present.get(holding.name) is None:
            devices = [device for name in others if (device := present.get(name)) is not None]
            same = [device for device in devices if _is_same(holding, device)]
            for found, candidates in ((successors, devices), (answering, same)):
                if candidates and _have_all_nodes(candidates, holding):
                    found[holding.name] = tuple(candidates)
    return Judgment(withheld=withheld, successors=successors, answering=answering)


def _reach_now(given: Given, present: Present, boot_id: str) -> dict[str, tuple[str, ...]]:
    """Return the things that a container can touch now, or at its next start."""
    is_this_boot = not (given.boot_id and boot_id) or given.boot_id == boot_id
    reach = {thing: ids for thing, ids in given.reach.items() if is_this_boot or not thing.startswith(_OF_THIS_BOOT)}
    for path in [thing for thing in reach if thing.startswith("/")]:
        for thing in present.things_at(path):
            reach.setdefault(thing, reach[path])
    return reach


def _blocked(present: Present, holding: Holding, reach: Mapping[str, Sequence[str]]) -> Iterator[Name]:
    """Yield the devices that may not have a thing of a holding at the same time."""
    own = present.named(holding.name[1])
    device = None if own is None else present.get(own)
    is_lost = device is not None and holding.given.fault(device) is not None
    for thing, sharers in reach.items():
        having, is_group = present.having(thing), thing.startswith(GROUP)
        if is_lost:
            yield from having
        elif sharers:
            left = {*_sharers_left(present, holding, sharers, having)}
            if is_group or not left:
                yield from (name for name in having if name not in left)
        elif own is None or own not in having or is_group:
            yield from having
        else:
            yield from (name for name in having if not present.are_apart(own, name))


def _sharers_left(
    present: Present, holding: Holding, sharers: Iterable[str], having: Mapping[Name, None]
) -> Iterator[Name]:
    """Yield the devices that shared a thing with a holding and still do; parts of another card do not."""
    for device_id in (holding.name[1], *sharers):
        name = present.named(device_id)
        device = None if name is None else present.get(name)
        is_other = device is not None and holding.given.is_other_hardware(device)
        if name is not None and name in having and not (holding.given.shares_identity and is_other):
            yield name


def _blocked_by_foreign(present: Present, holding: Holding, reach: Mapping[str, Sequence[str]]) -> Iterator[Name]:
    """Yield the devices that are the same hardware as a foreign holding, or a part of it."""
    things = present.hardware(reach)
    for thing in reach:
        yield from (name for name in present.having(thing) if not present.is_apart(name, things))


def _have_all_nodes(devices: Iterable[Device], holding: Holding) -> bool:
    """Return whether each node of a holding is a node of one of these devices."""
    paths = {node.host_path for device in devices for node in device.edits.device_nodes}
    return all(thing in paths for thing in holding.given.reach if thing.startswith("/"))


def _is_same(holding: Holding, device: Device) -> bool:
    """Return whether a device with another name is the hardware of a holding, as its backend says."""
    if holding.given.identity and device.identity:
        return not holding.given.is_other_hardware(device)
    return base_id(device.id) == base_id(holding.name[1])
