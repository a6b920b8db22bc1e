"""A plugin's process whose Allocate of three devices waits for a file, for the tests of Lists beside Allocates.

usage: slow_plugin.py KUBELET_ROOT DIRECTORY; it makes DIRECTORY/entered, and waits for DIRECTORY/go-on
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.kubelet import KubeletPaths

RESOURCE = "example.com/widget"
DEVICES = 8


class Slow(kdp.DeviceBackend):
    """Eight widgets."""

    resource: str | None = RESOURCE
    poll_interval = None

    def __init__(self, directory: Path, resource: str = RESOURCE) -> None:
        self._directory = directory
        self.resource = resource

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [kdp.Device(id=f"w{n}") for n in range(DEVICES)]

    @override
    def prefer(self, request: kdp.PreferRequest) -> list[str]:
        return sorted(device.id for device in request.available)[: request.size]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if len(devices.ids) == 3:
            (self._directory / "entered").touch()
            while not (self._directory / "go-on").exists() and time.monotonic() < devices.deadline:
                time.sleep(0.01)
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})


async def main(root: str, directory: str) -> None:
    options = ManagerOptions(paths=KubeletPaths.simulated(root), pace=Pace(period=3600, after_connect=3600))
    async with PluginManager([Slow(Path(directory))], options):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
