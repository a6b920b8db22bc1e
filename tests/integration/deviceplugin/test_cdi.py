"""CDI beside and instead of device nodes: what a pod gets, and that every name resolves if the kubelet may give it."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.cdi import CdiOptions
from kdp.deviceplugin.inventory import Inventory
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.status import ResourceStatus
from kdp.testing import AdmissionError, AdmittedPod, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, running, until

KIND = "kdp.example.com/widget"
Options = Callable[..., CdiOptions]
HOOK = kdp.CdiHook(name="createContainer", path="/opt/hook")


def widget(device_id: str, **more: Any) -> kdp.Device:
    edits: dict[str, Any] = {
        "env": {"ALL": device_id, f"HAS_{device_id[-1]}": "yes"},
        "device_nodes": [kdp.DeviceNode(host_path="/dev/null", container_path=f"/dev/{device_id}")],
        "mounts": [kdp.Mount(host_path="/etc", container_path=f"/w/{device_id}", read_only=True)],
        "annotations": {device_id: "noted"},
        **more,
    }
    return kdp.Device(id=device_id, edits=kdp.ContainerEdits(**edits))


def linked(folder: Path) -> Path:
    node = folder / "node"
    node.symlink_to("/dev/null")
    return node


class Joined(Widgets):
    joined_env = {"ALL": ","}  # noqa: RUF012 - as a vendor writes it


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return lambda **more: CdiOptions(directory=tmp_path / "cdi", **more)


def spec(directory: Path) -> dict[str, Any]:
    """The resource's file, by the names of its devices."""
    document = json.loads((directory / "kdp_kdp.example.com_widget.json").read_text())
    assert document["kind"] == KIND
    return {device["name"]: device["containerEdits"] for device in document["devices"]}


async def admitted(kubelet: SimulatedKubelet, count: int) -> AdmittedPod:
    return await kubelet.admit(Pod.asking({RESOURCE: count}))


async def test_beside_a_pod_gets_names_and_all_that_it_got_before(kubelet: SimulatedKubelet, options: Options) -> None:
    async with connected(kubelet, Joined(widget("w-0"), widget("w-1")), cdi=options()):
        reply = (await admitted(kubelet, 2)).reply()
        assert reply.cdi_devices == (f"{KIND}=w-0", f"{KIND}=w-1")
        assert reply.envs == {"ALL": "w-0,w-1", "HAS_0": "yes", "HAS_1": "yes"}
        assert len(reply.devices) == len(reply.mounts) == 2
    assert spec(options().directory)["w-0"] == {
        "env": ["HAS_0=yes"],
        "deviceNodes": [{"path": "/dev/w-0", "hostPath": "/dev/null", "permissions": "rw", "fileMode": 0o666}],
        "mounts": [{"hostPath": "/etc", "containerPath": "/w/w-0", "options": ["rbind", "rprivate", "ro"]}],
    }


async def test_only_leaves_what_no_spec_can_say(kubelet: SimulatedKubelet, options: Options) -> None:
    async with connected(kubelet, Joined(widget("w-0"), widget("w-1")), cdi=options(only=True)):
        reply = (await admitted(kubelet, 2)).reply()
    assert reply.cdi_devices == (f"{KIND}=w-0", f"{KIND}=w-1")
    assert reply.envs == {"ALL": "w-0,w-1"}
    assert reply.annotations == {"w-0": "noted", "w-1": "noted"}
    assert not reply.devices
    assert not reply.mounts


async def test_only_keeps_what_allocate_made_up(kubelet: SimulatedKubelet, options: Options) -> None:
    class More(Joined):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            own = kdp.ContainerEdits.merge([(d.id, d.edits) for d in devices], joined_env=self.joined_env)
            extra = kdp.ContainerEdits(
                env={"COUNT": str(len(devices))},
                device_nodes=[kdp.DeviceNode(host_path="/dev/zero")],
                cdi_devices=["vendor.com/tool=all"],
            )
            return kdp.ContainerEdits.merge([("own", own), ("extra", extra)])

    async with connected(kubelet, More(widget("w-0")), cdi=options(only=True)):
        reply = (await admitted(kubelet, 1)).reply()
    assert reply.cdi_devices == ("vendor.com/tool=all", f"{KIND}=w-0")
    assert reply.envs == {"ALL": "w-0", "COUNT": "1"}
    assert [node.host_path for node in reply.devices] == ["/dev/zero"]


