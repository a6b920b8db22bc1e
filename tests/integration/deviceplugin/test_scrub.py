"""A device that a pod gave back is scrubbed before another pod has it, whenever the kubelet gives it away again."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.deviceplugin.tracking.allocation_record import AllocationRecord
from kdp.deviceplugin.tracking.store import AllocationStore
from kdp.errors import ConfigurationError
from kdp.supervision.conditions import KINDS, OwnKind
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, AdmittedPod, CallError, Container, ContainerStartError, Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .helpers import RESOURCE, Widgets, connected, running, until
from .test_release import QUICK, lists


class Memory(Widgets):
    """Widgets with a memory, which `released` erases as soon as it may."""

    release_policy = "scrub"

    def __init__(self, *devices: kdp.Device | str) -> None:
        super().__init__(*devices)
        self.memory: dict[str, str] = {}
        self.may_scrub = threading.Event()
        self.may_scrub.set()
        self.scrubbed: list[tuple[str, ...]] = []
        self.steps: list[object] = []

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self.steps.append(("start", *devices.ids))

    @override
    def released(self, devices: kdp.Allocation) -> None:
        if not self.may_scrub.is_set():
            devices.state["passes"] = int(devices.state.get("passes", 0)) + 1
            raise kdp.AllocationError(f"pass {devices.state['passes']} is not done yet")
        for device in devices:
            self.memory.pop(device.id, None)
        self.steps.append(("scrub", *devices.ids))
        self.scrubbed.append(devices.ids)


def listed(manager: PluginManager, device_id: str) -> kdp.Device:
    return manager.status().resources[RESOURCE].listed[device_id]


async def with_a_secret(kubelet: SimulatedKubelet, backend: Memory) -> AdmittedPod:
    """Admit a pod that leaves something in the memory of its device."""
    admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    backend.memory["w0"] = "the secret"
    return admitted


async def test_a_second_pod_read_the_first_ones_secret(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """The kubelet gives a device away at once, and `released` came half a minute later."""
    backend = Memory("w0")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        first = await with_a_secret(kubelet, backend)
        await kubelet.delete(first.pod)
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert backend.memory == {}
        assert backend.steps == [("start", "w0"), ("scrub", "w0"), ("start", "w0")]


async def test_a_container_that_starts_again_keeps_its_devices_memory(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend = Memory("w0")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.memory["w0"] = "its own"
        await kubelet.start_container(admitted.pod)
        await lists(kubelet)
        assert backend.memory == {"w0": "its own"}
        assert not backend.scrubbed


async def test_what_an_init_container_left_is_there_for_its_pod(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """Both are allocated before the first of them starts, and each Allocate names the same device."""
    backend = Memory("w0")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        pod = Pod(init_containers=[Container("load", {RESOURCE: 1})], containers=[Container("main", {RESOURCE: 1})])
        admitted = await kubelet.admit(pod, start=False)
        await kubelet.start_container(admitted.pod, "load")
        backend.memory["w0"] = "loaded"
        await kubelet.start_container(admitted.pod, "main")
        assert backend.memory == {"w0": "loaded"}
        await kubelet.delete(admitted.pod)
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert backend.memory == {}


async def test_a_start_waits_for_a_scrub_and_fails_with_a_sentence_if_it_takes_too_long(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend = Memory("w0")
    deadlines = Deadlines(prepare_container=0.5)
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path, deadlines=deadlines):
        first = await with_a_secret(kubelet, backend)
        backend.may_scrub.clear()
        await kubelet.delete(first.pod)
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)
        with pytest.raises(ContainerStartError, match=r"device w0 is still being scrubbed, since \d\d:\d\d:\d\d"):
            await kubelet.start_container(second.pod)
        assert backend.memory == {"w0": "the secret"}
        backend.may_scrub.set()
        await until(lambda: backend.scrubbed)
        with anyio.fail_after(PATIENCE):
            while True:
                with suppress(
                    ContainerStartError
                ):  # on a busy machine half a second may be over; a kubelet tries again
                    await kubelet.start_container(second.pod)
                    break
        assert backend.memory == {}


async def test_a_device_is_not_offered_before_it_is_scrubbed(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    backend = Memory("w0", "w1")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path) as manager:
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [device] = first.devices(RESOURCE)
        backend.may_scrub.clear()
        await kubelet.delete(first.pod)
        await kubelet.until(allocatable={RESOURCE: 1})
        reason = manager.status().resources[RESOURCE].listed[device].health.reason or ""
        assert reason.startswith("being scrubbed after its last pod, since ")
        backend.may_scrub.set()
        await kubelet.until(allocatable={RESOURCE: 2})
        assert backend.scrubbed == [(device,)]


FOR_GOOD = "being scrubbed after its last pod failed for good: FLR timeout"


async def test_a_sick_device_was_given_away_because_of_the_words_of_its_reason(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    sick = kdp.Device(id="w0", health=kdp.Health.unhealthy(FOR_GOOD))
    async with connected(kubelet, Memory(sick, "w1"), pace=QUICK, state_dir=tmp_path):
        with pytest.raises(CallError, match=f"device w0 is unhealthy: {FOR_GOOD}"):
            await kubelet.plugin(RESOURCE).allocate(["w0"])


@pytest.mark.parametrize("kind", ["fault", "scrub"])
async def test_a_sick_device_is_refused_also_while_it_is_scrubbed(
    kubelet: SimulatedKubelet, tmp_path: Path, kind: str
) -> None:
    backend = Memory("w0")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path) as manager:
        first = await with_a_secret(kubelet, backend)
        backend.may_scrub.clear()
        await kubelet.delete(first.pod)
        await until(lambda: not listed(manager, "w0").health.is_healthy)
        (await backend.report()).fault("w0", FOR_GOOD, kind=kind)
        await until(lambda: len(listed(manager, "w0").health.conditions) == 2)
        with pytest.raises(CallError, match=f"device w0 is unhealthy: {FOR_GOOD}; being scrubbed"):
            await kubelet.plugin(RESOURCE).allocate(["w0"])
        (await backend.report()).clear("w0", kind=kind)
        await until(lambda: len(listed(manager, "w0").health.conditions) == 1)
        await kubelet.plugin(RESOURCE).allocate(["w0"])  # the start of its container waits


NEW = OwnKind(name="new", text="A condition that a test adds.", lets_allocate=True)


@pytest.mark.parametrize("own", [*KINDS.values(), NEW], ids=[*KINDS, "new"])
async def test_the_table_says_whether_an_allocate_goes_on(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: OwnKind
) -> None:
    monkeypatch.setitem(KINDS, own.name, own)
    async with connected(kubelet, Memory("w0"), pace=QUICK, state_dir=tmp_path) as manager:
        [supervisor] = manager.supervisors
        supervisor.outdated = lambda _: {"w0": (own.because("why", 0.0),)}
        supervisor.judge_again()
        await until(lambda: not listed(manager, "w0").health.is_healthy)
        if own.lets_allocate:
            await kubelet.plugin(RESOURCE).allocate(["w0"])
        else:
            with pytest.raises(CallError, match="device w0 is unhealthy: why"):
                await kubelet.plugin(RESOURCE).allocate(["w0"])


async def test_a_plugin_that_is_started_again_still_withholds_what_is_not_scrubbed(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    before = Memory("w0", "w1")
    async with connected(kubelet, before, pace=QUICK, state_dir=tmp_path):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        before.may_scrub.clear()
        await kubelet.delete(first.pod)
        await kubelet.until(allocatable={RESOURCE: 1})
    after = Memory("w0", "w1")
    after.may_scrub.clear()
    async with connected(kubelet, after, pace=QUICK, state_dir=tmp_path):
        assert kubelet.allocatable()[RESOURCE] == 1
        after.may_scrub.set()
        await kubelet.until(allocatable={RESOURCE: 2})
    assert after.scrubbed == [first.devices(RESOURCE)]


async def test_what_a_failed_scrub_has_done_is_known_to_the_next(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """A wipe of an hour began from its beginning each time."""
    backend = Memory("w0")
    seen: list[object] = []

    class Patient(Memory):
        @override
        def released(self, devices: kdp.Allocation) -> None:
            seen.append(devices.state.get("passes"))
            super().released(devices)

    backend = Patient("w0")
    backend.may_scrub.clear()
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(first.pod)
        await until(lambda: seen == [None])
    second = Patient("w0")
    async with connected(kubelet, second, pace=QUICK, state_dir=tmp_path):
        await until(lambda: second.scrubbed)
    assert seen == [None, 1]


async def test_a_device_that_returns_is_scrubbed_before_it_is_offered(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend = Memory("w0", "w1")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [device] = first.devices(RESOURCE)
        everything, backend.devices = backend.devices, [each for each in backend.devices if each.id != device]
        (await backend.report()).rescan()
        await kubelet.until(allocatable={RESOURCE: 1})
        await kubelet.delete(first.pod)
        await lists(kubelet)
        assert not backend.scrubbed
        backend.devices = everything
        (await backend.report()).rescan()
        await kubelet.until(allocatable={RESOURCE: 2})
        assert backend.scrubbed == [(device,)]


async def test_without_a_state_directory_nothing_is_offered(kubelet: SimulatedKubelet) -> None:
    async with running(kubelet, Memory("w0"), pace=QUICK) as manager:
        await kubelet.until(streaming=RESOURCE)
        assert kubelet.allocatable() == {RESOURCE: 0}
        reason = manager.status().resources[RESOURCE].listed["w0"].health.reason or ""
        assert "allocations cannot be saved; give a state directory, as --state-dir /var/lib/kdp" in reason
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))


async def test_a_state_directory_that_cannot_be_made_failed_the_first_pod(kubelet: SimulatedKubelet) -> None:
    """Its devices were offered, since root may write to /proc."""
    async with running(kubelet, Memory("w0"), pace=QUICK, state_dir=Path("/proc/nope")) as manager:
        await until(lambda: RESOURCE in manager.status().resources and manager.status().resources[RESOURCE].listed)
        await kubelet.until(allocatable={RESOURCE: 0})
        reason = manager.status().resources[RESOURCE].listed["w0"].health.reason or ""
        assert "/proc/nope cannot be written: No such file or directory" in reason


async def test_a_scrub_that_takes_longer_than_its_deadline_never_ended(
    kubelet: SimulatedKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Memory):
        """The first scrub returns when it may."""

        @override
        def released(self, devices: kdp.Allocation) -> None:
            self.may_scrub.wait()
            super().released(devices)

    backend = Slow("w0")
    deadlines = Deadlines(released=0.05)
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path, deadlines=deadlines):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.may_scrub.clear()
        await kubelet.delete(first.pod)
        await until(lambda: "released() of Slow did not return within 0.05 s" in caplog.text)
        backend.may_scrub.set()
        await kubelet.until(allocatable={RESOURCE: 1})
        assert backend.scrubbed == [("w0",)]


async def test_without_the_pod_resources_api_a_device_is_scrubbed_all_the_same(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend = Memory("w0")
    kubelet.faults.pod_resources_absent()
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        first = await with_a_secret(kubelet, backend)
        await kubelet.delete(first.pod)
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert backend.memory == {}


async def test_a_device_that_is_shared_is_scrubbed_when_nobody_has_it(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend = Memory("w0")
    shared = share(backend, Sharing(replicas=2))
    async with connected(kubelet, shared, pace=QUICK, state_dir=tmp_path) as manager:
        one = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.memory["w0"] = "what both may read"
        other = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(one.pod)
        await lists(kubelet)
        assert kubelet.allocatable() == {RESOURCE: 2}  # one may share the device with the other
        third = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert third.devices(RESOURCE) == one.devices(RESOURCE)
        assert (backend.memory, backend.scrubbed) == ({"w0": "what both may read"}, [])
        backend.may_scrub.clear()
        for pod in (other.pod, third.pod):
            await kubelet.delete(pod)
        await kubelet.until(allocatable={RESOURCE: 0})
        reasons = {each.health.reason for each in manager.status().resources[RESOURCE].listed.values()}
        assert len(reasons) == 1
        backend.may_scrub.set()
        await kubelet.until(allocatable={RESOURCE: 2})
        assert backend.scrubbed == [("w0",)]


async def test_a_pod_with_another_replica_read_the_secret_of_one_that_had_ended(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """Its Allocate says nothing of the other replica's pod, so the start waits for a list."""
    backend = Memory("w0")
    shared = share(backend, Sharing(replicas=2))
    async with connected(kubelet, shared, pace=QUICK, state_dir=tmp_path):
        first = await with_a_secret(kubelet, backend)
        await lists(kubelet)
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)
        assert second.devices(RESOURCE) != first.devices(RESOURCE)
        await kubelet.delete(first.pod)
        await kubelet.start_container(second.pod)
        assert backend.memory == {}


