"""`Findings`: what one ``discover`` returned, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..errors import InvalidValueError, kind_of, lasting
from ..model.devices import Device, recalled
from ..model.names import check_resource_name
from ..startup import shown

if TYPE_CHECKING:
    from ..model.backend import DeviceBackend


@attrs.frozen(kw_only=True)
class Findings:
    """What one ``discover`` returned, and what its device nodes looked like.

    Attributes:
        devices: The devices as the backend made them.
        faults: What is wrong with device nodes, by device id.
        resources: The statically named resources.
        resource: The one of devices that name none; None: all of them name theirs.
        stale_after: Seconds that they may be old before they are Unhealthy.
    """

    __repr__ = shown

    devices: tuple[Device, ...]
    faults: Mapping[str, str]
    resources: tuple[str, ...]
    resource: str | None
    stale_after: float


MOST_DEVICES: Final = 100_000
"""A list of 4 MiB has room for fewer, unless their ids are very short (contract section 5)."""


def checked_devices(found: Any, backend: DeviceBackend, before: Sequence[Device] = ()) -> tuple[Device, ...]:
    """Return the devices that ``discover`` returned; it consumes a generator, and so may block.

    Args:
        found: What ``discover`` returned.
        backend: The backend.
        before: The devices of the discovery before: what is not described now stays as it was.

    Raises:
        InvalidValueError: It returned something else, too many, an id twice, or a device without a resource.
    """
    try:
        iterator = iter(found)
    except TypeError:
        raise InvalidValueError(f"it returned {lasting(repr(found))}: must be an iterable of kdp.Device") from None
    devices: dict[str, Device] = {}
    known = {device.id: device for device in before}
    for device in iterator:
        if not isinstance(device, Device):
            raise InvalidValueError(
                f"it returned {lasting(repr(device))}: must be a kdp.Device, this is {kind_of(device)}"
            )
        if device.id in devices:
            raise InvalidValueError(f"it returned device id {device.id!r} twice: ids must be unique in the process")
        if len(devices) == MOST_DEVICES:
            raise InvalidValueError(
                f"it returned more than {MOST_DEVICES:,} devices, and no list can carry them; let a generator end"
            )
        device = devices[device.id] = recalled(device, known.get(device.id))
        if device.is_described:
            resource_of(device, backend)
    return tuple(devices.values())


def resource_of(device: Device, backend: DeviceBackend) -> str:
    """Return the resource that a device belongs to.

    Raises:
        InvalidValueError: Neither the device nor its backend names one.
    """
    resource = device.resource or backend.resource
    if resource is None:
        raise InvalidValueError(
            f"device {device.id!r} names no resource and {type(backend).__name__}.resource is None: set one of them"
        )
    return resource


def clashing_variable(devices: Iterable[Device], backend: DeviceBackend) -> tuple[str, str, str] | None:
    """Return two resources and a variable that their devices set to different values; None: there is none.

    A container that asks for both gets one reply for each, and of two values the kubelet takes one
    (``pkg/kubelet/cm/devicemanager/pod_devices.go``). `DeviceBackend.joined_env` joins values within one reply.
    """
    found: dict[str, tuple[dict[str, None], set[str]]] = {}
    for device in devices:
        for name, text in device.edits.env.items():
            resources, values = found.setdefault(name, ({}, set()))
            resources[resource_of(device, backend)] = None
            values.add(text)
            if len(resources) > 1 and len(values) > 1:
                first, second = resources
                return first, second, name
    return None


def static_resources(backend: DeviceBackend) -> tuple[str, ...]:
    """Return the resources that a backend names itself, devices or not; each name is checked.

    Raises:
        InvalidNameError: The kubelet would not accept a name.
    """
    names = (*((backend.resource,) if backend.resource is not None else ()), *backend.resources)
    return tuple(dict.fromkeys(check_resource_name(name) for name in names))
