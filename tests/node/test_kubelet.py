"""kdp beside a whole kubelet and containerd: what a container really gets."""

from __future__ import annotations

import os
import statistics
import time

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.cdi import CdiDirectory, CdiSpec, cdi_kind, render_device
from kdp.deviceplugin.options import Pace
from kdp.hardware import Host
from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1

from .backend import RESOURCE, Figure, Widgets, eventually, running
from .nodekit import Kubelet
from .nodekit.image import STAY
from .nodekit.recorder import Listed, Recorder

NODE = "/dev/fuse"
"""A device that no container may open unless it was given it."""

OPENS = f"[ -c {NODE} ] && : <> {NODE} && echo opened; env; {STAY}"


class Fuse(Widgets):
    """Devices that all are /dev/fuse."""

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        super().allocate(devices)
        return kdp.ContainerEdits(
            env={"WIDGETS": ",".join(sorted(d.id for d in devices))}, device_nodes=[kdp.DeviceNode(host_path=NODE)]
        )


class Plain(kdp.DeviceBackend):
    """Devices that say all of it themselves."""

    resource = RESOURCE

    def __init__(self, *devices: kdp.Device) -> None:
        self._devices = devices

    @override
    def discover(self) -> tuple[kdp.Device, ...]:
        return self._devices


async def test_a_pod_opens_the_device(kubelet: Kubelet, figure: Figure) -> None:
    backend = Fuse("w0")
    async with running(kubelet.paths, backend) as manager:
        await eventually(lambda: manager.is_ready)
        began = time.monotonic()
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        said = await kubelet.until_said("one", "WIDGETS=w0")
        figure(f"{kubelet.containerd}: manifest to the container's first words", time.monotonic() - began, "s")
        assert "opened" in said
        kubelet.put("two", {RESOURCE: 1}, OPENS)
        refused = await kubelet.until_pod("two", "Failed")
        assert refused["status"]["reason"] == "UnexpectedAdmissionError"
        assert refused["status"]["message"].endswith(
            f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
            "Requested: 1, Available: 0, which is unexpected"
        )


