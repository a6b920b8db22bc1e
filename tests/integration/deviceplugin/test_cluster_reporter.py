"""A plugin's manager and what it tells the cluster, with an API server in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from kdp.cluster import event_aggregation
from kdp.cluster.api import ApiError
from kdp.operations import cluster_reporter, news
from kdp.operations.cluster_reporter import ClusterReporter, ReportOptions
from kdp.testing import Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, until


class Server:
    """Takes Events, and knows pods that all run.

    Attributes:
        events: What was told, repetitions too.
    """

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._made: dict[str, Any] = {}

    async def create_event(self, event: Any) -> Any:
        self.events.append(event)
        name = f"e{len(self._made)}"
        self._made[name] = event
        return {"metadata": {"name": name}}

    async def patch_event(self, _: str, name: str, patch: Any) -> Any:
        self.events.append({**self._made[name], **patch})
        return {}

    async def pod(self, namespace: str, name: str) -> Any:
        if name.startswith("gone"):
            raise ApiError("get pods: 404", status=404)
        return {"metadata": {"uid": f"uid-{name}"}}

    def told(self, reason: str) -> list[str]:
        return [event["message"] for event in self.events if event["reason"] == reason]


@attrs.define
class Told:
    """A manager that reports.

    Attributes:
        backend: Its devices.
        server: What it has told.
        rejection: Why the configuration is not in force.
    """

    backend: Widgets
    server: Server
    rejection: str | None = None

    async def until_looked_at(self) -> None:
        """Wait until what there is now was looked at."""
        self.rejection = "a word to be told"
        await until(lambda: self.server.told("ConfigurationRejected"))
        self.rejection = None
        await until(lambda: self.server.told("ConfigurationAccepted"))
        self.server.events.clear()


@pytest.fixture
async def told(kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Told]:
    """A manager at work, looked at often."""
    monkeypatch.setattr(cluster_reporter, "LOOK_PAUSE", 0.02)
    monkeypatch.setattr(news, "LOST_AFTER", 0.3)
    monkeypatch.setattr(event_aggregation, "PERIOD", 0.05)
    server: Any = Server()
    found = Told(Widgets("w0", "w1"), server)
    reporter = ClusterReporter(
        ReportOptions(node="node0", events=True),
        connect=lambda: nullcontext(server),
        rejection=lambda: found.rejection,
    )
    options = {"observe": reporter.changed, "follows_pods": True}
    async with connected(kubelet, found.backend, **options) as manager, anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.run, manager)
        await found.until_looked_at()
        yield found
        tasks.cancel_scope.cancel()


async def test_a_device_that_recovered_while_its_plugin_was_away_got_no_event(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster_reporter, "LOOK_PAUSE", 0.02)
    server: Any = Server()
    file = tmp_path / "told.json"

    def kept() -> str:
        return file.read_text() if file.exists() else ""

    @asynccontextmanager
    async def life(backend: Widgets) -> AsyncIterator[None]:
        options = ReportOptions(node="node0", events=True, told=file)
        reporter = ClusterReporter(options, connect=lambda: nullcontext(server))
        async with (
            connected(kubelet, backend, observe=reporter.changed) as manager,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(reporter.run, manager)
            yield
            tasks.cancel_scope.cancel()

    backend = Widgets("w0", "w1")
    async with life(backend):
        (await backend.report()).fault("w0", "XID 79", kind="xid")
        await until(lambda: server.told("DeviceUnhealthy") and "w0" in kept())
    assert not server.told("DeviceRecovered")
    async with life(Widgets("w0", "w1")):
        await until(lambda: server.told("DeviceRecovered"))
        await until(lambda: "w0" not in kept())
    assert server.told("DeviceRecovered") == [f"{RESOURCE}: device w0 is healthy again"]


async def test_a_kubelet_that_stays_away_is_a_lost_resource(told: Told, kubelet: SimulatedKubelet) -> None:
    await kubelet.stop()
    await until(lambda: told.server.told("ResourceLost"))
    [text] = told.server.told("ResourceLost")
    assert text.startswith(f"{RESOURCE}: not registered with the kubelet for ")
    await kubelet.start()
    await until(lambda: told.server.told("ResourceRegained"))


async def test_the_last_healthy_device_and_the_pods_that_hold_failed_ones(
    told: Told, kubelet: SimulatedKubelet
) -> None:
    admitted = [await kubelet.admit(Pod.asking({RESOURCE: 1}, name=name)) for name in ("train", "gone")]
    assert {device for each in admitted for device in each.devices(RESOURCE)} == {"w0", "w1"}
    report = await told.backend.report()
    for device in ("w0", "w1"):
        report.fault(device, "XID 79", kind="xid")
    await until(lambda: told.server.told("NoHealthyDevice") and told.server.told("DeviceFailed"))
    pods = [event["involvedObject"] for event in told.server.events if event["involvedObject"]["kind"] == "Pod"]
    assert [(pod["name"], pod["uid"]) for pod in pods] == [("train", "uid-train")], "there is no pod called gone"
    for device in ("w0", "w1"):
        report.clear(device, kind="xid")
    await until(lambda: told.server.told("DevicesAvailable"))
