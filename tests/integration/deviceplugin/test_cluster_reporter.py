"""A plugin's manager and what it tells the cluster, with an API server in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.unit.dra.claims.claims_world import until
from typing_extensions import override

import kdp
from kdp.cluster import event_aggregation
from kdp.cluster.api import ApiError
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.operations import cluster_reporter, news
from kdp.operations.cluster_reporter import ClusterReporter, ReportOptions
from kdp.testing import Pod, SimulatedKubelet

if TYPE_CHECKING:
    from kdp.cluster.api import NodeApi

RESOURCE = "example.com/widget"


class Widgets(kdp.DeviceBackend):
    """Devices that a test makes sick."""

    resource = RESOURCE

    def __init__(self) -> None:
        self.reporter: kdp.Reporter | None = None
        self.devices = [kdp.Device(id=f"w{number}") for number in range(2)]

    @override
    def discover(self) -> list[kdp.Device]:
        return self.devices

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self.reporter = report
        report.stopping.wait()


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


class Told:
    """A manager that reports.

    Attributes:
        backend: Its devices.
        server: What it has told.
        manager: The manager.
        rejection: Why the configuration is not in force.
    """

    def __init__(self, backend: Widgets, server: Server, manager: PluginManager) -> None:
        self.backend = backend
        self.server = server
        self.manager = manager
        self.rejection: str | None = None

    async def fault(self, device: str) -> None:
        await until(lambda: self.backend.reporter)
        assert self.backend.reporter is not None
        self.backend.reporter.fault(device, "XID 79", kind="xid")

    async def until_looked_at(self) -> None:
        """Wait until what there is now was looked at."""
        self.rejection = "a word to be told"
        await until(lambda: self.server.told("ConfigurationRejected"))
        self.rejection = None
        await until(lambda: self.server.told("ConfigurationAccepted"))
        self.server.events.clear()

    async def clear(self, device: str) -> None:
        assert self.backend.reporter is not None
        self.backend.reporter.clear(device, kind="xid")


@asynccontextmanager
async def connected(server: Any) -> AsyncIterator[NodeApi]:
    yield server


@pytest.fixture
async def kubelet() -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet() as kubelet:
        yield kubelet


@pytest.fixture
async def told(kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Told]:
    """A manager at work, looked at often."""
    monkeypatch.setattr(cluster_reporter, "LOOK_PAUSE", 0.02)
    monkeypatch.setattr(news, "LOST_AFTER", 0.3)
    monkeypatch.setattr(event_aggregation, "PERIOD", 0.05)
    server, backend = Server(), Widgets()
    state: list[Told] = []
    reporter = ClusterReporter(
        ReportOptions(node="node0", events=True),
        connect=lambda: connected(server),
        rejection=lambda: state[0].rejection,
    )
    options = ManagerOptions(paths=kubelet.paths, observe=reporter.changed, follows_pods=True)
    async with PluginManager([backend], options) as manager, anyio.create_task_group() as tasks:
        state.append(Told(backend, server, manager))
        tasks.start_soon(reporter.run, manager)
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        await state[0].until_looked_at()
        yield state[0]
        tasks.cancel_scope.cancel()


async def test_a_kubelet_that_stays_away_is_a_lost_resource(told: Told, kubelet: SimulatedKubelet) -> None:
    await until(lambda: told.manager.is_ready)
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
    await told.fault("w0")
    await told.fault("w1")
    await until(lambda: told.server.told("NoHealthyDevice") and told.server.told("DeviceFailed"))
    pods = [event["involvedObject"] for event in told.server.events if event["involvedObject"]["kind"] == "Pod"]
    assert [(pod["name"], pod["uid"]) for pod in pods] == [("train", "uid-train")], "there is no pod called gone"
    await told.clear("w0")
    await told.clear("w1")
    await until(lambda: told.server.told("DevicesAvailable"))
