"""What pods gave back: `released` on the simulated kubelet, and what the faults of its pod-resources API make of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import anyio
import attrs
import pytest
from anyio.abc import TaskStatus
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.deviceplugin.options import Pace
from kdp.kubelet.podresources import PodResources
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, Container, ContainerStartError, Pod, ScenarioError, SimulatedKubelet, events
from kdp_testkit.patience import PATIENCE

from .helpers import RESOURCE, Widgets, connected, running, until

QUICK = Pace(
    gap=0.3,
    admission=0.2,
    look=0.1,
    settled=0.1,
    settling=0.0,
    between=0.05,
    absent=0.2,
    after_connect=0.2,
    period=0.3,
    again=0.2,
    lasting=0.5,
)
"""Seconds for what takes minutes on a node."""

LISTS = 8
"""Lists within which a wrong conclusion would have been drawn: a right one takes the two that are a gap apart."""


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
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.returned.append((devices.ids, dict(devices.state)))


def asked(kubelet: SimulatedKubelet) -> int:
    """How many Lists the kubelet has answered."""
    return sum(event.method == "List" and event.error is None for event in kubelet.events.of(events.PodResourcesAsked))


async def lists(kubelet: SimulatedKubelet, more: int = LISTS) -> None:
    """Wait until so many more Lists are answered."""
    wanted = asked(kubelet) + more
    await until(lambda: asked(kubelet) >= wanted, story=kubelet.events.story)


class Outgoing:
    """An instance that lives in a task of its own until `end`, as the old one does in an update."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        self._make = make
        self._ends, self._has_ended = anyio.Event(), anyio.Event()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        async with self._make():
            task_status.started()
            await self._ends.wait()
        self._has_ended.set()

    async def end(self) -> None:
        self._ends.set()
        await self._has_ended.wait()


async def test_what_an_instance_that_still_ran_held_is_taken_over_when_it_has_ended(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """Even if the new one has no allocation. Before, it learned of the old one's only when it had one itself."""
    first, second = Kept("w0", "w1"), Kept("w0", "w1")
    outgoing = Outgoing(lambda: connected(kubelet, first, pace=QUICK, state_dir=tmp_path))
    async with anyio.create_task_group() as tasks:
        await tasks.start(outgoing.run)
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: [*tmp_path.glob("*.json")])
        async with running(kubelet, second, pace=QUICK, state_dir=tmp_path) as manager:
            await until(lambda: manager.is_ready)
            await anyio.sleep(3 * QUICK.look)  # it has looked, and found the file of a living one
            await outgoing.end()
            await kubelet.delete(admitted.pod)
            await until(lambda: second.returned)
    assert (first.returned, second.returned) == ([], [(admitted.devices(RESOURCE), {"number": 1})])


async def test_a_pods_end_is_told_once_with_its_state(kubelet: SimulatedKubelet) -> None:
    backend = Kept("w0", "w1")
    async with connected(kubelet, backend, pace=QUICK):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await lists(kubelet)
        assert backend.returned == []
        await kubelet.delete(first.pod)
        await until(lambda: backend.returned)
        await lists(kubelet)  # the second is still owed, so there are more
        assert backend.returned == [(first.devices(RESOURCE), {"number": 1})]
        await kubelet.delete(second.pod)
        await until(lambda: len(backend.returned) == 2)
        assert backend.returned[1] == (second.devices(RESOURCE), {"number": 2})


async def test_a_look_that_meets_the_kubelets_restart_costs_a_release_no_minute(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Kept("w0", "w1")
    async with connected(kubelet, backend, pace=attrs.evolve(QUICK, absent=3600.0)):
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await lists(kubelet, 2)
        kubelet.faults.pod_resources_absent()
        await until(lambda: "there is no" in caplog.text)
        await kubelet.restart()
        await kubelet.readmit()
        await kubelet.delete(admitted.pod)
        await until(lambda: backend.returned, story=kubelet.events.story)


async def test_a_clock_that_is_set_back_delays_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet's socket came from the future, and the kubelet was taken for one that starts, for as long."""
    wrong = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() - 3600)
    backend = Kept("w0", "w1")
    async with (
        SimulatedKubelet(profile="k136") as kubelet,  # a later one's pods API says that it knows all pods
        connected(kubelet, backend, pace=attrs.evolve(QUICK, settling=0.5)),
    ):
        monkeypatch.setattr("kdp.deviceplugin.tracking.polling.time", wrong)
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(admitted.pod)
        await until(lambda: backend.returned, story=kubelet.events.story)


