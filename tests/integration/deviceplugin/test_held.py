"""A device that a pod holds is for no second pod, whatever it is called. Rebuilt from public reports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.deviceplugin.manager import PluginManager
from kdp.testing import AdmissionError, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, running, until
from .test_moved import list_of
from .test_release import QUICK

OTHER = "example.com/other"


class Cards(Widgets):
    """What a test says; the class names two resources."""

    poll_interval = 0.05
    resources = (RESOURCE, OTHER)

    def be(self, *devices: kdp.Device) -> None:
        self.devices = list(devices)


def card(
    device_id: str = "card-0", *, resource: str | None = None, identity: str = "", node: str = "/dev/zero"
) -> kdp.Device:
    return kdp.Device(id=device_id, resource=resource, identity=identity, edits=kdp.ContainerEdits.of_node(node))


def health(manager: PluginManager, resource: str = RESOURCE) -> dict[str, str | None]:
    """Return the reason of each listed device of a resource."""
    listed = manager.status().resources[resource].listed
    return {device_id: device.health.reason for device_id, device in listed.items()}


NAMES = {
    "another resource": card(resource=OTHER),
    "another id": card("serial-1", identity="serial 1"),
    "another id and resource": card("serial-1", resource=OTHER, identity="serial 1"),
    "another resource, and it has no node": kdp.Device(id="card-0", resource=OTHER),
}


@pytest.mark.parametrize("how", ["live", "restart"])
@pytest.mark.parametrize("now", NAMES.values(), ids=NAMES)
async def test_a_held_device_was_given_to_a_second_pod_under_another_name(
    now: kdp.Device, how: str, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """The pod's own id stays Healthy: a kubelet that starts again refuses a container whose device is not."""
    resource = now.resource or RESOURCE
    backend = Cards(attrs.evolve(now, id="card-0", resource=None))
    options = {"pace": QUICK, "state_dir": tmp_path}
    async with connected(kubelet, backend, **options) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        if how == "live":
            backend.be(now)
            await _judge(kubelet, manager, pod.pod, now, resource)
            return
    backend = Cards(now)
    async with connected(kubelet, backend, **options) as manager:
        await _judge(kubelet, manager, pod.pod, now, resource)


async def _judge(kubelet: SimulatedKubelet, manager: PluginManager, pod: Pod, now: kdp.Device, resource: str) -> None:
    held = f"held as card-0 of {RESOURCE} by {pod.namespace}/{pod.name}"
    await until(lambda: health(manager, resource).get(now.id) == held)
    await until(lambda: health(manager).get("card-0", "it is not listed") is None)
    with pytest.raises(AdmissionError):
        await kubelet.admit(Pod.asking({resource: 1}))
    await kubelet.delete(pod)
    await until(lambda: health(manager, resource) == {now.id: None})
    # By its older list too, one device can be allocated: the id that the pod held.
    await kubelet.until(capacity={resource: 1}, allocatable={resource: 1})
    again = await kubelet.admit(Pod.asking({resource: 1}))
    assert [node.host_path for node in again.reply("main").devices] == [n.host_path for n in now.edits.device_nodes]


async def test_the_old_name_is_refused_after_its_pod_has_ended(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """The kubelet gives it away at once: it is listed Healthy until a list tells that the pod has ended."""
    backend = Cards(card(identity="serial 1"))
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.be(card("serial-1", identity="serial 1"))
        await until(lambda: health(manager).get("serial-1") is not None)
        await kubelet.delete(pod.pod)
        with pytest.raises(AdmissionError, match=r"is serial-1 of|requested number|no healthy"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))


