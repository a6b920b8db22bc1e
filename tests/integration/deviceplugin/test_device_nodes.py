"""Device nodes that change in the moments in which nobody follows them yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kdp
from kdp.hardware import Host
from kdp.testing import Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected


async def test_a_node_that_vanishes_before_it_is_followed(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody told of it, and without a poll its device stayed healthy for ever."""
    paths = [tmp_path / "widget0", tmp_path / "widget1"]
    for path in paths:
        path.symlink_to("/dev/null")
    look = Host.look
    going = {os.fspath(paths[0])}

    def look_and_lose(host: Host, host_path: str) -> tuple[int, int] | None:
        found = look(host, host_path)
        if host_path in going:
            going.remove(host_path)
            os.unlink(host_path)
        return found

    monkeypatch.setattr(Host, "look", look_and_lose)
    backend = Widgets(*(kdp.Device(id=path.name, edits=kdp.ContainerEdits.of_node(path)) for path in paths))
    async with connected(kubelet, backend):
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})


async def test_a_device_node_as_a_mount_gave_no_right_to_open_it(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    card, file = tmp_path / "card", tmp_path / "file"
    for path in (card, file):
        path.touch()
    number = Host.device_number
    monkeypatch.setattr(
        Host, "device_number", lambda host, path: (240, 0) if path == os.fspath(card) else number(host, path)
    )
    mounts = [kdp.Mount(host_path=path) for path in (card, file, "/dev/null")]
    async with connected(kubelet, Widgets(kdp.Device(id="w0", edits=kdp.ContainerEdits(mounts=mounts)))):
        await kubelet.until(allocatable={RESOURCE: 1})
    (line,) = [record.getMessage() for record in caplog.records if "device node" in record.getMessage()]
    assert line.startswith(f"a device mounts the device node {tmp_path}/card, which gives no right to open it")


async def test_a_missing_mount_source_was_a_black_hole_for_pods(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """Each Allocate was refused, and its device stayed healthy."""
    source = tmp_path / "firmware" / "w0.bin"
    mount = kdp.Mount(host_path=source, container_path="/firmware.bin", read_only=True)
    backend = Widgets(kdp.Device(id="w0", edits=kdp.ContainerEdits(mounts=[mount])), "w1")
    async with connected(kubelet, backend) as manager:
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        assert manager.status().resources[RESOURCE].faults["w0"].reason == f"mount source {source} does not exist"
        source.parent.mkdir()
        source.touch()
        await kubelet.until(allocatable={RESOURCE: 2})
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
        source.unlink()
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