async def test_a_class_that_cannot_scrub_is_refused(kubelet: SimulatedKubelet) -> None:
    with pytest.raises(ConfigurationError, match="the release policy is 'scrub', and there is no hook 'released'"):
        PluginManager([Widgets("w0")], ManagerOptions(paths=kubelet.paths, release_policy="scrub"))


async def test_a_policy_that_is_added_later_is_for_pods_that_run_already(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    class Lax(Memory):
        release_policy = "notify"

    before = Lax("w0")
    async with connected(kubelet, before, pace=QUICK, state_dir=tmp_path):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    after = Memory("w0")
    after.memory["w0"] = "the secret"
    async with connected(kubelet, after, pace=QUICK, state_dir=tmp_path):
        await kubelet.delete(first.pod)
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert after.memory == {}


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_new_plugin_started_a_container_on_what_the_old_one_still_scrubbed(
    kubelet: SimulatedKubelet, tmp_path: Path, has_begun: bool
) -> None:
    """As in a rolling update without a gap: both run for a while, and the old one has the state file."""
    old, new = Memory("w0"), Memory("w0")
    pace = attrs.evolve(QUICK, lasting=60.0)  # neither registers anew because the kubelet believes the other one
    started, ends, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def outgoing() -> None:
        async with connected(kubelet, old, pace=pace, state_dir=tmp_path):
            started.set()
            await ends.wait()
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outgoing)
        await started.wait()
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        new.memory["w0"] = "the secret"
        for each in (old, new):
            each.may_scrub.clear()
        if has_begun:
            await kubelet.delete(first.pod)
            await kubelet.until(allocatable={RESOURCE: 0})
        deadlines = Deadlines(prepare_container=2.0)
        async with running(kubelet, new, pace=pace, state_dir=tmp_path, deadlines=deadlines) as incoming:
            await until(lambda: incoming.is_ready)
            await kubelet.until(allocatable={RESOURCE: 1})
            if not has_begun:
                await kubelet.start_container(first.pod)  # again: it may
                await kubelet.delete(first.pod)
            second = await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)
            with pytest.raises(ContainerStartError, match="that gave it away is still running"):
                await kubelet.start_container(second.pod)
            assert new.memory == {"w0": "the secret"}
            ends.set()
            await ended.wait()
            new.may_scrub.set()
            await kubelet.start_container(second.pod)
            assert new.memory == {}
            assert new.steps[-2:] == [("scrub", "w0"), ("start", "w0")]


