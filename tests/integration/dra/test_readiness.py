"""What a DRA driver tells the probe and its claims, between the simulated API server and the simulated kubelet."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.unit.dra.claims.claims_world import Widgets

from kdp.daemon.serving import serve
from kdp.dra.publishing import exclusivity
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
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Probe:
    """Asks the probe of the process, which says in its log where it is."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def _ask(self) -> tuple[int, Any]:
        found = re.search(r"http://[\d.]+:\d+", self._caplog.text)
        if found is None:
            return 0, {}
        try:
            with urllib.request.urlopen(f"{found[0]}/readyz", timeout=PATIENCE) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    async def until(self, status: int, *words: str) -> Any:
        """Wait until it answers so; return what it says of the driver."""
        with anyio.fail_after(PATIENCE):
            while True:
                found, body = await anyio.to_thread.run_sync(self._ask)
                if found == status and all(word in json.dumps(body) for word in words):
                    return body["drivers"][DRIVER]
                await anyio.sleep(0.02)


async def test_a_driver_is_ready_when_its_devices_are_published_and_tells_claims(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exclusivity, "LOOK_PAUSE", 0.02)
    caplog.set_level("INFO")
    folder: Path = tmp_path_factory.mktemp("d")
    probe = Probe(caplog)

    async with (
        SimulatedApiServer() as server,
        SimulatedDraKubelet(server.ask, folder) as kubelet,
        anyio.create_task_group() as tasks,
    ):
        item = node()
        item["status"]["allocatable"] = {Widgets.resource: "2"}
        await server.ask("POST", "/api/v1/nodes", item)

        async def run() -> None:
            await serve(
                Widgets("w0"),
                mode="dra",
                node_name="node0",
                kubelet_root=kubelet.root,
                kubeconfig=kubeconfig(folder, server.url),
                state_dir=folder / "state",
                cdi_dir=folder / "cdi",
                http="127.0.0.1:0",
                device_status="on",
            )

        tasks.start_soon(run)
        told = await probe.until(503, "still offers 2 of example.com/widget by a device plugin")
        assert (told["state"], told["slices"]) == ("registered", {"generation": 0, "count": 0, "problem": None})
        assert (await server.ask("GET", SLICES))["items"] == []
        item["status"]["allocatable"] = {Widgets.resource: "0"}
        await server.ask("PUT", "/api/v1/nodes/node0/status", item)
        told = await probe.until(200)
        assert (told["state"], told["reason"], told["slices"]) == (
            "published",
            None,
            {"generation": 1, "count": 1, "problem": None},
        )
        assert len((await server.ask("GET", SLICES))["items"]) == 1
        made = await server.ask("POST", CLAIMS, claim("c"))
        made["status"] = {"allocation": allocation([result(DRIVER, "w0")])}
        await server.ask("PUT", f"{CLAIMS}/c/status", made)
        [service] = (KubeletPaths.under(kubelet.root).plugins_dir / DRIVER).glob("[!.]*.sock")
        request = v1.NodePrepareResourcesRequest(
            claims=[v1.Claim(namespace="default", name="c", uid=made["metadata"]["uid"])]
        )
        async with open_channel(service) as channel:
            call: Any = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources")
            await call(request.SerializeToString(), timeout=PATIENCE)
        with anyio.fail_after(PATIENCE):
            while not (await server.ask("GET", f"{CLAIMS}/c"))["status"].get("devices"):  # noqa: ASYNC110 - a server's
                await anyio.sleep(0.02)
        server.faults.away()
        told = await probe.until(200, "was not reached")
        assert (told["state"], told["reason"]) == ("published", None), "a later problem is told, and not fatal"
        tasks.cancel_scope.cancel()
