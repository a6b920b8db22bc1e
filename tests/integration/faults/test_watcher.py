"""Faults 66 to 72: the plugin watcher."""

from __future__ import annotations

import pytest
from tests.faults import FaultyKubelet

from kdp.deviceplugin import session
from kdp.testing import events

from ..deviceplugin.helpers import RESOURCE, Widgets, connected, own_sockets, registers, running, until
from .conftest import Said, state_of


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the plugin a minute takes half a second."""
    monkeypatch.setattr(session, "UNNOTICED_DEADLINE", 0.5)
    monkeypatch.setattr(session, "WATCHER_STREAM_DEADLINE", 0.5)


def seen(k: FaultyKubelet) -> set[str]:
    return {event.socket_path for event in k.events.of(events.PluginSocketSeen)}


async def test_a_get_info_that_was_given_up_is_tried_again(k: FaultyKubelet) -> None:
    k.faults.info_times_out()
    async with running(k, Widgets("w0"), registration="watcher"):
        await k.until(allocatable={RESOURCE: 1})
    errors = [event.error for event in k.events.of(events.PluginInfoReceived)]
    assert "DeadlineExceeded" in str(errors[0])
    assert errors[-1] is None


async def test_a_refused_notice_makes_a_new_socket(k: FaultyKubelet, said: Said) -> None:
    """Scenario 66; kubelet 1.34 would never try again (B20)."""
    await k.faults.switch_profile("k134")
    k.faults.notify_refused("the node is drained")
    async with running(k, Widgets("w0"), registration="watcher"):
        sentence = await said("the kubelet's plugin watcher did not register the plugin")
        assert "the node is drained" in sentence
        await k.until(allocatable={RESOURCE: 1})
    assert len(seen(k)) >= 2


async def test_without_a_notice_the_stream_is_proof_enough(k: FaultyKubelet) -> None:
    k.faults.notify_never()
    async with running(k, Widgets("w0"), registration="watcher") as manager:
        await k.until(allocatable={RESOURCE: 1})
        await until(lambda: manager.is_ready)
        assert not k.events.of(events.PluginNotified)
    assert len(seen(k)) == 1


async def test_a_restarted_kubelet_walks_the_directory(k: FaultyKubelet) -> None:
    """Scenario 67."""
    async with connected(k, Widgets("w0"), registration="watcher"):
        await k.faults.walk_again()
        await k.until(allocatable={RESOURCE: 1}, streaming=RESOURCE)
    assert not registers(k)


async def test_a_path_in_backoff_is_left_for_a_new_one(k: FaultyKubelet, said: Said) -> None:
    k.faults.watcher_backs_off()
    async with running(k, Widgets("w0"), registration="watcher"):
        await said("the kubelet has not picked up the socket")
        await k.until(allocatable={RESOURCE: 1})
        assert len(own_sockets(k.paths.plugins_registry_dir)) == 1
    assert len(seen(k)) >= 2


async def test_a_socket_that_was_not_seen_is_made_again(k: FaultyKubelet, said: Said) -> None:
    """The hidden name that it is bound under is missed with the one that it gets."""
    k.faults.miss_creates(times=2)
    async with running(k, Widgets("w0"), registration="watcher") as manager:
        await said("the kubelet has not picked up the socket")
        await k.until(allocatable={RESOURCE: 1})
        await until(lambda: state_of(manager).startswith("connected"))
    assert len(seen(k)) == 1


async def test_an_authority_that_is_a_path_is_taken(k: FaultyKubelet) -> None:
    """Scenario 69."""
    k.faults.path_like_authority()
    async with connected(k, Widgets("w0")):
        await k.until(allocatable={RESOURCE: 1})
        await k.plugin(RESOURCE).allocate(["w0"])