async def test_two_containers_that_waited_for_a_process_woke_each_other_without_end(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    look = AllocationStore.neighbours

    async def counted(store: AllocationStore) -> list[AllocationRecord]:
        looks.append(None)
        return await look(store)

    monkeypatch.setattr(AllocationStore, "neighbours", counted)
    pace = attrs.evolve(QUICK, lasting=60.0, look=60.0, between=5.0)  # lists wake those that wait, too
    started, ends = anyio.Event(), anyio.Event()

    async def outgoing() -> None:
        async with connected(kubelet, Memory("w0", "w1"), pace=pace, state_dir=tmp_path):
            started.set()
            await ends.wait()

    async def refused(pod: Pod) -> None:
        with pytest.raises(ContainerStartError, match="that gave it away is still running"):
            await kubelet.start_container(pod)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outgoing)
        await started.wait()
        before = [await kubelet.admit(Pod.asking({RESOURCE: 1})) for _ in range(2)]
        deadlines = Deadlines(prepare_container=1.0)
        async with running(kubelet, Memory("w0", "w1"), pace=pace, state_dir=tmp_path, deadlines=deadlines) as incoming:
            await until(lambda: incoming.is_ready)
            for each in before:
                await kubelet.delete(each.pod)
            after = [(await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)).pod for _ in range(2)]
            async with anyio.create_task_group() as starts:
                for pod in after:
                    starts.start_soon(refused, pod)
            assert 2 <= len(looks) < 15
        ends.set()