async def test_a_device_of_an_init_container_is_given_back_with_its_pod(kubelet: SimulatedKubelet) -> None:
    backend = Kept("w0", "w1")
    pod = Pod(name="initial", init_containers=[Container("first", {RESOURCE: 1})], containers=[Container("main")])
    async with connected(kubelet, backend, pace=QUICK):
        await kubelet.admit(pod)
        await lists(kubelet)
        assert backend.returned == []
        await kubelet.delete(pod)
        await until(lambda: backend.returned)
        assert [state for _, state in backend.returned] == [{"number": 1}]


@pytest.mark.parametrize("profile", ["k134", "k137"])
async def test_a_short_pod_is_given_back_though_no_list_has_named_it(kubelet: SimulatedKubelet) -> None:
    """Pods that were there before, with a device or without, do not keep it."""
    backend = Kept("w0", "w1")
    async with connected(kubelet, backend, pace=QUICK):
        await kubelet.admit(Pod(name="other", containers=[Container("main")]))
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await lists(kubelet)
        short = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(short.pod)
        await until(lambda: backend.returned, story=kubelet.events.story)
        await lists(kubelet)
        assert backend.returned == [(short.devices(RESOURCE), {"number": 2})]


class Choosy(Kept):
    """Refuses the second container that asks."""

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if self.number == 1:
            raise kdp.AllocationError("the second container is refused")
        return super().allocate(devices)


async def test_a_pod_that_is_refused_after_an_allocate_is_given_back(kubelet: SimulatedKubelet) -> None:
    backend = Choosy("w0", "w1")
    pod = Pod(name="refused", containers=[Container("first", {RESOURCE: 1}), Container("second", {RESOURCE: 1})])
    async with connected(kubelet, backend, pace=QUICK):
        with pytest.raises(AdmissionError):
            await kubelet.admit(pod)
        await until(lambda: backend.returned, story=kubelet.events.story)
        await anyio.sleep(2 * QUICK.gap)
        assert [state for _, state in backend.returned] == [{"number": 1}]


async def test_a_vanished_device_stays_for_as_long_as_a_pod_holds_it(kubelet: SimulatedKubelet) -> None:
    backend = Kept("w0", "w1", "w2")
    async with connected(kubelet, backend, pace=QUICK):
        held = (await kubelet.admit(Pod.asking({RESOURCE: 1}))).devices(RESOURCE)
        backend.devices = []
        (await backend.report()).rescan()
        await kubelet.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 0})
        assert kubelet.devices(RESOURCE).keys() == set(held)
        await lists(kubelet)
        assert kubelet.devices(RESOURCE).keys() == set(held)
        [pod] = kubelet.pods.values()
        await kubelet.delete(pod)
        await kubelet.until(capacity={RESOURCE: 0})
        await until(lambda: backend.returned)


async def test_a_device_that_vanished_before_the_plugin_came_is_listed_while_a_pod_holds_it(
    kubelet: SimulatedKubelet,
) -> None:
    """Else the pod's status calls it healthy, and the next kubelet does not survive a list without it (B14, B26)."""
    async with connected(kubelet, Widgets("w0", "w1"), pace=QUICK):
        admitted = [await kubelet.admit(Pod.asking({RESOURCE: 1})) for _ in range(2)]
    async with connected(kubelet, Widgets("w0"), pace=QUICK):
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        await lists(kubelet)
        assert kubelet.devices(RESOURCE).keys() == {"w0", "w1"}
        for pod in admitted:
            await kubelet.delete(pod.pod)
        await kubelet.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 1})


