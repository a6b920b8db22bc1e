"""The node's labels: how many adapters or functions each resource has, and what all of them have in common.

A pool of a hundred slots counts its adapters, not its slots. What may change with a cable, as the state of a port, is
no label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import kdp

from .pools import attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .hca import Hca

_NAMES: Final = {
    "model": "product",
    "board": "board",
    "firmware": "firmware-version",
    "driver": "driver",
    "linkLayer": "link-layer",
    "speed": "speed",
    "vendor": "vendor",
    "device": "device",
}
"""Attributes that are labels, and how these end."""


def labels_of(devices: Sequence[kdp.Device], hcas: Sequence[Hca]) -> dict[str, str]:
    """Return the labels.

    Args:
        devices: What was discovered; each names its resource.
        hcas: The adapters of the node.
    """
    held: dict[str, list[kdp.Device]] = {}
    for device in devices:
        held.setdefault(str(device.resource), []).append(device)
    known = {hca.name: attributes_of(hca) for hca in hcas}
    return {name: value for resource, members in held.items() for name, value in _of_resource(resource, members, known)}


def _of_resource(
    resource: str, devices: Sequence[kdp.Device], known: Mapping[str, Mapping[str, Any]]
) -> Iterable[tuple[str, str]]:
    told = {device.unit: device.attributes for device in devices}  # the slots of an adapter say the same
    first = devices[0]  # every slot of a pool names all of its adapters
    pool: tuple[str, ...] = first.handle if "healthyAdapters" in first.attributes else ()
    things: list[Mapping[str, Any]] = [known[name] for name in pool if name in known] or [*told.values()]
    yield f"{resource}.count", str(len(pool or told))
    if len(devices) > len(told):
        yield f"{resource}.slots", str(len(devices))
    for attribute, name in _NAMES.items():
        values = {kdp.label_value(str(held.get(attribute, ""))) for held in things}
        if len(values) == 1 and (value := values.pop()):
            yield f"{resource}.{name}", value
