"""kdp's plugins against the kubelet's own device manager, each version of it."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, Container, ContainerStartError, DeviceSpec, Pod
from kdp_testkit.patience import PATIENCE

from .backend import RESOURCE, Figure, Instance, Widgets, eventually, running
from .conftest import MakeDeviceManager
from .nodekit import MINORS, DeviceManager, Minor


async def test_a_backend_is_registered_and_counted(devmgr: DeviceManager) -> None:
    async with running(devmgr.paths, Widgets("w0", "w1")) as manager:
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
        await eventually(lambda: manager.is_ready)
        assert await devmgr.devices() == {RESOURCE: {"w0": [], "w1": []}}
    await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})


async def test_a_pod_gets_the_reply(devmgr: DeviceManager) -> None:
    backend = Widgets("w0", "w1")
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 2}))
        assert admitted.devices(RESOURCE) == ("w0", "w1")
        assert admitted.reply().envs == {"WIDGETS": "w0,w1"}
        assert sorted(admitted.reply().devices, key=lambda d: d.container_path) == [
            DeviceSpec("/dev/w0", "/dev/null", "rw"),
            DeviceSpec("/dev/w1", "/dev/null", "rw"),
        ]
        assert backend.calls == [("allocate", "w0", "w1")]
        with pytest.raises(AdmissionError) as refused:
            await devmgr.admit(Pod.asking({RESOURCE: 1}))
        assert refused.value.message == (
            f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
            "Requested: 1, Available: 0, which is unexpected"
        )


async def test_an_error_of_the_backend_is_what_the_pods_author_reads(devmgr: DeviceManager) -> None:
    class Broken(Widgets):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            raise kdp.AllocationError("the widget's firmware is being written; try again in a minute")

    async with running(devmgr.paths, Broken("w0")):
        await devmgr.until(allocatable={RESOURCE: 1})
        with pytest.raises(AdmissionError, match="the widget's firmware is being written; try again in a minute"):
            await devmgr.admit(Pod.asking({RESOURCE: 1}))


async def test_health_is_counted_and_refused(minor: Minor, make_devmgr: MakeDeviceManager) -> None:
    devmgr = await make_devmgr(minor=minor, feature_gates="ResourceHealthStatus=true")  # off by default before 1.36
    backend = Widgets("w0", "w1")
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        [held] = admitted.devices(RESOURCE)
        sick = kdp.Health.unhealthy("it smells of smoke")
        backend.put(*(kdp.Device(id=i, health=sick) for i in backend.devices))
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
        with pytest.raises(
            AdmissionError, match=f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
        ):
            await devmgr.admit(Pod.asking({RESOURCE: 1}))
        assert await devmgr.health(admitted.pod) == {"main": {RESOURCE: {held: "Unhealthy"}}}
        backend.put(*(kdp.Device(id=i) for i in backend.devices))
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
        assert await devmgr.health(admitted.pod) == {"main": {RESOURCE: {held: "Healthy"}}}


async def test_devices_come_and_go_without_a_new_registration(devmgr: DeviceManager) -> None:
    backend = Widgets("w0")
    async with running(devmgr.paths, backend):
        await devmgr.until(capacity={RESOURCE: 1})
        backend.put(kdp.Device(id="w0"), kdp.Device(id="w1"), kdp.Device(id="w2"))
        await devmgr.until(capacity={RESOURCE: 3}, allocatable={RESOURCE: 3})
        assert registrations(devmgr) == 1


async def test_an_init_containers_devices_are_used_again(devmgr: DeviceManager) -> None:
    backend = Widgets("w0", "w1")
    pod = Pod(
        init_containers=[Container("setup", {RESOURCE: 1}), Container("proxy", {RESOURCE: 1}, restartable=True)],
        containers=[Container("main", {RESOURCE: 1})],
    )
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(pod)
        setup, proxy, main = (admitted.devices(RESOURCE, name) for name in ("setup", "proxy", "main"))
        assert setup == proxy
        assert set(proxy) | set(main) == {"w0", "w1"}
        assert len(backend.calls) == 3


async def test_preferences_are_asked_for_and_followed(devmgr: DeviceManager) -> None:
    class Choosy(Widgets):
        @override
        def prefer(self, request: kdp.PreferRequest) -> Sequence[str]:
            return ["w2", "w4"]

    patient = Deadlines(prefer=PATIENCE)  # its own 0.05 s are too short beside a busy machine's other processes
    async with running(devmgr.paths, Choosy("w0", "w1", "w2", "w3", "w4"), deadlines=patient):
        await devmgr.until(allocatable={RESOURCE: 5})
        for _ in range(5):
            admitted = await devmgr.admit(Pod.asking({RESOURCE: 2}))
            assert admitted.devices(RESOURCE) == ("w2", "w4")
            await devmgr.delete(admitted.pod)


async def test_preparing_a_container_fails_until_it_does_not(devmgr: DeviceManager) -> None:
    class Careful(Widgets):
        def __init__(self, *ids: str) -> None:
            super().__init__(*ids)
            self.failures = 1

        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            self.calls.append(("prepare", *(d.id for d in devices)))
            if self.failures:
                self.failures -= 1
                raise kdp.AllocationError("the widget did not reset")

    backend = Careful("w0")
    pod = Pod.asking({RESOURCE: 1})
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 1})
        with pytest.raises(ContainerStartError, match=r"rpc failed with err: .*the widget did not reset"):
            await devmgr.admit(pod)
        given = await devmgr.start_container(pod)
        assert given.reply.envs == {"WIDGETS": "w0"}
        assert backend.calls == [("allocate", "w0"), ("prepare", "w0"), ("prepare", "w0")]


async def test_numa_nodes_become_hints(minor: Minor, make_devmgr: MakeDeviceManager) -> None:
    devmgr = await make_devmgr(minor=minor, topology_policy="single-numa-node")
    backend = Widgets()
    backend.devices = {f"w{n}": kdp.Device(id=f"w{n}", numa_nodes=(n % 2,)) for n in range(4)}
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 4})
        hints = await devmgr.hints(Pod.asking({RESOURCE: 2}))
        assert hints == {"main": {RESOURCE: [((0,), True), ((0, 1), False), ((1,), True)]}}
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 2}))
        assert admitted.devices(RESOURCE) in (("w0", "w2"), ("w1", "w3"))
        with pytest.raises(AdmissionError) as refused:
            await devmgr.admit(Pod.asking({RESOURCE: 3}))
        assert refused.value.reason == "TopologyAffinityError"


async def test_a_kubelet_killed_under_the_plugin_and_a_running_pod(devmgr: DeviceManager, figure: Figure) -> None:
    backend = Widgets("w0", "w1")
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        await devmgr.restart()
        count = await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
        figure(
            f"{devmgr.minor.release}: registered again after listening", 1e3 * (count.at - devmgr.listening_at), "ms"
        )
        again = await devmgr.readmit()
        assert [pod.devices(RESOURCE) for pod in again.values() if not isinstance(pod, AdmissionError)] == [
            admitted.devices(RESOURCE)
        ]
        assert backend.calls == [("allocate", *admitted.devices(RESOURCE))]
        other = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        assert set(other.devices(RESOURCE)) | set(admitted.devices(RESOURCE)) == {"w0", "w1"}


async def test_fifty_kubelets_and_none_is_lost(devmgr: DeviceManager, figure: Figure) -> None:
    took: list[float] = []
    async with running(devmgr.paths, Widgets("w0", "w1")) as manager:
        await devmgr.until(allocatable={RESOURCE: 2})
        for _ in range(50):
            await devmgr.restart()
            count = await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
            took.append(1e3 * (count.at - devmgr.listening_at))
        await eventually(lambda: manager.is_ready)
        assert not re.findall("already connected.*", devmgr.log())
    figure(f"{devmgr.minor.release}: registered again, median of 50", statistics.median(took), "ms")
    figure(f"{devmgr.minor.release}: registered again, slowest of 50", max(took), "ms")


async def test_a_rolling_update_leaves_no_gap(devmgr: DeviceManager, figure: Figure) -> None:
    """Two instances overlap; the pod that runs keeps its device, and the next one is served by the new instance."""
    backend = Widgets("w0", "w1")
    old, new = Instance(devmgr.paths, Widgets("w0", "w1")), Instance(devmgr.paths, backend)
    async with anyio.create_task_group() as tasks:
        await tasks.start(old.run)
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        began = len(devmgr.counts) - 1
        manager: PluginManager = await tasks.start(new.run)
        await eventually(lambda: manager.is_ready)
        await old.stop()
        await anyio.sleep(1.0)  # what the old one's end does to the kubelet comes late
        await eventually(lambda: manager.is_ready)
        await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
        other = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        assert set(other.devices(RESOURCE)) | set(admitted.devices(RESOURCE)) == {"w0", "w1"}
        assert backend.calls == [("allocate", *other.devices(RESOURCE))]
        told = devmgr.counts[began:]
        await new.stop()
    gaps = [
        1e3 * (following.at - count.at)
        for count, following in itertools.pairwise(told)
        if not count.allocatable.get(RESOURCE)
    ]
    figure(f"{devmgr.minor.release}: rolling update, allocatable 0 for", sum(gaps), "ms")
    assert sum(gaps) < 10_000  # one period of the node's status


async def test_the_plugin_watchers_route(devmgr: DeviceManager) -> None:
    async with running(devmgr.paths, Widgets("w0", "w1"), registration="watcher") as manager:
        await devmgr.until(allocatable={RESOURCE: 2})
        await eventually(lambda: manager.is_ready)
        assert (await devmgr.admit(Pod.asking({RESOURCE: 2}))).reply().envs == {"WIDGETS": "w0,w1"}
        await devmgr.restart()
        await devmgr.until(allocatable={RESOURCE: 2})
        await eventually(lambda: manager.is_ready)
    await devmgr.until(allocatable={RESOURCE: 0})


async def test_a_list_that_no_kubelet_would_read_is_not_sent(devmgr: DeviceManager) -> None:
    backend = Widgets("w0", "w1")
    many = [kdp.Device(id=f"{n:063d}") for n in range(60_000)]
    async with running(devmgr.paths, backend) as manager:
        await devmgr.until(allocatable={RESOURCE: 2})
        backend.put(*many)
        await anyio.sleep(2.0)
        assert devmgr.capacity() == {RESOURCE: 2}
        assert manager.is_ready
        backend.put(*many[:50_000])
        await devmgr.until(allocatable={RESOURCE: 50_000})
        assert registrations(devmgr) == 1


async def test_a_plugin_gone_for_more_than_five_minutes_is_forgotten(devmgr: DeviceManager) -> None:
    async with running(devmgr.paths, Widgets("w0")):
        await devmgr.until(allocatable={RESOURCE: 1})
    await devmgr.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 0})
    await devmgr.age(299)
    assert (await devmgr.count()).capacity == {RESOURCE: 1}
    await devmgr.age(301)
    assert (await devmgr.count()).capacity == {}
    async with running(devmgr.paths, Widgets("w0")):
        await devmgr.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 1})


async def test_an_upgrade_and_a_downgrade_under_a_living_plugin(make_devmgr: MakeDeviceManager, newest: Minor) -> None:
    oldest = MINORS[0]
    if not oldest.is_compiled:
        pytest.skip(f"devmgr-{oldest.name} is not compiled: run `make node-tools`")
    devmgr = await make_devmgr(minor=oldest)
    backend = Widgets("w0", "w1")
    async with running(devmgr.paths, backend):
        await devmgr.until(allocatable={RESOURCE: 2})
        admitted = await devmgr.admit(Pod.asking({RESOURCE: 1}))
        for minor in (newest, oldest):
            await devmgr.restart(minor=minor)
            await devmgr.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
            [again] = (await devmgr.readmit()).values()
            assert not isinstance(again, AdmissionError)
            assert again.devices(RESOURCE) == admitted.devices(RESOURCE)
        assert len(backend.calls) == 1


def registrations(devmgr: DeviceManager) -> int:
    return len(re.findall("Got registration request", devmgr.log()))
