"""What a backend says about its hardware: frozen values, the same for both protocols.

A `Device` is compared by everything but its ``handle``: a discovery that returns equal devices changes nothing on
the wire. Validation happens on construction, so that a wrong value is found where it was made.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import attrs
from typing_extensions import override

from .edits import ContainerEdits
from .errors import InvalidValueError
from .names import check_attribute_name, check_device_id, check_resource_name

if TYPE_CHECKING:
    from decimal import Decimal

__all__ = ["AttributeValue", "Device", "Health", "Quantity", "Version"]

MAX_NUMA_NODE = 63
"""The topology manager's masks are 64 bits wide (contract section 8)."""


@final
@attrs.frozen
class Health:
    """Whether a device can be handed out, and why not. Make one with `healthy` or `unhealthy`.

    Attributes:
        reason: Why it is unhealthy, for logs, ``kdp devices`` and error texts; None: it is healthy. The device
            plugin protocol itself carries no reason (contract section 1.1).
    """

    reason: str | None

    @classmethod
    def healthy(cls) -> Health:
        """Return the health of a device that works."""
        return _HEALTHY

    @classmethod
    def unhealthy(cls, reason: str) -> Health:
        """Return the health of a device that must not be handed out, because of ``reason``."""
        if not reason:
            raise InvalidValueError("Health.unhealthy(''): the reason must say what is wrong; valid is 'fan failed'")
        return cls(reason)

    @property
    def is_healthy(self) -> bool:
        """Whether new containers may get the device."""
        return self.reason is None

    @override
    def __str__(self) -> str:
        return "Healthy" if self.reason is None else f"Unhealthy ({self.reason})"


_HEALTHY = Health(None)

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?\Z",
    re.ASCII,
)


def _semver(value: str) -> str:
    if not _SEMVER.match(value):
        raise InvalidValueError(f"version {value!r}: must be a semantic version; valid is '550.54.15'")
    return value


@final
@attrs.frozen
class Version:
    """A semantic version (2.0.0) as an attribute's value, so that DRA's selectors can compare it.

    Attributes:
        text: ``MAJOR.MINOR.PATCH`` with optional pre-release and build parts.
    """

    text: str = attrs.field(converter=_semver)

    @override
    def __str__(self) -> str:
        return self.text


_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?\d{1,3})\Z", re.ASCII)
_FACTORS = {
    **{f"{prefix}i": str(1024**power) for power, prefix in enumerate("KMGTPE", start=1)},
    **{
        prefix: f"1e{3 * power}"
        for power, prefix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], start=-3)
    },
}


def _quantity(value: str) -> str:
    if not _QUANTITY.match(value):
        raise InvalidValueError(f"quantity {value!r}: must be a number with a Kubernetes suffix; valid is '80Gi'")
    return value


@final
@functools.total_ordering
@attrs.frozen(eq=False)
class Quantity:
    """An amount in Kubernetes' notation: ``80Gi``, ``1500m``, ``2``. Equal amounts are equal, however written.

    Attributes:
        text: The notation (Kubernetes API, ``resource.Quantity``).
    """

    text: str = attrs.field(converter=_quantity)

    @property
    def value(self) -> Decimal:
        """The amount as a plain number."""
        from decimal import Decimal  # only those who compute with amounts pay for it

        match = _QUANTITY.match(self.text)
        assert match is not None  # the converter has matched it
        sign, number, suffix = match.groups()
        return Decimal(f"{sign}{number}") * Decimal(_FACTORS.get(suffix) or f"1{suffix}")

    @override
    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    @override
    def __hash__(self) -> int:
        return hash(self.value)

    @override
    def __str__(self) -> str:
        return self.text


AttributeValue = bool | int | str | Version
"""What an attribute may hold: the four types of DRA."""


def _numa_nodes(value: Iterable[int]) -> tuple[int, ...]:
    nodes: set[int] = set()
    for node in value:
        if not isinstance(node, int) or isinstance(node, bool) or node > MAX_NUMA_NODE:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"NUMA node {node!r}: must be a number from 0 to {MAX_NUMA_NODE}; valid is 0")
        if node >= 0:  # sysfs says -1 for "unknown": that is no node (contract section 8)
            nodes.add(node)
    return tuple(sorted(nodes))


def _edits(value: ContainerEdits) -> ContainerEdits:
    if not isinstance(value, ContainerEdits):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"edits {value!r}: must be kdp.ContainerEdits, this is a {type(value).__name__}")
    return value


def _health(value: Health) -> Health:
    if not isinstance(value, Health):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"health {value!r}: must be kdp.Health; valid is kdp.Health.unhealthy('fan failed')")
    return value


def _attributes(value: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
    for name, held in value.items():
        check_attribute_name(name)
        if not isinstance(held, (bool, int, str, Version)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"attribute {name}={held!r}: must be bool, int, str or kdp.Version")
    return MappingProxyType(dict(value))


def _capacity(value: Mapping[str, int | Quantity]) -> Mapping[str, int | Quantity]:
    for name, amount in value.items():
        check_attribute_name(name)
        if not isinstance(amount, (int, Quantity)) or isinstance(amount, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"capacity {name}={amount!r}: must be int or kdp.Quantity; valid is Quantity('80Gi')"
            )
    return MappingProxyType(dict(value))


def _optional_resource(value: str | None) -> str | None:
    return None if value is None else check_resource_name(value)


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
            share it: a fault of the unit is a fault of all its devices.
        handle: The vendor's own object: not compared, not logged, not sent. The newest always replaces the one
            before, also when nothing else changed.
    """

    id: str = attrs.field(converter=check_device_id)
    health: Health = attrs.field(default=_HEALTHY, converter=_health)
    numa_nodes: tuple[int, ...] = attrs.field(default=(), converter=_numa_nodes)
    edits: ContainerEdits = attrs.field(factory=ContainerEdits, converter=_edits)
    attributes: Mapping[str, AttributeValue] = attrs.field(
        factory=dict[str, AttributeValue], converter=_attributes, hash=False
    )
    capacity: Mapping[str, int | Quantity] = attrs.field(
        factory=dict[str, int | Quantity], converter=_capacity, hash=False
    )
    resource: str | None = attrs.field(default=None, converter=_optional_resource)
    unit: str = attrs.field(default="")
    handle: Any = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not self.unit:
            object.__setattr__(self, "unit", self.id)

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
        if count < 0:
            raise InvalidValueError(f"count {count}: must be 0 or more; valid is 10")
        return [cls(id=f"{prefix}-{i}", edits=edits or ContainerEdits()) for i in range(count)]