async def test_a_disk_that_is_full_while_a_container_waits_for_a_scrub(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be saved is not started on: after a crash nobody would know that the device must be scrubbed."""
    backend = Memory("w0")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.may_scrub.clear()
        await kubelet.delete(first.pod)
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            patched.setattr(os, "fdatasync", full)
            backend.may_scrub.set()
            with pytest.raises(ContainerStartError, match="allocations cannot be saved"):
                await kubelet.start_container(second.pod)
        await until(lambda: backend.scrubbed)
        await kubelet.start_container(second.pod)
        assert backend.steps[-1] == ("start", "w0")


def state_files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.glob("example.com_widget.*.json")}


async def test_after_a_broken_state_file_the_next_pod_read_the_secret(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """Nobody knew which device a pod had had. So each is scrubbed that no pod has now."""
    before = Memory("w0", "w1", "w2")
    async with connected(kubelet, before, pace=QUICK, state_dir=tmp_path):
        gone = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        stays = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await lists(kubelet)
        saved = state_files(tmp_path)
    after = Memory("w0", "w1", "w2")
    after.memory = dict.fromkeys(("w0", "w1", "w2"), "a secret")
    for path, data in saved.items():
        path.write_bytes(data[: len(data) // 2])
    await kubelet.delete(gone)
    [kept] = stays.devices(RESOURCE)
    async with connected(kubelet, after, pace=QUICK, state_dir=tmp_path):
        await until(lambda: len(after.scrubbed) == 2)
        await kubelet.until(capacity={RESOURCE: 3}, allocatable={RESOURCE: 2})
        assert after.memory == {kept: "a secret"}
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
        await kubelet.delete(stays)
        await kubelet.until(allocatable={RESOURCE: 3})
        assert after.memory == {}


async def test_a_disk_that_was_full_once_kept_all_devices_withheld(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: threading.Event
) -> None:
    """Only an Allocate saved, and none came, because nothing was offered."""
    monkeypatch.setattr("kdp.deviceplugin.plugin.LOOK_PAUSE", 0.05)
    async with connected(kubelet, Memory("w0", "w1"), pace=QUICK, state_dir=tmp_path):
        is_full.set()
        with pytest.raises(AdmissionError, match="No space left on device"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.until(allocatable={RESOURCE: 0})
        is_full.clear()
        await kubelet.until(allocatable={RESOURCE: 2})


async def test_a_device_was_withheld_until_the_end_of_pods_that_did_not_have_it(
    kubelet: SimulatedKubelet, tmp_path: Path, is_full: threading.Event
) -> None:
    """The disk was full for one Allocate, which was refused. Its record then stayed as if a pod had the device."""
    backend = Memory("w0", "w1")
    pace = attrs.evolve(QUICK, admission=60.0)  # so each pod of this test may have the device, for all that is known
    async with connected(kubelet, backend, pace=pace, state_dir=tmp_path) as manager:
        stays = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [other] = {"w0", "w1"} - {*stays.devices(RESOURCE)}
        is_full.set()
        with pytest.raises(AdmissionError, match="No space left on device"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        is_full.clear()
        await until(lambda: (other,) in backend.scrubbed)
        await until(lambda: listed(manager, other).health.is_healthy)
        assert stays.devices(RESOURCE) not in backend.scrubbed
