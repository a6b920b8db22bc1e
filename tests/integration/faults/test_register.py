"""Faults 1 to 10, and what two versions of the kubelet do to a repeated Register (62 and 64)."""

from __future__ import annotations

import pytest
from tests.faults import FaultyKubelet

from kdp.deviceplugin import session
from kdp.testing import events

from ..deviceplugin.helpers import RESOURCE, Widgets, connected, registered_times, registers, running, until
from .conftest import Said


async def test_a_late_reply_is_awaited_while_the_stream_serves(k: FaultyKubelet) -> None:
    """Scenario 2."""
    k.faults.delay_register(0.5)
    backend = Widgets("w0", "w1")
    async with running(k, backend) as manager:
        await k.until(allocatable={RESOURCE: 2})
        assert not k.events.of(events.RegisterAnswered)
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 1})
        await k.until(lambda: k.events.of(events.RegisterAnswered))
        await until(lambda: manager.is_ready)
        assert k.events.of(events.RegisterAnswered)[0].error is None
    assert len(registers(k)) == 1


async def test_a_connection_that_breaks_during_register_is_a_failure(k: FaultyKubelet, said: Said) -> None:
    k.faults.drop_register(times=2)
    async with running(k, Widgets("w0")):
        await said("the kubelet did not register the plugin")
        await k.until(allocatable={RESOURCE: 1})
    endpoints = [received.endpoint for received in registers(k)]
    assert len(set(endpoints)) == len(endpoints) == 3


async def test_accepted_and_not_dialed_is_not_registered(
    k: FaultyKubelet, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 15."""
    monkeypatch.setattr(session, "STREAM_DEADLINE", 0.2)
    k.faults.accept_without_dialing(times=2)
    async with running(k, Widgets("w0")):
        await said("opened no stream")
        await k.until(allocatable={RESOURCE: 1})
    assert len(registers(k)) >= 3


async def test_a_stream_needs_no_other_call_before_it(k: FaultyKubelet) -> None:
    k.faults.skip_options()
    async with connected(k, Widgets("w0", "w1")):
        await k.until(allocatable={RESOURCE: 2})
        assert not k.events.of(events.OptionsReceived)
        await k.plugin(RESOURCE).allocate(["w0"])


async def test_both_connections_get_every_list(k: FaultyKubelet) -> None:
    """Scenario 12."""
    await k.stop()
    await k.start(profile="k136")
    k.faults.dial_twice()
    backend = Widgets("w0", "w1")
    async with connected(k, backend):
        await k.until(lambda: k.streams(RESOURCE) == 2)
        (await backend.report()).fault("w0", "XID 79")
        await k.until(lambda: [e.healthy for e in k.events.of(events.ListReceived)].count(1) == 2)
    assert len(registers(k)) == 1


async def test_a_late_dial_finds_the_plugin_still_there(k: FaultyKubelet) -> None:
    k.faults.dial_late(1.0)
    async with connected(k, Widgets("w0")):
        await k.until(allocatable={RESOURCE: 1})
    assert len(registers(k)) == 1
    assert k.events.of(events.RegisterAnswered)[0].seconds >= 1.0


async def test_who_dials_before_register_gets_an_answer_and_changes_nothing(k: FaultyKubelet) -> None:
    async with k.faults.dial_early() as seen, connected(k, Widgets("w0")):
        await k.until(allocatable={RESOURCE: 1})
        [received] = registers(k)
        await until(lambda: any(error is None for _, error in seen))
        assert {name.removeprefix(".") for name, _ in seen} == {received.endpoint}


async def test_a_path_that_is_on_record_is_not_tried_again(k: FaultyKubelet, said: Said) -> None:
    """Scenario 31."""
    k.faults.refuse_as_connected(times=3)
    async with running(k, Widgets("w0")):
        await said("still holds an earlier connection")
        await k.until(allocatable={RESOURCE: 1})
    paths = [received.endpoint for received in registers(k)]
    assert len(paths) == len(set(paths)) == 4
    refused = [answered for answered in k.events.of(events.RegisterAnswered) if answered.error]
    assert all(answered.endpoint in str(answered.error) for answered in refused)


async def test_a_kubelet_that_ignores_repetitions_is_never_given_one(k: FaultyKubelet) -> None:
    k.faults.deduplicate()
    async with connected(k, Widgets("w0")):
        for number in range(1, 4):
            k.drop_stream(RESOURCE)
            await k.until(registered_times(k, number + 1), streaming=RESOURCE)
    assert all(answered.error is None for answered in k.events.of(events.RegisterAnswered))
    assert len(k.events.of(events.Dialed)) == 4
