"""The generic example as a process beside a whole kubelet and containerd."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .backend import RESOURCE, Figure
from .commands import kdp_command
from .deploy import OPENS, Nodes, configuration
from .nodekit import Kubelet


@asynccontextmanager
async def _running(kubelet: Kubelet, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the plugin beside the kubelet; it must still run at the end, and stop when asked to."""
    config = kubelet.work / "config.yaml"
    config.write_text(configuration(kubelet.work / "widgets"))
    arguments = ("run", "generic", f"--set=config={config}", *kubelet.options, *options)
    async with kdp_command(kubelet.work / "plugin.log", *arguments) as process:
        yield process


async def test_a_pod_keeps_its_device_while_kubelets_come_and_go(kubelet: Kubelet, figure: Figure) -> None:
    nodes = Nodes(kubelet.work / "widgets", "w0", "w1")
    took: list[float] = []
    async with _running(kubelet):
        await _until_logged(kubelet, _devices(2, 2))
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        said = await kubelet.until_said("one", "WIDGETS=")
        held = said.split("WIDGETS=")[1][:2]
        assert f"opened /dev/{held}" in said
        before = (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]
        for _ in range(20):
            await kubelet.crash()
            heard = kubelet.log("kubelet").count(_devices(2, 2))
            await kubelet.start()
            began = time.monotonic()
            await _until_logged(kubelet, _devices(2, 2), times=heard + 1)
            took.append(1e3 * (time.monotonic() - began))
        after = (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]
        assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)

        nodes.unplug(held)
        await _until_logged(kubelet, _devices(2, 1))
        kubelet.put("two", {RESOURCE: 1}, OPENS)
        assert f"opened /dev/{held}" not in await kubelet.until_said("two", "WIDGETS=")
        kubelet.put("three", {RESOURCE: 1}, OPENS)
        refused = (await kubelet.until_pod("three", "Failed"))["status"]
        assert refused["reason"] == "UnexpectedAdmissionError"
        assert refused["message"].endswith(
            f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
            "Requested: 1, Available: 0, which is unexpected"
        )
        assert f"{kubelet.work}/widgets/{held}" in kubelet.log("plugin")
        assert (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]["restartCount"] == 0
    figure(f"{kubelet.containerd}: the generic example is listed again, median of 20", statistics.median(took), "ms")
    figure(f"{kubelet.containerd}: the generic example is listed again, slowest of 20", max(took), "ms")


async def test_cdi_names_in_place_of_device_nodes(kubelet: Kubelet) -> None:
    """The reply has names only, so a device that opens came by kdp's file and the runtime."""
    Nodes(kubelet.work / "widgets", "w0")
    async with _running(kubelet, "--cdi=only", f"--cdi-dir={kubelet.cdi}"):
        await _until_logged(kubelet, _devices(1, 1))
        assert [path.name for path in kubelet.cdi.iterdir()] == ["kdp_kdp.example.com_widget.json"]
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        assert "opened /dev/w0" in await kubelet.until_said("one", "WIDGETS=w0")


def _devices(total: int, healthy: int) -> str:
    return f"totalCount={total} healthyCount={healthy}\n"


async def _until_logged(kubelet: Kubelet, words: str, *, times: int = 1) -> None:
    await kubelet.until(lambda: kubelet.log("kubelet").count(words) >= times, f"the kubelet has logged {words!r}")
