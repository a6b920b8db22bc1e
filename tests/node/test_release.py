"""kdp and the kubelet's own pod-resources server: what pods hold, what they gave back, what the kubelet believes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import anyio
import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.options import Pace
from kdp.kubelet.podresources import Holder, PodResources
from kdp.testing import AdmissionError, Container, Pod

from . import returning
from .backend import RESOURCE, Instance, Widgets, eventually, running
from .conftest import MakeDeviceManager
from .nodekit import DeviceManager, Minor

QUICK = Pace(
    gap=0.3,
    admission=0.2,
    look=0.2,
    settled=0.2,
    settling=0.0,
    between=0.05,
    absent=0.2,
    after_connect=0.2,
    period=0.3,
    again=0.2,
    lasting=0.5,
)
"""Seconds for what takes minutes on a node."""


class Kept(Widgets):
    """Widgets that write down what is released, with the state that allocate left."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.returned: list[tuple[tuple[str, ...], dict[str, object]]] = []
        self.number = 0

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.number += 1
        devices.state["number"] = self.number
        return super().allocate(devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.returned.append((devices.ids, dict(devices.state)))


async def given_back(devmgr: DeviceManager, backend: Kept) -> None:
    """Have a pod come and go, and wait for all that is released of it."""
    admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
    await anyio.sleep(0.8)
    await devmgr.delete(admitted.pod)
    await eventually(lambda: backend.returned)
    await anyio.sleep(0.8)


async def test_a_pods_end_is_told_once(devmgr: DeviceManager) -> None:
    backend = Kept("w0", "w1")
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await anyio.sleep(1.5)
        assert backend.returned == []
        await devmgr.delete(admitted.pod)
        await eventually(lambda: backend.returned)
        await anyio.sleep(1.0)
        assert backend.returned == [(admitted.devices(RESOURCE), {"number": 1})]


async def test_who_holds_what(devmgr: DeviceManager) -> None:
    async with running(devmgr.paths, Widgets("w0", "w1")):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        [held] = admitted.devices(RESOURCE)
        async with PodResources(devmgr.paths.pod_resources_socket).connect() as calls:
            report = await calls.list()
            assert report.holders == {(RESOURCE, held): (Holder(admitted.pod.namespace, admitted.pod.name, "main"),)}
            assert (admitted.pod.namespace, admitted.pod.name) in report.pods
            assert await calls.allocatable() == {RESOURCE: {"w0", "w1"}}


async def test_a_device_with_two_numa_nodes_counts_once(devmgr: DeviceManager) -> None:
    backend = Kept()
    backend.devices = {"w0": kdp.Device(id="w0", numa_nodes=[0, 1])}
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 1})
        await given_back(devmgr, backend)
        assert backend.returned == [(("w0",), {"number": 1})]


async def test_a_device_of_an_init_container_does_not_look_free(devmgr: DeviceManager) -> None:
    """Contract section 10: plain init containers are never listed."""
    backend = Kept("w0")
    pod = Pod(name="initial", init_containers=[Container("first", {RESOURCE: 1})], containers=[Container("main")])
    async with running(devmgr.paths, backend, pace=QUICK) as manager:
        await devmgr.until(allocatable={RESOURCE: 1})
        await devmgr.admit(pod)
        await anyio.sleep(2.0)
        assert backend.returned == []
        await devmgr.delete(pod)
        again = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await eventually(lambda: manager.status().resources[RESOURCE].holders)
        await devmgr.delete(again.pod)
        await eventually(lambda: len(backend.returned) == 2)  # what the init container's left is cleaned up with it
        assert backend.returned == [(("w0",), {"number": 1}), (("w0",), {"number": 2})]


