"""The status page of a DRA driver: its slices, its claims, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.unit.dra.claims.claims_world import Widgets

from kdp.cli.asking import ask
from kdp.daemon.serving import serve
from kdp.kubelet import KubeletPaths
from kdp.kubelet.channel import open_channel
from kdp.proto.dra.v1 import api_pb2 as v1
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.objects import allocation, claim, node, result
from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.patience import PATIENCE

from .helpers import DRIVER
from .test_publisher import kubeconfig

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


async def until(path: Path, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait until the status document is as it should be."""
    text = ""
    with anyio.move_on_after(30):
        while True:
            code, text = await anyio.to_thread.run_sync(ask, str(path), "/status.json")
            if code == 0 and condition(found := json.loads(text)):
                return dict(found)
            await anyio.sleep(0.05)
    raise AssertionError(f"the status did not become as expected; it is:\n{text}")


def happened(kind: str, text: str = "", devices: list[str] | None = None) -> Callable[[dict[str, Any]], Any]:
    return lambda found: any(
        each["kind"] == kind
        and each["subject"] == DRIVER
        and text in each["text"]
        and each["devices"] == (devices or [])
        for each in found["events"]
    )


async def test_claims_and_slices_are_on_the_page(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("d")
    own = folder / "own.sock"
    async with (
        SimulatedApiServer() as server,
        SimulatedDraKubelet(server.ask, folder) as kubelet,
        anyio.create_task_group() as tasks,
    ):
        await server.ask("POST", "/api/v1/nodes", node())

        async def run() -> None:
            await serve(
                Widgets("w0", "w1"),
                mode="dra",
                node_name="node0",
                kubelet_root=kubelet.root,
                kubeconfig=kubeconfig(folder, server.url),
                state_dir=folder / "state",
                cdi_dir=folder / "cdi",
                socket=own,
                status_page="on",
            )

        tasks.start_soon(run)
        await until(own, happened("registered"))
        found = await until(own, lambda found: found["ready"])
        [driver] = found["resources"]
        assert (driver["state"], driver["claims"], driver["slices"]["count"]) == ("published", [], 1)
        assert driver["since"] is not None
        assert found["kubelet"] is None

        made = await server.ask("POST", CLAIMS, claim("c"))
        made["status"] = {"allocation": allocation([result(DRIVER, "w0")])}
        await server.ask("PUT", f"{CLAIMS}/c/status", made)
        [service] = (KubeletPaths.under(kubelet.root).plugins_dir / DRIVER).glob("[!.]*.sock")

        async def call(method: str, uid: str) -> None:
            request = v1.NodePrepareResourcesRequest(claims=[v1.Claim(namespace="default", name="c", uid=uid)])
            async with open_channel(service) as channel:
                asked: Any = channel.unary_unary(f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}")
                await asked(request.SerializeToString(), timeout=PATIENCE)

        uid = made["metadata"]["uid"]
        await call("NodePrepareResources", uid)
        found = await until(own, happened("prepared", "claim default/c", ["w0"]))
        [driver] = found["resources"]
        assert driver["claims"] == [{"name": "default/c", "uid": uid, "devices": ["w0"], "is_prepared": True}]
        assert {each["id"]: each["held_by"] for each in driver["listed"]} == {"w0": "claim default/c", "w1": None}
        await call("NodePrepareResources", "another-uid")
        await until(own, happened("failed", "claim default/c: "))
        _, page = await anyio.to_thread.run_sync(ask, str(own), "/")
        for text in ("1 slice published", "Claims of", "default/c", "Claim failed", "Prepared"):
            assert text in page
        await call("NodeUnprepareResources", uid)
        found = await until(own, happened("unprepared", "claim default/c"))
        assert found["resources"][0]["claims"] == []
        tasks.cancel_scope.cancel()
