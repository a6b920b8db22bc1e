"""What a backend says about its hardware: frozen values, the same for both protocols.

A `Device` is compared by everything but its ``handle``: a discovery that returns equal devices changes nothing on
the wire. Validation happens on construction, so that a wrong value is found where it was made.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, final

import attrs
from typing_extensions import override

from ..errors import InvalidValueError, kind_of
from ..startup import shown
from .edits import ContainerEdits, forget_default
from .frozen import FrozenDict, dict_of
from .names import MAX_ATTRIBUTE_BYTES, check_attribute_name, check_counter_name, check_device_id, check_resource_name
from .quantities import Amount, capacities, check_amount, exact, integer
from .text import plain_text

if TYPE_CHECKING:  # loaded only by programs that use DRA
    from .claims import BindingConditions, RequestPolicy, Taint  # noqa: TC004 - again where one is looked at
    from .conditions import Condition  # noqa: TC004 - attrs reads no annotation

_T = TypeVar("_T")

MAX_NUMA_NODE = 63
"""The topology manager's masks are 64 bits wide (contract section 8)."""

MAX_ATTRIBUTES = 32
"""Attributes and capacities of a device, together; those that kdp adds by itself for DRA count as well."""

_INT64 = range(-(2**63), 2**63)

MAX_UNIT_LENGTH = 253
"""Characters, as many as a name in Kubernetes may have."""


def _reason(value: object) -> str:
    is_blank = isinstance(value, str) and not value.strip()
    return "its backend gave no reason" if is_blank else plain_text(value, "a Health's reason")


@final
@attrs.frozen
class Health:
    """Whether a device can be handed out, and why not. Make one with `healthy` or `unhealthy`.

    Attributes:
        reason: Why it is unhealthy, for logs, ``kdp devices`` and error texts; None: it is healthy. What is no text is
            said in the log and taken as text; 1,024 characters are kept. The device plugin protocol itself carries no
            reason (contract section 1.1).
        conditions: The conditions that ``reason`` joins, on a device that kdp lists as unhealthy. Only kdp sets them,
            and it drops those that ``discover`` returns. They are neither compared nor shown.
    """

    __repr__ = shown

    reason: str | None = attrs.field(converter=attrs.converters.optional(_reason))
    conditions: tuple[Condition, ...] = attrs.field(default=(), eq=False, repr=False)

    @classmethod
    def healthy(cls) -> Health:
        """Return the health of a device that works."""
        return _HEALTHY

    @classmethod
    def unhealthy(cls, reason: str | None) -> Health:
        """Return the health of a device that must not be handed out, because of ``reason``.

        `None` and a blank text, such as the content of a driver's empty file, become ``its backend gave no reason``.
        """
        return cls("" if reason is None else reason)  # a reason of None would mean healthy

    @property
    def is_healthy(self) -> bool:
        """Whether new containers may get the device."""
        return self.reason is None

    @override
    def __str__(self) -> str:
        return "Healthy" if self.reason is None else f"Unhealthy ({self.reason})"


_HEALTHY = Health(None)

_NUMBER = r"(?:0|[1-9]\d{0,17})"
"""A number must fit 64 bits: Kubernetes 1.38 takes at most 18 digits."""

_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    # No part of a pre-release that is a number may begin with 0.
    rf"(?:-((?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?\Z",
    re.ASCII,
)
_NUMBERS = re.compile(r"v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?!\d)", re.ASCII)


def _semver(value: str) -> str:
    if not isinstance(value, str) or not _SEMVER.match(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"version {value!r}: must be MAJOR.MINOR.PATCH of at most 18 digits each, for example '550.54.15'; "
            "kdp.Version.parse takes others"
        )
    return value


