"""The whole way: a tree, kdp, and a kubelet. No test here polls: what changes is heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

import kdp.hardware
from kdp.testing import AdmissionError, Pod, SimulatedKubelet, SysfsTree
from kdp_rdma import Rdma

from .conftest import DOWN, Node, Watched

pytestmark = pytest.mark.anyio

Figure = Callable[[str, float], None]
UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    def report(name: str, milliseconds: float) -> None:
        text = f"rdma: {name}: {milliseconds:.4g} ms"
        record_property("figure", text)
        print(text)

    return report


def _healthy(kubelet: SimulatedKubelet, resource: str) -> set[str]:
    return {id_ for id_, device in kubelet.devices(resource).items() if device.health == "Healthy"}


def _port(tree: SysfsTree, name: str, values: dict[str, str]) -> None:
    for attribute, value in values.items():
        tree.write(f"/sys/class/infiniband/{name}/ports/1/{attribute}", value)


async def test_a_pod_gets_its_adapter(node: SysfsTree, kubelet: SimulatedKubelet) -> None:
    backend = Watched(node.host, mode="hca", slots=2, link_types=["infiniband"])
    async with kubelet.serving(backend, host=node.host):
        await kubelet.until(allocatable={"rdma/hca": 4})
        assert {id_: device.numa_nodes for id_, device in kubelet.devices("rdma/hca").items()} == {
            "0c42a10300000001-0": (0,),
            "0c42a10300000001-1": (0,),
            "0c42a10300000002-0": (1,),
            "0c42a10300000002-1": (1,),
        }
        pod = await kubelet.admit(Pod.asking({"rdma/hca": 4}))
        reply = pod.reply("main")
        assert reply.envs == {"RDMA_DEVICES": "mlx5_0,mlx5_1", "RDMA_DEVICES_RDMA_HCA": "mlx5_0,mlx5_1"}
        nodes = [held.container_path.removeprefix("/dev/infiniband/") for held in reply.devices]
        assert sorted(nodes) == [
            *("issm0", "issm1", "issm2", "rdma_cm", "umad0", "umad1", "umad2", "uverbs0", "uverbs1"),
        ]
        assert {held.permissions for held in reply.devices} == {"rw"}


async def test_a_port_that_goes_down_is_told_at_once_and_comes_back(
    node: SysfsTree, kubelet: SimulatedKubelet, figure: Figure
) -> None:
    resource = "rdma/hca"
    backend = Watched(node.host, mode="hca", link_types=["infiniband"])
    async with kubelet.serving(backend, host=node.host):
        await kubelet.until(allocatable={resource: 2})
        await backend.listens()
        _port(node, "mlx5_1", DOWN)
        started = time.perf_counter()
        node.link_event("veth7", state="down")  # of no adapter: nobody looks
        node.link_event("ib1", state="down")
        await kubelet.until(allocatable={resource: 1})
        figure("a port that went down reaches the kubelet after", (time.perf_counter() - started) * 1000)
        assert _healthy(kubelet, resource) == {"0c42a10300000001-0"}
        _port(node, "mlx5_1", UP)
        started = time.perf_counter()
        node.link_event("ib1", state="up")
        await kubelet.until(allocatable={resource: 2})
        figure("a port that came up reaches the kubelet after two good looks", (time.perf_counter() - started) * 1000)


async def test_the_events_of_an_interface_that_was_renamed_were_not_heard(
    node: SysfsTree, kubelet: SimulatedKubelet
) -> None:
    resource, card = "rdma/hca", "/sys/devices/pci0000:af/0000:af:00.0"
    made = Node(node)
    node.write("/sys/class/net/ib1/ifindex", 7)
    backend = Watched(node.host, mode="hca", link_types=["infiniband"])
    async with kubelet.serving(backend, host=node.host):
        await kubelet.until(allocatable={resource: 2})
        await backend.listens()
        made.net(card, "new", link_type=32)
        node.write("/sys/class/net/new/ifindex", 7)
        node.remove("/sys/class/net/ib1")
        node.remove(f"{card}/net/ib1")
        _port(node, "mlx5_1", DOWN)
        node.link_event("new", state="down")
        await kubelet.until(allocatable={resource: 1})
        assert _healthy(kubelet, resource) == {"0c42a10300000001-0"}


async def test_an_adapter_that_is_unplugged_and_comes_back(
    node: SysfsTree, kubelet: SimulatedKubelet, figure: Figure
) -> None:
    resource, card = "rdma/hca_shared_devices", "/sys/devices/pci0000:af/0000:af:00.0"
    backend = Watched(node.host, rdma_hca_max=5, if_names=["ib1"])
    async with kubelet.serving(backend, host=node.host):
        await kubelet.until(allocatable={resource: 5})
        await backend.listens()
        node.vanish(card)
        started = time.perf_counter()
        node.uevent("remove", f"{card}/infiniband_verbs/uverbs1", SUBSYSTEM="infiniband_verbs")
        node.uevent("remove", f"{card}/infiniband/mlx5_1", SUBSYSTEM="infiniband")
        await kubelet.until(allocatable={resource: 0})
        figure("an adapter that was unplugged is missed after", (time.perf_counter() - started) * 1000)
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({resource: 1}))
        node.bring_back(card)
        node.uevent("add", f"{card}/infiniband/mlx5_1")
        await kubelet.until(allocatable={resource: 5})


class Counting:
    """A reporter that counts what it is asked for."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.asked = 0
        self._changed = anyio.Event()

    def rescan(self) -> None:
        self.asked += 1
        self._changed.set()
        self._changed = anyio.Event()

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        raise AssertionError("the backend reports no faults")

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        raise AssertionError("the backend reports no faults")

    async def until(self, asked: int) -> None:
        with anyio.fail_after(60):
            while self.asked < asked:
                await self._changed.wait()


async def test_of_an_adapter_that_comes_only_the_last_event_counts(node: SysfsTree) -> None:
    backend, report = Rdma(node.host), Counting()
    backend.discover()
    card = "/sys/devices/pci0000:af/0000:af:00.0"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.watch, report)
        await report.until(1)
        for entry in ("infiniband_verbs/uverbs1", "infiniband_mad/umad2"):
            node.uevent("add", f"{card}/{entry}")
        await anyio.sleep(0.2)
        assert report.asked == 1
        node.uevent("add", f"{card}/infiniband/mlx5_1")
        await report.until(2)
        tasks.cancel_scope.cancel()


async def test_without_events_and_without_polling_changes_were_seen_every_none_seconds(
    node: SysfsTree,
    write_config: Callable[[Any], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(watch: kdp.hardware.LinkWatch) -> kdp.hardware.LinkWatch:
        watch.refused = "the kernel's link events are refused: Operation not permitted"
        return watch

    monkeypatch.setattr(kdp.hardware.LinkWatch, "__aenter__", refuse)
    pools = [{"resourceName": "all", "rdmaHcaMax": 1, "selectors": {"linkTypes": ["infiniband"]}}]
    backend = Rdma(node.host, config=write_config({"periodicUpdateInterval": 0, "configList": pools}))
    backend.discover()
    report = Counting()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.watch, report)
        await report.until(1)
        tasks.cancel_scope.cancel()
    assert "the kernel's link events are refused: Operation not permitted; changes are not seen" in caplog.messages