async def test_a_shared_device_is_released_after_its_last_replica_also_across_a_restart(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    first = Kept("card")
    async with connected(kubelet, share(first, Sharing(replicas=3)), pace=QUICK, state_dir=tmp_path) as manager:
        one = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        two = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: len(manager.status().resources[RESOURCE].holders or {}) == 2)
    second = Kept("card")
    async with connected(kubelet, share(second, Sharing(replicas=3)), pace=QUICK, state_dir=tmp_path) as manager:
        await until(lambda: len(manager.status().resources[RESOURCE].holders or {}) == 2)
        await kubelet.delete(one.pod)
        await until(lambda: len(manager.status().resources[RESOURCE].holders or {}) == 1)
        await lists(kubelet)
        assert second.returned == []
        await kubelet.delete(two.pod)
        await until(lambda: second.returned)
        assert second.returned == [(("card",), {"number": 2})]
    assert os.listdir(tmp_path) == []


class Prepared(Kept):
    """Widgets that write down the state with which each container starts."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.starts: list[dict[str, object]] = []

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self.starts.append(dict(devices.state))


async def test_a_container_started_with_the_state_of_an_earlier_pods_allocation(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """The process that gave the device to the pod could not save that, and the next process read an older file."""
    backend = Prepared("w0")
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: any(first.pod.name in path.read_text() for path in tmp_path.glob("*.json")))
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path):
        await kubelet.start_container(first.pod)
    await kubelet.delete(first.pod)
    async with connected(kubelet, backend, pace=QUICK, state_dir=None):
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    async with connected(kubelet, backend, pace=QUICK, state_dir=tmp_path) as manager:
        await until(lambda: manager.status().resources[RESOURCE].holders)
        await kubelet.start_container(second.pod)
    assert backend.starts == [{"number": 1}, {"number": 1}, {"number": 2}, {}]


async def test_the_instance_that_stayed_knew_nothing_of_the_pods_of_one_that_came_and_was_killed(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """It owed nothing itself, so it took nothing over, and a container started with an empty state."""
    stays, comes = Prepared("w0", "w1"), Prepared("w0", "w1")
    outgoing = Outgoing(lambda: connected(kubelet, comes, pace=QUICK, state_dir=tmp_path))
    async with connected(kubelet, stays, pace=QUICK, state_dir=tmp_path), anyio.create_task_group() as tasks:
        await tasks.start(outgoing.run)
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: any("number" in path.read_text() for path in tmp_path.glob("*.json")))
        await outgoing.end()
        await kubelet.until(streaming=RESOURCE)
        await kubelet.start_container(admitted.pod)
        await kubelet.delete(admitted.pod)
        await until(lambda: stays.returned)
    assert (comes.starts, stays.starts) == ([{"number": 1}], [{"number": 1}])
    assert stays.returned == [(admitted.devices(RESOURCE), {"number": 1})]


class Slow(Kept):
    """Widgets whose library takes its time."""

    @override
    def discover(self) -> Iterable[kdp.Device]:
        time.sleep(0.3)
        return super().discover()


async def test_nothing_is_taken_over_before_it_is_known_which_devices_there_are(
    kubelet: SimulatedKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was, of a resource that the class names, and the devices were judged without being known."""
    async with connected(kubelet, Kept("w0"), pace=QUICK, state_dir=tmp_path):
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: [*tmp_path.glob("*.json")])
    second = Slow("w0")
    caplog.clear()
    async with connected(kubelet, second, pace=QUICK, state_dir=tmp_path):
        await kubelet.delete(admitted.pod)
        await until(lambda: second.returned)
    told = [message for message in caplog.messages if "discovered" in message or "taken over" in message]
    assert told == ["Slow: devices discovered: 1", f"{RESOURCE}: allocations taken over: 1"]


# -- the faults of the pod-resources API (contract section 14) ---------------------------------------------------------