@pytest.mark.parametrize("kubelet", ["containerd-2"], indirect=True)
@pytest.mark.parametrize("kubelet_options", [{"root": "/var/lib/k0s/kubelet"}])
async def test_only_the_plugin_directory_stays_when_the_root_directory_moves(
    kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """What `KubeletPaths.under` says, and what k0s and MicroK8s have."""
    caplog.set_level("INFO")
    paths = kubelet.paths
    assert paths.kubelet_socket == kubelet.work / "lib/kubelet/device-plugins/kubelet.sock"
    await eventually(paths.pod_resources_socket.is_socket)
    await eventually(paths.pods_api_socket.is_socket)
    assert paths.plugins_registry_dir.is_dir()
    assert paths.plugins_dir.is_dir()
    assert set(os.listdir(kubelet.work / "lib/kubelet")) == {"device-plugins", "pki"}  # pki: the kubelet's --cert-dir
    assert not (kubelet.work / "lib/k0s/kubelet/device-plugins").exists()
    async with running(paths, Fuse("w0")) as manager:
        await eventually(lambda: manager.is_ready)
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        await kubelet.until_said("one", "opened")
    assert "cannot see which pod holds which device" not in caplog.text


async def test_a_link_is_followed_at_each_start_of_a_container(kubelet: Kubelet) -> None:
    """So a reply that names a link stays right when the hardware behind it gets another number."""
    link = kubelet.work / "by-id"
    link.symlink_to("/dev/null")
    node = kdp.DeviceNode(host_path=link, container_path="/dev/w0")
    device = kdp.Device(id="w0", edits=kdp.ContainerEdits(device_nodes=[node]))
    async with running(kubelet.paths, Plain(device)) as manager:
        await eventually(lambda: manager.is_ready)
        kubelet.put("one", {RESOURCE: 1}, f"ls -l /dev/w0; {STAY}", restart="Always")
        await kubelet.until_said("one", "1,   3")
        link.unlink()
        link.symlink_to("/dev/zero")
        await kubelet.kill_containers()
        await kubelet.until_said("one", "1,   5")


async def test_a_pod_without_the_resource_has_no_device(kubelet: Kubelet) -> None:
    kubelet.put("none", {}, f"[ -e {NODE} ] && echo there; echo done")
    assert "there" not in await kubelet.until_said("none", "done")


async def test_a_vanished_device_refuses_the_next_pod(kubelet: Kubelet) -> None:
    backend = Fuse("w0", "w1")
    async with running(kubelet.paths, backend) as manager:
        await eventually(lambda: manager.is_ready)
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        await kubelet.until_said("one", "opened")
        backend.put()
        await eventually(lambda: manager.status().resources[RESOURCE].healthy == 0)
        await until_health(kubelet, "one", "Unhealthy", devices=("w0", "w1"))  # the kubelet has read the list
        kubelet.put("two", {RESOURCE: 1}, OPENS)
        refused = await kubelet.until_pod("two", "Failed")
        assert (
            f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}" in refused["status"]["message"]
        )
        assert (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_cdi_name_in_allocates_reply_is_followed(kubelet: Kubelet) -> None:
    """Both runtimes find in kdp's file what the name stands for."""
    node = kdp.DeviceNode(host_path=NODE, container_path="/dev/w0")
    device = render_device(
        kdp.Device(id="w/0", edits=kdp.ContainerEdits(env={"BY_CDI": "w0"}, device_nodes=[node])), Host()
    )
    assert device is not None
    kind = cdi_kind(RESOURCE)
    CdiDirectory(kubelet.cdi).write(CdiSpec(kind=kind, devices=[device]))
    plugin = Recorder(kubelet.paths.device_plugin_dir, "plugin.sock", resource=RESOURCE, calls=[])
    plugin.devices = [Listed("w/0")]
    names = [v1beta1.CDIDevice(name=f"{kind}={device.name}")]
    plugin.allocate = lambda asked: [v1beta1.ContainerAllocateResponse(cdi_devices=names) for _ in asked]
    await plugin.serve()
    try:
        assert await plugin.register(kubelet.paths.kubelet_socket) == "ok"
        await eventually(lambda: plugin.streams)
        kubelet.put("one", {RESOURCE: 1}, f": <> /dev/w0 && echo opened; env; {STAY}")
        assert "opened" in await kubelet.until_said("one", "BY_CDI=w0")
    finally:
        await plugin.stop()


async def test_a_kubelet_killed_twenty_times_under_a_running_pod(kubelet: Kubelet, figure: Figure) -> None:
    backend = Fuse("w0", "w1")
    took: list[float] = []
    async with running(kubelet.paths, backend) as manager:
        await eventually(lambda: manager.is_ready)
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        await kubelet.until_said("one", "opened")
        before = (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]
        for _ in range(20):
            await kubelet.crash()
            await eventually(lambda: not manager.is_ready)
            await kubelet.start()
            began = time.monotonic()
            await eventually(lambda: manager.is_ready)
            took.append(1e3 * (time.monotonic() - began))
        after = (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]
        assert after["containerID"] == before["containerID"]
        assert after["restartCount"] == 0
        assert len(backend.calls) == 1
        kubelet.put("two", {RESOURCE: 1}, OPENS)
        assert "opened" in await kubelet.until_said("two", "WIDGETS")
    figure(f"{kubelet.containerd}: registered again, median of 20", statistics.median(took), "ms")
    figure(f"{kubelet.containerd}: registered again, slowest of 20", max(took), "ms")


class Returning(Fuse):
    """Writes down what is released."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.returned: list[tuple[str, ...]] = []

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.returned.append(devices.ids)


async def test_a_pods_end_is_told_once(kubelet: Kubelet, figure: Figure) -> None:
    """With the kubelet's own word that it knows all its pods (the pods API), not after ten minutes."""
    backend = Returning("w0", "w1")
    pace = Pace(gap=2.0)
    async with running(kubelet.paths, backend, pace=pace) as manager:
        await eventually(lambda: manager.is_ready)
        for name, script in (("short", "sleep 2"), ("long", STAY)):
            kubelet.put(name, {RESOURCE: 1}, script)
            await kubelet.until_pod(name, "Running")
        await eventually(lambda: len(manager.status().resources[RESOURCE].holders or {}) == 2)
        assert set((manager.status().resources[RESOURCE].holders or {}).values()) == {
            "default/short-node0 (main)",
            "default/long-node0 (main)",
        }
        await kubelet.until_pod("short", "Succeeded")
        ended = time.monotonic()
        await eventually(lambda: backend.returned)
        figure(f"{kubelet.containerd}: a pod has succeeded to released()", time.monotonic() - ended, "s")
        kubelet.remove("long")
        await eventually(lambda: len(backend.returned) == 2, seconds=60.0)
        await kubelet.restart()
        await anyio.sleep(5.0)
        assert sorted(backend.returned) == [("w0",), ("w1",)]


async def test_a_kubelet_that_restarts_under_a_pod_frees_nothing(kubelet: Kubelet) -> None:
    backend = Returning("w0")
    async with running(kubelet.paths, backend, pace=Pace(gap=1.0)) as manager:
        await eventually(lambda: manager.is_ready)
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        await kubelet.until_said("one", "opened")
        for _ in range(3):
            await kubelet.restart()
            await anyio.sleep(3.0)
        assert backend.returned == []
        kubelet.remove("one")
        await eventually(lambda: backend.returned, seconds=60.0)
        assert backend.returned == [("w0",)]


async def test_the_pods_status_shows_the_unhealthy_device(kubelet: Kubelet) -> None:
    backend = Fuse("w0")
    async with running(kubelet.paths, backend) as manager:
        await eventually(lambda: manager.is_ready)
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        await kubelet.until_said("one", "opened")
        backend.put(kdp.Device(id="w0", health=kdp.Health.unhealthy("it smells of smoke")))
        await until_health(kubelet, "one", "Unhealthy")
        backend.put()  # vanished: still listed, and still shown as unhealthy
        await eventually(lambda: manager.status().resources[RESOURCE].healthy == 0)
        await until_health(kubelet, "one", "Unhealthy")
        backend.put(kdp.Device(id="w0"))
        await until_health(kubelet, "one", "Healthy")


async def until_health(kubelet: Kubelet, pod: str, health: str, *, devices: tuple[str, ...] = ("w0",)) -> None:
    """Wait until the pod's status says this of its only device, which is one of these."""
    wanted = [[{"name": RESOURCE, "resources": [{"resourceID": each, "health": health}]}] for each in devices]
    deadline = time.monotonic() + 60.0
    status: object = None
    while time.monotonic() < deadline:
        found = await kubelet.pod(pod)
        status = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus") if found else None
        if status in wanted:
            return
        await anyio.sleep(0.1)
    raise AssertionError(f"the device is not shown {health}: {status}\n{kubelet.story()}")
