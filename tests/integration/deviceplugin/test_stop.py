"""The orderly end."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from typing_extensions import override

import kdp
from kdp.supervision.service import STOP_BUDGET
from kdp.testing import CallError, SimulatedKubelet, events

from .helpers import RESOURCE, Block, Figure, Stuck, Widgets, connected, lists, own_sockets, running, until


async def test_the_end_says_nothing_and_leaves_nothing(kubelet: SimulatedKubelet, figure: Figure) -> None:
    """Scenario 57: no empty list, so running pods keep their devices' health."""
    async with connected(kubelet, Widgets("w0", "w1")):
        started = time.monotonic()
    figure(f"orderly end, {kubelet.profile.name}", (time.monotonic() - started) * 1e3, "ms")
    await kubelet.until(
        lambda: kubelet.events.of(events.StreamEnded), capacity={RESOURCE: 2}, allocatable={RESOURCE: 0}
    )
    assert [(received.healthy, received.unhealthy) for received in lists(kubelet)] == [(2, 0)]
    assert own_sockets(kubelet.paths.device_plugin_dir) == set()
    assert kubelet.paths.kubelet_socket.exists()


async def test_a_file_that_is_no_longer_ours_stays(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Widgets("w0")):
        [name] = own_sockets(kubelet.paths.device_plugin_dir)
        path = kubelet.paths.device_plugin_dir / name
        path.unlink()
        path.touch()
    assert path.exists()


async def test_a_call_that_hangs_is_told_that_the_plugin_stops(
    kubelet: SimulatedKubelet, block: Callable[[], Block], figure: Figure
) -> None:
    stuck = block()
    failures: list[CallError] = []
    async with anyio.create_task_group() as tasks:

        async def allocate() -> None:
            with pytest.raises(CallError) as failure:
                await kubelet.plugin(RESOURCE).allocate(["w0"])
            failures.append(failure.value)

        async with connected(kubelet, Stuck(stuck)):
            tasks.start_soon(allocate)
            await until(lambda: stuck.is_entered)
            started = time.monotonic()
        figure(f"end with a call that hangs, {kubelet.profile.name}", time.monotonic() - started, "s")
        await until(lambda: failures)
    assert (failures[0].code, failures[0].detail) == ("UNAVAILABLE", "plugin is stopping")


async def test_the_backend_is_closed_after_everything_else(kubelet: SimulatedKubelet) -> None:
    told: list[str] = []

    class Telling(Widgets):
        @override
        def open(self) -> None:
            told.append("open")

        @override
        def watch(self, report: kdp.Reporter) -> None:
            super().watch(report)
            told.append("watch ends")

        @override
        def close(self) -> None:
            told.append(f"close, {len(own_sockets(kubelet.paths.device_plugin_dir))} sockets")

    async with connected(kubelet, backend := Telling("w0")):
        await backend.report()
    assert told[0] == "open"
    assert sorted(told[1:]) == ["close, 0 sockets", "watch ends"]


async def test_a_cancelled_body_is_an_orderly_end_too(kubelet: SimulatedKubelet) -> None:
    with anyio.CancelScope() as scope:
        async with connected(kubelet, Widgets("w0")):
            scope.cancel()
            await anyio.sleep_forever()
    await kubelet.until(lambda: kubelet.events.of(events.StreamEnded))
    assert own_sockets(kubelet.paths.device_plugin_dir) == set()


async def test_a_stop_that_meets_the_first_discovery_waits_for_no_plugin_that_nobody_stops(
    kubelet: SimulatedKubelet, figure: Figure
) -> None:
    """The plugin was made after all plugins had been told to stop: the process ended by force and left its socket.

    One step of the event loop decides, so the stop comes at each of the first steps after the discovery in turn.
    """

    class Late(Widgets):
        @override
        async def discover(self) -> list[kdp.Device]:  # type: ignore[override]
            asked.set()
            await go.wait()
            return self.devices

    slowest = 0.0
    for steps in range(20):
        asked, go = anyio.Event(), anyio.Event()
        async with running(kubelet, Late(kdp.Device(id="w-0", resource=RESOURCE), resource=None)):
            await asked.wait()
            go.set()
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            asked_to_stop = time.monotonic()
        slowest = max(slowest, time.monotonic() - asked_to_stop)
        assert own_sockets(kubelet.paths.device_plugin_dir) == set()
    figure("stop that meets the first discovery, slowest of 20", slowest, "s")
    assert slowest < STOP_BUDGET