async def test_without_the_api_nothing_is_released_and_that_is_said_once(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdp.concurrency.backoff.Backoff.next", lambda _self: 0.1)
    tries = 0

    def missing(_: PodResources) -> None:
        nonlocal tries
        tries += 1

    monkeypatch.setattr(PodResources, "made_at", missing)
    backend = Kept("w0", "w1")
    async with connected(kubelet, backend, pace=QUICK):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [held] = pod.devices(RESOURCE)
        await kubelet.delete(pod.pod)
        backend.devices = [each for each in backend.devices if each.id != held]
        (await backend.report()).rescan()
        await kubelet.until(allocatable={RESOURCE: 1})
        before = tries
        await until(lambda: tries > before + LISTS)
        assert kubelet.capacity() == {RESOURCE: 2}
    assert backend.returned == []
    assert caplog.text.count("cannot see which pod holds which device") == 1


# -- a process that is killed ------------------------------------------------------------------------------------------


@contextmanager
def process(kubelet: SimulatedKubelet, state: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = Path(__file__).parents[2] / "node/returning.py"
    root = kubelet.paths.device_plugin_dir.parent
    started = subprocess.Popen([sys.executable, program, root, state, log])
    try:
        yield started
    finally:
        started.kill()
        started.wait()


async def test_a_killed_plugin_forgets_nothing(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "log"

    def said(what: str) -> list[object]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [[ids, kept] for line in lines for kind, ids, kept in [json.loads(line)] if kind == what]

    with process(kubelet, state, log) as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [held] = pod.devices(RESOURCE)
        # In the file that counts, not only in the draft of one: what is killed before that has not seen the pod.
        await until(lambda: ['"seen": true' in path.read_text() for path in state.glob("*.json")] == [True])
        plugin.send_signal(signal.SIGKILL)
        plugin.wait()
        await kubelet.until(allocatable={RESOURCE: 0})
    await kubelet.delete(pod.pod)  # while nobody is there
    with process(kubelet, state, log):
        await kubelet.until(allocatable={RESOURCE: 2})
        await until(lambda: said("released"))
        assert said("released") == [[[held], {"for": held}]]
        await until(lambda: not list(state.iterdir()))


async def test_what_cannot_be_saved_is_said_and_allocated_all_the_same(
    kubelet: SimulatedKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file is in the way")
    caplog.set_level(logging.INFO, "kdp")
    backend = Kept("w0")
    async with running(kubelet, backend, pace=QUICK, state_dir=tmp_path / "state"):
        await kubelet.until(allocatable={RESOURCE: 1})
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert "state cannot be" in caplog.text
        await lists(kubelet, 2)
        await kubelet.delete(pod.pod)
        await until(lambda: backend.returned)


class Resetting(Kept):
    """`released` returns when it may."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.may_return = threading.Event()

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.may_return.wait()
        super().released(devices)


async def test_a_release_beyond_its_deadline_reset_the_device_of_the_next_pod(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """The device was given away, and later offered, although the hook's thread was still at it."""
    backend = Resetting("w0", "w1")
    deadlines = Deadlines(released=0.05, allocate=0.3)
    async with connected(kubelet, backend, pace=QUICK, deadlines=deadlines) as manager:
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [held] = first.containers["main"].devices[RESOURCE]
        await kubelet.delete(first.pod)
        await kubelet.until(allocatable={RESOURCE: 1})
        assert "did not return within 0.05 s" in caplog.text
        [plugin] = manager.status().resources.values()
        assert str(plugin.listed[held].health).startswith("Unhealthy (still being cleaned up after its last pod, since")
        backend.may_return.set()
        await kubelet.until(allocatable={RESOURCE: 2})
        for _ in range(2):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
    assert len(backend.returned) == 1


async def test_what_a_failed_preparation_had_noted_was_lost(kubelet: SimulatedKubelet) -> None:
    """A partition that `prepare_container` had made before it raised was never removed."""

    class Partitioned(Kept):
        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            devices.state["partition"] = 7
            raise kdp.AllocationError("no room for the second one")

    backend = Partitioned("w0")
    async with connected(kubelet, backend, pace=QUICK):
        with pytest.raises(ContainerStartError) as refused:
            await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))
        assert "no room for the second one" in str(refused.value)
        [uid] = kubelet.pods
        await kubelet.delete(uid)
        await until(lambda: backend.returned)
    assert backend.returned == [(("w0",), {"number": 1, "partition": 7})]


async def test_what_a_preparation_notes_after_its_deadline_was_lost(kubelet: SimulatedKubelet) -> None:
    """`released` ran beside it, with the state of before, so nothing undid the preparation."""
    goes_on, calls = threading.Event(), list[str]()

    class Slow(Kept):
        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            goes_on.wait(PATIENCE)
            devices.state["partition"] = 7
            calls.append("prepared")

        @override
        def released(self, devices: kdp.Allocation) -> None:
            calls.append("released")
            super().released(devices)

    backend = Slow("w0")
    async with connected(kubelet, backend, pace=QUICK, deadlines=Deadlines(prepare_container=0.2)):
        with pytest.raises(ContainerStartError) as refused:
            await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))
        assert "did not return within" in str(refused.value)
        [uid] = kubelet.pods
        await kubelet.delete(uid)
        await lists(kubelet)
        goes_on.set()
        await until(lambda: backend.returned)
    assert calls == ["prepared", "released"]
    assert backend.returned == [(("w0",), {"number": 1, "partition": 7})]