@final
@functools.total_ordering
@attrs.frozen
class Version:
    """A semantic version (2.0.0) as an attribute's value, so that DRA's selectors can compare it.

    Versions are ordered as Semantic Versioning 2.0.0, section 11, says: 2.3.0 is less than 2.10.0, and 2.0.0-rc.1 is
    less than 2.0.0. The build part decides only between versions that are equal in all else.
    A driver may report another notation: see `parse`.

    Attributes:
        text: ``MAJOR.MINOR.PATCH`` with optional pre-release and build parts. A number has at most 18 digits.
    """

    __repr__ = shown

    text: str = attrs.field(converter=_semver)

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Return the version that anybody's text begins with; None: it begins with no number.

        Of a text that is no semantic version, up to three numbers are taken: ``6.14.14.2`` is 6.14.14, ``v5.2`` is
        5.2.0, and ``580.159.03`` is 580.159.3. `kdp.hardware.attributes_of` leaves an attribute out that is None.
        """
        text = text.strip()
        if _SEMVER.match(text):
            return cls(text)
        found = _NUMBERS.match(text)
        return cls(".".join(str(int(number or 0)) for number in found.groups())) if found else None

    def __lt__(self, other: Version) -> bool:
        if not isinstance(other, Version):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[object, ...]:
        found = _SEMVER.match(self.text)
        assert found is not None  # the converter has matched it
        *numbers, before, build = found.groups()
        parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in (before or "").split(".")]
        return (*map(int, numbers), before is None, parts, build or "")

    @override
    def __str__(self) -> str:
        return self.text


AttributeValue = bool | int | str | Version
"""What an attribute may hold: the four types of DRA."""


def _numa_nodes(value: Iterable[int] | int) -> tuple[int, ...]:
    nodes: set[int] = set()
    for given in value if isinstance(value, Iterable) else (value,):
        node = integer(given)
        if node is None or node > MAX_NUMA_NODE:
            raise InvalidValueError(f"NUMA node {given!r}: must be a number from 0 to {MAX_NUMA_NODE}; for example 0")
        if node >= 0:  # sysfs says -1 for "unknown": that is no node (contract section 8)
            nodes.add(node)
    return tuple(sorted(nodes))


def _edits(value: ContainerEdits) -> ContainerEdits:
    if not isinstance(value, ContainerEdits):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"edits {value!r}: must be kdp.ContainerEdits, this is {kind_of(value)}")
    return value


def _health(value: Health) -> Health:
    if not isinstance(value, Health):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"health {value!r}: must be kdp.Health; for example kdp.Health.unhealthy('fan failed')")
    return value


_NO_EDITS = ContainerEdits()
_NOTHING: Mapping[str, Any] = FrozenDict()
"""What all devices share that say nothing: ten thousand need no mappings of their own."""


def _attributes(value: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
    if value is _NOTHING:
        return value
    given = dict_of(value, "attributes", {"model": "A1"})
    return FrozenDict({check_attribute_name(name): _attribute(name, held) for name, held in given.items()})


def _attribute(name: str, value: object) -> AttributeValue:
    """Return a value of a subclass, such as an enumeration's, as the type itself, and any integer as an int."""
    if isinstance(value, (str, Version)):
        text = str(value) if isinstance(value, Version) else str.__str__(value)
        if (size := len(text.encode(errors="replace"))) > MAX_ATTRIBUTE_BYTES:
            raise InvalidValueError(
                f"attribute {name}={text!r}: has {size} bytes, the API takes {MAX_ATTRIBUTE_BYTES}; shorten it"
            )
        return value if isinstance(value, Version) else text
    if type(value) is bool:
        return value
    number = integer(value)
    if number is None:
        raise InvalidValueError(f"attribute {name}={value!r}: must be bool, int, str or kdp.Version")
    if number not in _INT64:
        raise InvalidValueError(f"attribute {name}={number}: must fit 64 bits; for example 1")
    return number


def _unit(value: str | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_UNIT_LENGTH:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"unit {value!r:.80}: must be text of at most {MAX_UNIT_LENGTH} characters; for example '0000:3b:00.0'"
        )
    return str.__str__(value) or None


def _identity(value: str) -> str:
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"identity {value!r}: must be text; for example 'serial FT4A2X'")
    return str.__str__(value)


def _capacity(value: Mapping[str, Amount]) -> Mapping[str, Amount]:
    return value if value is _NOTHING else capacities(value)


def _shareable(value: bool | Mapping[str, RequestPolicy] | None) -> Mapping[str, RequestPolicy] | None:
    if value is None or value is False:
        return None
    from .claims import RequestPolicy

    policies = FrozenDict[str, RequestPolicy]()
    if value is not True:
        policies = FrozenDict(dict_of(value, "shareable", "{'memory': kdp.RequestPolicy(default=1)}"))
    for name, policy in policies.items():
        if not isinstance(policy, RequestPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"shareable {name}={policy!r}: must be kdp.RequestPolicy; for example kdp.RequestPolicy(default=1)"
            )
    return policies


