"""kubernetes#137534 on the simulated kubelet: a List during an Allocate, and a device that two pods hold."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import attrs
import pytest
from tests.node.nodekit import apis
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.kubelet import list_guard
from kdp.testing import PROFILES, AdmissionError, Container, Pod, SimulatedKubelet, events

from .helpers import RESOURCE, Widgets, connected, until
from .test_release import QUICK

IDS = [f"w{n}" for n in range(8)]


class Slow(Widgets):
    """An Allocate of three devices waits for the test. The devices with the lowest ids are given first."""

    def __init__(self) -> None:
        super().__init__(*IDS)
        self.has_entered, self.goes_on = threading.Event(), threading.Event()

    @override
    def prefer(self, request: kdp.PreferRequest) -> list[str]:
        return sorted(device.id for device in request.available)[: request.size]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if len(devices.ids) == 3:
            self.has_entered.set()
            self.goes_on.wait(60)
        return kdp.ContainerEdits()

    @override
    def released(self, devices: kdp.Allocation) -> None:
        pass


async def admit_beside(kubelet: SimulatedKubelet, backend: Slow, lister: Callable[[], Awaitable[object]]) -> list[Pod]:
    """Return two pods: the Allocate of the first has run when a pod had ended and a List came."""
    first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    slow, last = Pod.asking({RESOURCE: 3}, name="slow"), Pod.asking({RESOURCE: 5}, name="last")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, slow)
        await until(backend.has_entered.is_set)
        await kubelet.delete(first.pod)
        await lister()
        backend.goes_on.set()
    await kubelet.admit(last)
    return [slow, last]


async def unguarded(kubelet: SimulatedKubelet) -> None:
    await apis.pod_resources(kubelet.paths.pod_resources_socket, "List", 1)


@pytest.fixture(params=[False, True], ids=["up to 1.37", "from 1.38 on"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[SimulatedKubelet]:
    """A kubelet that forgets the devices of an Allocate that runs, and one that keeps them."""
    profile = attrs.evolve(PROFILES["k137"], keeps_reservations=request.param)
    async with SimulatedKubelet(profile=profile, seed=11) as simulated:
        yield simulated


async def test_a_list_of_another_program_gives_devices_twice_up_to_137(either: SimulatedKubelet) -> None:
    backend = Slow()
    async with connected(either, backend, pace=QUICK) as manager:
        pods = await admit_beside(either, backend, lambda: unguarded(either))
        if either.profile.keeps_reservations:
            await until(lambda: len(manager.holders(RESOURCE) or {}) == 8)
            assert not manager.status().resources[RESOURCE].doubles
        else:
            await until(lambda: manager.status().resources[RESOURCE].doubles)
        for pod in pods:
            await either.delete(pod)


class Scrubbed(Slow):
    """The same, with what a pod leaves on a device."""

    release_policy = "scrub"

    def __init__(self) -> None:
        super().__init__()
        self.scrubbed: list[str] = []

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.scrubbed += devices.ids


@pytest.mark.parametrize("make", [Slow, Scrubbed])
async def test_a_device_of_a_pod_that_a_list_has_named_is_given_to_no_second_pod(
    either: SimulatedKubelet, tmp_path: Path, make: type[Slow]
) -> None:
    """Before, both pods ran with it, and kdp said so afterwards: the chaos of a starved node found it."""
    backend = make()
    first, slow = Pod.asking({RESOURCE: 1}), Pod.asking({RESOURCE: 3}, name="slow")
    async with connected(either, backend, pace=QUICK, state_dir=tmp_path) as manager:
        await either.admit(first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(either.admit, slow)
            await until(backend.has_entered.is_set)
            await either.delete(first)
            await unguarded(either)
            backend.goes_on.set()
        await until(lambda: len(manager.holders(RESOURCE) or {}) == 3)
        if not either.profile.keeps_reservations:
            with pytest.raises(AdmissionError) as refused:
                await either.admit(Pod.asking({RESOURCE: 5}, name="second"))
            assert "is held by default/slow, and the kubelet gave it to a second pod" in str(refused.value)
        await either.start_container(slow)  # and waits for no scrub
        await either.admit(Pod.asking({RESOURCE: 5}, name="last"))  # a failed Allocate mends the kubelet's table
        await until(lambda: len(manager.holders(RESOURCE) or {}) == 8)
        assert not manager.status().resources[RESOURCE].doubles
        if isinstance(backend, Scrubbed):
            assert {*backend.scrubbed} <= {"w0"}  # which the first pod gave back


async def test_a_pod_made_anew_under_its_name_gets_its_device_again() -> None:
    """The last List says that the first one has it, and the kubelet's answer is about the second one."""
    pace = attrs.evolve(QUICK, look=60.0, period=60.0)
    async with (
        SimulatedKubelet(profile=PROFILES["k136"], seed=11) as kubelet,
        connected(kubelet, Slow(), pace=pace) as manager,
    ):
        one = await kubelet.admit(Pod.asking({RESOURCE: 1}, name="same"))
        await until(lambda: manager.holders(RESOURCE))
        await kubelet.delete(one.pod)
        again = await kubelet.admit(attrs.evolve(one.pod, uid="another"))
        assert [event.error for event in kubelet.events.of(events.PodResourcesAsked) if event.method == "Get"] == [None]
        assert again.devices(RESOURCE) == one.devices(RESOURCE)


