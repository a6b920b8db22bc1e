"""kdp.run as a process: its end in every state, exit codes, and what only another user or file system can show."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import anyio
import attrs
import pytest
from tests.faults import FaultyKubelet

from kdp.testing import CallError, events
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import RESOURCE, Figure, lists, own_sockets, registers, until
from .catalogue import Fault
from .conftest import Saw
from .process import child

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: for a process of another user")


def _can_mount() -> bool:
    try:
        return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs root and unshare(1): for mounts of its own")

STATES = {
    "starting": ("Plain", "readyz"),
    "connected, close hangs": ("CloseHangs", "connected to the kubelet"),
    "lost": ("Plain", "connected to the kubelet"),
    "not ready": ("NotReady", "is not ready"),
}


@pytest.mark.parametrize("state", STATES)
async def test_sigterm(k: FaultyKubelet, saw: Saw, figure: Figure, state: str) -> None:
    """Scenarios 57 and 85; the states that the kubelet can tell are in test_starved."""
    backend, words = STATES[state]
    is_lost = state == "lost"
    async with child(k.paths, backend, stays_lost=is_lost) as plugin:
        await plugin.said(words)
        if "connected" in words:
            await k.until(allocatable={RESOURCE: 2})
        if is_lost:
            k.drop_stream(RESOURCE)
            await k.until(lambda: k.streams(RESOURCE) == 0)
        code, seconds = await plugin.terminated()
        figure(f"SIGTERM -> exit 0, {state}", seconds, "s")
        assert code == 0
        assert plugin.other == [] or is_lost
        assert seconds < PATIENCE
        sentence = await plugin.said("stopping")
        saw(Fault.SIGTERM, sentence, "ended", code)
        if not is_lost:
            assert own_sockets(k.paths.device_plugin_dir) == set()
    assert [(last.healthy, last.unhealthy) for last in lists(k)] in ([], [(2, 0)])  # and no empty one


async def test_sigterm_while_calls_hang(k: FaultyKubelet, saw: Saw, figure: Figure) -> None:
    """Scenario 58: blocking calls that nobody can cancel, of all kinds at once; the pod's author gets a sentence."""
    backends = ("OpenHangs", "DiscoverHangs", "AllocateHangs", "WatchHangs")
    answers: list[CallError] = []

    async def allocate() -> None:
        with pytest.raises(CallError) as failure:
            await k.plugin("example.com/allocate").allocate(["a-0"])
        answers.append(failure.value)

    async with child(k.paths, *backends) as plugin, anyio.create_task_group() as tasks:
        await k.until(allocatable={"example.com/allocate": 2, RESOURCE: 2})
        tasks.start_soon(allocate)
        for hook in ("OpenHangs.open", "DiscoverHangs.discover", "AllocateHangs.allocate", "WatchHangs.watch"):
            await plugin.said(f"{hook} hangs")
        code, seconds = await plugin.terminated()
        figure("SIGTERM -> exit 0, discover, allocate, open and watch hang", seconds, "s")
        assert (code, plugin.other) == (0, [])
        assert seconds < PATIENCE
    [answer] = answers
    assert answer.code == "UNAVAILABLE"
    saw(Fault.SIGTERM_IN_CALL, answer.detail, "ended", code)
    assert own_sockets(k.paths.device_plugin_dir) == set()


async def test_sigterm_while_the_event_loop_itself_is_blocked(k: FaultyKubelet, figure: Figure) -> None:
    async with child(k.paths, "LoopHangs") as plugin, anyio.create_task_group() as tasks:
        await k.until(allocatable={RESOURCE: 2})

        async def allocate() -> None:
            with pytest.raises(CallError):
                await k.plugin(RESOURCE).allocate(["w-0"])

        tasks.start_soon(allocate)
        await plugin.said("LoopHangs.allocate hangs")
        code, seconds = await plugin.terminated()
        figure("SIGTERM -> exit 0, an async hook blocks the loop", seconds, "s")
        assert code == 0
        assert seconds < PATIENCE


async def test_a_killed_process_leaves_a_socket_that_the_next_one_removes(k: FaultyKubelet) -> None:
    """Scenario 59."""
    directory = k.paths.device_plugin_dir
    async with child(k.paths) as plugin:
        await k.until(allocatable={RESOURCE: 2})
        plugin.kill()
        assert await plugin.ended() == -signal.SIGKILL
    [left] = own_sockets(directory)
    strange = directory / "kdp-example.com_another-00000000-1.sock"
    shutil.copyfile("/dev/null", strange)
    async with child(k.paths) as plugin:
        await k.until(allocatable={RESOURCE: 2})
        assert registers(k)[-1].endpoint != left
        assert own_sockets(directory) == {registers(k)[-1].endpoint, strange.name}
        assert (await plugin.terminated())[0] == 0
    assert own_sockets(directory) == {strange.name}


