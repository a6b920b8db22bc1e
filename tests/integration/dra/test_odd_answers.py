"""A driver gets odd answers from an API server, or from a proxy in front of it: the driver lives, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.dra.claims.claims_world import Widgets
from tests.waiting import until

from kdp_testkit.dra.pods import PodStartError

from .helpers import CLAIMS, DRIVER, SLICES
from .test_simulated import driver_on, node_of, pod

NO_SLICES = [
    b'{"items": null}',
    b"<html>portal</html>",
]
NO_CLAIMS = [b"null", b"{}", b"<html>"]


@pytest.mark.parametrize("content", NO_SLICES, ids=ascii)
async def test_slices_that_are_none_do_not_end_a_driver(folder: Path, content: bytes) -> None:
    async with node_of(folder, "k137") as node:
        node.server.faults.refused(200, content=content, method="GET", path=SLICES, times=None)
        async with driver_on(node, Widgets()) as driver:
            await node.kubelet.until_registered(DRIVER)
            await until(lambda: driver.status().drivers[DRIVER].publication.problem)
            assert "not understood" in str(driver.status().drivers[DRIVER].publication.problem)
            node.server.faults.clear()
            assert await node.published(4) == ["w0", "w1", "w2", "w3"]
            await node.kubelet.until(lambda: driver.is_ready, "the driver is ready")


async def test_a_claim_that_is_none_fails_alone_with_a_sentence(folder: Path) -> None:
    backend = Widgets()
    async with node_of(folder, "k137") as node, driver_on(node, backend):
        await node.kubelet.until_registered(DRIVER)
        await node.published(4)
        user = pod("a")
        await node.claim("a", "w0", user)
        for content in NO_CLAIMS:
            node.server.faults.refused(200, content=content, method="GET", path=f"{CLAIMS}/a", times=None)
            with pytest.raises(PodStartError, match="get resourceclaims default/a: the answer of the API server is"):
                await node.kubelet.start_pod(user)
            node.server.faults.clear()
        await node.kubelet.start_pod(user)
        assert backend.given == {("a", "r0", ("w0",))}
        await node.kubelet.stop_pod(user)


@pytest.mark.parametrize("content", [b"{}", b"<html>no such page</html>"])
async def test_a_claim_is_not_undone_because_a_proxy_says_that_it_is_gone(folder: Path, content: bytes) -> None:
    backend = Widgets()
    async with node_of(folder, "k137") as node, driver_on(node, backend, claim_grace=0.02) as driver:
        await node.kubelet.until_registered(DRIVER)
        await node.published(4)
        user = pod("a")
        await node.claim("a", "w0", user)
        await node.kubelet.start_pod(user)
        status = 404 if content.startswith(b"<") else 200
        node.server.faults.refused(status, content=content, method="GET", path=f"{CLAIMS}/a", times=None)
        await until(lambda: node.server.faults.met > 3)
        assert backend.given == {("a", "r0", ("w0",))}
        assert driver.status().drivers[DRIVER].is_registered
        node.server.faults.clear()
        await node.kubelet.stop_pod(user)


@pytest.mark.parametrize(("status", "content"), [(404, b"<html>"), (200, b"{}")])
async def test_a_strangers_slice_goes_although_a_proxy_says_that_it_is_gone(
    folder: Path, status: int, content: bytes
) -> None:
    """Found by chaos: it was forgotten, and stayed in the pool, which was incomplete from then on."""
    async with node_of(folder, "k137") as node, driver_on(node, Widgets()):
        await node.published(4)
        node.server.faults.refused(status, content=content, method="DELETE", path="", times=1)
        pool = {"name": "node0", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": "node0", "pool": pool, "devices": [{"name": "ghost"}]}
        await node.server.ask("POST", SLICES, {"metadata": {"generateName": "somebody-"}, "spec": spec})
        await until(lambda: node.server.faults.met == 1)
        await node.published(4)
