"""Faults 30 to 40: streams and connections that end, stall and speak unusual HTTP/2."""

from __future__ import annotations

import resource

import pytest
from tests.faults import FaultyKubelet

import kdp
from kdp.testing import ScenarioError, events

from ..deviceplugin.helpers import RESOURCE, Figure, Widgets, connected, lists, registers, running, until
from .conftest import Said


async def again(k: FaultyKubelet, times: int = 2) -> None:
    """Wait for the next registration and its stream; all under names of their own."""
    await k.until(lambda: len(registers(k)) >= times, streaming=RESOURCE)
    endpoints = [received.endpoint for received in registers(k)]
    assert len(set(endpoints)) == len(endpoints) == times


async def test_a_cancelled_stream_is_registered_again(k: FaultyKubelet, said: Said) -> None:
    """Scenario 14."""
    async with connected(k, Widgets("w0")):
        k.drop_stream(RESOURCE)
        await said("the kubelet has ended its stream")
        await again(k)


async def test_goaway_ends_no_stream(k: FaultyKubelet) -> None:
    backend = Widgets("w0", "w1")
    k.faults.intercept()
    async with connected(k, backend):
        k.faults.goaway(RESOURCE)
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 1})
        assert len(registers(k)) == 1
        k.sever(RESOURCE)
        await again(k)
        await k.until(allocatable={RESOURCE: 1})


async def test_a_broken_connection_is_the_end_of_its_stream(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0")):
        k.sever(RESOURCE)
        await again(k)


async def test_a_half_closed_connection_is_the_end_of_its_stream(k: FaultyKubelet) -> None:
    k.faults.intercept()
    async with connected(k, Widgets("w0")):
        k.faults.half_close(RESOURCE)
        await again(k)


async def test_who_does_not_read_gets_the_newest_list_in_the_end(k: FaultyKubelet, figure: Figure) -> None:
    """Scenario 13: a table of 5,000 devices changes 300 times while nobody reads."""
    backend = Widgets(*kdp.Device.counted("w", 5000))
    async with connected(k, backend):
        await k.until(allocatable={RESOURCE: 5000})
        k.pause_reading(RESOURCE)
        reporter = await backend.report()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(300):
            reporter.fault(f"w-{number}", "XID 79")
        await until(lambda: len(k.events.of(events.ListReceived)) >= 1)
        k.resume_reading(RESOURCE)
        await k.until(allocatable={RESOURCE: 4700})
        figure(
            "300 changes of 5,000 devices, unread",
            (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
            "MB",
        )
        assert len(lists(k)) < 300
    assert len(registers(k)) == 1


async def test_a_tiny_window_slows_the_list_and_changes_nothing_else(k: FaultyKubelet) -> None:
    k.faults.tiny_windows(1)
    backend = Widgets(*kdp.Device.counted("w", 100))
    async with connected(k, backend):
        await k.until(allocatable={RESOURCE: 100})
        (await backend.report()).fault("w-7", "XID 79")
        await k.until(allocatable={RESOURCE: 99})
        [reply] = await k.plugin(RESOURCE).allocate(["w-3"])
        assert reply.envs == {}
    assert len(registers(k)) == 1


async def test_every_stream_gets_every_list(k: FaultyKubelet) -> None:
    """Scenario 12."""
    backend = Widgets("w0", "w1")
    async with connected(k, backend):
        streams = await k.faults.open_streams(RESOURCE, 20)
        for stream in streams:
            first = await stream.next()
            assert first is not None
            assert len(first) == 2
        (await backend.report()).fault("w0", "XID 79")
        for stream in streams:
            changed = await stream.next()
            assert changed is not None
            assert {device.health for device in changed} == {"Healthy", "Unhealthy"}
            stream.cancel()
        await k.until(allocatable={RESOURCE: 1})
    assert len(registers(k)) == 1


async def test_streams_that_come_and_go_cost_nothing(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0", "w1")) as manager:
        read = await k.faults.flap_streams(RESOURCE, 100)
        assert [len(devices or ()) for devices in read] == [2] * 100
        assert manager.is_ready
        assert k.streams(RESOURCE) == 1
    assert len(registers(k)) == 1


async def test_a_list_that_the_kubelet_does_not_take_is_the_end_of_its_stream(k: FaultyKubelet) -> None:
    k.faults.limit_receive(20)
    async with running(k, Widgets("w0", "w1")):
        await k.until(lambda: len(k.events.of(events.StreamEnded)) >= 3)
        k.faults.clear()
        await k.until(allocatable={RESOURCE: 2})
    ended = k.events.of(events.StreamEnded)[0]
    assert ended.code == "RESOURCE_EXHAUSTED"
    assert "grpc: received message larger than max (" in ended.detail
    assert "vs. 20)" in ended.detail
    times = [received.time for received in registers(k)]
    assert times[-1] - times[0] > 0.2  # pauses that grow, no busy loop


async def test_unusual_settings_are_no_trouble(k: FaultyKubelet) -> None:
    k.faults.unusual_settings()
    backend = Widgets(*kdp.Device.counted("w", 2000))
    async with connected(k, backend):
        await k.until(allocatable={RESOURCE: 2000})
        (await backend.report()).fault("w-7", "XID 79")
        await k.until(allocatable={RESOURCE: 1999})
        await k.plugin(RESOURCE).allocate(["w-3"])
    assert len(registers(k)) == 1


async def test_a_flood_of_pings_is_answered(k: FaultyKubelet) -> None:
    k.faults.intercept()
    backend = Widgets("w0", "w1")
    async with connected(k, backend):
        assert await k.faults.ping_flood(RESOURCE, 2000) == 2000
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 1})
    assert len(registers(k)) == 1


async def test_a_connection_that_outlives_its_stream_is_no_registration(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0")):
        leaked = k.faults.end_stream_only(RESOURCE)
        await again(k)
        assert k.plugin(RESOURCE) is not leaked


async def test_a_call_after_the_end_of_the_stream_does_no_harm(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0")) as manager:
        leaked = k.faults.end_stream_only(RESOURCE)
        early = await k.faults.call_after_stream(leaked, ["w0"])
        await again(k)
        late = await k.faults.call_after_stream(leaked, ["w0"])
        assert early is None or "UNAVAILABLE" in early.upper() or "CANCEL" in early.upper()
        assert late is not None
        assert manager.is_ready
        await k.plugin(RESOURCE).allocate(["w0"])


async def test_frames_need_a_relay_that_was_there_first(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0")):
        with pytest.raises(ScenarioError, match=r"call faults.intercept\(\) before the plugin registers"):
            k.faults.goaway(RESOURCE)