def counter_sets(value: Mapping[str, Mapping[str, Amount]], what: str) -> Mapping[str, Mapping[str, Amount]]:
    """Check and freeze amounts by counter set and counter; messages call them ``what``.

    Raises:
        InvalidValueError: A name is no DNS label, a set is empty, or an amount is none or negative.
    """
    sets: dict[str, Mapping[str, Amount]] = {}
    for name, given in dict_of(value, what, {"card": {"memory": 1}}).items():
        check_counter_name(name, f"{what}: counter set")
        counters = dict_of(given, f"{what} {name}", {"memory": 1})
        if not counters:
            raise InvalidValueError(f"{what} {name!r}: must name at least one counter; for example {{'memory': 1}}")
        for counter, amount in counters.items():
            check_counter_name(counter, f"{what} {name}: counter")
            counters[counter] = checked = check_amount(amount, f"{what} {name}: counter {counter}")
            if exact(checked) < 0:
                raise InvalidValueError(f"{what} {name}: counter {counter}={amount}: must be 0 or more; for example 1")
        sets[name] = FrozenDict(counters)
    return FrozenDict(sets)


def _consumes(value: Mapping[str, Mapping[str, Amount]]) -> Mapping[str, Mapping[str, Amount]]:
    return counter_sets(value, "consumes") if value else _NOTHING


def _flag(value: bool, name: str) -> bool:
    if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"{name} {value!r}: must be True or False; for example True")
    return value


def _exists(value: bool) -> bool:
    return _flag(value, "exists")


def _is_described(value: bool) -> bool:
    return _flag(value, "is_described")


def _taints(value: Iterable[Taint] | Taint) -> tuple[Taint, ...]:
    if value == ():
        return ()
    from .claims import Taint

    taints = (value,) if isinstance(value, Taint) else tuple(value)
    for taint in taints:
        if not isinstance(taint, Taint):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"taint {taint!r}: must be kdp.Taint; for example kdp.Taint(key='example.com/worn')"
            )
    return taints


def _binding_conditions(value: BindingConditions | None) -> BindingConditions | None:
    if value is None:
        return None
    from .claims import BindingConditions

    if not isinstance(value, BindingConditions):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"binding conditions {value!r}: must be kdp.BindingConditions; for example kdp.BindingConditions("
            "conditions=['example.com/attached'], failure_conditions=['example.com/failed'])"
        )
    return value


