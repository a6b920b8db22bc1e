"""Devices that belong to no node: a controller publishes their pool, drivers prepare claims, and nothing is left."""

from __future__ import annotations

# ruff: noqa: ASYNC110 - what is published is looked at: it has no event here
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from tests.accounts import Account, with_accounts
from tests.unit.dra.claims.claims_world import Widgets
from tests.waiting import until

import kdp
from kdp.cluster.client import KubeApi
from kdp.command.app import kdp as command_line
from kdp.dra.controller import PoolController, remove_pool
from kdp.dra.options import ControllerOptions
from kdp_testkit.dra import objects
from kdp_testkit.dra.pods import DraPod
from kdp_testkit.patience import PATIENCE

from .helpers import CLAIMS, DRIVER, SLICES
from .test_simulated import Node, driver_on, node_of

POOL = "fabric-a"
ONES = ["w0", "w1", "w2", "w3"]
PROGRAM = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self):
        return [kdp.Device(id=f"w{n}", edits=kdp.ContainerEdits(env={f"W{n}": "1"})) for n in range(4)]
"""


@asynccontextmanager
async def controller_at(node: Node, backend: kdp.DeviceBackend, **more: Any) -> AsyncGenerator[PoolController]:
    async with (
        KubeApi(node.kubeconfig) as api,
        PoolController([backend], ControllerOptions(api=api, pool=POOL, **more)) as controller,
    ):
        yield controller


def writes(node: Node) -> list[str]:
    requests = [request for request, _ in node.server.api.requests]
    return [each for each in requests if SLICES in each and not each.startswith("GET")]


async def test_a_pool_outlives_its_controller_and_every_kubelet_and_goes_at_uninstall(folder: Path) -> None:
    async with node_of(folder, "k137") as node:
        labels = {"example.com/fabric": "a", "example.com/zone": "1"}
        async with controller_at(node, Widgets(), labels=labels) as controller:
            await node.published(4)
            await until(lambda: controller.is_ready)
            [held] = controller.status().parts.values()
            assert (held.state, held.devices, held.problem) == ("published", 4, None)
        [item] = await node.slices()
        assert item["spec"]["pool"]["name"] == POOL
        assert "nodeName" not in item["spec"]
        assert "ownerReferences" not in item["metadata"]
        assert item["spec"]["nodeSelector"]["nodeSelectorTerms"] == [
            {
                "matchExpressions": [
                    {"key": "example.com/fabric", "operator": "In", "values": ["a"]},
                    {"key": "example.com/zone", "operator": "In", "values": ["1"]},
                ]
            }
        ]
        await node.kubelet.restart()  # wipes the node's slices
        assert await node.devices() == ONES

        before = writes(node)
        async with controller_at(node, Widgets(), labels=labels) as controller:
            await until(lambda: controller.is_ready)
        assert writes(node) == before, "the next version takes over what is there"

        async with driver_on(node, Widgets()), KubeApi(node.kubeconfig) as api:  # with slices of its own
            await node.published(8)
            assert await remove_pool(api, DRIVER, POOL) == 1
            assert await remove_pool(api, DRIVER, "node0") == 0, "the name of a node's pool"
            assert await node.devices() == ONES


async def test_without_labels_all_nodes_can_use_it_and_what_changes_is_published(folder: Path) -> None:
    async with node_of(folder, "k137") as node:
        backend = Widgets()
        async with controller_at(node, backend) as controller:
            await node.published(4)
            [item] = await node.slices()
            assert item["spec"]["allNodes"] is True
            backend.devices = [
                kdp.Device(id="w0", health=kdp.Health.unhealthy("it is dark")),
                kdp.Device(id="w9"),
            ]
            controller.rescan()
            with anyio.fail_after(PATIENCE):
                while "w9" not in await node.devices():
                    await anyio.sleep(0.01)
            await node.server.ask("DELETE", f"{SLICES}/{item['metadata']['name']}")
            with anyio.fail_after(PATIENCE):
                while "w9" not in await node.devices():
                    await anyio.sleep(0.01)
            [item] = await node.slices()
            [dark] = [each for each in item["spec"]["devices"] if each["name"] == "w0"]
            assert [taint["key"] for taint in dark["taints"]] == [f"{DRIVER}/unhealthy"]


async def test_a_nodes_driver_prepares_claims_of_the_pool_and_publishes_nothing(folder: Path) -> None:
    async with node_of(folder, "k137") as node:
        backend = Widgets()
        # What a claim says of devices that are not of one node may be written from any node only, since 1.36.
        rules = {
            "resourceclaims": "get",
            "resourceclaims/status": "update",
            f"resourceclaims/driver:{DRIVER}": "arbitrary-node:update",
        }
        with_accounts(node.server)[""] = Account.allowed("driver", rules, node="node0")
        async with driver_on(node, backend, pool=POOL, device_status=True) as driver:
            await node.kubelet.until_registered(DRIVER)
            await until(lambda: driver.is_ready)
            pod = DraPod(claims={"w": "c"})
            made = await node.server.ask("POST", CLAIMS, objects.claim("c"))
            result = objects.result(DRIVER, "w1", pool=POOL)
            made["status"] = {
                "allocation": objects.allocation([result], node=None),
                "reservedFor": objects.reserved(pod),
            }
            await node.server.ask("PUT", f"{CLAIMS}/c/status", made)
            assert (await node.kubelet.start_pod(pod))["main"]
            with anyio.fail_after(PATIENCE):
                while not (told := (await node.server.ask("GET", f"{CLAIMS}/c"))["status"].get("devices")):
                    await anyio.sleep(0.01)
            assert [(each["pool"], each["device"]) for each in told] == [(POOL, "w1")]
            await node.kubelet.stop_pod(pod)
            assert [call[0] for call in backend.calls] == ["allocate", "released"]
        assert await node.slices() == []


async def test_the_commands_publish_and_remove_a_pool(folder: Path) -> None:
    program = folder / "widgets.py"
    program.write_text(PROGRAM)
    async with node_of(folder, "k137") as node:
        kdp_run = [sys.executable, "-m", "kdp", "run", f"{program}:Widgets", "--mode=dra-controller"]
        options = [f"--pool={POOL}", "--pool-nodes=example.com/fabric=a", f"--kubeconfig={node.kubeconfig}"]
        process = await anyio.open_process(
            [*kdp_run, *options], env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        async with process:
            await node.published(4)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE):
                assert await process.wait() == 0
        assert await node.devices() == ONES
        command = ["unpublish", DRIVER, f"--pool={POOL}", f"--kubeconfig={node.kubeconfig}"]
        done = await anyio.to_thread.run_sync(CliRunner().invoke, command_line, command)
        assert done.output == f"1 slices of pool {POOL} of {DRIVER} are deleted\n"
        assert await node.slices() == []


@pytest.mark.parametrize(
    ("arguments", "message"), [([DRIVER], "--pool is missing"), ([DRIVER, "--pool=A"], "pool 'A': must be DNS names")]
)
def test_what_is_wrong_with_the_command_is_a_sentence(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(command_line, ["unpublish", *arguments])
    assert done.exit_code == 2
    assert message in done.output


async def test_one_controller_has_one_backend_and_a_name() -> None:
    with pytest.raises(kdp.ConfigurationError, match=r"^pool 'a': has one backend, here are 2"):
        PoolController([Widgets(), Widgets()], ControllerOptions(api=None, pool="a"))  # type: ignore[arg-type]
    with pytest.raises(kdp.InvalidValueError, match=r"^pool 'A b': must be DNS names"):
        PoolController([Widgets()], ControllerOptions(api=None, pool="A b"))  # type: ignore[arg-type]
