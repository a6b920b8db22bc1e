"""`DraDriver` and ``kdp run --mode dra`` before the simulated kubelet and the simulated API server of each version."""

from __future__ import annotations

# ruff: noqa: ASYNC110 - what is published is looked at: it has no event here
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.unit.dra.claims.claims_world import Widgets

from kdp.cluster.client import KubeApi
from kdp.dra import plugin
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.kubelet import KubeletPaths
from kdp.testing import events as common
from kdp_testkit.dra import events, objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraContainer, DraPod, PodStartError
from kdp_testkit.dra.profiles import DraTimings
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

from .helpers import CLAIMS, DRIVER, SLICES

QUICK = DraTimings(health_retry=0.1, watcher=0.02, call=20.0)


class Node:
    """A simulated node: its kubelet, its API server, and the scheduler's work."""

    def __init__(self, folder: Path, kubelet: SimulatedDraKubelet, server: SimulatedApiServer) -> None:
        self.folder = folder
        self.kubelet = kubelet
        self.server = server
        self.cdi = folder / "cdi"
        self.kubeconfig = folder / "kubeconfig"
        self.paths = KubeletPaths.simulated(kubelet.root)

    async def slices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.server.ask("GET", SLICES))["items"]
        return [each for each in found if each["spec"]["driver"] == DRIVER]

    async def devices(self) -> list[str]:
        return [device["name"] for each in await self.slices() for device in each["spec"].get("devices", ())]

    async def published(self, count: int) -> list[str]:
        with anyio.fail_after(PATIENCE):
            while len(found := await self.devices()) != count:
                await anyio.sleep(0.02)
        return found

    async def claim(
        self, name: str, device: str, *pods: DraPod, config: Sequence[dict[str, Any]] = (), driver: str = DRIVER
    ) -> str:
        """Make a claim as if the scheduler had allocated the device to it; return its UID."""
        made = await self.server.ask("POST", CLAIMS, objects.claim(name))
        made["status"] = {
            "allocation": objects.allocation([objects.result(driver, device)], config=config),
            "reservedFor": objects.reserved(*pods),
        }
        await self.server.ask("PUT", f"{CLAIMS}/{name}/status", made)
        uid: str = made["metadata"]["uid"]
        return uid

    def specs(self) -> list[str]:
        """Return the devices that a container runtime finds."""
        found: list[str] = []
        for path in self.cdi.glob("[!.]*.json"):
            spec = json.loads(path.read_text())
            found += [f"{spec['kind']}={device['name']}" for device in spec["devices"]]
        return sorted(found)


@asynccontextmanager
async def node_of(folder: Path, profile: str) -> AsyncGenerator[Node]:
    async with SimulatedApiServer(profile) as server, AsyncExitStack() as stack:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        kubelet = await stack.enter_async_context(
            SimulatedDraKubelet(server.ask, folder / "k", profile=profile, tells_health=True, timings=QUICK, seed=1)
        )
        node = Node(folder, kubelet, server)
        write_kubeconfig(folder, server.url)
        yield node


@asynccontextmanager
async def driver_on(node: Node, backend: Widgets, **more: Any) -> AsyncGenerator[DraDriver]:
    async with (
        KubeApi(node.kubeconfig) as api,
        DraDriver([backend], DriverOptions(api=api, node="node0", paths=node.paths, cdi=node.cdi, **more)) as driver,
    ):
        yield driver


def pod(*names: str, **more: Any) -> DraPod:
    return DraPod(claims={name: name for name in names}, **more)


@pytest.mark.parametrize("profile", ["k134", "k137"])
async def test_a_whole_life(folder: Path, profile: str) -> None:
    backend = Widgets()
    async with node_of(folder, profile) as node, driver_on(node, backend) as driver:
        kubelet = node.kubelet
        await kubelet.until_registered(DRIVER)
        [registered] = kubelet.events.of(events.DriverRegistered)
        assert registered.service == "v1.DRAPlugin"
        assert registered.health_service == (
            "v1.DRAResourceHealth" if profile == "k137" else "v1alpha1.DRAResourceHealth"
        )
        assert await node.published(4) == ["w0", "w1", "w2", "w3"]
        await kubelet.until(lambda: driver.is_ready, "the driver is ready")

        # Two pods that share a claim, and one with a claim that names its request.
        one, two, alone = pod("a"), pod("a"), pod("b", containers=[DraContainer("x", [("b", "r0")]), DraContainer("y")])
        await node.claim("a", "w0", one, two)
        await node.claim("b", "w1", alone)
        given = await kubelet.start_pod(one)
        assert await kubelet.start_pod(two) == given
        apart = await kubelet.start_pod(alone)
        assert not apart["y"]
        assert sorted(backend.given) == [("a", "r0", ("w0",)), ("b", "r0", ("w1",))]
        assert {*given["main"], *apart["x"]} <= set(node.specs())
        health = kubelet.health(one)["main"]["claim:a"]
        assert {state for state, _ in health.values()} == {"Healthy"}
        await kubelet.stop_pod(one)
        assert ("a", "r0", ("w0",)) in backend.given
        await kubelet.stop_pod(two)
        assert sorted(backend.given) == [("b", "r0", ("w1",))]
        assert node.specs() == list(apart["x"])

        # Another kubelet: slices wiped and back, the claim untouched, and no id twice where answers are appended.
        before = list(backend.calls)
        await kubelet.restart()
        await kubelet.until_registered(DRIVER)
        await node.published(4)
        again = await kubelet.start_pod(alone)
        assert set(again["x"]) == set(apart["x"])
        assert len(again["x"]) == (1 if profile == "k137" else 2), "the same id, which a kubelet up to 1.36 appends"
        assert backend.calls == before
        await kubelet.stop_pod(alone)
        assert (backend.given, node.specs()) == (set(), [])

        # Somebody wipes the slices.
        await node.server.ask("DELETE", SLICES)
        await node.published(4)
    kubelet_story = node.kubelet.events.story()
    assert "Unimplemented" not in kubelet_story
    assert not [*node.paths.plugins_registry_dir.glob("*.sock"), *node.paths.plugins_dir.rglob("*.sock")]


