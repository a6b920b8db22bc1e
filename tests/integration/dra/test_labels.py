"""``--labels nfd`` of a DRA driver: the same hook, and the same file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest
from tests.unit.dra.claims.claims_world import Widgets

from kdp.daemon.serving import serve
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.objects import node
from kdp_testkit.dra.server import SimulatedApiServer

from .test_publisher import kubeconfig


async def test_a_drivers_node_is_labeled_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("d")
    (folder / "features.d").mkdir()
    async with (
        SimulatedApiServer() as server,
        SimulatedDraKubelet(server.ask, folder) as kubelet,
        anyio.create_task_group() as tasks,
    ):
        await server.ask("POST", "/api/v1/nodes", node())
        backend = Widgets()

        async def run() -> None:
            await serve(
                backend,
                mode="dra",
                node_name="node0",
                kubelet_root=kubelet.root,
                kubeconfig=kubeconfig(folder, server.url),
                cdi_dir=folder / "cdi",
                state_dir=None,
                labels="nfd",
                labels_dir=folder / "features.d",
            )

        tasks.start_soon(run)
        deadline = time.monotonic() + 30
        while not (found := [*(folder / "features.d").glob("[!.]*")]):
            assert time.monotonic() < deadline
            await anyio.sleep(0.05)
        lines = [line for line in found[0].read_text().splitlines() if not line.startswith("#")]
        assert f"{backend.resource}.count={len(backend.devices)}" in lines
        tasks.cancel_scope.cancel()
    assert os.listdir(folder / "features.d") == []