@pytest.mark.parametrize(("names", "field"), [("annotation", ()), ("both", (f"{KIND}=w-0", f"{KIND}=w-1"))])
async def test_names_in_an_annotation(
    kubelet: SimulatedKubelet, options: Options, names: str, field: tuple[str, ...]
) -> None:
    async with connected(kubelet, Joined(widget("w-0"), widget("w-1")), cdi=options(names=names)):
        reply = (await admitted(kubelet, 2)).reply()
    assert reply.cdi_devices == field
    assert reply.annotations["cdi.k8s.io/kdp_example.com_widget"] == f"{KIND}=w-0,{KIND}=w-1"


async def test_without_cdi_a_hook_is_refused_when_declared(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Widgets(widget("w-0"))
    async with connected(kubelet, backend) as manager:
        backend.devices = [widget("w-0", hooks=[HOOK])]
        manager.rescan()
        await until(lambda: "OCI hook /opt/hook: Allocate's reply cannot carry it, only a CDI spec can" in caplog.text)


async def test_the_file_is_there_before_the_kubelet_hears_of_the_devices(
    kubelet: SimulatedKubelet, options: Options
) -> None:
    """Scenario 46: after a reboot /var/run is empty, and pods of before start without an Allocate."""
    await kubelet.stop()
    directory = options().directory
    async with running(kubelet, Widgets(widget("w-0")), cdi=options()) as manager:
        await until(lambda: directory.is_dir() and list(directory.iterdir()))
        shutil.rmtree(directory)
        await kubelet.start()
        await until(lambda: manager.is_ready)
        assert spec(directory).keys() == {"w-0"}


async def test_the_file_follows_the_devices_and_outlives_the_plugin(
    kubelet: SimulatedKubelet, options: Options
) -> None:
    backend = Widgets(widget("w-0"))
    directory = options().directory
    async with connected(kubelet, backend, cdi=options()) as manager:
        backend.devices = [widget("w-0"), widget("w-1", env={"CHANGED": "1"})]
        manager.rescan()
        await kubelet.until(allocatable={RESOURCE: 2})
        assert spec(directory)["w-1"]["env"] == ["CHANGED=1"]
        backend.devices = [widget("w-1")]
        manager.rescan()
        await kubelet.until(allocatable={RESOURCE: 1})
        assert spec(directory).keys() == {"w-0", "w-1"}, "a pod may still hold it"
    assert spec(directory).keys() == {"w-0", "w-1"}, "a container may start again while we are away"


async def test_a_harmed_file_is_repaired_at_allocate(kubelet: SimulatedKubelet, options: Options) -> None:
    directory = options().directory
    async with connected(kubelet, Widgets(widget("w-0"), widget("w-1")), cdi=options()):
        whole = spec(directory)
        file = directory / "kdp_kdp.example.com_widget.json"
        file.unlink()
        await admitted(kubelet, 1)
        assert spec(directory) == whole
        file.write_text("{")
        await admitted(kubelet, 1)
        assert spec(directory) == whole


async def test_a_node_of_another_owner_is_described_anew_at_allocate(
    kubelet: SimulatedKubelet, options: Options, tmp_path: Path
) -> None:
    node = linked(tmp_path)
    device = widget("w-0", device_nodes=[kdp.DeviceNode(host_path=node, container_path="/dev/w")])
    directory = options().directory
    async with connected(kubelet, Widgets(device), cdi=options()):
        assert spec(directory)["w-0"]["deviceNodes"][0]["hostPath"] == "/dev/null"
        node.unlink()
        node.symlink_to("/dev/zero")
        await kubelet.until(allocatable={RESOURCE: 1})
        await admitted(kubelet, 1)
        assert spec(directory)["w-0"]["deviceNodes"][0]["hostPath"] == "/dev/zero"


async def test_beside_a_directory_that_cannot_be_written_costs_the_names_only(
    kubelet: SimulatedKubelet, options: Options
) -> None:
    options().directory.touch()
    async with connected(kubelet, Widgets(widget("w-0")), cdi=options()) as manager:
        reply = (await admitted(kubelet, 1)).reply()
        assert reply.cdi_devices == ()
        assert len(reply.devices) == 1
        assert "cannot be written" in str(manager.status().resources[RESOURCE].details["cdi"])


@pytest.mark.parametrize("only", [True, False])
async def test_a_cdi_directory_that_cannot_be_written_is_no_black_hole_for_pods(
    kubelet: SimulatedKubelet,
    options: Options,
    only: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What no container can get is not offered; it is offered again when the cause has gone."""
    monkeypatch.setattr("kdp.deviceplugin.plugin.LOOK_PAUSE", 0.05)
    directory = options().directory
    directory.touch()
    backend = Widgets(widget("w-0", hooks=[HOOK]), widget("w-1", hooks=[HOOK]))
    async with running(kubelet, backend, cdi=options(only=only)) as manager:
        await kubelet.until(streaming=RESOURCE)
        status = await held(manager, healthy=0)
        assert status.devices == 2
        assert not status.is_ready
        assert re.search(r"CDI file .* cannot be written: .*; mount the node's .* writable", str(status.reason))
        assert set(status.faults) == {"w-0", "w-1"}
        await kubelet.until(allocatable={RESOURCE: 0})
        directory.unlink()
        status = await held(manager, healthy=2)
        assert status.is_ready
        assert status.reason is None
        assert not status.faults
        await kubelet.until(allocatable={RESOURCE: 2})
        assert (await admitted(kubelet, 1)).reply().cdi_devices
    said = [record.message for record in caplog.records if "CDI file" in record.message and "now" not in record.message]
    assert len(said) == 2, said


async def test_a_cdi_file_that_allocate_cannot_write_takes_the_offer_back(
    kubelet: SimulatedKubelet, options: Options, tmp_path: Path
) -> None:
    node = linked(tmp_path)
    device = widget("w-0", device_nodes=[kdp.DeviceNode(host_path=node, container_path="/dev/w")])
    directory = options().directory
    async with connected(kubelet, Widgets(device), cdi=options(only=True)) as manager:
        shutil.rmtree(directory)
        directory.touch()
        with pytest.raises(AdmissionError, match="cannot be written"):
            await admitted(kubelet, 1)
        await held(manager, healthy=0)
        await kubelet.until(allocatable={RESOURCE: 0})


async def held(manager: PluginManager, *, healthy: int) -> ResourceStatus:
    """Wait until so many devices are listed as healthy."""
    await until(lambda: RESOURCE in manager.status().resources and manager.status().resources[RESOURCE].devices)
    await until(lambda: manager.status().resources[RESOURCE].healthy == healthy, story=lambda: str(manager.status()))
    await until(lambda: manager.status().resources[RESOURCE].state == "connected")
    return manager.status().resources[RESOURCE]


async def test_a_resource_that_is_gone_takes_its_file_along(
    kubelet: SimulatedKubelet, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdp.deviceplugin.plugin.Inventory", functools.partial(Inventory, tombstone_seconds=0.05))
    named = kdp.Device(id="w-0", resource=RESOURCE, edits=widget("w-0").edits)
    backend = Widgets(named, resource=None)
    async with connected(kubelet, backend, cdi=options()) as manager:
        await until(lambda: manager.is_ready)
        backend.devices = []
        manager.rescan()
        await until(lambda: not manager.status().resources)
        assert os.listdir(options().directory) == []
