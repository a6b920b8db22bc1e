"""The yardstick answers the kubelet with the same bytes as kdp, is short, and knows nothing of kdp."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from benchmarks.kubelets import allocate_request
from benchmarks.processes import REPOSITORY
from benchmarks.programs import api_pb2, bare, hooked, names, widgets
from typing_extensions import override

import kdp
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.deviceplugin.wire import encode_device
from kdp.proto.deviceplugin.v1beta1 import api_pb2 as kdp_pb2
from kdp.testing import SimulatedKubelet, events

RESOURCE = bare.RESOURCE
COUNT = 8
SICK = names.ids(COUNT)[3]


class Sick(widgets.Widgets):
    """Widgets of which one falls ill."""

    sick = False

    @override
    def discover(self) -> Iterable[kdp.Device]:
        devices = list(super().discover())
        if self.sick:
            devices[3] = kdp.Device(id=SICK, health=kdp.Health.unhealthy("ill"), numa_nodes=[0])
        return devices


@asynccontextmanager
async def bare_kubelet() -> AsyncIterator[tuple[SimulatedKubelet, bare.Plugin]]:
    async with SimulatedKubelet() as kubelet, anyio.create_task_group() as tasks:
        plugin = bare.Plugin(str(kubelet.paths.device_plugin_dir), names.ids(COUNT))
        tasks.start_soon(plugin.run)
        await kubelet.until(allocatable={RESOURCE: COUNT})
        yield kubelet, plugin
        plugin.stop.set()


@asynccontextmanager
async def kdp_kubelet(backend: kdp.DeviceBackend) -> AsyncIterator[tuple[SimulatedKubelet, PluginManager]]:
    async with SimulatedKubelet() as kubelet, PluginManager([backend], ManagerOptions(paths=kubelet.paths)) as manager:
        await kubelet.until(allocatable={RESOURCE: COUNT})
        yield kubelet, manager


def newest_list(kubelet: SimulatedKubelet) -> bytes:
    return kubelet.events.of(events.ListReceived, resource=RESOURCE)[-1].payload


@pytest.mark.parametrize("backend", [widgets.Widgets, hooked.Hooked])
async def test_replies_are_byte_equal(backend: type[widgets.Widgets]) -> None:
    async with bare_kubelet() as (theirs, _), kdp_kubelet(backend(COUNT)) as (ours, _):
        for wanted in (names.ids(1), names.ids(COUNT)[::-1], names.ids(COUNT)[2:5]):
            request = allocate_request(wanted)
            reply = await ours.plugin(RESOURCE).call("Allocate", request)
            assert len(reply) > 50 * len(wanted)
            assert reply == await theirs.plugin(RESOURCE).call("Allocate", request)
        options = await ours.plugin(RESOURCE).call("GetDevicePluginOptions", b"")
        assert options == await theirs.plugin(RESOURCE).call("GetDevicePluginOptions", b"")


async def test_lists_are_byte_equal() -> None:
    backend = Sick(COUNT)
    async with bare_kubelet() as (theirs, plugin), kdp_kubelet(backend) as (ours, manager):
        assert newest_list(ours) == newest_list(theirs)
        backend.sick = True
        manager.rescan()
        plugin.change(SICK, False)
        for kubelet in (ours, theirs):
            await kubelet.until(allocatable={RESOURCE: COUNT - 1})
        assert newest_list(ours) == newest_list(theirs)


@pytest.mark.parametrize("device_id", ["a", "x" * 63, "ß" * 63, "例" * 63])
@pytest.mark.parametrize("nodes", [(), (0,), (0, 1), tuple(range(64))])
@pytest.mark.parametrize("health", ["Healthy", "Unhealthy"])
def test_a_device_is_the_bytes_that_protobuf_makes(device_id: str, nodes: tuple[int, ...], health: str) -> None:
    state = kdp.Health.healthy() if health == "Healthy" else kdp.Health.unhealthy("ill")
    listed = api_pb2.ListAndWatchResponse()
    device = listed.devices.add(ID=device_id, health=health)
    for node in nodes:
        device.topology.nodes.add(ID=node)
    ours = kdp.Device(id=device_id, numa_nodes=nodes, health=state)
    assert encode_device(ours, True) == listed.SerializeToString()


def test_bare_is_short_and_stands_alone() -> None:
    source = Path(bare.__file__)
    assert len(source.read_text().splitlines()) <= 100
    program = f"import sys, {bare.__name__}; print(*(n for n in sys.modules if n.partition('.')[0] in ('kdp', 'attr')))"
    found = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_its_messages_are_made_of_our_proto_file() -> None:
    assert api_pb2.DESCRIPTOR.serialized_pb == kdp_pb2.DESCRIPTOR.serialized_pb
