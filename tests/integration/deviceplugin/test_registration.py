"""How a backend becomes a plugin that the kubelet knows, and what each of its refusals leads to."""

from __future__ import annotations

import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin import registration, session
from kdp.testing import PluginOptions, SimulatedKubelet, events

from .helpers import RESOURCE, Widgets, connected, registers, running, until

DIAL_FAILED = "failed to dial device plugin: context deadline exceeded"


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


async def test_the_flags_follow_from_the_hooks(k137: SimulatedKubelet) -> None:
    """Scenarios 3 and 32."""

    class All(Widgets):
        @override
        def prefer(self, request: kdp.PreferRequest) -> None:
            return None

        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            pass

    async with connected(k137, All("w0")):
        [received] = registers(k137)
        assert received.pre_start_required is received.preferred_allocation_available is True
        wanted = PluginOptions(pre_start_required=True, preferred_allocation_available=True)
        assert await k137.plugin(RESOURCE).options() == wanted
        assert await k137.plugin(RESOURCE).options() == wanted


async def test_zero_devices_of_a_named_resource_are_an_empty_list(k137: SimulatedKubelet) -> None:
    async with connected(k137, Widgets()) as manager:
        assert k137.capacity() == {RESOURCE: 0}
        assert manager.is_ready


async def test_a_late_answer_is_waited_for(kubelet: SimulatedKubelet) -> None:
    """Scenario 2: the stream is there first, and is what counts; nobody registers twice."""
    kubelet.faults.delay_register(0.5)
    async with connected(kubelet, Widgets("w0")):
        await kubelet.until(lambda: kubelet.events.of(events.RegisterAnswered))
        assert len(registers(kubelet)) == 1
        assert kubelet.streams(RESOURCE) == 1


async def test_a_late_dial_is_waited_for(kubelet: SimulatedKubelet) -> None:
    kubelet.faults.dial_late(0.5)
    async with connected(kubelet, Widgets("w0")):
        assert len(registers(kubelet)) == 1


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (DIAL_FAILED, "UNKNOWN", "the kubelet could not reach the plugin's socket"),
        ("failed to get device plugin options: rpc error: code = Unavailable desc = x", "UNKNOWN", "options"),
        (
            "device plugin already connected: /somewhere.sock",
            "UNKNOWN",
            "the kubelet still holds an earlier connection",
        ),
        ("Socket closed", "UNAVAILABLE", "the kubelet did not register the plugin"),
    ],
)
async def test_a_passing_refusal_is_answered_with_another_socket(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture, text: str, code: str, words: str
) -> None:
    """Scenarios 30 and 31."""
    kubelet.faults.refuse_register(text, code=code, times=3)
    async with connected(kubelet, Widgets("w0")):
        endpoints = [received.endpoint for received in registers(kubelet)]
        assert len(endpoints) == len(set(endpoints)) == 4
        assert kubelet.allocatable() == {RESOURCE: 1}
    told = [r for r in caplog.records if "not registered" in r.getMessage() and words in r.getMessage()]
    assert len(told) == 1  # said once, tried three times


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]',
            "the kubelet does not speak v1beta1",
        ),
        (f'the ResourceName "{RESOURCE}" is invalid', "the kubelet does not accept the resource name"),
    ],
)
async def test_a_lasting_refusal_is_said_and_ends_with_the_next_kubelet(
    kubelet: SimulatedKubelet, text: str, words: str
) -> None:
    """Scenarios 28 and 29: a minute between two tries, but a new kubelet is asked at once."""
    kubelet.faults.refuse_register(text, times=None)
    async with running(kubelet, Widgets("w0")) as manager:
        await until(lambda: words in str(manager.status().resources.get(RESOURCE)))
        status = manager.status().resources[RESOURCE]
        await until(lambda: manager.status().resources[RESOURCE].state == "waiting")
        assert not status.is_ready
        assert len(registers(kubelet)) == 1
        kubelet.faults.clear()
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1})
        assert len(registers(kubelet)) == 2


async def test_a_lasting_refusal_is_tried_again_after_the_pause(
    k137: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "REFUSED_PAUSE", 0.2)
    k137.faults.refuse_register(f'the ResourceName "{RESOURCE}" is invalid', times=2)
    async with connected(k137, Widgets("w0")):
        assert len(registers(k137)) == 3


async def test_a_broken_connection_is_tried_again(kubelet: SimulatedKubelet) -> None:
    kubelet.faults.drop_register(times=2)
    async with connected(kubelet, Widgets("w0")):
        assert len({received.endpoint for received in registers(kubelet)}) == len(registers(kubelet)) >= 3


async def test_a_register_that_is_never_answered_ends_at_our_deadline(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "REGISTER_DEADLINE", 0.2)
    kubelet.faults.hang_register()
    async with connected(kubelet, Widgets("w0")):
        assert len({received.endpoint for received in registers(kubelet)}) == len(registers(kubelet)) >= 2


@pytest.mark.parametrize("fault", ["accept_without_dialing", "dial_without_stream"])
async def test_registered_without_a_stream_is_not_registered(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Scenario 15."""
    monkeypatch.setattr(session, "STREAM_DEADLINE", 0.2)
    getattr(kubelet.faults, fault)(times=2)
    async with connected(kubelet, Widgets("w0")):
        endpoints = [received.endpoint for received in registers(kubelet)]
        assert len(endpoints) == len(set(endpoints)) >= 3
        await kubelet.until(allocatable={RESOURCE: 1})


@pytest.mark.parametrize("profile", ["k134", "k136"])
async def test_two_connections_are_served_alike(kubelet: SimulatedKubelet) -> None:
    """Fault 8; a kubelet 1.37 refuses the second connection itself."""
    kubelet.faults.dial_twice()
    backend = Widgets("w0")
    async with connected(kubelet, backend) as manager:
        await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2)
        backend.devices.append(kdp.Device(id="w1"))
        manager.rescan()
        await kubelet.until(capacity={RESOURCE: 2})
        assert len(registers(kubelet)) == 1
