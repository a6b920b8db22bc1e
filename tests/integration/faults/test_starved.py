"""Faults 82 to 85: what is done to the plugin's process from outside. Everything is seen by its kubelet and its log."""

from __future__ import annotations

import sys
import time
from typing import get_args

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.faults import FaultyKubelet
from tests.faults.process import Moment

from kdp.testing import Pod, ScenarioError, events
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import RESOURCE, Figure, lists, own_sockets, registers, until
from .catalogue import Fault
from .conftest import Saw
from .process import child

pytestmark = pytest.mark.slow

CLOCK = (
    "import sys, time; sys.stdin.readline(); print(round(time.time()), flush=True); sys.stdin.readline(); "
    "print(round(time.time()))"
)


def on_own_clock(k: FaultyKubelet) -> list[str]:
    try:
        return k.faults.on_own_clock([])
    except ScenarioError as lacking:
        pytest.skip(str(lacking))


async def test_the_clock_jumps_and_nothing_else_does(k: FaultyKubelet) -> None:
    """A year on, and then two years back."""
    jump = 86_400.0 * 365
    async with child(k.paths, before=on_own_clock(k)) as plugin:
        await k.until(allocatable={RESOURCE: 2})
        k.faults.jump_clock(jump)
        await k.plugin(RESOURCE).allocate(["w-0"], timeout=None)
        await k.restart(down=0.2)
        await k.until(lambda: len(registers(k)) == 2, allocatable={RESOURCE: 2})
        k.faults.jump_clock(-2 * jump)
        k.drop_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 3, streaming=RESOURCE)
        code, seconds = await plugin.terminated()
        assert code == 0
        assert seconds < PATIENCE
        assert plugin.other == []
    back, again = k.events.of(events.KubeletStarted)[-1].time, registers(k)[1].time
    assert 0 <= again - back < 1.0


async def test_the_clock_of_a_process_really_jumps(k: FaultyKubelet) -> None:
    command = [*on_own_clock(k), sys.executable, "-c", CLOCK]
    async with await anyio.open_process(command) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen: list[int] = []
        output = BufferedByteReceiveStream(process.stdout)
        for jump in (0.0, 86_400.0):
            k.faults.jump_clock(jump)
            await process.stdin.send(b"\n")
            seen.append(int(await output.receive_until(b"\n", 100)))
    assert abs(seen[0] - time.time()) < 60
    assert 86_390 <= seen[1] - seen[0] <= 86_460


async def test_a_clock_that_nobody_has_cannot_jump(k: FaultyKubelet) -> None:
    with pytest.raises(ScenarioError, match=r"start the plugin's command by on_own_clock\(\)"):
        k.faults.jump_clock(1.0)


@pytest.mark.parametrize("state", ["registering", "lost"])
async def test_a_process_without_cpu_goes_on_where_it_was(k: FaultyKubelet, figure: Figure, state: str) -> None:
    """Its own deadlines of 0.5 s pass while it is stopped for one second; fifteen change nothing but the time."""
    if state == "registering":
        k.faults.delay_register(0.3)
    async with child(k.paths, patch={"kdp.deviceplugin.session.STREAM_DEADLINE": 0.5}) as plugin:
        if state == "registering":
            await k.until(lambda: registers(k))
        else:
            await k.until(allocatable={RESOURCE: 2})
        async with k.faults.starve(plugin.pid, 1.0):
            if state == "lost":
                await k.restart()
        woken = time.monotonic()
        await k.until(allocatable={RESOURCE: 2}, streaming=RESOURCE)
        figure(f"SIGCONT -> allocatable, {state}", (time.monotonic() - woken) * 1e3, "ms")
        await until(lambda: any("connected to the kubelet" in line for line in plugin.messages), story=plugin.story)
        assert len(registers(k)) <= 2
        await k.plugin(RESOURCE).allocate(["w-0"])
        assert (await plugin.terminated())[0] == 0


async def test_without_descriptors_it_waits_and_comes_back(k: FaultyKubelet, saw: Saw) -> None:
    async with child(k.paths) as plugin:
        await k.until(allocatable={RESOURCE: 2})
        async with await plugin.knock() as probe:
            await plugin.readiness()  # connections are accepted in their order, so this one has its descriptor
            with k.faults.exhaust_descriptors(plugin.pid):
                [reply] = await k.plugin(RESOURCE).allocate(["w-0"])  # what is open goes on
                assert reply.envs == {}
            await k.crash()
            await plugin.said("no process listens on kubelet.sock")
            with k.faults.exhaust_descriptors(plugin.pid):
                await k.start()
                sentence = await plugin.said("not registered: no file descriptor")
                saw(Fault.NO_DESCRIPTOR, sentence, await plugin.state(RESOURCE, probe))
        await k.until(allocatable={RESOURCE: 2}, timeout=PATIENCE)
        assert (await plugin.terminated())[0] == 0
        assert plugin.other == []


@pytest.mark.parametrize("moment", get_args(Moment))
async def test_sigterm_at_every_moment_that_the_kubelet_can_tell(k: FaultyKubelet, moment: Moment) -> None:
    """Scenarios 57, 58; the states that only the plugin knows are in test_process."""
    match moment:
        case "waiting":
            await k.stop()
        case "registering":
            k.faults.hang_register(times=None)
        case "awaiting stream":
            k.faults.dial_without_stream(times=None)
        case _:
            pass
    async with child(k.paths, "Slow") as plugin, anyio.create_task_group() as tasks:
        replies: list[str] = []

        async def admit() -> None:
            admitted = await k.admit(Pod.asking({RESOURCE: 1}))
            replies.append(admitted.reply().envs["WIDGETS"])

        match moment:
            case "waiting":
                await plugin.said("there is no kubelet.sock")
            case "lost":
                await k.until(allocatable={RESOURCE: 2})
                k.faults.hang_register(times=None)
                k.drop_stream(RESOURCE)
            case "allocating":
                await k.until(allocatable={RESOURCE: 2})
                tasks.start_soon(admit)
                await plugin.said("Slow.allocate waits")
            case _:
                pass
        await k.faults.terminate(plugin.pid, RESOURCE, moment)
        assert await plugin.ended() == 0
        if moment == "allocating":
            await until(lambda: replies)
    assert own_sockets(k.paths.device_plugin_dir) == set()
    assert all((last.healthy, last.unhealthy) == (2, 0) for last in lists(k))