async def test_an_admitted_pod_is_named_before_its_containers_start(devmgr: DeviceManager) -> None:
    """So a pod whose images are pulled for minutes is not given back."""
    backend = Kept("w0", "w1", "w2")
    pod = Pod(
        name="slow",
        init_containers=[Container("more", {RESOURCE: 2})],
        containers=[Container("main", {RESOURCE: 1})],
    )
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 3})
        await devmgr.admit(pod, start=False)
        async with PodResources(devmgr.paths.pod_resources_socket).connect() as calls:
            assert [holder.container for (holder,) in (await calls.list()).holders.values()] == ["main"]
        await anyio.sleep(1.5)
        assert backend.returned == []
        await devmgr.delete(pod)
        await eventually(lambda: len(backend.returned) == 2)


async def test_a_short_pod_is_given_back_though_no_list_has_named_it(devmgr: DeviceManager) -> None:
    backend = Kept("w0", "w1")
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 2})
        await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await anyio.sleep(1.5)  # it was there before
        short = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await devmgr.delete(short.pod)
        await eventually(lambda: backend.returned)
        assert backend.returned == [(short.devices(RESOURCE), {"number": 2})]


class Choosy(Kept):
    """Refuses the second container that asks."""

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if self.number == 1:
            raise kdp.AllocationError("the second container is refused")
        return super().allocate(devices)


async def test_a_pod_that_is_refused_after_an_allocate_is_given_back(devmgr: DeviceManager) -> None:
    backend = Choosy("w0", "w1")
    pod = Pod(name="refused", containers=[Container("first", {RESOURCE: 1}), Container("second", {RESOURCE: 1})])
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 2})
        with pytest.raises(AdmissionError):
            await devmgr.admit(pod)
        await eventually(lambda: backend.returned)
        assert [state for _, state in backend.returned] == [{"number": 1}]


async def test_a_release_that_raises_is_repeated(devmgr: DeviceManager) -> None:
    class Stubborn(Kept):
        failures = 0

        @override
        def released(self, devices: kdp.Allocation) -> None:
            if self.failures < 2:
                self.failures += 1
                raise OSError("the card does not answer")
            super().released(devices)

    backend = Stubborn("w0")
    async with running(devmgr.paths, backend, pace=attrs.evolve(QUICK, retry=0.2)):
        await devmgr.until(allocatable={RESOURCE: 1})
        await given_back(devmgr, backend)
        assert (backend.failures, backend.returned) == (2, [(("w0",), {"number": 1})])


async def test_a_kubelet_that_has_just_started_frees_nothing(devmgr: DeviceManager) -> None:
    """Until it has heard from the API server it lists no pod, while their containers run."""
    backend = Kept("w0", "w1")
    pace = attrs.evolve(QUICK, settling=4.0)
    async with running(devmgr.paths, backend, pace=pace) as manager:
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await eventually(lambda: manager.status().resources[RESOURCE].holders)
        await devmgr.restart()
        await devmgr.until(allocatable={RESOURCE: 2})
        async with PodResources(devmgr.paths.pod_resources_socket).connect() as calls:
            assert not (await calls.list()).pods
        await anyio.sleep(2.0)
        assert backend.returned == []
        await devmgr.readmit()
        await anyio.sleep(3.0)
        assert backend.returned == []
        await devmgr.delete(admitted.pod)
        await eventually(lambda: backend.returned)
        assert backend.returned == [(admitted.devices(RESOURCE), {"number": 1})]


async def test_what_a_pod_gave_back_while_no_plugin_ran_is_told_by_the_next(
    devmgr: DeviceManager, tmp_path: Path
) -> None:
    first, second = Kept("w0", "w1"), Kept("w0", "w1")
    async with running(devmgr.paths, first, pace=QUICK, state_dir=tmp_path) as manager:
        await devmgr.until(allocatable={RESOURCE: 2})
        gone, stays = [await devmgr.admit(Pod.asking({RESOURCE: 1})) for _ in range(2)]
        await eventually(lambda: len(manager.status().resources[RESOURCE].holders or {}) == 2)
    await devmgr.delete(gone.pod)
    async with running(devmgr.paths, second, pace=QUICK, state_dir=tmp_path):
        await devmgr.until(allocatable={RESOURCE: 2})
        await eventually(lambda: second.returned)
        await anyio.sleep(1.0)
        assert (first.returned, second.returned) == ([], [(gone.devices(RESOURCE), {"number": 1})])
        await devmgr.delete(stays.pod)
        await eventually(lambda: len(second.returned) == 2)
        assert second.returned[1] == (stays.devices(RESOURCE), {"number": 2})
    assert os.listdir(tmp_path) == []


