"""A DRA driver's devices as a vendor writes them, the same as those of tests/node/peers/dra; a target of ``kdp run``.

They say of themselves what the driver of a GPU says of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

import kdp

if TYPE_CHECKING:
    from collections.abc import Iterable


class Devices(kdp.DeviceBackend):
    """Devices that are always there; the first one has a new revision each time that they are looked for.

    Args:
        count: How many.
    """

    resource = "example.com/kdp"

    def __init__(self, count: int = 8) -> None:
        self.count = count
        self.revision = -1

    @override
    def discover(self) -> Iterable[kdp.Device]:
        self.revision += 1
        return [self.device(number) for number in range(self.count)]

    def device(self, number: int) -> kdp.Device:
        """Return one device."""
        return kdp.Device(
            id=f"w{number}",
            attributes={
                "architecture": "Ampere",
                "brand": "Reference",
                "cudaComputeCapability": kdp.Version("8.0.0"),
                "driverVersion": kdp.Version("580.65.6"),
                "index": number,
                "productName": "REFERENCE A100-SXM4-40GB",
                "revision": 0 if number else self.revision,
                "type": "gpu",
                "uuid": f"GPU-8f5c2a10-1111-2222-3333-{number:012}",
            },
            capacity={"memory": kdp.Quantity("40Gi")},
            edits=kdp.ContainerEdits(
                env={f"REFERENCE_{number}": f"w{number}"},
                device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path=f"/dev/w{number}")],
            ),
        )
