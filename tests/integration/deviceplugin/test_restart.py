"""The kubelet goes and comes back, in every shape (contract scenarios 17 to 27)."""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import asyncinotify
import pytest
from anyio.abc import TaskGroup
from typing_extensions import override

import kdp
from kdp.kubelet.sockets import is_answered
from kdp.testing import AdmittedPod, CallError, Pod, SimulatedKubelet, events

from .helpers import (
    PROFILES,
    RESOURCE,
    Block,
    Figure,
    Widgets,
    connected,
    lists,
    own_sockets,
    registers,
    running,
    until,
)


def back_after(kubelet: SimulatedKubelet) -> float:
    """Milliseconds from listening to registered, after the last restart."""
    listening = kubelet.events.of(events.KubeletStarted)[-1].time
    return (kubelet.events.of(events.RegisterAnswered)[-1].time - listening) * 1e3


@pytest.mark.parametrize("how", [{}, {"down": 0.3}, {"listen_delay": 0.2}, {"reboot": True}], ids=str)
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


async def test_the_next_socket_answers_before_the_kubelet_listens(k137: SimulatedKubelet) -> None:
    """Between its bind and its listen the kubelet has the wipe behind it: what is made then is not made later."""
    async with connected(k137, Widgets("w0")), anyio.create_task_group() as tasks:
        made = await _next_socket(k137, tasks)
        assert is_answered(made)
        assert _hidden(k137) == [made]
        assert len(registers(k137)) == 1
        await k137.until(allocatable={RESOURCE: 1}, registered=RESOURCE)
        assert registers(k137)[-1].endpoint == made.name.removeprefix(".")
        assert not _hidden(k137)


async def test_a_next_socket_that_is_wiped_before_it_is_found_is_made_again(k137: SimulatedKubelet) -> None:
    async with connected(k137, Widgets("w0")), anyio.create_task_group() as tasks:
        (await _next_socket(k137, tasks)).unlink()
        await k137.until(allocatable={RESOURCE: 1}, registered=RESOURCE)
        assert not _hidden(k137)


async def test_an_end_before_the_kubelet_listens_leaves_no_socket(k137: SimulatedKubelet) -> None:
    async with anyio.create_task_group() as tasks:
        async with connected(k137, Widgets("w0")):
            await _next_socket(k137, tasks)
        assert own_sockets(k137.paths.device_plugin_dir) == set()


async def test_nothing_is_made_for_a_kubelet_that_has_ended(k137: SimulatedKubelet) -> None:
    """Its socket file stays, dead; the next kubelet would wipe what is made beside it."""
    async with connected(k137, Widgets("w0")) as manager:
        await k137.crash()
        await until(lambda: manager.status().resources[RESOURCE].state == "waiting")
        assert "nobody listens" in str(manager.status().resources[RESOURCE].reason)
        assert own_sockets(k137.paths.device_plugin_dir) == set()


async def test_an_orderly_stop_and_a_later_start(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Widgets("w0")) as manager:
        await kubelet.stop()
        await until(lambda: manager.status().resources[RESOURCE].state == "waiting")
        assert "there is no kubelet.sock" in str(manager.status().resources[RESOURCE].reason)
        await kubelet.start()
        await kubelet.until(allocatable={RESOURCE: 1})


async def test_the_same_inode_is_another_kubelet(k137: SimulatedKubelet) -> None:
    """Scenario 19: file systems hand out the inode of the removed file again."""
    path = k137.paths.kubelet_socket
    async with connected(k137, Widgets("w0")):
        for _ in range(20):
            before = os.stat(path).st_ino
            await k137.restart()
            await k137.until(allocatable={RESOURCE: 1})
            if os.stat(path).st_ino == before:
                return
    pytest.skip("this file system never used an inode again in 20 restarts")


async def test_a_restart_while_the_plugin_registers(kubelet: SimulatedKubelet) -> None:
    """Fault 55."""
    kubelet.faults.hang_register()
    async with running(kubelet, Widgets("w0")):
        await kubelet.until(lambda: registers(kubelet))
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1})
        assert len({one.endpoint for one in registers(kubelet)}) == 2


async def test_a_restart_before_the_stream(kubelet: SimulatedKubelet) -> None:
    kubelet.faults.dial_without_stream()
    async with running(kubelet, Widgets("w0")):
        await kubelet.until(registered=RESOURCE)
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1})  # far sooner than the 10 s that the stream would be given


