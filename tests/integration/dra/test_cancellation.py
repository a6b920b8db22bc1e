"""`kdp.serve` as a DRA driver in a program that cancels its task like asyncio, which no shield of anyio holds back."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.unit.dra.claims.claims_world import Widgets

from kdp.daemon.serving import serve
from kdp.kubelet import KubeletPaths
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.objects import node
from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.patience import PATIENCE

from .helpers import DRIVER, driver_options

pytestmark = pytest.mark.anyio


# With the lowest versions of the libraries a connection whose making is cancelled is left to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(socket|function _SelectorTransport):pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("again_after", [None, pytest.param(3, marks=pytest.mark.slow)])
async def test_a_cancelled_driver_ends_in_order_whenever_that_is_and_how_often(
    folder: Path, again_after: int | None
) -> None:
    async with SimulatedApiServer() as server, SimulatedDraKubelet(server.ask, folder) as kubelet:
        await server.ask("POST", "/api/v1/nodes", node())
        for begun_for in (*range(0, 20, 2), 80, 320):
            service = asyncio.create_task(serve(Widgets("w0"), **driver_options(folder, server, kubelet)))
            for count in (begun_for, again_after):
                if count is not None:
                    for _ in range(count):
                        await anyio.lowlevel.cancel_shielded_checkpoint()
                    service.cancel()
            ended, _ = await asyncio.wait({service}, timeout=PATIENCE)
            assert ended, f"cancelled after {begun_for} turns it has not ended"
            assert service.cancelled()
            paths = KubeletPaths.simulated(kubelet.root)
            assert not [*await anyio.to_thread.run_sync(os.listdir, paths.plugins_registry_dir)]
            assert not [*(paths.plugins_dir / DRIVER).glob("*.sock")]
    gc.collect()  # here, and not in the middle of another test
