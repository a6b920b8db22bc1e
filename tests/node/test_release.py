"""kdp and the kubelet's own pod-resources server: what pods hold, what they gave back, what the kubelet believes."""

from __future__ import annotations

import anyio
from typing_extensions import override

import kdp
from kdp.plugin.usage import Pace
from kdp.testing import Pod

from .backend import RESOURCE, Widgets, eventually, running
from .nodekit import DeviceManager

QUICK = Pace(
    gap=0.3, look=0.2, settling=0.0, between=0.05, absent=0.2, after_connect=0.2, period=0.3, again=0.2, lasting=0.5
)
"""Seconds for what takes minutes on a node."""


class Kept(Widgets):
    """Widgets that write down what is released, with the state that allocate left."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.returned: list[tuple[tuple[str, ...], dict[str, object]]] = []
        self.number = 0

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.number += 1
        devices.state["number"] = self.number
        return super().allocate(devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.returned.append((devices.ids, dict(devices.state)))


async def test_a_pods_end_is_told_once(devmgr: DeviceManager) -> None:
    backend = Kept("w0", "w1")
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await anyio.sleep(1.5)
        assert backend.returned == []
        await devmgr.delete(admitted.pod)
        await eventually(lambda: backend.returned)
        await anyio.sleep(1.0)
        assert backend.returned == [(admitted.devices(RESOURCE), {"number": 1})]
