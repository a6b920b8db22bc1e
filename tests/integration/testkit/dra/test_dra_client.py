"""kdp's own client of the API server and the simulated one understand each other."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from tests.slice_cases import good

from kdp.cluster.api import ApiError
from kdp.cluster.client import KubeApi
from kdp_testkit.dra import objects
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig

NODES = "/api/v1/nodes"


async def test_the_client_reads_writes_and_watches(tmp_path: Path) -> None:
    async with SimulatedApiServer() as server, KubeApi(write_kubeconfig(tmp_path, server.url)) as api:
        await server.ask("POST", NODES, objects.node())
        assert await api.version() == "v1.37.1"
        assert (await api.node("node0"))["metadata"]["uid"]
        item = copy.deepcopy(good())
        driver, node = item["spec"]["driver"], item["spec"]["nodeName"]
        before = await api.slices(driver=driver, node=node)
        assert list(before.items) == []
        made = await api.create_slice(item)
        made["spec"]["pool"]["generation"] += 1
        changed = await api.update_slice(made)
        with pytest.raises(ApiError) as failed:
            await api.update_slice(made)
        assert (failed.value.status, failed.value.reason) == (409, "Conflict")
        await api.delete_slice(changed)
        kinds: list[str] = []
        async for event in api.watch_slices(driver=driver, node=node, resource_version=before.resource_version):
            kinds.append(event.kind)
            if event.kind == "DELETED":
                break
        assert kinds == ["ADDED", "MODIFIED", "DELETED"]
        server.faults.expire_watches()
        with pytest.raises(ApiError) as expired:
            async for _ in api.watch_slices(driver=driver, node=node, resource_version=before.resource_version):
                pass
        assert expired.value.status == 410
        server.faults.refused(429, "too many requests", retry_after=7)
        with pytest.raises(ApiError) as busy:
            await api.node("node0")
        assert (busy.value.status, busy.value.retry_after) == (429, 7)
        server.faults.away()
        with pytest.raises(ApiError) as away:
            await api.node("node0")
        assert away.value.status == 0