async def test_a_restart_during_allocate(kubelet: SimulatedKubelet, block: Callable[[], Block]) -> None:
    """Fault 56: the call is gone with its kubelet; the hook may take its time."""
    stuck = block()

    class Slow(Widgets):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            stuck()
            return kdp.ContainerEdits()

    async with connected(kubelet, Slow("w0")), anyio.create_task_group() as tasks:

        async def allocate() -> None:
            with pytest.raises(CallError):
                await kubelet.plugin(RESOURCE).allocate(["w0"])

        tasks.start_soon(allocate)
        await until(lambda: stuck.is_entered)
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1})
        stuck.release()
        await kubelet.plugin(RESOURCE).allocate(["w0"])


async def test_pods_survive_the_restart_without_another_allocate(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Widgets("w0", "w1")):
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.restart(reboot=True)
        await kubelet.until(allocatable={RESOURCE: 2})
        [again] = (await kubelet.readmit()).values()
        assert isinstance(again, AdmittedPod)
        assert again.devices(RESOURCE) == admitted.devices(RESOURCE)
        assert len(kubelet.events.of(events.AllocateRequested)) == 1


async def test_an_upgrade_of_the_kubelet(k137: SimulatedKubelet) -> None:
    async with connected(k137, Widgets("w0")):
        for profile in [*PROFILES, *reversed(PROFILES)]:
            await k137.restart(profile=profile)
            await k137.until(allocatable={RESOURCE: 1}, registered=RESOURCE)
        assert len(registers(k137)) == 1 + 2 * len(PROFILES)


async def test_many_restarts_leave_nothing_behind(k137: SimulatedKubelet, figure: Figure) -> None:
    """Scenario 75, small."""
    async with connected(k137, Widgets("w0")):

        async def round_trip() -> None:
            await k137.restart()
            await k137.until(allocatable={RESOURCE: 1}, registered=RESOURCE)

        def held() -> tuple[int, int]:
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        for _ in range(6):
            await round_trip()
        descriptors, threads = held()
        worst = 0.0
        for _ in range(20):
            await round_trip()
            worst = max(worst, back_after(k137))
        figure("20 restarts, slowest: listening -> registered", worst, "ms")
        assert k137.streams(RESOURCE) == 1
        # gRPC closes the last generation's connections in a thread of its own, a moment later.
        with anyio.move_on_after(10):
            while held()[0] > descriptors + 3 or held()[1] > threads + 1:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
        after = held()
        assert after[0] <= descriptors + 3
        assert after[1] <= threads + 1


async def test_two_restarts_within_a_moment(kubelet: SimulatedKubelet) -> None:
    """Faults 19 and 59."""
    async with connected(kubelet, Widgets("w0")):
        for _ in range(5):
            await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1}, registered=RESOURCE)
        assert len({one.endpoint for one in registers(kubelet)}) == len(registers(kubelet))


@pytest.mark.parametrize("why", ["refused", "limit"])
async def test_without_inotify_it_is_polled(
    k137: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """Scenario 23."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE if why == "refused" else errno.ENOSPC, "no more of them")

    if why == "refused":
        monkeypatch.setattr(asyncinotify, "Inotify", refuse)
    else:
        monkeypatch.setattr(asyncinotify.Inotify, "add_watch", refuse)
    async with connected(k137, Widgets("w0")):
        await k137.stop()
        await k137.start()
        await k137.until(allocatable={RESOURCE: 1})
    assert len([r for r in caplog.records if "every second" in r.getMessage()]) == 1


async def test_the_kubelets_own_files_are_no_news(kubelet: SimulatedKubelet) -> None:
    """Scenarios 25 and 26."""
    backend = Widgets("w0")
    async with connected(kubelet, backend) as manager, kubelet.checkpoint_noise(200):
        for _ in range(5):
            kubelet.faults.recreate_socket_file()
            before = backend.discoveries
            manager.rescan()
            await until(lambda before=before: backend.discoveries > before)  # type: ignore[misc]
        assert len(registers(kubelet)) == len(lists(kubelet)) == kubelet.streams(RESOURCE) == 1


async def test_a_deleted_socket_costs_nothing_until_the_stream_ends(kubelet: SimulatedKubelet) -> None:
    """Scenario 27, for one of two resources."""
    other = Widgets("o0", resource="example.com/other")
    async with connected(kubelet, Widgets("w0"), other):
        [received] = registers(kubelet)
        kubelet.faults.delete_socket(received.endpoint)
        (await other.report()).fault("o0", "broken")
        await kubelet.until(allocatable={RESOURCE: 1, "example.com/other": 0})
        kubelet.drop_stream(RESOURCE)
        await kubelet.until(lambda: len(registers(kubelet)) == 2, streaming=RESOURCE)
        assert len(registers(kubelet, "example.com/other")) == 1
