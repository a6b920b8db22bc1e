"""Hardware that comes back under another number while pods hold it.

The kubelet keeps Allocate's reply and gives it again at each start of a container. Rebuilt from public reports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.cdi import CdiOptions
from kdp.deviceplugin.tracking import records
from kdp.storage.journal import Journal
from kdp.testing import AdmissionError, Pod, SimulatedKubelet, SysfsTree

from .helpers import RESOURCE, Widgets, connected, until
from .test_release import QUICK, lists


class Adapters(Widgets):
    """Adapters by the links below ``/dev/by-id``; with ``numbers`` it names what they lead to."""

    poll_interval = 0.05

    def __init__(self, tree: SysfsTree, *, numbers: bool = False) -> None:
        super().__init__()
        self.host = tree.host
        self._tree = tree
        self._numbers = numbers
        for number in (0, 1):
            tree.stand_in(f"/dev/adapter{number}", major=240, minor=number)
        self.plug(A=0, B=1)

    def plug(self, **numbers: int) -> None:
        """Have the adapters under these numbers."""
        for name, number in numbers.items():
            if self.host.exists(f"/dev/by-id/{name}"):
                self._tree.remove(f"/dev/by-id/{name}")
            self._tree.link(f"/dev/by-id/{name}", f"/dev/adapter{number}")

    def unplug(self, name: str) -> None:
        """Have this adapter no more."""
        self._tree.remove(f"/dev/by-id/{name}")

    @override
    def discover(self) -> Iterable[kdp.Device]:
        for link in sorted(self.host.glob("/dev/by-id/*")):
            path = self.host.resolve(link) if self._numbers else link
            yield kdp.Device(id=link[-1], edits=kdp.ContainerEdits.of_node(path))


def list_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.json"))


async def starts_with(kubelet: SimulatedKubelet, backend: Adapters, pod: Pod) -> str:
    """Start a pod's container again; return what it gets."""
    reply = (await kubelet.start_container(pod)).reply
    return backend.host.resolve(reply.devices[0].host_path)


async def test_the_target_of_a_link_was_frozen_in_the_reply(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """Two adapters came back under each other's number: each pod had the other's, and both were Healthy."""
    backend = Adapters(SysfsTree(tmp_path))
    async with connected(kubelet, backend, pace=QUICK, host=backend.host):
        pods = [await kubelet.admit(Pod.asking({RESOURCE: 1})) for _ in "AB"]
        backend.plug(A=1, B=0)
        for pod in pods:
            [held] = pod.devices(RESOURCE)
            assert await starts_with(kubelet, backend, pod.pod) == backend.host.resolve(f"/dev/by-id/{held}")


async def test_a_number_that_moved_was_listed_healthy(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """Where there is no link, nothing mends the reply: the device is Unhealthy until its pod is gone."""
    backend, state = Adapters(SysfsTree(tmp_path / "node"), numbers=True), tmp_path / "state"
    reason = "is /dev/adapter1 now; the pod was given /dev/adapter0; delete the pod"
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 2}))
        backend.plug(A=1, B=0)
        await kubelet.until(allocatable={RESOURCE: 0})
        fault = manager.status().resources[RESOURCE].faults["A"]
        assert (fault.kinds, fault.reason) == (("outdated",), reason)
    backend = Adapters(SysfsTree(tmp_path / "node"), numbers=True)
    backend.plug(A=1, B=0)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state) as manager:
        assert not any(d.health.is_healthy for d in manager.status().resources[RESOURCE].listed.values())
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(pod.pod)
        await kubelet.until(allocatable={RESOURCE: 2})
        assert not list_of(state)
        again = await kubelet.admit(Pod.asking({RESOURCE: 2}))
        assert {node.host_path for node in again.reply("main").devices} == {"/dev/adapter0", "/dev/adapter1"}


