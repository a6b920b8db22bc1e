"""The kubelet goes and comes back, in every shape (contract scenarios 17 to 27)."""

from __future__ import annotations

import errno
import functools
import os
import threading
from pathlib import Path

import anyio
import asyncinotify
import pytest
from anyio.abc import TaskGroup

from kdp.kubelet.sockets import is_answered
from kdp.testing import SimulatedKubelet, events

from .helpers import (
    RESOURCE,
    Figure,
    Widgets,
    connected,
    own_sockets,
    registers,
    until,
)


def back_after(kubelet: SimulatedKubelet) -> float:
    """Milliseconds from listening to registered, after the last restart."""
    listening = kubelet.events.of(events.KubeletStarted)[-1].time
    return (kubelet.events.of(events.RegisterAnswered)[-1].time - listening) * 1e3


@pytest.mark.parametrize("how", [{}, {"listen_delay": 0.2}, {"reboot": True}], ids=str)
async def test_a_restarted_kubelet_has_its_devices_at_once(
    kubelet: SimulatedKubelet, figure: Figure, how: dict[str, float]
) -> None:
    """Scenarios 17, 18 and 20."""
    backend = Widgets("w0", "w1")
    async with connected(kubelet, backend):
        before = kubelet.devices(RESOURCE)
        await kubelet.restart(**how)  # type: ignore[arg-type]
        await kubelet.until(allocatable={RESOURCE: 2}, registered=RESOURCE)
        assert kubelet.devices(RESOURCE) == before
        assert registers(kubelet)[0].endpoint != registers(kubelet)[-1].endpoint
        assert backend.discoveries == 1  # nothing is discovered on this path
        figure(f"restart {how or ''}, {kubelet.profile.name}: listening -> registered", back_after(kubelet), "ms")


async def _next_socket(kubelet: SimulatedKubelet, tasks: TaskGroup) -> Path:
    """Kill the kubelet, start one that listens a second after its bind, and return what is made for it meanwhile."""
    await kubelet.crash()
    tasks.start_soon(functools.partial(kubelet.start, listen_delay=1.0))
    await until(lambda: len(_hidden(kubelet)) == 1)
    return _hidden(kubelet)[0]


def _hidden(kubelet: SimulatedKubelet) -> list[Path]:
    return list((kubelet.paths.device_plugin_dir / ".kdp").glob("*"))


async def test_the_next_socket_answers_before_the_kubelet_listens(kubelet: SimulatedKubelet) -> None:
    """Between its bind and its listen the kubelet has the wipe behind it: what is made then is not made later."""
    async with connected(kubelet, Widgets("w0")), anyio.create_task_group() as tasks:
        made = await _next_socket(kubelet, tasks)
        assert is_answered(made)
        assert _hidden(kubelet) == [made]
        assert len(registers(kubelet)) == 1
        await kubelet.until(allocatable={RESOURCE: 1}, registered=RESOURCE)
        assert registers(kubelet)[-1].endpoint == made.name.removeprefix(".")
        assert not _hidden(kubelet)


async def test_an_end_before_the_kubelet_listens_leaves_no_socket(kubelet: SimulatedKubelet) -> None:
    async with anyio.create_task_group() as tasks:
        async with connected(kubelet, Widgets("w0")):
            await _next_socket(kubelet, tasks)
        assert own_sockets(kubelet.paths.device_plugin_dir) == set()


async def test_many_restarts_leave_nothing_behind(kubelet: SimulatedKubelet, figure: Figure) -> None:
    """Scenario 75, small."""
    async with connected(kubelet, Widgets("w0")):

        async def round_trip() -> None:
            await kubelet.restart()
            await kubelet.until(allocatable={RESOURCE: 1}, registered=RESOURCE)

        def held() -> tuple[int, int]:
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        for _ in range(6):
            await round_trip()
        descriptors, threads = held()
        worst = 0.0
        for _ in range(20):
            await round_trip()
            worst = max(worst, back_after(kubelet))
        figure("20 restarts, slowest: listening -> registered", worst, "ms")
        assert kubelet.streams(RESOURCE) == 1
        # gRPC closes the last generation's connections in a thread of its own, a moment later.
        with anyio.move_on_after(10):
            while held()[0] > descriptors + 3 or held()[1] > threads + 1:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
        after = held()
        assert after[0] <= descriptors + 3
        assert after[1] <= threads + 1


async def test_without_inotify_it_is_polled(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 23, at the limit of watches; that of instances is in ``tests/integration/faults``."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no more of them")

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", refuse)
    async with connected(kubelet, Widgets("w0")):
        await kubelet.stop()
        await kubelet.start()
        await kubelet.until(allocatable={RESOURCE: 1})
    assert len([r for r in caplog.records if "every second" in r.getMessage()]) == 1