@pytest.mark.parametrize("profile", ["k136", "k137"])
async def test_two_processes_overlap_in_a_rolling_update(
    saw: Saw, figure: Figure, profile: str, k: FaultyKubelet
) -> None:
    """Scenarios 60 and 61."""
    await k.stop()
    await k.start(profile=profile)
    async with child(k.paths) as old:
        await k.until(allocatable={RESOURCE: 2})
        async with child(k.paths) as new:
            await new.said("connected to the kubelet")
            await k.until(lambda: k.streams(RESOURCE) == 2)
            before = {received.endpoint for received in registers(k)}
            assert (await old.terminated())[0] == 0
            if k.profile.one_client_per_resource:
                sentence = await new.said("ended its stream")
                await k.until(lambda: len(registers(k)) == 3, allocatable={RESOURCE: 2})
                lost, back = k.events.of(events.StreamEnded)[-1].time, registers(k)[-1].time
                figure(f"overlap, {profile}: old one's end -> new one registered again", (back - lost) * 1e3, "ms")
                assert registers(k)[-1].endpoint not in before
                await until(lambda: "connected to the kubelet" in new.messages[-1])
                saw(Fault.OVERLAP, sentence, await new.state(RESOURCE))
            else:
                await k.until(lambda: k.streams(RESOURCE) == 1, allocatable={RESOURCE: 2})
                assert len(registers(k)) == 2
            assert own_sockets(k.paths.device_plugin_dir) == {registers(k)[-1].endpoint}
            await k.plugin(RESOURCE).allocate(["w-0"])
            assert (await new.terminated())[0] == 0


async def test_a_wrong_setting(k: FaultyKubelet, saw: Saw) -> None:
    async with child(k.paths, options={"poll_interval": -1}) as plugin:
        code = await plugin.ended()
        await until(lambda: plugin.messages)
        assert code == 2
        assert not plugin.other
        [sentence] = plugin.messages
        saw(Fault.MISCONFIGURED, sentence, "not started", code)
    assert not registers(k)


AS_NOBODY = [
    *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
    # Interpreter and checkout may be in root's home. To connect to a socket takes another right.
    *("--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"),
]


@needs_root
async def test_kubelet_sock_is_not_for_us(k: FaultyKubelet, saw: Saw) -> None:
    """Fault 15, seen by a user who is not root."""
    directory = k.paths.device_plugin_dir
    directory.parent.chmod(0o755)
    directory.chmod(0o777)
    k.faults.socket_mode(0)
    async with child(k.paths, before=AS_NOBODY) as plugin:
        sentence = await plugin.said("not permitted")
        await until(lambda: plugin.messages)
        saw(Fault.SOCKET_DENIED, sentence, await plugin.state(RESOURCE))
        k.faults.socket_mode(0o666)
        await k.until(allocatable={RESOURCE: 2})
        assert (await plugin.terminated())[0] == 0


# -- in a mount namespace of their own ---------------------------------------------------------------------------------


def _in_own_mounts(script: str) -> list[str]:
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{script} && exec "$@"', "sh"]


@needs_mounts
async def test_the_directory_is_removed_under_a_mount(k: FaultyKubelet, saw: Saw) -> None:
    """Scenario 24, as a hostPath volume sees it: the old directory stays mounted, and nothing ever comes into it."""
    real = k.paths.device_plugin_dir
    seen = real.with_name("seen")
    seen.mkdir()
    paths = attrs.evolve(k.paths, device_plugin_dir=seen)
    async with child(paths, before=_in_own_mounts(f"mount --bind {real} {seen}")) as plugin:
        await k.until(allocatable={RESOURCE: 2})
        await k.crash()
        k.faults.replace_directory()
        code = await plugin.ended()
        assert code == 3
        saw(Fault.DIRECTORY_PINNED, await plugin.said("ending"), "ended", code)
    await k.start()


@needs_mounts
async def test_the_directory_is_read_only(k: FaultyKubelet, saw: Saw) -> None:
    """Fault 25."""
    async with child(k.paths, before=_in_own_mounts("true"), wait=True) as plugin:
        await until(lambda: os.readlink(f"/proc/{plugin.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"))
        k.faults.read_only(plugin.pid)
        await plugin.go()
        sentence = await plugin.said("not registered")
        assert "Read-only file system" in sentence
        saw(Fault.DIRECTORY_READ_ONLY, sentence, _settled(await plugin.state(RESOURCE)))
        k.faults.read_only(plugin.pid, writable=True)
        await k.until(allocatable={RESOURCE: 2})
        assert (await plugin.terminated())[0] == 0


@needs_mounts
async def test_the_directory_is_full(k: FaultyKubelet, saw: Saw) -> None:
    """Fault 26: a file system without a free inode, and a kubelet that looks at the same directory from outside."""
    inner = k.paths.device_plugin_dir.parent / "d"
    inner.mkdir()
    paths = attrs.evolve(k.paths, device_plugin_dir=inner)
    mount = f"mount -t tmpfs -o nr_inodes=32 none {inner}"
    async with child(paths, before=_in_own_mounts(mount), wait=True) as plugin:
        outside = Path(f"/proc/{plugin.pid}/root{inner}")
        await until(lambda: os.stat(outside).st_dev != os.stat(inner).st_dev)
        async with FaultyKubelet(paths=attrs.evolve(k.paths, device_plugin_dir=outside)) as full:
            assert full.faults.fill_disk() > 0
            await plugin.go()
            sentence = await plugin.said("not registered")
            assert "No space left on device" in sentence
            saw(Fault.DIRECTORY_FULL, sentence, _settled(await plugin.state(RESOURCE)))
            full.faults.free_disk()
            await full.until(allocatable={RESOURCE: 2})
            assert (await plugin.terminated())[0] == 0


def _settled(state: str) -> str:
    """Between two tries it is serving or lost for a moment."""
    return "waiting" + state[state.index(",") :]