async def test_a_preparation_was_called_without_any_time_left_and_was_said_to_hang(kubelet: SimulatedKubelet) -> None:
    """A scrub before it had taken all of it."""
    calls = list[str]()

    class Slow(Kept):
        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            calls.extend(devices.ids)

    async with connected(kubelet, Slow("w0"), pace=QUICK, deadlines=Deadlines(prepare_container=0.0)):
        with pytest.raises(ContainerStartError) as refused:
            await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))
    assert "device w0: no time was left for prepare_container(); the kubelet starts the container again" in str(
        refused.value
    )
    assert calls == []


async def test_the_state_of_a_pod_that_ended_amid_its_start_became_the_next_pods(kubelet: SimulatedKubelet) -> None:
    """The next pod had the device by then, and `prepare_container` of the first wrote into the newest allocation."""
    starts, goes_on = threading.Event(), threading.Event()

    class Slow(Kept):
        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            devices.state["prepared"] = devices.state["number"]
            if devices.state["number"] == 1:
                starts.set()
                goes_on.wait(PATIENCE)

    async def start() -> None:
        with suppress(ContainerStartError, ScenarioError):  # the pod ends meanwhile
            await kubelet.start_container(first.pod)

    backend = Slow("w0")
    async with connected(kubelet, backend, pace=QUICK), anyio.create_task_group() as tasks:
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)
        tasks.start_soon(start)
        await until(starts.is_set)
        await kubelet.delete(first.pod)
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)
        goes_on.set()
        await kubelet.start_container(second.pod)
        await kubelet.delete(second.pod)
        await until(lambda: len(backend.returned) == 2)
    states = [state for _, state in backend.returned]
    assert sorted(states, key=str) == [{"number": 1, "prepared": 1}, {"number": 2, "prepared": 2}]


async def test_a_container_that_started_again_in_an_update_had_no_state(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """The new process had not given the device, so `prepare_container` got an empty state."""

    class Counting(Kept):
        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            devices.state["starts"] = [*devices.state.get("starts", ()), devices.state["number"]]

    first, second = Counting("w0"), Counting("w0")
    pace = attrs.evolve(QUICK, lasting=60.0)  # neither registers anew because the kubelet believes the other one
    outgoing = Outgoing(lambda: connected(kubelet, first, pace=pace, state_dir=tmp_path))
    async with anyio.create_task_group() as tasks:
        await tasks.start(outgoing.run)
        pod = (await kubelet.admit(Pod.asking({RESOURCE: 1}))).pod
        async with running(kubelet, second, pace=pace, state_dir=tmp_path) as manager:
            await until(lambda: manager.is_ready)
            await kubelet.until(allocatable={RESOURCE: 1})
            for _ in range(2):
                await kubelet.start_container(pod)
            await outgoing.end()
            await kubelet.start_container(pod)
            await kubelet.delete(pod)
            await until(lambda: bool(second.returned))
    assert first.returned == []
    assert second.returned == [(("w0",), {"number": 1, "starts": [1, 1, 1, 1]})]
