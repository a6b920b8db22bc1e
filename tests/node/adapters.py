"""Adapters whose numbers move, as a process of the node: the links ``w*`` of a folder lead to their nodes.

usage: python adapters.py FOLDER links|numbers plugin|cdi|dra

With ``links`` the backend names the links, whose names stay; with ``numbers`` what they lead to at its discovery.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from typing_extensions import override

import kdp
from kdp.cluster.client import KubeApi
from kdp.deviceplugin.cdi import CdiOptions
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions


class Adapters(kdp.DeviceBackend):
    resource = "example.com/adapter"
    poll_interval = 0.2

    def __init__(self, folder: Path, *, names_links: bool) -> None:
        self._folder = folder
        self._names_links = names_links

    @override
    def discover(self) -> Iterable[kdp.Device]:
        for link in sorted(self._folder.glob("w*")):
            path = link if self._names_links else link.resolve()
            node = kdp.DeviceNode(host_path=path, container_path=f"/dev/{link.name}")
            yield kdp.Device(id=link.name, edits=kdp.ContainerEdits(device_nodes=[node]))


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    folder, names, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    backend = Adapters(folder, names_links=names == "links")
    async with AsyncExitStack() as stack:
        if mode == "dra":
            api = await stack.enter_async_context(KubeApi())
            await stack.enter_async_context(DraDriver([backend], DriverOptions(api=api, node="node0")))
        else:
            cdi = CdiOptions(directory=Path("/var/run/cdi"), only=True) if mode == "cdi" else None
            options = ManagerOptions(state_dir=folder / "state", cdi=cdi, pace=Pace(gap=2.0))
            await stack.enter_async_context(PluginManager([backend], options))
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
