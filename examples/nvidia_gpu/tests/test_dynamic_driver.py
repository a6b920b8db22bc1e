"""Dynamic MIG with a simulated kubelet and API server: a driver that dies half-way leaks no instance."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kdp.cluster.client import KubeApi
from kdp.dra.claims.checkpoint import Record, Store
from kdp.dra.driver import DraDriver
from kdp.dra.names import device_name
from kdp.dra.options import DriverOptions
from kdp.errors import CheckpointError
from kdp.kubelet import KubeletPaths
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import FakeNode
from kdp_testkit.dra import objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraPod, PodStartError
from kdp_testkit.dra.profiles import DraTimings
from kdp_testkit.dra.server import SimulatedApiServer

from .support import Make, opened
from .test_dynamic import STATE, part, there

DRIVER = "gpu.nvidia.com"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
pytestmark = pytest.mark.anyio


class Stage:
    """A node with one claim for a partition, and the pod that uses it."""

    def __init__(self, node: FakeNode, folder: Path, kubelet: SimulatedDraKubelet, server: SimulatedApiServer) -> None:
        self.node = node
        self.kubelet = kubelet
        self.pod = DraPod(claims={"mig": "c"})
        self._folder = folder
        self._server = server
        self._config = folder / "config"
        config: dict[str, Any] = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "x", "context": {"cluster": "c"}}],
            "current-context": "x",
        }
        self._config.write_text(json.dumps(config))

    async def claim(self) -> None:
        made = await self._server.ask("POST", CLAIMS, objects.claim("c"))
        result = objects.result(DRIVER, device_name(part("3g.71gb-4")))
        made["status"] = {"allocation": objects.allocation([result]), "reservedFor": objects.reserved(self.pod)}
        await self._server.ask("PUT", f"{CLAIMS}/c/status", made)

    @asynccontextmanager
    async def driver(self) -> AsyncGenerator[None]:
        """Run a process's worth of driver; its end undoes nothing, as that of a killed one."""
        backend = NvidiaGpu(self.node.host, strategies=["device-nodes"], mig="dynamic", xids=["all=ignore"])
        async with (
            KubeApi(self._config) as api,
            DraDriver(
                [backend],
                DriverOptions(
                    api=api,
                    node="node0",
                    name=DRIVER,
                    host=self.node.host,
                    paths=KubeletPaths.under(self.kubelet.root),
                    cdi=self._folder / "cdi",
                ),
            ) as driver,
        ):
            await self.kubelet.until_registered(DRIVER)
            with anyio.fail_after(60):
                while not driver.is_ready:  # noqa: ASYNC110 - another side's
                    await anyio.sleep(0.01)
            yield

    def made(self) -> list[tuple[str, int]]:
        """Return the instances that there are."""
        with opened(NvidiaGpu(self.node.host, strategies=["device-nodes"], mig="dynamic")):
            return there()


@pytest.fixture
async def stage(make: Make, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stage]:
    node, _ = make(STATE)
    folder = tmp_path_factory.mktemp("d")  # short: a socket's whole path has 107 bytes
    async with SimulatedApiServer() as server:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        async with SimulatedDraKubelet(server.ask, folder / "k", timings=DraTimings(watcher=0.02)) as kubelet:
            made = Stage(node, folder, kubelet, server)
            await made.claim()
            yield made


@contextmanager
def dying() -> Generator[None]:
    """Have a driver that makes the instance, and gets no further: what it would note of it never reaches the disk."""
    write = Store.write

    def refuse(self: Store, record: Record, **more: bool) -> None:
        if record.is_complete:
            raise CheckpointError("the power is gone")
        write(self, record, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "write", refuse)
        yield


async def test_a_pod_has_its_instance_until_it_ends(stage: Stage) -> None:
    async with stage.driver():
        assert stage.made() == []
        assert (await stage.kubelet.start_pod(stage.pod))["main"]
        assert stage.made() == [("3g.71gb", 4)]
        await stage.kubelet.stop_pod(stage.pod)
        assert stage.made() == []


async def test_prepared_again_after_a_death_half_way_there_is_one_instance(stage: Stage) -> None:
    with dying():
        async with stage.driver():
            with pytest.raises(PodStartError, match="the power is gone"):
                await stage.kubelet.start_pod(stage.pod)
            assert stage.made() == [("3g.71gb", 4)]
    async with stage.driver():
        await stage.kubelet.start_pod(stage.pod)
        assert stage.made() == [("3g.71gb", 4)]
        await stage.kubelet.stop_pod(stage.pod)
        assert stage.made() == []


async def test_after_a_reboot_it_is_made_again(stage: Stage) -> None:
    async with stage.driver():
        await stage.kubelet.start_pod(stage.pod)
    stage.node.reboot()
    stage.node.tree.write("/proc/sys/kernel/random/boot_id", "another")
    async with stage.driver():
        assert stage.made() == []
        await stage.kubelet.restart()
        await stage.kubelet.until_registered(DRIVER)
        await stage.kubelet.start_pod(stage.pod)
        assert stage.made() == [("3g.71gb", 4)]
