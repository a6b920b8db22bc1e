"""A DRA driver as a process of the node: the device nodes w* of a folder, with one parameter.

usage: python dra_driver.py FOLDER [POD_UID [BOOT_ID]]
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import attrs
from typing_extensions import override

import kdp
from kdp.cluster.client import KubeApi
from kdp.dra import plugin
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions


@attrs.frozen(kw_only=True)
class WidgetMode:
    """What a claim may ask for."""

    greeting: str = "hello"


class Widgets(kdp.DeviceBackend):
    """A file ``sick`` in the folder names a device that is."""

    resource = "example.com/widget"
    poll_interval = 0.2
    config = WidgetMode

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @override
    def discover(self) -> Iterable[kdp.Device]:
        file = self._folder / "sick"
        sick = file.read_text().strip() if file.exists() else ""
        for path in sorted(self._folder.glob("w*")):
            number = int(path.name[1:])
            yield kdp.Device(
                id=path.name,
                health=kdp.Health.unhealthy("it smokes") if path.name == sick else kdp.Health.healthy(),
                attributes={"even": number % 2 == 0},
                edits=kdp.ContainerEdits(
                    device_nodes=[kdp.DeviceNode(host_path=path, container_path=f"/dev/{path.name}")],
                    env={f"WIDGET_{number}": "given"},
                ),
            )

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        assert devices.claim is not None
        print("allocate", devices.claim.name, devices.request, *devices.ids, flush=True)
        mode = devices.config or WidgetMode()
        devices.state["claim"] = devices.claim.name
        return devices.edits().adding(env={"GREETING": mode.greeting})

    @override
    def released(self, devices: kdp.Allocation) -> None:
        print("released", devices.state["claim"], devices.request, *devices.ids, flush=True)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    # A test has less patience with what an Event tells than people have.
    plugin.PATIENCE, plugin.EVENT_PAUSE = 1.0, 0.5
    folder, pod_uid, boot_id = (*sys.argv[1:], "", "")[:3]
    more: Any = {
        "pod_uid": pod_uid or None,
        "boot_id": boot_id or None,
        "device_status": True,
        "device_metadata": True,
    }
    async with KubeApi() as api, DraDriver([Widgets(Path(folder))], DriverOptions(api=api, node="node0", **more)):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
