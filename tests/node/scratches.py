"""Scratch directories that pods write to and that are erased between two pods, as a process of its own.

usage: python scratches.py FOLDER COUNT SECONDS plugin|shared|dra [KUBELET_ROOT]

An erasure takes so many seconds, counted from its first attempt and over restarts of the process. Shared ones have two
replicas each. With the directory of a simulated kubelet, ends of pods are seen in a moment.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.cluster.client import KubeApi
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.kubelet import KubeletPaths


class Scratches(kdp.DeviceBackend):
    resource = "example.com/scratch"
    release_policy = "scrub"

    def __init__(self, folder: Path, count: int, seconds: float) -> None:
        self._folder = folder
        self._count = count
        self._seconds = seconds

    @override
    def discover(self) -> Iterable[kdp.Device]:
        for number in range(self._count):
            place = self._folder / f"s{number}"
            place.mkdir(exist_ok=True)
            mount = kdp.Mount(host_path=place, container_path=f"/scratch/{place.name}", read_only=False)
            yield kdp.Device(id=place.name, edits=kdp.ContainerEdits(mounts=[mount]))

    @override
    def released(self, devices: kdp.Allocation) -> None:
        began = devices.state.setdefault("began", time.time())
        if time.time() < began + self._seconds:
            raise kdp.AllocationError(f"{', '.join(devices.ids)}: erasing goes on")
        for device in devices:
            for path in (self._folder / device.id).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    folder, count, seconds, mode = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    paths = KubeletPaths.simulated(sys.argv[5]) if sys.argv[5:] else KubeletPaths.under()
    pace = (
        Pace(gap=0.3, admission=0.2, look=0.1, settled=0.1, settling=0.0, between=0.05)
        if sys.argv[5:]
        else Pace(gap=3.0)
    )
    backend = Scratches(folder, count, seconds)
    async with AsyncExitStack() as stack:
        if mode == "dra":
            api = await stack.enter_async_context(KubeApi())
            await stack.enter_async_context(DraDriver([backend], DriverOptions(api=api, node="node0")))
        else:
            options = ManagerOptions(paths=paths, pace=pace, state_dir=folder / "state")
            served = share(backend, Sharing(replicas=2)) if mode == "shared" else backend
            await stack.enter_async_context(PluginManager([served], options))
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
