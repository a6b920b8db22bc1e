"""Nothing is forgotten: what a crash took, what was never saved, and what the first list has."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin import manager as manager_module
from kdp.proto import deviceplugin_v1beta1_pb2 as pb
from kdp.storage.journal import read
from kdp.testing import AdmissionError, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, lists, until
from .test_release import QUICK, Kept
from .test_scrub import state_files


def saved(directory: Path) -> dict[str, Mapping[str, Any]]:
    """Return the saved allocations by uid."""
    found: dict[str, Mapping[str, Any]] = {}
    for data in state_files(directory).values():
        found |= read(data, field="allocations").records
    return found


async def test_an_allocation_of_a_moment_in_which_the_disk_was_full_was_never_released(
    kubelet: SimulatedKubelet, tmp_path: Path, is_full: threading.Event
) -> None:
    """Chaos on the real device manager 1.36: no call saved it again, and the orderly stop did not either."""
    backend = Kept("w0", "w1")
    options = {"pace": QUICK, "state_dir": tmp_path}
    async with connected(kubelet, backend, **options) as manager:
        is_full.set()
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert "No space left on device" in (manager.state_problem or "")
        is_full.clear()
        await until(lambda: manager.state_problem is None)
    [entry] = saved(tmp_path).values()
    assert entry["state"] == {"number": 1}
    after = Kept("w0", "w1")
    async with connected(kubelet, after, **options):
        await kubelet.delete(pod.pod)
        await until(lambda: bool(after.returned))
    assert after.returned == [(pod.devices(RESOURCE), {"number": 1})]


async def test_a_device_that_a_pod_holds_and_no_file_knows_is_released(
    kubelet: SimulatedKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node lost its state directory while the plugin was down."""
    options = {"pace": QUICK, "state_dir": tmp_path}
    async with connected(kubelet, Kept("w0", "w1"), **options):
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
    for path in state_files(tmp_path):
        path.unlink()
    after = Kept("w0", "w1")
    caplog.set_level(logging.WARNING, "kdp")
    async with connected(kubelet, after, **options):
        await until(lambda: "no saved allocation has them" in caplog.text)
        await until(lambda: bool(saved(tmp_path)))
        assert after.returned == []
        await kubelet.delete(pod.pod)
        await until(lambda: bool(after.returned))
    assert after.returned == [(pod.devices(RESOURCE), {})]
    assert saved(tmp_path) == {}


async def test_the_first_list_has_a_held_device_that_has_vanished(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """It came 0.2 s later, after a List; a kubelet that readmitted the pod meanwhile ended with a panic."""
    gone, stays = (
        kdp.Device(id=name, numa_nodes=[node], edits=kdp.ContainerEdits.of_node(path))
        for name, node, path in (("w0", 0, "/dev/null"), ("w1", 1, "/dev/zero"))
    )
    before, after = Widgets(), Widgets()
    before.devices, after.devices = [gone], [stays]
    options = {"pace": QUICK, "state_dir": tmp_path}
    async with connected(kubelet, before, **options):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: bool(saved(tmp_path)))
    seen = len(lists(kubelet))
    async with connected(kubelet, after, **options):
        first = pb.ListAndWatchResponse.FromString(lists(kubelet)[seen].payload)
        assert {each.ID: (each.health, [node.ID for node in each.topology.nodes]) for each in first.devices} == {
            "w0": ("Unhealthy", [0]),
            "w1": ("Healthy", [1]),
        }


async def test_a_removed_state_directory_is_written_again(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "QUIET_PAUSE", 0.05)
    async with connected(kubelet, Kept("w0"), pace=QUICK, state_dir=tmp_path):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        before = saved(tmp_path)
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)
        await until(lambda: bool(saved(tmp_path)))
        assert saved(tmp_path).keys() == before.keys()


async def test_a_plugin_that_was_killed_in_its_hook_releases_what_the_hook_left(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """The record is in the file before the hook touches the hardware, and a refused Allocate takes it out again."""
    seen: list[int] = []

    class Watching(Kept):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            seen.append(len(saved(tmp_path)))
            if self.number:
                raise kdp.AllocationError("the card does not answer")
            return super().allocate(devices)

    async with connected(kubelet, Watching("w0", "w1"), pace=QUICK, state_dir=tmp_path):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        with pytest.raises(AdmissionError, match="the card does not answer"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert seen == [1, 2]
        with anyio.fail_after(10):
            while len(saved(tmp_path)) != 1:  # noqa: ASYNC110 - the disk tells nobody
                await anyio.sleep(0.01)
