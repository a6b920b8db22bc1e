"""kdp beside a whole kubelet and containerd: what a container really gets."""

from __future__ import annotations

import statistics
import time

from typing_extensions import override

import kdp
from kdp.cdi import CdiDirectory, CdiSpec, cdi_kind, render_device
from kdp.hardware import Host
from kdp.proto.deviceplugin.v1beta1 import api_pb2 as v1beta1

from .backend import RESOURCE, Figure, Widgets, eventually, running
from .nodekit import Kubelet
from .nodekit.recorder import Listed, Recorder

NODE = "/dev/fuse"
"""A device that no container may open unless it was given it."""

OPENS = f"[ -c {NODE} ] && : <> {NODE} && echo opened; env; sleep 1000"


class Fuse(Widgets):
    """Devices that all are /dev/fuse."""

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        super().allocate(devices)
        return kdp.ContainerEdits(
            env={"WIDGETS": ",".join(sorted(d.id for d in devices))}, device_nodes=[kdp.DeviceNode(host_path=NODE)]
        )


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
        kubelet.put("one", {RESOURCE: 1}, ": <> /dev/w0 && echo opened; env; sleep 1000")
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
