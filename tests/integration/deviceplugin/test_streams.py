"""What the kubelet is told, and when; what the end of a stream leads to is in ``tests/integration/faults``."""

from __future__ import annotations

import attrs
import pytest

import kdp
from kdp.testing import SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, lists, until


def health(kubelet: SimulatedKubelet) -> dict[str, str]:
    return {device.id: device.health for device in kubelet.devices(RESOURCE).values()}


async def test_a_fault_and_its_end_are_one_list_each(kubelet: SimulatedKubelet) -> None:
    """Scenarios 6 and 7; without a discovery in between."""
    backend = Widgets("w0", "w1")
    async with connected(kubelet, backend):
        report = await backend.report()
        report.fault("w0", "XID 79", kind="xid")
        await kubelet.until(allocatable={RESOURCE: 1})
        assert health(kubelet) == {"w0": "Unhealthy", "w1": "Healthy"}
        report.fault("w0", "too hot", kind="heat")
        report.clear("w0", kind="xid")
        report.clear("w0", kind="heat")
        await kubelet.until(allocatable={RESOURCE: 2})
        assert len(lists(kubelet)) == 3
        assert backend.discoveries == 1


async def test_what_does_not_change_is_not_sent(kubelet: SimulatedKubelet) -> None:
    """Scenario 5: the order, handles, edits and reasons are none of the kubelet's business."""
    backend = Widgets("w0", kdp.Device(id="w1", health=kdp.Health.unhealthy("fan failed")))
    async with connected(kubelet, backend) as manager:
        handle = object()
        for new in (
            list(reversed(backend.devices)),
            [attrs.evolve(device, handle=handle) for device in backend.devices],
            [attrs.evolve(device, edits=kdp.ContainerEdits(env={"A": "1"})) for device in backend.devices],
            [backend.devices[0], kdp.Device(id="w1", health=kdp.Health.unhealthy("too hot"))],
        ):
            backend.devices, before = new, backend.discoveries
            manager.rescan()
            await until(lambda before=before: backend.discoveries > before)  # type: ignore[misc]
        [one] = lists(kubelet)
        assert (one.healthy, one.unhealthy) == (1, 1)
        # Yet the newest edits are what a container gets, and the newest handle what a hook gets.
        edits = kdp.ContainerEdits(env={"B": "2"})
        backend.devices = [kdp.Device(id="w0", edits=edits), kdp.Device(id="w2")]
        manager.rescan()
        await kubelet.until(lambda: len(lists(kubelet)) == 2)
        [reply] = await kubelet.plugin(RESOURCE).allocate(["w0"])
        assert dict(reply.envs) == {"B": "2"}


async def test_topology_is_told_for_all_devices_or_for_none(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 56: node 0 is explicit, -1 is no node, one device without a node costs the resource its topology."""
    near = [kdp.Device(id="w0", numa_nodes=[0]), kdp.Device(id="w1", numa_nodes=[1, 0])]
    backend = Widgets(*near)
    async with connected(kubelet, backend) as manager:
        assert {d.id: d.numa_nodes for d in kubelet.devices(RESOURCE).values()} == {"w0": (0,), "w1": (0, 1)}
        backend.devices.append(kdp.Device(id="w2", numa_nodes=[-1]))
        manager.rescan()
        await kubelet.until(capacity={RESOURCE: 3})
        assert {d.numa_nodes for d in kubelet.devices(RESOURCE).values()} == {None}
        [line] = [r.getMessage() for r in caplog.records if "NUMA" in r.getMessage()]
        assert "w2" in line
        backend.devices[-1] = kdp.Device(id="w2", numa_nodes=[1])
        manager.rescan()
        await kubelet.until(lambda: {d.numa_nodes for d in kubelet.devices(RESOURCE).values()} == {(0,), (0, 1), (1,)})