async def test_another_card_in_the_slot_was_given_away_while_a_pod_could_open_it(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend = Cards(card("GPU-1", identity="GPU-1"))
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.be(card("GPU-2", identity="GPU-2"))
        held = f"held as GPU-1 of {RESOURCE} by {pod.pod.namespace}/{pod.pod.name}"
        await until(lambda: health(manager) == {"GPU-2": held, "GPU-1": "the device is gone"})
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(pod.pod)
        await until(lambda: health(manager) == {"GPU-2": None})


async def test_sharing_that_is_switched_on_gave_a_held_device_to_more_pods(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    async with connected(kubelet, Cards(card()), pace=QUICK, state_dir=tmp_path):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    shared = share(Cards(card()), Sharing(replicas=2))
    async with connected(kubelet, shared, pace=QUICK, state_dir=tmp_path) as manager:
        held = f"held as card-0 of {RESOURCE} by {pod.pod.namespace}/{pod.pod.name}"
        await until(lambda: health(manager) == {"card-0::0": held, "card-0::1": held, "card-0": None})
        await kubelet.delete(pod.pod)
        await until(lambda: health(manager) == {"card-0::0": None, "card-0::1": None})


class Scrubbed(Cards):
    """Cards that are cleaned up between two pods."""

    release_policy = "scrub"

    def __init__(self, *devices: kdp.Device) -> None:
        super().__init__(*devices)
        self.scrubbed: list[tuple[str, ...]] = []

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.scrubbed.append(devices.ids)


@pytest.mark.parametrize("identity", ["serial 1", ""], ids=["told", "untold"])
async def test_a_device_with_another_name_was_never_scrubbed(
    identity: str, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """Without an identity nothing tells whether it is the same hardware: the node is scrubbed all the same."""
    backend = Scrubbed(card(identity=identity))
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.start_container(pod.pod)
        backend.be(card("serial-1", identity=identity))
        await until(lambda: health(manager).get("serial-1") is not None)
        await kubelet.delete(pod.pod)
        await until(lambda: health(manager) == {"serial-1": None})
        assert backend.scrubbed == [("serial-1",)]


class Pair(Widgets):
    """Another class of the same process."""

    poll_interval = 0.05

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return list(self.devices)


async def test_a_node_that_another_class_of_the_process_serves(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    first, second = Widgets("other", resource=RESOURCE), Pair(resource=OTHER)
    first.poll_interval = 0.05
    first.devices = [card("a")]
    async with connected(kubelet, first, second, pace=QUICK, state_dir=tmp_path) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        first.devices, second.devices = [], [card("b")]
        held = f"held as a of {RESOURCE} by {pod.pod.namespace}/{pod.pod.name}"
        await until(lambda: health(manager, OTHER).get("b") == held)
        await kubelet.delete(pod.pod)
        await until(lambda: health(manager, OTHER) == {"b": None})


async def test_a_pool_that_is_named_anew_between_two_processes_was_free(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """Nobody read the file of a resource that has another name now."""
    first, second = Widgets(resource=RESOURCE), Widgets(resource=OTHER)
    first.devices, second.devices = [card()], [card()]
    async with connected(kubelet, first, pace=QUICK, state_dir=tmp_path):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    async with connected(kubelet, second, pace=QUICK, state_dir=tmp_path) as manager:
        held = f"held as card-0 of {RESOURCE} by "
        assert (health(manager, OTHER)["card-0"] or "").startswith(held)
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({OTHER: 1}))
        await until(lambda: RESOURCE in manager.status().resources and health(manager) == {"card-0": None})
        await kubelet.until(allocatable={RESOURCE: 1, OTHER: 0})
        await kubelet.delete(pod.pod)
        await until(lambda: health(manager, OTHER) == {"card-0": None})
        await until(lambda: RESOURCE not in manager.status().resources)
        assert not list_of(tmp_path)


@pytest.mark.parametrize("resource", [RESOURCE, OTHER])
async def test_a_process_beside_this_one_gave_the_device_under_another_name(
    resource: str, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """In a rolling update with overlap the new version names its devices by their serial numbers."""
    old, new = Widgets(resource=RESOURCE), Widgets(resource=resource)
    old.devices, new.devices = [card()], [card("serial-1")]
    new.poll_interval = 0.05
    async with connected(kubelet, old, pace=QUICK, state_dir=tmp_path):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: any(tmp_path.glob("*.json")))
        async with running(kubelet, new, pace=QUICK, state_dir=tmp_path) as manager:
            await until(lambda: resource in manager.status().resources)
            await until(lambda: "serial-1" in health(manager, resource))
            assert (health(manager, resource)["serial-1"] or "").startswith(f"held as card-0 of {RESOURCE} by ")
            assert pod.devices(RESOURCE) == ("card-0",)


async def test_a_process_that_came_later_gave_the_device_to_a_second_pod(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """A resource has another name in the new version, and the kubelet still asks the old one for the old name."""
    old, new = Widgets(resource=RESOURCE), Widgets(resource=OTHER)
    old.devices, new.devices = [card()], [card("serial-1")]
    options = {"pace": QUICK, "state_dir": tmp_path}
    async with connected(kubelet, old, **options), connected(kubelet, new, **options):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: any(tmp_path.glob("*.json")))
        with pytest.raises(AdmissionError, match=f"held as card-0 of {RESOURCE} by "):
            await kubelet.admit(Pod.asking({OTHER: 1}))
        await kubelet.delete(pod.pod)