@pytest.mark.parametrize("is_unplugged", [False, True], ids=["swapped", "unplugged"])
async def test_a_free_adapter_came_under_a_number_that_a_living_pod_was_given(
    is_unplugged: bool, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """It was Healthy, so that a second pod got it; and the first one's container opened it, too, at its next start."""
    backend, state = Adapters(SysfsTree(tmp_path / "node"), numbers=True), tmp_path / "state"
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [held] = pod.devices(RESOURCE)
        [free] = {"A", "B"} - {held}
        number = {"A": 0, "B": 1}[held]
        reason = f"held as {held} of {RESOURCE} by "
        if is_unplugged:
            backend.unplug(held)
        else:
            backend.plug(**{held: 1 - number})
        backend.plug(**{free: number})
        await until(
            lambda: (
                free in (faults := manager.status().resources[RESOURCE].faults)
                and (faults[free].reason or "").startswith(reason)
            )
        )
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state) as manager:
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert (manager.status().resources[RESOURCE].faults[free].reason or "").startswith(reason)
        await kubelet.delete(pod.pod)
        await kubelet.until(allocatable={RESOURCE: 1 if is_unplugged else 2})


class Seats(Widgets):
    """Several devices with one node."""

    poll_interval = 0.05
    count = 3

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [kdp.Device(id=f"seat{n}", edits=kdp.ContainerEdits.of_node("/dev/null")) for n in range(self.count)]


async def test_a_pod_was_admitted_while_two_devices_had_one_node(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """Found by drawn orders: amid a swap both had it, so it counted as seats, and the other stayed Healthy for good."""
    backend = Adapters(SysfsTree(tmp_path), numbers=True)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host) as manager:
        backend.plug(A=1)

        def is_seen() -> bool:
            listed = manager.status().resources[RESOURCE].listed.values()
            return all(node.host_path == "/dev/adapter1" for each in listed for node in each.edits.device_nodes)

        await until(is_seen)
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.plug(**{pod.devices(RESOURCE)[0]: 0})
        await kubelet.until(allocatable={RESOURCE: 0})


async def test_seats_of_one_node_are_given_on_when_a_held_one_is_gone(kubelet: SimulatedKubelet) -> None:
    """They are the same hardware, so that a smaller count withholds none."""
    backend = Seats()
    async with connected(kubelet, backend, pace=QUICK):
        await kubelet.admit(Pod.asking({RESOURCE: 3}))
        backend.count = 1
        await kubelet.until(capacity={RESOURCE: 3}, allocatable={RESOURCE: 1})


async def test_what_an_earlier_process_gave_is_known_late(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that took longer than the first list waits left the moved devices Healthy for good."""
    backend, state = Adapters(SysfsTree(tmp_path / "node"), numbers=True), tmp_path / "state"
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state):
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
    backend.plug(A=1, B=0)
    monkeypatch.setattr(records, "ADOPT_PATIENCE", 0.0)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state):
        await kubelet.until(allocatable={RESOURCE: 0})


async def test_a_plugin_that_starts_again_in_its_process_found_the_file_locked(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of its configuration. It took itself for a neighbour, and listed moved devices as Healthy."""
    close = Journal.close

    def slowly(journal: Journal) -> None:
        time.sleep(0.05)  # the disk's
        close(journal)

    monkeypatch.setattr(Journal, "close", slowly)
    backend, state = Adapters(SysfsTree(tmp_path / "node"), numbers=True), tmp_path / "state"
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state):
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
    backend.plug(A=1, B=0)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, state_dir=state) as manager:
        assert manager.status().resources[RESOURCE].faults.keys() == {"A", "B"}


