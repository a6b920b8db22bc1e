"""Runs in a guest: examples/rdma on soft-RoCE, with kdp and the simulated kubelet. Nothing here polls.

One adapter is on the guest's own interface, one on a dummy; each test leaves both as it found them. Python is slow in a
guest: the figures are upper limits.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from typing_extensions import override

import kdp
import kdp.hardware
from kdp.testing import SimulatedKubelet
from kdp_rdma import Rdma

Figure = Callable[[str, float, str], None]

RESOURCE = "rdma/hca"
DEADLINE = 120.0


def do(*words: str) -> None:
    subprocess.run(words, check=True, timeout=DEADLINE)


@pytest.fixture(scope="module", autouse=True)
def _adapters() -> Iterator[None]:
    do("ip", "link", "add", "dum0", "type", "dummy")
    for interface, address in (("dum0", "192.0.2.1/24"), ("eth0", "198.51.100.1/24")):
        do("ip", "address", "add", address, "dev", interface)
        do("ip", "link", "set", interface, "up")
    do("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    do("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dum0")
    yield
    for adapter in ("rxe0", "rxe1"):
        do("rdma", "link", "del", adapter)


class Watched(Rdma):
    """The backend, which tells when its watch listens: that asks for a discovery of its own then."""

    def __init__(self) -> None:
        super().__init__(kdp.hardware.Host(), mode="hca")
        self.poll_interval = 3600
        self.health_policy = kdp.HealthPolicy(successes=2, recheck=0.2, flaps=None)
        self._discoveries = 0
        self.listening = threading.Event()

    @override
    def discover(self) -> list[kdp.Device]:
        found = super().discover()
        self._discoveries += 1
        if self._discoveries > 1:
            self.listening.set()
        return found


def _found() -> dict[str, kdp.Device]:
    return {str(device.attributes["name"]): device for device in Rdma(kdp.hardware.Host(), mode="hca").discover()}


@asynccontextmanager
async def _serving(kubelet: SimulatedKubelet) -> AsyncIterator[None]:
    backend = Watched()
    async with kubelet.serving(backend, timeout=DEADLINE):
        await kubelet.until(allocatable={RESOURCE: 2}, timeout=DEADLINE)
        assert await anyio.to_thread.run_sync(backend.listening.wait, DEADLINE)
        yield


async def _tell(figure: Figure, what: str, kubelet: SimulatedKubelet, allocatable: int, *words: str) -> None:
    """Change the hardware, wait for the kubelet, and say how long that took."""
    began = time.monotonic()
    await anyio.to_thread.run_sync(do, *words)
    done = time.monotonic()
    await kubelet.until(allocatable={RESOURCE: allocatable}, timeout=DEADLINE)
    figure(f"{what}, from the order", time.monotonic() - began, "s")
    figure(f"{what}, from its end", time.monotonic() - done, "s")


def test_the_kernel_shows_both_adapters() -> None:
    found = _found()

    assert {name: (str(device.health), device.attributes["interfaces"]) for name, device in found.items()} == {
        "rxe0": ("Healthy", "eth0"),
        "rxe1": ("Healthy", "dum0"),
    }
    for device in found.values():
        kinds = {Path(node.host_path).name.rstrip("0123456789") for node in device.edits.device_nodes}
        assert {"uverbs", "umad", "rdma_cm"} <= kinds
        for node in device.edits.device_nodes:
            assert kdp.hardware.Host().device_type(node.host_path) == "char"
            if "uverbs" in node.host_path:
                os.close(os.open(node.host_path, os.O_RDWR))


async def test_a_port_that_goes_down_and_comes_up_reaches_the_kubelet(
    kubelet: SimulatedKubelet, figure: Figure
) -> None:
    async with _serving(kubelet):
        for interface, adapter, down, up, physical in (
            ("eth0", "rxe0", ("down",), ("up",), "Disabled"),
            ("dum0", "rxe1", ("carrier", "off"), ("carrier", "on"), "Polling"),
        ):
            change = ("ip", "link", "set", interface)
            await _tell(figure, f"{interface} {' '.join(down)}: Unhealthy", kubelet, 1, *change, *down)
            assert (_found()[adapter].health.reason or "").startswith(f"{adapter} port 1 is DOWN ({physical}")
            await _tell(figure, f"{interface} {' '.join(up)}: Healthy", kubelet, 2, *change, *up)


async def test_an_adapter_that_is_unplugged_and_comes_back(kubelet: SimulatedKubelet, figure: Figure) -> None:
    async with _serving(kubelet):
        ids = {device.id for device in _found().values()}
        await _tell(figure, "unplug", kubelet, 1, "rdma", "link", "del", "rxe1")
        assert _found().keys() == {"rxe0"}
        back = ("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dum0")
        await _tell(figure, "plugged in", kubelet, 2, *back)
        assert {device.id for device in _found().values()} == ids


async def test_a_renamed_adapter_stays_the_same_device(kubelet: SimulatedKubelet) -> None:
    before = _found()
    async with _serving(kubelet):
        await anyio.to_thread.run_sync(do, "rdma", "dev", "set", "rxe1", "name", "roce_b")
        try:
            after = _found()
            assert after["roce_b"].id == before["rxe1"].id
            assert after["roce_b"].health.is_healthy
            assert kubelet.allocatable() == {RESOURCE: 2}
        finally:
            await anyio.to_thread.run_sync(do, "rdma", "dev", "set", "roce_b", "name", "rxe1")


async def test_an_adapter_that_is_removed_while_in_use_is_unhealthy_though_its_port_is_active(
    kubelet: SimulatedKubelet, figure: Figure
) -> None:
    """The kernel waits for the last open descriptor; until then sysfs shows the adapter as if nothing were."""
    (uverbs,) = (node.host_path for node in _found()["rxe1"].edits.device_nodes if "uverbs" in node.host_path)
    async with _serving(kubelet):
        held = os.open(uverbs, os.O_RDWR)
        began = time.monotonic()
        removing = await anyio.open_process(["rdma", "link", "del", "rxe1"])
        try:
            await kubelet.until(allocatable={RESOURCE: 1}, timeout=DEADLINE)
            figure("unplug while in use", time.monotonic() - began, "s")
            state = kdp.hardware.Host().reading("/sys/class/infiniband/rxe1/ports/1/state")
            assert state.value == "4: ACTIVE"
            assert (_found()["rxe1"].health.reason or "").startswith("rxe1 has no uverbs device")
        finally:
            os.close(held)
            with anyio.fail_after(DEADLINE):
                await removing.wait()
        await anyio.to_thread.run_sync(do, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dum0")
        await kubelet.until(allocatable={RESOURCE: 2}, timeout=DEADLINE)


async def test_the_namespace_mode_is_where_the_backend_reads_it() -> None:
    assert kdp.hardware.Host().reading("/sys/module/ib_core/parameters/netns_mode").value == "Y"
    do("rdma", "system", "set", "netns", "exclusive")
    try:
        reasons = {(device.health.reason or "").partition(",")[0] for device in _found().values()}
        assert reasons == {"the node's RDMA network namespace mode is exclusive"}
    finally:
        do("rdma", "system", "set", "netns", "shared")
    assert all(device.health.is_healthy for device in _found().values())


def test_what_the_driver_counts_is_measured() -> None:
    backend = Rdma(kdp.hardware.Host(), mode="hca")
    ids = {str(device.attributes["name"]): device.id for device in backend.discover()}
    before = backend.measure()
    for adapter in ("rxe0", "rxe1"):
        assert {"rdma_transmitted_packets", "rdma_received_packets", "rdma_link_downed"} <= before[ids[adapter]].keys()
    do("ip", "link", "set", "dum0", "down")
    try:
        until = time.monotonic() + DEADLINE
        while backend.measure()[ids["rxe1"]]["rdma_link_downed"] == before[ids["rxe1"]]["rdma_link_downed"]:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        do("ip", "link", "set", "dum0", "up")
    assert backend.measure()[ids["rxe0"]]["rdma_link_downed"] == before[ids["rxe0"]]["rdma_link_downed"]
