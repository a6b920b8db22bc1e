"""Faults 53 to 65: the kubelet's life, and what its versions do to their records."""

from __future__ import annotations

import resource
from contextlib import suppress

import anyio
import pytest
from tests.faults import FaultyKubelet

from kdp.testing import CallError, ScenarioError, events
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import (
    PROFILES,
    RESOURCE,
    Figure,
    Widgets,
    connected,
    lists,
    registered_times,
    registers,
    until,
)
from .catalogue import Fault
from .conftest import Said, Saw, state_of


@pytest.mark.parametrize("how", ["clean_restart", "crash_restart"])
async def test_a_restart_is_followed_by_one_registration(k: FaultyKubelet, figure: Figure, how: str) -> None:
    """Scenario 17."""
    async with connected(k, Widgets("w0", "w1")):
        await getattr(k.faults, how)()
        await k.until(lambda: len(registers(k)) == 2, allocatable={RESOURCE: 2})
        started = k.events.of(events.KubeletStarted)[-1].time
        figure(f"{how}: listening -> Register", (registers(k)[-1].time - started) * 1e3, "ms")
    assert len({received.endpoint for received in registers(k)}) == 2


async def test_killed_during_register(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0")):
        await k.faults.restart_during_register(RESOURCE)
        await k.until(lambda: len(registers(k)) >= 3, allocatable={RESOURCE: 1})


async def test_down_for_long_without_a_busy_loop(k: FaultyKubelet, figure: Figure) -> None:
    """Scenario 18; three seconds stand for ten minutes: the pauses have reached their end long before."""
    async with connected(k, Widgets("w0")):
        before = resource.getrusage(resource.RUSAGE_SELF)
        await k.faults.stay_down(3.0)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        figure("kubelet down for 3 s: CPU of plugin and kubelet", used * 1e3, "ms")
        await k.until(lambda: len(registers(k)) == 2, allocatable={RESOURCE: 1})
        assert used < 1.5


async def test_a_dead_registry_costs_no_living_stream(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    backend = Widgets("w0", "w1")
    async with connected(k, backend) as manager:
        k.faults.registry_dead()
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 1})
        assert len(registers(k)) == 1
        k.drop_stream(RESOURCE)
        sentence = await said("bound, but its process does not listen")
        assert "kubelet.sock" in sentence
        # Each change in the directory begins with a quick look, which does not ask who has bound the socket.
        await until(lambda: "is bound" in str(manager.status().resources[RESOURCE].reason))
        saw(Fault.REGISTRY_DEAD, str(manager.status().resources[RESOURCE].reason), state_of(manager))
        await k.restart()
        await k.until(lambda: len(registers(k)) == 2, allocatable={RESOURCE: 1})


async def test_a_storm_of_restarts_ends_in_one_registration(k: FaultyKubelet) -> None:
    """Scenario 75."""
    async with connected(k, Widgets("w0", "w1")):
        await k.faults.restart_storm(30)
        last = k.events.of(events.KubeletStarted)[-1].time
        await k.until(allocatable={RESOURCE: 2})
        assert [received.time > last for received in registers(k)].count(True) == 1
        assert k.streams(RESOURCE) == 1
    endpoints = [received.endpoint for received in registers(k)]
    assert len(set(endpoints)) == len(endpoints)


async def test_upgrades_and_downgrades_are_restarts(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0", "w1")):
        for number, profile in enumerate([*PROFILES, *reversed(PROFILES)], 2):
            await k.faults.switch_profile(profile)
            await k.until(registered_times(k, number), allocatable={RESOURCE: 2})
            assert k.profile.name == profile


async def test_the_newest_stream_ends_with_the_oldest(k: FaultyKubelet) -> None:
    """Scenario 61, #121994."""
    await k.faults.switch_profile("k136")
    k.faults.dial_twice()
    async with connected(k, Widgets("w0")):
        await k.until(lambda: k.streams(RESOURCE) == 2)
        k.faults.end_oldest_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 2, streaming=RESOURCE, allocatable={RESOURCE: 1})
        with pytest.raises(ScenarioError, match="two are needed"):
            k.faults.end_oldest_stream(RESOURCE)
        with pytest.raises(ScenarioError, match="no records by path to poison"):
            k.faults.poison(RESOURCE)


async def test_a_poisoned_path_is_left_behind(k: FaultyKubelet) -> None:
    """The end of the stream goes unnoticed by the kubelet, and not by the plugin (B3)."""
    async with connected(k, Widgets("w0", "w1")):
        with pytest.raises(ScenarioError, match="it never ends the wrong one"):
            k.faults.end_oldest_stream(RESOURCE)
        poisoned = registers(k)[0].endpoint
        k.faults.poison(RESOURCE)
        k.drop_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 2, streaming=RESOURCE)
        assert registers(k)[-1].endpoint != poisoned
        assert not k.events.of(events.Disconnected)
        await k.plugin(RESOURCE).allocate(["w0"])
        k.drop_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 3, streaming=RESOURCE)
        [reply] = await k.plugin(RESOURCE).allocate(["w1"])
        assert reply.envs == {}


@pytest.mark.parametrize("profile", ["k136", "k137"])
async def test_an_end_that_is_noticed_late_strips_no_newcomer_for_good(k: FaultyKubelet, profile: str) -> None:
    await k.faults.switch_profile(profile)
    k.faults.disconnect_late(0.3)
    async with connected(k, Widgets("w0")):
        k.drop_stream(RESOURCE)
        await k.until(lambda: k.events.of(events.Disconnected), timeout=PATIENCE)
        k.faults.clear()
        with anyio.fail_after(PATIENCE):
            while True:
                await k.until(allocatable={RESOURCE: 1}, streaming=RESOURCE)
                with suppress(CallError):  # an end that was still to be noticed has closed this connection, too
                    await k.plugin(RESOURCE).allocate(["w0"])
                    break
    if k.profile.one_client_per_resource:
        assert len(registers(k)) >= 3  # the newcomer was closed for it, at least once
    else:
        assert len(registers(k)) == 2


async def test_what_needs_a_running_kubelet_says_so(k: FaultyKubelet) -> None:
    await k.crash()
    with pytest.raises(ScenarioError, match="its registry cannot die"):
        k.faults.registry_dead()
    with pytest.raises(ScenarioError, match="it cannot be asked"):
        await k.faults.restart_during_register(RESOURCE)
    with pytest.raises(ScenarioError, match="nobody is connected"):
        k.faults.poison(RESOURCE)
    assert not lists(k)
