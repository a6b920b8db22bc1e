"""A DRA driver as a process of the node, whose devices are of every kind that DRA knows.

usage: python dra_cards.py FOLDER

The folder's file ``sick`` names devices that are, one a line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import anyio
from typing_extensions import override

import kdp
from kdp.cluster.client import KubeApi
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions

KINDS = ("whole", "half", "link", "drive", "fan")


class Cards(kdp.DeviceBackend):
    """A card whole or in halves, a link that is shared, a drive that a fabric attaches, and fans."""

    resource = "example.com/card"
    poll_interval = 0.1

    def __init__(self, folder: Path) -> None:
        self._sick = folder / "sick"

    @override
    def discover(self) -> Iterable[kdp.Device]:
        half = {"card": {"memory": kdp.Quantity("20Gi")}}
        yield self._device("whole0", consumes={"card": {"memory": kdp.Quantity("40Gi")}})
        yield self._device("half0", consumes=half, resource="example.com/half")
        yield self._device("half1", consumes=half, resource="example.com/half")
        policy = kdp.RequestPolicy(default=1, min=1, step=1)
        yield self._device("link0", capacity={"bandwidth": 10}, shareable={"bandwidth": policy})
        binding = kdp.BindingConditions(conditions=["example.com/attached"], failure_conditions=["example.com/failed"])
        yield self._device("drive0", binding_conditions=binding)
        yield self._device("fan0")
        yield self._device("fan1")

    def _device(self, name: str, **more: object) -> kdp.Device:
        sick = self._sick.read_text().split() if self._sick.exists() else []
        return kdp.Device(
            id=name,
            health=kdp.Health.unhealthy("it rattles") if name in sick else kdp.Health.healthy(),
            attributes={"kind": name[:-1]},
            edits=kdp.ContainerEdits(env={f"CARD_{name}": "given"}),
            **more,  # type: ignore[arg-type]
        )

    @override
    def counters(self) -> Mapping[str, Mapping[str, int | kdp.Quantity]]:
        return {"card": {"memory": kdp.Quantity("40Gi")}}

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        _tell("allocate", devices)
        if "link0" in devices.ids:
            devices.network["link0"] = kdp.NetworkData(
                interface_name="net1", ips=["192.0.2.5/24", "2001:DB8::5/64"], hardware_address="52:54:00:12:34:56"
            )
        return kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        _tell("released", devices)


def _tell(hook: str, devices: kdp.Allocation) -> None:
    assert devices.claim is not None
    told = {
        "hook": hook,
        "claim": devices.claim.name,
        "request": devices.request,
        "devices": devices.ids,
        "consumed": {name: {k: str(v) for k, v in amounts.items()} for name, amounts in devices.consumed.items()},
        "shares": dict(devices.share_id),
        "admin": devices.admin_access,
    }
    print(json.dumps(told), flush=True)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    backend = Cards(Path(sys.argv[1]))
    async with (
        KubeApi() as api,
        DraDriver([backend], DriverOptions(api=api, node="node0", health_taint="NoExecute", device_status=True)),
    ):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