@final
@attrs.frozen(kw_only=True)
class Device:
    """One thing that a container can be given.

    Attributes:
        id: What the kubelet calls it, verbatim; 1 to 63 characters. It must be the same after a restart and a
            reboot (contract section 5), and unique among all resources of the process.
        health: Whether new containers may get it.
        numa_nodes: Memory nodes it is near to; empty: unknown. Negative numbers are dropped.
        edits: What a container needs to use it.
        attributes: Facts for people and for DRA's selectors.
        capacity: Amounts, for people and for DRA.
        resource: The extended resource it belongs to; None: the backend's.
        unit: The physical thing it is part of; default its id. Replicas, partitions and functions of one card
            share it: a fault of the unit is a fault of all its devices. At most 253 characters.
        identity: What stays with the physical thing when its number changes, such as its serial number or its sysfs
            path; "": the id is all that is known. While a pod holds the device and the identity is another one than at
            its Allocate, the device is Unhealthy: its id or its node has come to mean other hardware. If the device
            changes its id or resource meanwhile, kdp gives it to no other pod. A serial number then keeps the old name
            Healthy until the pod has ended.
        handle: The vendor's own object: not compared, not logged, not sent. The newest always replaces the one
            before, also when nothing else changed.
        shareable: Whether several claims may have it at once, each with a part of its capacity: True, or by capacity
            the `RequestPolicy` of what a claim may ask for. None or False: one claim at a time. DRA only
            (docs/explanation/device-plugin-or-dra.md); a device plugin shares by replicas instead.
        consumes: What it takes of the counters that ``DeviceBackend.counters`` declares, by counter set and counter:
            partitions of one card cannot be allocated beyond what the card has. A device plugin does not offer a device
            while pods hold others that leave too little for it.
        exists: False: a partition that ``allocate`` makes when it is given. Its device nodes need not be there, and a
            device plugin does not list it.
        taints: What keeps claims away from it that do not tolerate it. DRA only.
        binding_conditions: What has to come true before a pod with this device is bound to its node. DRA only.
        is_described: False: only the id and the health are known now, and all else stays as the last discovery said.
            `each` makes such devices. One that was never described and names no resource is left out, with a line in
            the log, if the backend names none either.
    """

    __repr__ = shown

    id: str = attrs.field(converter=check_device_id)
    health: Health = attrs.field(default=_HEALTHY, converter=_health)
    numa_nodes: tuple[int, ...] = attrs.field(default=(), converter=_numa_nodes)
    edits: ContainerEdits = attrs.field(default=_NO_EDITS, converter=_edits)
    attributes: Mapping[str, AttributeValue] = attrs.field(default=_NOTHING, converter=_attributes, hash=False)
    capacity: Mapping[str, Amount] = attrs.field(default=_NOTHING, converter=_capacity, hash=False)
    resource: str | None = attrs.field(default=None, converter=attrs.converters.optional(check_resource_name))
    _unit: str | None = attrs.field(default=None, converter=_unit, alias="unit")
    identity: str = attrs.field(default="", converter=_identity)
    handle: Any = attrs.field(default=None, eq=False, repr=False)
    shareable: Mapping[str, RequestPolicy] | None = attrs.field(default=None, converter=_shareable, hash=False)
    consumes: Mapping[str, Mapping[str, Amount]] = attrs.field(default=_NOTHING, converter=_consumes, hash=False)
    exists: bool = attrs.field(default=True, converter=_exists)
    taints: tuple[Taint, ...] = attrs.field(default=(), converter=_taints)
    binding_conditions: BindingConditions | None = attrs.field(default=None, converter=_binding_conditions)
    is_described: bool = attrs.field(default=True, converter=_is_described)

    def __attrs_post_init__(self) -> None:
        forget_default(self, "_unit", self.id)
        if (count := len(self.attributes) + len(self.capacity)) > MAX_ATTRIBUTES:
            raise InvalidValueError(
                f"device {self.id!r}: has {count} attributes and capacities, the API takes {MAX_ATTRIBUTES}; "
                "leave some out"
            )
        for name, policy in self.shareable.items() if self.shareable else ():
            if name not in self.capacity:
                raise InvalidValueError(
                    f"device {self.id!r}: shareable {name!r} must be one of its capacities: "
                    f"{', '.join(self.capacity) or 'it has none'}"
                )
            policy.check_within(self.capacity[name], f"device {self.id!r}: shareable {name!r}")

    @property
    def unit(self) -> str:
        """The physical thing it is part of."""
        return self._unit or self.id

    @classmethod
    def each(cls, things: Iterable[_T], make: Callable[[_T], Device], *, id: Callable[[_T], str]) -> list[Device]:
        """Make a device of each thing; one that cannot be made is Unhealthy with the reason, and the others stay.

        What the last discovery said of it stays true: its resource, its nodes, its unit.

        Args:
            things: What there is, for example directories of sysfs.
            make: Makes a device. `InvalidValueError` and OSError concern this device alone; anything else it raises
                is raised.
            id: Returns the device's id if ``make`` fails. It must be known without reading what may fail.

        Raises:
            InvalidValueError: An id is not valid.
        """
        made: list[Device] = []
        for thing in things:
            try:
                made.append(make(thing))
            except (InvalidValueError, OSError) as error:
                health = Health.unhealthy(f"it cannot be described: {error}")
                made.append(cls(id=id(thing), health=health, is_described=False))
        return made

    @classmethod
    def counted(cls, prefix: str, count: int, *, edits: ContainerEdits | None = None) -> list[Device]:
        """Make interchangeable devices ``prefix-0`` to ``prefix-(count-1)`` for licences and shared capabilities.

        Args:
            prefix: Start of each id.
            count: How many; each is a slot that one container can hold. The whole list travels to the kubelet
                with each change and costs some 30 bytes a device, so hundreds are cheap and 100,000 are not.
            edits: What each of them gives to its container.

        Raises:
            InvalidValueError: ``count`` is negative or an id gets too long.
        """
        number = integer(count)
        if number is None or number < 0:
            raise InvalidValueError(f"count {count!r}: must be 0 or more; for example 10")
        return [cls(id=f"{prefix}-{i}", edits=edits or ContainerEdits()) for i in range(number)]


def recalled(device: Device, before: Device | None) -> Device:
    """Return a device that is not described as it was described ``before``, with its new health; others as they are."""
    return device if device.is_described or before is None else attrs.evolve(before, health=device.health)