async def test_a_driver_does_not_inherit_the_pause_of_one_that_was_killed(folder: Path) -> None:
    """The kubelet has called the dead socket of the one before, and leaves its path alone for two minutes."""
    async with node_of(folder, "k137") as node:
        node.kubelet.faults.watcher_backs_off()
        dead = node.paths.plugins_registry_dir / f"{DRIVER}-reg.sock"
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(dead))
        await node.kubelet.until(lambda: node.kubelet.events.of(common.DialFailed), "nobody answered there")
        async with driver_on(node, Widgets()):
            await node.kubelet.until_registered(DRIVER)
        assert not dead.exists()


@pytest.mark.parametrize("fault", ["miss_creates", "notify_refused"])
async def test_a_driver_that_is_not_registered_makes_new_sockets(
    folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet up to 1.35 does not come back to what it has refused."""
    monkeypatch.setattr(plugin, "LOOK_PAUSE", 0.02)
    monkeypatch.setattr(plugin, "UNREGISTERED_SECONDS", 0.5)
    async with node_of(folder, "k134") as node:
        # The hidden name is created, too.
        getattr(node.kubelet.faults, fault)(times=2 if fault == "miss_creates" else 1)
        async with driver_on(node, Widgets()) as driver:
            await node.kubelet.until_registered(DRIVER)
            await node.kubelet.until(lambda: driver.is_ready, "the driver is ready")
            assert len([*node.paths.plugins_registry_dir.glob("*.sock")]) == 1
            assert len([*node.paths.plugins_dir.rglob("*.sock")]) == 1


async def test_a_program_that_is_killed_and_started(folder: Path) -> None:
    """``kdp run --mode dra`` as a process: SIGKILL with a claim prepared, a start, Unprepare, SIGTERM."""
    async with node_of(folder, "k134") as node:
        kubelet = node.kubelet
        user = pod("a")
        async with program(node) as first:
            await kubelet.until_registered("fuse.example.com", seconds=30)
            await _until_slices(node, "fuse.example.com")
            device = (await _devices(node, "fuse.example.com"))[0]
            await node.claim("a", device, user, driver="fuse.example.com")
            given = await kubelet.start_pod(user)
            assert set(given["main"]) <= set(node.specs())
            first.kill()
            await anyio.to_thread.run_sync(first.wait)
        await kubelet.restart()
        async with program(node) as second:
            await kubelet.until_registered("fuse.example.com", seconds=30)
            await _until_slices(node, "fuse.example.com")
            # The kubelet may just be changing from the dead program's socket to the new one; it tries a pod again.
            assert set((await _started(kubelet, user))["main"]) == set(given["main"])
            await kubelet.stop_pod(user)
            assert node.specs() == []
            second.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE):
                assert await anyio.to_thread.run_sync(second.wait) == 0
        await kubelet.until(lambda: kubelet.events.of(events.DriverGone), "the driver is gone")
        assert len(kubelet.events.of(common.KubeletStarted)) == 2


async def _started(kubelet: SimulatedDraKubelet, user: DraPod) -> dict[str, tuple[str, ...]]:
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await kubelet.start_pod(user)
            except PodStartError:
                await anyio.sleep(0.05)


async def _devices(node: Node, driver: str) -> list[str]:
    items = (await node.server.ask("GET", SLICES))["items"]
    return [
        device["name"]
        for each in items
        if each["spec"]["driver"] == driver
        for device in each["spec"].get("devices", ())
    ]


async def _until_slices(node: Node, driver: str) -> None:
    with anyio.fail_after(PATIENCE):
        while not await _devices(node, driver):
            await anyio.sleep(0.05)


@asynccontextmanager
async def program(node: Node) -> AsyncGenerator[subprocess.Popen[bytes]]:
    """Run ``examples/minimal`` with kdp's command line."""
    arguments = {
        "--mode": "dra",
        "--node-name": "node0",
        "--kubeconfig": node.kubeconfig,
        "--cdi-dir": node.cdi,
        "--state-dir": node.folder / "state",
    }
    command = [sys.executable, "-m", "kdp", "run", "minimal"]
    command += [str(part) for pair in arguments.items() for part in pair]
    log = (node.folder / "log").open("ab")
    process = await anyio.to_thread.run_sync(
        lambda: subprocess.Popen(
            command, env={**os.environ, "KDP_KUBELET_ROOT": os.fspath(node.kubelet.root)}, stdout=log, stderr=log
        )
    )
    try:
        yield process
    finally:
        log.close()
        process.kill()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.wait)
