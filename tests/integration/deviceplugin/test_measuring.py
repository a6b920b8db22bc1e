"""The hook ``measure``: at its own pace, and whatever it does, alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.supervision.measuring import Measured
from kdp.supervision.supervisor import Deadlines
from kdp.testing import SimulatedKubelet

from .helpers import RESOURCE, Block, Widgets, connected, running, until

POWER = kdp.Measurement("power", unit="watts", help="Of the card.")


class Meters(Widgets):
    measurements = (POWER,)
    measure_interval = 0.05
    error: Exception | None = None
    block: Block | None = None

    def __init__(self, *devices: kdp.Device | str) -> None:
        super().__init__(*devices)
        self.times: list[float] = []

    @override
    def measure(self) -> Mapping[str, Mapping[str, float]]:
        self.times.append(time.monotonic())
        if self.block is not None:
            self.block()
        if self.error is not None:
            raise self.error
        return {"w0": {"power": 5}}


async def test_it_is_called_at_its_own_pace(kubelet: SimulatedKubelet) -> None:
    backend = Meters("w0")
    async with connected(kubelet, backend, measures=True) as manager:
        [supervisor] = manager.supervisors
        await until(lambda: len(backend.times) > 5)
        assert supervisor.measuring is not None
        assert supervisor.measuring.values == {"w0": Measured(RESOURCE, {"power": 5.0})}
    # A call may be late on a busy machine, and the next one then comes sooner.
    assert backend.times[5] - backend.times[0] > 0.05 * 5 / 2


async def test_a_failure_leaves_no_old_values_and_is_told_one_time(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Meters("w0")
    async with connected(kubelet, backend, measures=True) as manager:
        measuring = manager.supervisors[0].measuring
        assert measuring is not None
        await until(lambda: measuring.values)
        backend.error = OSError("the bus is gone")
        await until(lambda: not measuring.values)
        calls = len(backend.times)
        await until(lambda: len(backend.times) > calls + 5)
        backend.error = None
        await until(lambda: measuring.values)
    assert len([r for r in caplog.records if "nothing is measured meanwhile" in r.getMessage()]) == 1


async def test_a_hang_stands_alone(kubelet: SimulatedKubelet, block: Callable[[], Block]) -> None:
    backend = Meters("w0")
    backend.block = block()
    deadlines = Deadlines(measure=0.2)
    async with connected(kubelet, backend, measures=True, deadlines=deadlines) as manager:
        [supervisor] = manager.supervisors
        await until(lambda: supervisor.hooks.state.hanging == 1)
        assert len(backend.times) == 1
        report = await backend.report()
        report.fault("w0", "hot")
        await kubelet.until(allocatable={RESOURCE: 0})
        backend.block.release()
        measuring = supervisor.measuring
        assert measuring is not None
        await until(lambda: measuring.values)
        assert supervisor.hooks.state.hanging == 0


async def test_a_shared_device_is_measured_one_time(kubelet: SimulatedKubelet) -> None:
    backend = Meters("w0")
    async with connected(kubelet, share(backend, Sharing(replicas=3)), measures=True) as manager:
        measuring = manager.supervisors[0].measuring
        assert measuring is not None
        await until(lambda: measuring.values)
        assert measuring.values == {"w0": Measured(RESOURCE, {"power": 5.0})}


async def test_a_backend_that_is_opened_again_and_again_was_measured_twelve_times_a_second(
    kubelet: SimulatedKubelet,
) -> None:
    """Its interval begins with the last call, whatever was opened since; and the pauses between openings grow."""

    class Restless(Meters):
        measure_interval = 3600.0

        def __init__(self, *devices: kdp.Device | str) -> None:
            super().__init__(*devices)
            self.opened: list[float] = []

        @override
        def open(self) -> None:
            self.opened.append(time.monotonic())

        @override
        def watch(self, report: kdp.Reporter) -> None:
            raise kdp.NotReady("the card restarts")

    backend = Restless("w0")
    async with running(kubelet, backend, measures=True):
        await until(lambda: len(backend.opened) > 4)
    assert len(backend.times) == 1
    assert backend.opened[4] - backend.opened[3] >= 0.4
