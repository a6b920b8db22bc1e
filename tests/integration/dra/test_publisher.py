"""A publisher over HTTP before the simulated API server: the same core as before the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio

import kdp
from kdp.cluster.client import KubeApi
from kdp.dra.publishing.actions import PublisherStatus
from kdp.dra.publishing.publisher import Publisher
from kdp.dra.publishing.slices import Pool
from kdp_testkit.dra.objects import node
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

from .helpers import SLICES

PART = kdp.Device(id="part", consumes={"card": {"memory": 1}})


async def until(server: SimulatedApiServer, devices: list[str]) -> list[Any]:
    """Wait until the server has these devices; return the slices."""
    with anyio.fail_after(PATIENCE):
        while True:
            items = (await server.ask("GET", SLICES))["items"]
            if [d["name"] for item in items for d in item["spec"].get("devices", ())] == devices:
                return list(items)
            await anyio.sleep(0.01)


async def until_current(publisher: Publisher) -> PublisherStatus:
    with anyio.fail_after(PATIENCE):
        status = publisher.status
        while not status.value.is_current:
            await status.after(status.version)
        return status.value


async def test_published_wiped_and_removed(tmp_path: Path) -> None:
    async with SimulatedApiServer() as server, KubeApi(write_kubeconfig(tmp_path, server.url)) as api:
        await server.ask("POST", "/api/v1/nodes", node("node0"))
        publisher = Publisher(api, Pool.of_node("gpu.example.com", "node0"), owner="node0")
        publisher.publish([kdp.Device(id="a"), kdp.Device(id="b")])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publisher.run)
            (item,) = await until(server, ["a", "b"])
            await server.ask("DELETE", f"{SLICES}/{item['metadata']['name']}")
            await until(server, ["a", "b"])
            server.faults.expire_watches()
            publisher.publish([kdp.Device(id="b")])
            await until(server, ["b"])
            await until_current(publisher)
            tasks.cancel_scope.cancel()
        assert await publisher.remove() == 1
        assert (await server.ask("GET", SLICES))["items"] == []


async def test_a_partition_is_withheld_where_nobody_counts(tmp_path: Path) -> None:
    gates = {"DRAPartitionableDevices": False}
    async with (
        SimulatedApiServer("k137", gates=gates) as server,
        KubeApi(write_kubeconfig(tmp_path, server.url)) as api,
    ):
        publisher = Publisher(api, Pool(driver="gpu.example.com", name="fabric", nodes={"allNodes": True}))
        publisher.publish([kdp.Device(id="a"), PART], counters={"card": {"memory": 4}})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publisher.run)
            status = await until_current(publisher)
            tasks.cancel_scope.cancel()
        assert status.withheld == {"part": "DRAPartitionableDevices"}
        await until(server, ["a"])
