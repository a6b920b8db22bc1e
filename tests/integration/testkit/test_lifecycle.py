"""Start, stop, crash and restart, and what a plugin sees of them (contract section 4)."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import anyio
import pytest
from asyncinotify import Inotify, Mask

from kdp.testing import ScenarioError, SimulatedKubelet, events
from kdp_testkit.patience import PATIENCE


def connects(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError as error:
            return type(error).__name__
    return "connected"


async def test_an_orderly_end_removes_the_socket_and_a_crash_leaves_it_dead(kubelet: SimulatedKubelet) -> None:
    path = kubelet.paths.kubelet_socket
    assert connects(path) == "connected"
    await kubelet.stop()
    assert not path.exists()
    await kubelet.start()
    assert connects(path) == "connected"
    await kubelet.crash()
    assert path.is_socket()
    assert connects(path) == "ConnectionRefusedError"
    with pytest.raises(ScenarioError, match="the kubelet is not running: it cannot crash"):
        await kubelet.crash()
    await kubelet.start()
    with pytest.raises(ScenarioError, match="running already"):
        await kubelet.start()
    assert [event.how for event in kubelet.events.of(events.KubeletStopped)] == ["stopped", "crashed"]


async def test_an_old_kubelet_deletes_every_file() -> None:
    async with SimulatedKubelet(profile="k132") as kubelet:
        (kubelet.paths.device_plugin_dir / "state").write_text("mine")
        (kubelet.paths.device_plugin_dir / "folder").mkdir()
        await kubelet.restart()
        assert {path.name for path in kubelet.paths.device_plugin_dir.iterdir()} == {"kubelet.sock", "folder"}


async def test_between_bind_and_listen_connections_are_refused_and_listening_makes_no_event(
    kubelet: SimulatedKubelet,
) -> None:
    path = kubelet.paths.kubelet_socket
    await kubelet.stop()
    with Inotify() as inotify:
        inotify.add_watch(path.parent, Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.ATTRIB)
        async with anyio.create_task_group() as tasks:

            async def start() -> None:
                await kubelet.start(listen_delay=0.3)

            tasks.start_soon(start)
            with anyio.fail_after(PATIENCE):
                event = await inotify.get()
            assert (event.mask, event.name) == (Mask.CREATE, Path(path.name))
            inode = path.stat().st_ino
            assert connects(path) == "ConnectionRefusedError"
        assert connects(path) == "connected"
        assert path.stat().st_ino == inode
        with anyio.move_on_after(0.05):
            pytest.fail(f"listening was seen in the directory: {await inotify.get()}")


async def test_one_hundred_restarts_leave_nothing_behind() -> None:
    import os

    async with SimulatedKubelet() as kubelet:
        await kubelet.restart()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            await kubelet.restart()
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_root_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"has \d+ bytes; a socket's path can have 107: choose a shorter root"):
        SimulatedKubelet(tmp_path / ("x" * 100))


async def test_a_kubelet_that_was_not_entered_cannot_start() -> None:
    with pytest.raises(ScenarioError, match="async context manager"):
        await SimulatedKubelet(autostart=False).start()


async def test_a_temporary_root_goes_with_its_kubelet() -> None:
    kubelet = SimulatedKubelet()
    root = kubelet.paths.device_plugin_dir.parent
    async with kubelet:
        assert root.is_dir()
    assert not root.exists()
    never_entered = SimulatedKubelet()
    root = never_entered.paths.device_plugin_dir.parent
    assert root.is_dir()
    del never_entered
    gc.collect()
    assert not root.exists()
