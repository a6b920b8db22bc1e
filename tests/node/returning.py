"""A plugin's process for the tests of releases: it writes down what is allocated and released, and is killed.

usage: returning.py KUBELET_ROOT STATE_DIR LOG
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.kubelet import KubeletPaths

PACE = Pace(gap=0.3, look=0.2, settled=0.2, settling=0.0, between=0.05, after_connect=0.2, period=1.0)


class Returning(kdp.DeviceBackend):
    """Two widgets."""

    resource = "example.com/widget"
    poll_interval = None

    def __init__(self, log: Path) -> None:
        self._log = log

    def _write(self, what: str, devices: kdp.Allocation) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps([what, list(devices.ids), devices.state]) + "\n")

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id="w0"), kdp.Device(id="w1")]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        devices.state["for"] = "-".join(devices.ids)
        self._write("allocated", devices)
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self._write("prepared", devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self._write("released", devices)


async def main(root: str, state: str, log: str) -> None:
    paths = KubeletPaths.simulated(root)
    async with PluginManager([Returning(Path(log))], ManagerOptions(paths=paths, state_dir=Path(state), pace=PACE)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
