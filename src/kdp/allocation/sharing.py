"""Sharing: one device for several containers. The rules, as values; `kdp.allocation.shared` puts them around a backend.

Sharing does not isolate: the containers see the same device nodes, and share memory and time.

A replica's id is the device's, ``::`` and the replica's number. It stays the same whatever the number of replicas, and
the device's id can be read from it.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Literal, final

import attrs

from ..errors import InvalidNameError, InvalidValueError
from ..model.names import MAX_DEVICE_ID_LENGTH, MAX_REPLICAS, check_resource_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.devices import Device

Placement = Literal["distinct", "packed", "spread"]
PLACEMENTS: tuple[Placement, ...] = ("distinct", "packed", "spread")

MAX_BASE_ID_LENGTH = MAX_DEVICE_ID_LENGTH - len(f"::{MAX_REPLICAS - 1}")
"""What is left to a device's own id."""

SUFFIX = ".shared"


def replica_id(device_id: str, number: int) -> str:
    """Return a replica's id.

    Raises:
        InvalidNameError: The device's id is too long for it.
    """
    if len(device_id) > MAX_BASE_ID_LENGTH:
        raise InvalidNameError(
            f"device id {device_id!r}: a shared device's id must have at most {MAX_BASE_ID_LENGTH} characters, this "
            f"has {len(device_id)}; for example 'widget-0'"
        )
    return f"{device_id}::{number}"


def base_id(name: str) -> str:
    """Return the id of the device that a replica is of; of any other id itself."""
    base, mark, number = name.rpartition("::")
    return base if mark and number.isascii() and number.isdigit() else name


def _replicas(count: int) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_REPLICAS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"replicas {count!r}: must be a whole number from 1 to {MAX_REPLICAS}; for example 4")
    return count


@final
@attrs.frozen
class Override:
    """Another number of replicas for some devices.

    Attributes:
        selector: ``PATTERN`` of the id, or ``unit=PATTERN``, ``resource=PATTERN`` or ``ATTRIBUTE=PATTERN``, each with
            ``*``, ``?`` and ``[...]``; ``id=PATTERN`` for an id that holds an equals sign.
        replicas: How many; 1: not shared with anybody, but an id like all others.
    """

    selector: str
    replicas: int = attrs.field(converter=_replicas)

    def __attrs_post_init__(self) -> None:
        if not self._name_and_pattern[1]:
            raise InvalidValueError(
                f"selector {self.selector!r}: must be a pattern of ids or NAME=PATTERN; for example 'model=A100*'"
            )

    @property
    def _name_and_pattern(self) -> tuple[str, str]:
        name, equals, pattern = self.selector.partition("=")
        return (name, pattern) if equals else ("id", self.selector)

    def selects(self, device: Device, resource: str) -> bool:
        """Return whether it is about this device, whose resource is this."""
        named = {"id": device.id, "unit": device.unit, "resource": resource}
        name, pattern = self._name_and_pattern
        value = named.get(name, device.attributes.get(name))
        return value is not None and fnmatch.fnmatchcase(str(value), pattern)


def _overrides(value: Iterable[Override]) -> tuple[Override, ...]:
    return tuple(value)


def _placement(value: Placement) -> Placement:
    if value not in PLACEMENTS:
        raise InvalidValueError(f"placement {value!r}: must be one of {', '.join(PLACEMENTS)}; for example 'distinct'")
    return value


def _limit(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InvalidValueError(f"limit {value}: must be 1 or more; for example 1")
    return value


@final
@attrs.frozen(kw_only=True)
class Sharing:
    """How devices are shared.

    Attributes:
        replicas: How often each device is advertised; None: only what an override selects is shared.
        overrides: Other numbers for some devices; the first that selects a device counts.
        placement: Which replicas to prefer for a container that wants several: those of different units as far as
            possible, chosen by the backend's policy (``distinct``); of few units, those that are used already first
            (``packed``); of different units, those with most free replicas first (``spread``).
        limit: How many replicas a container may ask for. More are refused, with a sentence that the user understands.
            None: any number.
        rename: Whether the shared devices' resource gets the suffix ``.shared``.
    """

    replicas: int | None = attrs.field(default=None, converter=attrs.converters.optional(_replicas))
    overrides: tuple[Override, ...] = attrs.field(default=(), converter=_overrides)
    placement: Placement = attrs.field(default="spread", converter=_placement)
    limit: int | None = attrs.field(default=None, converter=_limit)
    rename: bool = False

    def __attrs_post_init__(self) -> None:
        if self.replicas is None and not self.overrides:
            raise InvalidValueError(
                "sharing: nothing is shared; say how many replicas, for example Sharing(replicas=4)"
            )

    def count(self, device: Device, resource: str) -> int | None:
        """Return how many replicas a device has; None: it is not shared."""
        for override in self.overrides:
            if override.selects(device, resource):
                return override.replicas
        return self.replicas

    @property
    def most(self) -> int:
        """The highest number of replicas that any device can have."""
        return max([self.replicas or 0, *(override.replicas for override in self.overrides)])

    def resource(self, name: str) -> str:
        """Return the resource of shared devices of a resource.

        Raises:
            InvalidNameError: With the suffix it is too long.
        """
        return check_resource_name(f"{name}{SUFFIX}") if self.rename else name
