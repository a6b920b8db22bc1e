"""Two instances for one resource, as in a rolling update with surge (contract sections 2.5 and 11)."""

from __future__ import annotations

import pytest
from typing_extensions import override

import kdp
from kdp.testing import SimulatedKubelet, events

from .helpers import RESOURCE, Figure, Widgets, connected, lists, own_sockets, registers, running


async def test_the_old_instance_leaves(kubelet: SimulatedKubelet, figure: Figure) -> None:
    """Scenarios 60 and 61."""
    async with running(kubelet, Widgets("w0", "w1")) as old:
        await kubelet.until(streaming=RESOURCE)
        async with running(kubelet, Widgets("w0", "w1")) as new:
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2 and len(lists(kubelet)) == 2)
            newest = registers(kubelet)[-1].endpoint
            await old._stop()
            if kubelet.profile.one_client_per_resource:
                await kubelet.until(lambda: len(registers(kubelet)) == 3)
                lost = kubelet.events.of(events.StreamEnded)[-1].time
                back = registers(kubelet)[-1].time
                figure(f"overlap, {kubelet.profile.name}: lost -> Register", (back - lost) * 1e3, "ms")
            else:
                await kubelet.until(lambda: kubelet.streams(RESOURCE) == 1)
                assert registers(kubelet)[-1].endpoint == newest
            await kubelet.until(allocatable={RESOURCE: 2}, streaming=RESOURCE)
            await kubelet.plugin(RESOURCE).allocate(["w0"])
            assert new.status().resources[RESOURCE].healthy == 2
            assert len(own_sockets(kubelet.paths.device_plugin_dir)) == 1
    assert all(received.healthy == 2 for received in lists(kubelet))  # nobody said goodbye with an empty list


@pytest.mark.parametrize("profile", ["k137"])
async def test_the_new_instance_changes_its_mind(kubelet: SimulatedKubelet) -> None:
    """Scenario 63. A kubelet up to 1.36 stops the resource and keeps the old stream: no plugin can see that."""
    async with connected(kubelet, Widgets("w0")) as old:
        async with running(kubelet, Widgets("w0")):
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2)
        await kubelet.until(lambda: kubelet.events.of(events.Disconnected), allocatable={RESOURCE: 1})
        assert kubelet.streams(RESOURCE) == 1
        await kubelet.plugin(RESOURCE).allocate(["w0"])
        assert old.status().resources[RESOURCE].devices == 1


@pytest.mark.parametrize("profile", ["k137"])
async def test_the_new_instance_never_gets_in(kubelet: SimulatedKubelet) -> None:
    """Scenario 62: a newcomer whose registration fails does the old one no harm."""
    async with connected(kubelet, Widgets("w0")) as old:
        kubelet.faults.refuse_register(
            "failed to get device plugin options: rpc error: code = Internal desc = x", times=3
        )
        async with running(kubelet, Widgets("w0")):
            await kubelet.until(lambda: len(registers(kubelet)) >= 4)
        await kubelet.until(allocatable={RESOURCE: 1})
        assert old.is_ready


async def test_a_newcomer_without_devices_registers_nothing(kubelet: SimulatedKubelet) -> None:
    class Away(Widgets):
        @override
        def open(self) -> None:
            raise kdp.NotReady("no driver")

    async with connected(kubelet, Widgets("w0")):
        async with running(kubelet, Away("w0")) as away:
            assert not away.is_ready
        assert len(registers(kubelet)) == kubelet.streams(RESOURCE) == 1