async def test_a_cdi_file_kept_the_entry_of_a_device_whose_number_was_anothers(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    backend, directory = Adapters(SysfsTree(tmp_path / "node"), numbers=True), tmp_path / "cdi"
    cdi = CdiOptions(directory=directory, only=True)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, cdi=cdi):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [held] = pod.devices(RESOURCE)
        [free] = {"A", "B"} - {held}
        backend.unplug(held)
        backend.plug(**{free: {"A": 0, "B": 1}[held]})

        def names() -> set[str]:
            return {each["name"] for file in directory.iterdir() for each in json.loads(file.read_text())["devices"]}

        await until(lambda: names() == {free})
        await kubelet.until(allocatable={RESOURCE: 0})  # the container that runs can open the number
        await kubelet.delete(pod.pod)
        await kubelet.until(allocatable={RESOURCE: 1})


async def test_a_number_that_moves_back_is_healthy_again(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    backend = Adapters(SysfsTree(tmp_path), numbers=True)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host):
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
        backend.plug(A=1, B=0)
        await kubelet.until(allocatable={RESOURCE: 0})
        backend.plug(A=0, B=1)
        await kubelet.until(allocatable={RESOURCE: 2})


async def test_a_cdi_file_named_the_targets_of_before(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    backend, cdi = Adapters(SysfsTree(tmp_path / "node")), tmp_path / "cdi"

    def written() -> dict[str, str]:
        [file] = cdi.iterdir()
        devices = json.loads(file.read_text())["devices"]
        return {each["name"]: each["containerEdits"]["deviceNodes"][0]["hostPath"] for each in devices}

    options = CdiOptions(directory=cdi, only=True)
    async with connected(kubelet, backend, pace=QUICK, host=backend.host, cdi=options):
        assert written() == {"A": "/dev/adapter0", "B": "/dev/adapter1"}
        backend.plug(A=1, B=0)
        await until(lambda: written() == {"A": "/dev/adapter1", "B": "/dev/adapter0"})


async def test_an_id_that_came_to_mean_other_hardware(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """The node's name stays with the number: only the backend knows that it is another card now."""

    def card(serial: str) -> kdp.Device:
        return kdp.Device(id="w0", identity=f"serial {serial}", edits=kdp.ContainerEdits.of_node("/dev/null"))

    backend = Widgets(card("1"))
    options = CdiOptions(directory=tmp_path, only=True)
    async with connected(kubelet, backend, pace=QUICK, cdi=options) as manager:
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        backend.devices = [card("2")]
        (await backend.report()).rescan()
        await kubelet.until(allocatable={RESOURCE: 0})
        said = "is other hardware now (serial 2); the pod was given serial 1; delete the pod"
        assert manager.status().resources[RESOURCE].faults["w0"].reason == said
        assert not list_of(tmp_path)  # the container does not start
        await kubelet.delete(pod.pod)
        await kubelet.until(allocatable={RESOURCE: 1})
        assert list_of(tmp_path)


class Reset(Adapters):
    """Adapters that are reset when a pod has given them back, which fails at first."""

    def __init__(self, tree: SysfsTree) -> None:
        super().__init__(tree, numbers=True)
        self.fails = True
        self.tries: list[tuple[str, ...]] = []

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.tries.append(devices.ids)
        if self.fails:
            raise RuntimeError("busy")


async def test_an_adapter_was_reset_while_a_pod_had_it_under_another_name(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """The reset for the pod before had failed until then."""
    backend = Reset(SysfsTree(tmp_path))
    async with connected(kubelet, backend, pace=attrs.evolve(QUICK, retry=0.1), host=backend.host):
        backend.unplug("B")
        await kubelet.until(allocatable={RESOURCE: 1})
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.delete(first.pod)
        await until(lambda: backend.tries)
        backend.unplug("A")
        backend.plug(C=0)
        await kubelet.until(lambda: kubelet.devices(RESOURCE).keys() == {"C"}, allocatable={RESOURCE: 1})
        second = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        tries = len(backend.tries)
        backend.fails = False
        await lists(kubelet)
        assert len(backend.tries) == tries
        await kubelet.delete(second.pod)
        await until(lambda: {*backend.tries[tries:]} == {("A",), ("C",)})
