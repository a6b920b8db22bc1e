"""The node's labels: how many devices each resource has, and what the boards of each vendor have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import kdp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VENDORS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "fpga.intel.com": ("board", {"interface": "interface", "bitstream": "bitstream"}),
    "amd.com": ("card", {"shell": "product"}),
}
"""By the domain of a resource: what one of its units is called, and the attributes that are labels."""


def labels_of(devices: Sequence[kdp.Device], by_resource: Mapping[str, str]) -> dict[str, str]:
    """Return the labels.

    Args:
        devices: What was discovered; each names its resource.
        by_resource: kdp's default labels, with the count of each resource.
    """
    found = dict(by_resource)
    for domain, (word, names) in _VENDORS.items():
        mine = [device for device in devices if (device.resource or "").startswith(f"{domain}/")]
        if not mine:
            continue
        found[f"{domain}/{word}.count"] = str(len({device.unit for device in mine}))
        for attribute, name in names.items():
            values = {kdp.label_value(str(device.attributes.get(attribute, ""))) for device in mine}
            if len(values) == 1 and (value := values.pop()):
                found[f"{domain}/{word}.{name}"] = value
    return found