@asynccontextmanager
async def given_twice(kubelet: SimulatedKubelet, directory: Path) -> AsyncIterator[tuple[PluginManager, list[Pod]]]:
    """A plugin three devices of which two pods hold."""
    backend = Slow()
    async with connected(kubelet, backend, pace=QUICK, state_dir=directory) as manager:
        pods = await admit_beside(kubelet, backend, lambda: unguarded(kubelet))
        await until(lambda: manager.status().resources[RESOURCE].doubles)
        yield manager, pods


async def test_both_pods_of_a_device_are_named_and_nobody_else_gets_it(
    kubelet: SimulatedKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with given_twice(kubelet, tmp_path) as (manager, [slow, last]):
        status = manager.status().resources[RESOURCE]
        assert {*status.doubles} == {"w1", "w2", "w3"} or {*status.doubles} == {"w0", "w1", "w2"}
        assert {*map(frozenset, (pods.split(" and ") for pods in status.doubles.values()))} == {
            frozenset({"default/slow", "default/last"})
        }
        await kubelet.until(capacity={RESOURCE: 8}, allocatable={RESOURCE: 5})
        reasons = {status.listed[device_id].health.reason for device_id in status.doubles}
        assert all(reason is not None and "default/slow" in reason and "default/last" in reason for reason in reasons)
        told = [record for record in caplog.records if "to two pods" in record.getMessage()]
        seen = len(kubelet.events.of(events.PodResourcesAsked))
        await until(lambda: len(kubelet.events.of(events.PodResourcesAsked)) > seen + 4)
        assert len(told) == 3  # once for each device, whatever further Lists say
        assert "kubectl delete pod -n default " in told[0].getMessage()
        await kubelet.delete(slow)
        await kubelet.until(allocatable={RESOURCE: 8})
        assert not manager.status().resources[RESOURCE].doubles
        assert "w2 is no longer held by two pods" in caplog.text
        await kubelet.admit(Pod.asking({RESOURCE: 3}))
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(last)


async def test_containers_of_one_pod_share_a_device_without_a_word(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """The init container hands its device to the main one, and a sidecar keeps its own."""
    initial = [Container("init", {RESOURCE: 1}), Container("side", {RESOURCE: 1}, restartable=True)]
    pod = Pod(name="one", init_containers=initial, containers=[Container("main", {RESOURCE: 1})])
    async with connected(kubelet, Slow(), pace=QUICK) as manager:
        await kubelet.admit(pod)
        await until(lambda: len(manager.holders(RESOURCE) or {}) == 2)
        assert not manager.status().resources[RESOURCE].doubles
    assert "two pods" not in caplog.text


async def test_kdp_lists_during_no_allocate(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, it asked 0.2 s after each change of a pod, which is when a List does harm."""
    monkeypatch.setattr(list_guard, "PATIENCE", 0.2)
    backend = Slow()

    async def wants_to_list() -> None:
        await until(lambda: "Allocates have run on this node" in caplog.text)

    async with connected(kubelet, backend, pace=QUICK) as manager:
        await admit_beside(kubelet, backend, wants_to_list)
        await until(lambda: len(manager.holders(RESOURCE) or {}) == 8)
        assert "listed again" in caplog.text
        assert not manager.status().resources[RESOURCE].doubles


async def test_the_kubelets_list_is_compared_while_an_allocate_runs(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GetAllocatableResources frees nothing, so it waits for no Allocate."""
    monkeypatch.setattr(list_guard, "PATIENCE", 0.05)

    def compared() -> int:
        asked = kubelet.events.of(events.PodResourcesAsked)
        return sum(event.method == "GetAllocatableResources" for event in asked)

    async def waits() -> None:
        before = compared()
        await until(lambda: compared() > before + 1)

    backend = Slow()
    async with connected(kubelet, backend, pace=QUICK):
        await admit_beside(kubelet, backend, waits)
