"""The same plugin with kdp, as a vendor writes it; also a target of ``kdp run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

import kdp

from .names import ids

if TYPE_CHECKING:
    from collections.abc import Iterable


class Widgets(kdp.DeviceBackend):
    """Widgets that are always there.

    Args:
        count: How many.
    """

    resource = "example.com/widget"
    joined_env = {"WIDGETS": ","}  # noqa: RUF012 - as a vendor writes it

    def __init__(self, count: int = 8) -> None:
        self.count = count

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [self.device(device_id) for device_id in ids(self.count)]

    def device(self, device_id: str) -> kdp.Device:
        """Return one widget."""
        return kdp.Device(
            id=device_id,
            numa_nodes=[0],
            edits=kdp.ContainerEdits(
                env={"WIDGETS": device_id},
                device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path=f"/dev/{device_id}")],
                mounts=[kdp.Mount(host_path="/etc", container_path="/etc/widget", read_only=True)],
            ),
        )


def main() -> None:
    """Serve, as the variables ``KDP_*`` say."""
    kdp.run(Widgets())