async def test_a_killed_plugin_forgets_nothing(devmgr: DeviceManager, tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    plugin: list[subprocess.Popen[bytes]] = []

    def said(what: str) -> list[object]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [[ids, kept] for line in lines for kind, ids, kept in [json.loads(line)] if kind == what]

    async def start() -> None:
        root = devmgr.paths.device_plugin_dir.parent
        arguments: list[str | Path] = [sys.executable, returning.__file__, root, state, log]
        plugin.append(subprocess.Popen(arguments))  # noqa: ASYNC220 - does not wait
        await devmgr.until(allocatable={RESOURCE: 2})

    async def kill() -> None:
        plugin[-1].kill()
        plugin[-1].wait()
        await devmgr.until(allocatable={RESOURCE: 0})

    try:
        await start()
        first = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        second = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        ids = [list(pod.devices(RESOURCE)) for pod in (first, second)]
        assert said("prepared") == [[held, {"for": held[0]}] for held in ids]
        await eventually(lambda: ['"seen": true' in path.read_text() for path in state.glob("*.json")] == [True])
        await kill()
        await devmgr.delete(first.pod)  # while nobody is there
        await start()
        await eventually(lambda: said("released"))
        assert await devmgr.start_container(second.pod)
        assert said("prepared")[-1] == [ids[1], {"for": ids[1][0]}]
        await anyio.sleep(1.0)
        await kill()
        await start()
        await anyio.sleep(1.0)
        await devmgr.delete(second.pod)
        await eventually(lambda: len(said("released")) == 2)
        await anyio.sleep(1.0)
        assert said("released") == [[held, {"for": held[0]}] for held in ids]
        await eventually(lambda: not os.listdir(state))
    finally:
        if plugin:
            plugin[-1].kill()
            plugin[-1].wait()


async def test_a_vanished_device_stays_for_as_long_as_a_pod_holds_it(
    devmgr: DeviceManager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kdp")
    backend = Widgets("w0", "w1", "w2")
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 3})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        [held] = admitted.devices(RESOURCE)
        [kept, _] = sorted(backend.devices.keys() - {held})
        backend.put(kdp.Device(id=kept))
        await devmgr.until(capacity={RESOURCE: 3}, allocatable={RESOURCE: 1})
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})  # nobody held that one
        # Of health 1.34 tells only where its gate is on, which is off by default.
        told = {} if devmgr.minor.name == "1.34" else {"main": {RESOURCE: {held: "Unhealthy"}}}
        assert await devmgr.health(admitted.pod) == told
        pod = f"{admitted.pod.namespace}/{admitted.pod.name} (main)"
        assert f"{RESOURCE}: device {held}, which is unhealthy, is held by {pod}" in caplog.text
        await anyio.sleep(1.5)
        assert devmgr.capacity() == {RESOURCE: 2}
        await devmgr.delete(admitted.pod)
        await devmgr.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 1})


async def test_a_device_that_vanished_before_the_plugin_came_does_not_kill_the_next_kubelet(
    minor: Minor, make_devmgr: MakeDeviceManager
) -> None:
    """Contract section 5, B26: with a topology policy no kubelet survives a list without a device that a pod holds."""
    devmgr = await make_devmgr(minor=minor, topology_policy="restricted")
    before, after = Widgets(), Widgets()
    before.devices = {name: kdp.Device(id=name, numa_nodes=[0]) for name in ("w0", "w1")}
    after.devices = {"w0": before.devices["w0"]}
    async with running(devmgr.paths, before):
        await devmgr.until(allocatable={RESOURCE: 2})
        pods = [(await devmgr.admit(Pod.asking({RESOURCE: 1}))).pod for _ in range(2)]
    async with running(devmgr.paths, after, pace=QUICK):
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        await devmgr.restart()
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        assert (await devmgr.readmit()).keys() == {pod.uid for pod in pods}
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        for pod in pods:
            await devmgr.delete(pod)
        await devmgr.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 1})


