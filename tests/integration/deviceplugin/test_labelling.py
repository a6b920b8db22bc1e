"""The hook ``labels``: asked when devices changed, and whatever it does, alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.deviceplugin.manager import PluginManager
from kdp.supervision import labelling
from kdp.supervision.labelling import NodeLabels
from kdp.testing import SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, until

COUNT = f"{RESOURCE}.count"


class Labeled(Widgets):
    answer: Any = None
    error: Exception | None = None

    def __init__(self, *devices: kdp.Device | str) -> None:
        super().__init__(*devices)
        self.asked: list[list[str]] = []

    @override
    def labels(self, devices: Sequence[kdp.Device]) -> Any:
        self.asked.append([device.id for device in devices])
        if self.error is not None:
            raise self.error
        return {COUNT: str(len(devices))} if self.answer is None else self.answer


def newest(manager: PluginManager) -> NodeLabels:
    found = manager.supervisors[0].labelling
    assert found is not None
    return found.newest.value


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "PAUSE", 0.01)
    monkeypatch.setattr(labelling, "RETRY_AFTER", 0.05)


async def test_it_is_asked_when_the_devices_changed_and_only_then(kubelet: SimulatedKubelet) -> None:
    backend = Labeled("w0")
    async with connected(kubelet, backend, wants_labels=True) as manager:
        await until(lambda: newest(manager).values == {COUNT: "1"})
        report = await backend.report()
        seen = backend.discoveries
        report.rescan()
        await until(lambda: backend.discoveries > seen)
        report.fault("w0", "hot")
        await kubelet.until(allocatable={RESOURCE: 0})
        assert backend.asked == [["w0"]]
        backend.devices = [kdp.Device(id="w0"), kdp.Device(id="w1", attributes={"product": "x"})]
        report.rescan()
        await until(lambda: newest(manager).values == {COUNT: "2"})
    assert backend.asked == [["w0"], ["w0", "w1"]]


async def test_a_failure_keeps_the_labels_of_before_and_is_told_with_class_and_hook(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Labeled("w0")
    async with connected(kubelet, backend, wants_labels=True) as manager:
        await until(lambda: newest(manager).values == {COUNT: "1"})
        backend.error = OSError("the bus is gone")
        backend.devices = [kdp.Device(id="w1")]
        (await backend.report()).rescan()
        await until(lambda: newest(manager).problem)
        assert newest(manager) == NodeLabels(
            values={COUNT: "1"}, problem="labels() of Labeled raised OSError; the plugin's log has the details"
        )
        calls = len(backend.asked)
        await until(lambda: len(backend.asked) > calls + 2)
        backend.error, backend.answer = None, {"example.com/x": "1"}
        await until(lambda: newest(manager) == NodeLabels(values={"example.com/x": "1"}))
    assert len([r for r in caplog.records if "the previous labels stay" in r.getMessage()]) == 1


async def test_hardware_that_is_gone_takes_its_labels_along(kubelet: SimulatedKubelet) -> None:
    backend = Labeled("w0")
    async with connected(kubelet, backend, wants_labels=True) as manager:
        await until(lambda: newest(manager).values == {COUNT: "1"})
        backend.error, backend.devices = kdp.NoHardware("the card was pulled"), [kdp.Device(id="w1")]
        (await backend.report()).rescan()
        await until(lambda: newest(manager) == NodeLabels(values={}))


async def test_a_shared_device_counts_one_time(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, share(Labeled("w0", "w1"), Sharing(replicas=3)), wants_labels=True) as manager:
        await until(lambda: newest(manager).values == {COUNT: "2"})
