"""A backend for a cluster's tests whose devices fail when a file on the node has their name."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

import kdp

__all__ = ["FOLDER", "RESOURCE", "Failing"]

RESOURCE = "example.com/failing"
FOLDER = "/run/failing"
"""Where the files are, on the node and in the plugin's container."""


class Failing(kdp.DeviceBackend):
    """Devices ``f0`` to ``f2``, which all are /dev/null in a container."""

    resource = RESOURCE
    poll_interval = 0.2

    @override
    def needs(self) -> kdp.Needs:
        return kdp.Needs(host_paths=[FOLDER])

    @override
    def discover(self) -> list[kdp.Device]:
        return [self._device(f"f{number}") for number in range(3)]

    def _device(self, name: str) -> kdp.Device:
        has_failed = (Path(FOLDER) / name).exists()
        health = kdp.Health.unhealthy("XID 79") if has_failed else kdp.Health.healthy()
        return kdp.Device(id=name, health=health, edits=kdp.ContainerEdits(env={"FAILING": name}))
