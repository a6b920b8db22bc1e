"""Faults 16 to 20 and 23 to 29: kubelet.sock is replaced, the directory and its watch fail."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest
from tests.faults import FaultyKubelet

from kdp.testing import ScenarioError
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import RESOURCE, Figure, Widgets, connected, lists, own_sockets, registers, running, until
from .catalogue import Fault
from .conftest import Said, Saw
from .process import child

QUEUE = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

REPLACED = ["unlink_socket", "recreate_socket_file", "recreate_socket", "recreate_socket_twice", "socket_is_link"]


@pytest.mark.parametrize("fault", REPLACED)
async def test_another_kubelet_sock_is_no_other_kubelet_while_the_stream_lives(k: FaultyKubelet, fault: str) -> None:
    """Scenario 26."""
    backend = Widgets("w0", "w1")
    async with connected(k, backend):
        getattr(k.faults, fault)()
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 1})
        assert len(registers(k)) == 1
        await k.restart()
        await k.until(lambda: len(registers(k)) == 2, allocatable={RESOURCE: 1})


async def test_the_last_of_several_sockets_is_the_one_that_counts(k: FaultyKubelet) -> None:
    async with running(k, Widgets("w0")):
        k.faults.recreate_socket_twice()
        await k.until(allocatable={RESOURCE: 1})
        k.faults.recreate_socket()
        k.drop_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 2, streaming=RESOURCE)
        k.faults.unlink_socket()
        with pytest.raises(ScenarioError, match=r"is gone, so it cannot be replaced"):
            k.faults.recreate_socket_file()


async def test_a_link_to_the_kubelets_socket_will_do(k: FaultyKubelet) -> None:
    k.faults.socket_is_link()
    async with connected(k, Widgets("w0")):
        await k.until(allocatable={RESOURCE: 1})


async def test_our_own_socket_is_deleted_by_its_name(k: FaultyKubelet, said: Said) -> None:
    """Scenario 27."""
    async with connected(k, Widgets("w0")):
        [received] = registers(k)
        k.faults.delete_socket(received.endpoint)
        await said("was removed")
        assert len(registers(k)) == 1
        k.drop_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 2, streaming=RESOURCE)


async def test_the_kubelets_checkpoint_is_noise(k: FaultyKubelet) -> None:
    """Scenario 25."""
    async with connected(k, Widgets("w0")), k.checkpoint_noise(200):
        known = k.paths.device_plugin_dir.joinpath("kubelet_internal_checkpoint").stat().st_ino
        path = k.paths.device_plugin_dir / "kubelet_internal_checkpoint"
        seen: set[int] = {known}

        def rewritten() -> bool:
            seen.add(path.stat().st_mtime_ns)
            return len(seen) > 100

        await until(rewritten)
    assert len(registers(k)) == len(lists(k)) == 1


@pytest.mark.slow
async def test_an_overflowed_queue_hides_no_restart(k: FaultyKubelet, figure: Figure) -> None:
    """Scenario 23: in process."""
    async with connected(k, Widgets("w0")):
        await k.stop()
        made = k.faults.overflow_inotify()
        assert made > QUEUE
        await k.start()
        started = time.monotonic()
        await k.until(lambda: len(registers(k)) == 2, streaming=RESOURCE)
        figure("inotify overflow -> registered", (time.monotonic() - started) * 1e3, "ms")


async def test_without_inotify_the_kubelet_is_found_by_looking(k: FaultyKubelet, saw: Saw) -> None:
    try:
        before = k.faults.without_inotify([])
    except ScenarioError as lacking:
        pytest.skip(str(lacking))
    async with child(k.paths, before=before) as plugin:
        await k.until(allocatable={RESOURCE: 2})
        sentence = await plugin.said("inotify is refused")
        with anyio.fail_after(PATIENCE):  # the kubelet has its list a moment before Register returns
            while "not ready" in (state := await plugin.state(RESOURCE)):
                pass
        saw(Fault.NO_INOTIFY, sentence, state)
        await k.restart()
        await k.until(lambda: len(registers(k)) == 2, allocatable={RESOURCE: 2})
        assert (await plugin.terminated())[0] == 0


async def test_a_path_without_room_is_a_setting_that_is_wrong(k: FaultyKubelet, saw: Saw) -> None:
    paths = k.faults.long_path()
    assert paths.device_plugin_dir.samefile(k.paths.device_plugin_dir)
    async with child(paths) as plugin:
        code = await plugin.ended()
        assert code == 2
        sentence = await plugin.said("must have at most 107 bytes")
        saw(
            Fault.PATH_TOO_LONG,
            "must have at most 107 bytes" + sentence.partition("must have at most 107 bytes")[2],
            "not started",
            code,
        )
    assert own_sockets(k.paths.device_plugin_dir) == set()


async def test_a_real_disk_is_not_filled(k: FaultyKubelet) -> None:
    size = os.statvfs(k.paths.device_plugin_dir)
    if size.f_blocks * size.f_frsize <= 64 * 1024 * 1024:
        pytest.skip("the directory for temporary files is a small file system")
    with pytest.raises(ScenarioError, match="too large to be filled by a test"):
        k.faults.fill_disk()


async def test_the_machines_mounts_are_left_alone(k: FaultyKubelet) -> None:
    with pytest.raises(ScenarioError, match="has this machine's mounts"):
        k.faults.read_only(os.getpid())
    with pytest.raises(ScenarioError, match="cannot be seen"):
        k.faults.read_only(2**22)