async def test_fault_11_a_kubelet_that_lost_the_devices_gets_them_again(
    minor: Minor, make_devmgr: MakeDeviceManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to 1.36 a second instance that registers and leaves has the kubelet forget the first, whose stream lives."""
    devmgr = await make_devmgr(minor=minor)
    other = Instance(devmgr.paths, Widgets("w0", "w1"))
    async with running(devmgr.paths, Widgets("w0", "w1"), pace=QUICK) as manager:
        await devmgr.until(allocatable={RESOURCE: 2})
        await eventually(lambda: manager.is_ready)
        async with anyio.create_task_group() as tasks:
            there = await tasks.start(other.run)
            await eventually(lambda: there.is_ready)
            await other.stop()
        if minor.name != "1.37":
            await devmgr.until(allocatable={RESOURCE: 0})
        await devmgr.until(allocatable={RESOURCE: 2})
        await anyio.sleep(1.5)
        assert devmgr.allocatable() == {RESOURCE: 2}
    assert ("registering anew" in caplog.text) == (minor.name != "1.37")


async def test_without_the_socket_all_goes_on(devmgr: DeviceManager, caplog: pytest.LogCaptureFixture) -> None:
    devmgr.paths.pod_resources_socket.unlink()
    backend = Kept("w0", "w1")
    async with running(devmgr.paths, backend, pace=QUICK):
        await devmgr.until(allocatable={RESOURCE: 2})
        await devmgr.admit(Pod.asking({RESOURCE: 1}))
        backend.put(kdp.Device(id="w0"))
        await devmgr.until(capacity={RESOURCE: 2})
        await eventually(lambda: "cannot see which pod holds which device" in caplog.text)
        await anyio.sleep(1.0)
        assert caplog.text.count("cannot see which pod holds which device") == 1
        assert devmgr.capacity() == {RESOURCE: 2}
        assert backend.returned == []


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
async def test_topology_policies_admit_and_refuse_as_the_hints_say(
    minor: Minor, make_devmgr: MakeDeviceManager, policy: str
) -> None:
    devmgr = await make_devmgr(minor=minor, topology_policy=policy)
    backend = Widgets()
    backend.devices = {f"w{n}": kdp.Device(id=f"w{n}", numa_nodes=[n % 2]) for n in range(6)}
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 6})
        # Four do not fit one node: the best hint is both nodes. "restricted" takes it, "single-numa-node" does not.
        hints = (await devmgr.hints(Pod.asking({RESOURCE: 4})))["main"][RESOURCE]
        assert hints == [((0, 1), True)]
        if policy == "single-numa-node":
            with pytest.raises(AdmissionError) as refused:
                await devmgr.admit(Pod.asking({RESOURCE: 4}))
            assert refused.value.reason == "TopologyAffinityError"
        else:
            wide = await devmgr.admit(Pod.asking({RESOURCE: 4}))
            await devmgr.delete(wide.pod)
        for _ in range(2):  # two of one node, twice: one is left on each
            await devmgr.admit(Pod.asking({RESOURCE: 2}))
        # Two devices would fit one node if the others were free: what is left is not preferred, and both policies
        # refuse.
        assert (await devmgr.hints(Pod.asking({RESOURCE: 2})))["main"][RESOURCE] == [((0, 1), False)]
        with pytest.raises(AdmissionError) as refused:
            await devmgr.admit(Pod.asking({RESOURCE: 2}))
        assert refused.value.reason == "TopologyAffinityError"
        await devmgr.admit(Pod.asking({RESOURCE: 1}))
