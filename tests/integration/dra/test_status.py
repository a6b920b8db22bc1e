"""Claims say that their devices are ready, before the simulated API server and its permissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from tests.accounts import Account, with_accounts
from tests.waiting import until as until_so

from kdp.cluster.client import KubeApi
from kdp.dra.claims.checkpoint import Use
from kdp.dra.claims.status import ClaimStatusWriter
from kdp.model.claims import Claim
from kdp_testkit.dra.objects import allocation, claim, result
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

from .helpers import CLAIMS, DRIVER

OTHER = "other.example.com"
W0 = Use(request="r0", pool="node0", name="w0", device_id="w0")


@asynccontextmanager
async def allocated(profile: str, folder: Path) -> AsyncGenerator[tuple[SimulatedApiServer, KubeApi, Claim]]:
    """Have a claim with a device of ours and one of another driver, which has told of it."""
    async with SimulatedApiServer(profile) as server, KubeApi(write_kubeconfig(folder, server.url)) as api:
        item = await server.ask("POST", CLAIMS, claim("c", requests=["r0", "r1"]))
        item["status"] = {"allocation": allocation([result(DRIVER, "w0"), result(OTHER, "x", request="r1")])}
        item["status"]["devices"] = [{"driver": OTHER, "pool": "node0", "device": "x", "conditions": []}]
        item = await server.ask("PUT", f"{CLAIMS}/c/status", item)
        yield server, api, Claim(namespace="default", name="c", uid=item["metadata"]["uid"])


async def until(server: SimulatedApiServer, condition: Callable[[list[Any]], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition((await server.ask("GET", f"{CLAIMS}/c"))["status"].get("devices") or []):  # noqa: ASYNC110 - a server's
            await asyncio.sleep(0.01)


def both(devices: list[Any]) -> bool:
    return [(each["device"], [condition["type"] for condition in each["conditions"] or ()]) for each in devices] == [
        ("x", []),
        ("w0", ["Ready"]),
    ]


async def test_a_device_is_ready_with_its_interface_and_the_other_drivers_entry_survives(tmp_path: Path) -> None:
    async with allocated("k137", tmp_path) as (server, api, names):
        server.faults.refused(409, "the object has been modified", method="PUT", times=2)
        statuses = ClaimStatusWriter(api, DRIVER)
        network = {"interfaceName": "eth1", "ips": ["192.0.2.5/24"], "hardwareAddress": "52:54:00:12:34:56"}
        statuses.prepared(names, [attrs.evolve(W0, network=network)])
        await until(server, lambda devices: both(devices) and devices[1].get("networkData") == network)
        statuses.close()


async def test_a_missing_permission_of_1_36_is_one_warning_that_names_the_verb(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with allocated("k136", tmp_path) as (server, api, names):
        rules = {"resourceclaims": "get", "resourceclaims/status": "update"}
        accounts = with_accounts(server)
        accounts[""] = Account.allowed("driver", rules, node="node0")
        statuses = ClaimStatusWriter(api, DRIVER)
        for _ in range(2):
            asked = len(server.api.requests)
            statuses.prepared(names, [W0])
            await until_so(lambda asked=asked: len(server.api.requests) >= asked + 2)  # type: ignore[misc]
            await asyncio.sleep(0.1)
        [record] = [each for each in caplog.records if each.name == "kdp.dra.claims.status"]
        assert "associated-node:update on resourceclaims/driver, resource name widget.example.com" in record.message
        accounts[""] = Account.allowed(
            "driver", {**rules, f"resourceclaims/driver:{DRIVER}": "associated-node:update"}, node="node0"
        )
        statuses.prepared(names, [W0])
        with anyio.fail_after(PATIENCE):
            while not both((await api.claim("default", "c"))["status"]["devices"]):  # noqa: ASYNC110 - a server's
                await asyncio.sleep(0.01)


async def test_a_claim_that_is_undone_is_not_written_any_more(tmp_path: Path) -> None:
    async with allocated("k137", tmp_path) as (server, api, names):
        statuses = ClaimStatusWriter(api, DRIVER)
        server.faults.slow(0.2)
        statuses.prepared(names, [W0])
        statuses.forget(names.uid)
        server.faults.slow(0)
        await asyncio.sleep(0.5)
        await until(server, lambda devices: [each["device"] for each in devices] == ["x"])
