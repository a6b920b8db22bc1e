"""How a backend becomes a plugin that the kubelet knows; ``tests/integration/faults`` has the kubelet's refusals."""

from __future__ import annotations

from typing_extensions import override

import kdp
from kdp.testing import PluginOptions, SimulatedKubelet, events

from .helpers import RESOURCE, Widgets, connected, registers


async def test_a_backend_is_registered_in_the_kubelets_order(kubelet: SimulatedKubelet) -> None:
    """Scenarios 1, 3 and 4."""
    async with connected(kubelet, Widgets("w0", "w1")) as manager:
        [received] = registers(kubelet)
        assert received.version == "v1beta1"
        assert received.endpoint.startswith("kdp-example.com_widget-")
        assert "/" not in received.endpoint
        [options] = kubelet.events.of(events.OptionsReceived)
        for name in ("pre_start_required", "preferred_allocation_available"):
            assert getattr(options, name) is getattr(received, name) is False
        assert kubelet.capacity() == {RESOURCE: 2}
        assert {d.id: d.health for d in kubelet.devices(RESOURCE).values()} == {"w0": "Healthy", "w1": "Healthy"}
        assert manager.is_ready
        status = manager.status().resources[RESOURCE]
        assert (status.state, status.reason, status.devices, status.healthy) == ("connected", None, 2, 2)


async def test_the_flags_follow_from_the_hooks(kubelet: SimulatedKubelet) -> None:
    """Scenarios 3 and 32."""

    class All(Widgets):
        @override
        def prefer(self, request: kdp.PreferRequest) -> None:
            return None

        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            pass

    async with connected(kubelet, All("w0")):
        [received] = registers(kubelet)
        assert received.pre_start_required is received.preferred_allocation_available is True
        wanted = PluginOptions(pre_start_required=True, preferred_allocation_available=True)
        assert await kubelet.plugin(RESOURCE).options() == wanted
        assert await kubelet.plugin(RESOURCE).options() == wanted


async def test_zero_devices_of_a_named_resource_are_an_empty_list(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Widgets()) as manager:
        assert kubelet.capacity() == {RESOURCE: 0}
        assert manager.is_ready
