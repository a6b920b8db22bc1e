from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import kdp
from kdp.deviceplugin import wire
from kdp.errors import InvalidValueError
from kdp.hardware import Host
from kdp.model.edits import CdiHook
from kdp.proto import deviceplugin_v1beta1_pb2 as pb

from .. import strategies
from ..strategies import effort


def decoded(device: kdp.Device, with_topology: bool = True) -> pb.Device:
    (found,) = pb.ListAndWatchResponse.FromString(wire.encode_device(device, with_topology)).devices
    return found


# -- the device list ---------------------------------------------------------------------------------------------------


def test_node_zero_is_explicit_and_no_node_is_no_topology() -> None:
    """Contract section 8: proto3 leaves a zero out, the message around it must still be there."""
    found = decoded(kdp.Device(id="a", numa_nodes=[0]))
    assert found.HasField("topology")
    assert [node.ID for node in found.topology.nodes] == [0]
    assert not decoded(kdp.Device(id="a")).HasField("topology")
    assert not decoded(kdp.Device(id="a", numa_nodes=[0]), with_topology=False).HasField("topology")


@effort(150)
@given(strategies.devices, st.booleans())
def test_a_device_survives_the_wire(device: kdp.Device, with_topology: bool) -> None:
    found = decoded(device, with_topology)
    assert device.id == found.ID
    assert found.health == ("Healthy" if device.health.is_healthy else "Unhealthy")
    assert tuple(node.ID for node in found.topology.nodes) == (device.numa_nodes if with_topology else ())


@effort(150)
@given(strategies.devices, st.lists(st.integers(0, 63), max_size=64))
def test_the_worst_case_is_exact(device: kdp.Device, nodes: list[int]) -> None:
    device = attrs.evolve(device, numa_nodes=nodes)
    unhealthy = attrs.evolve(device, health=kdp.Health.unhealthy("x"))
    size = wire.worst_case_bytes(wire.encode_device(device, True), device.health.is_healthy)
    assert size == len(wire.encode_device(unhealthy, True))


def test_the_worst_case_is_exact_where_the_length_field_grows() -> None:
    for length in range(1, 64):
        healthy = kdp.Device(id="ß" * length)
        unhealthy = attrs.evolve(healthy, health=kdp.Health.unhealthy("x"))
        size = wire.worst_case_bytes(wire.encode_device(healthy, True), True)
        assert size == len(wire.encode_device(unhealthy, True)), length


# -- Allocate ----------------------------------------------------------------------------------------------------------


@effort(60)
@given(st.lists(st.lists(strategies.device_ids, max_size=3), max_size=3))
def test_allocate_requests_are_read(containers: list[list[str]]) -> None:
    request = pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=devices) for devices in containers]
    )
    assert wire.decode_allocate(request.SerializeToString()) == tuple(map(tuple, containers))


def test_what_a_container_gets(tmp_path: Path) -> None:
    widget, lib = tmp_path / "widget", tmp_path / "lib"
    widget.symlink_to("/dev/null")
    lib.mkdir()
    edits = kdp.ContainerEdits(
        env={"A": "1"},
        annotations={"example.com/x": "y"},
        device_nodes=[kdp.DeviceNode(host_path=str(widget), permissions="rwm")],
        mounts=[kdp.Mount(host_path=str(lib), container_path="/usr/lib", read_only=True)],
    )
    reply = wire.render(edits, Host())
    assert dict(reply.envs) == {"A": "1"}
    assert dict(reply.annotations) == {"example.com/x": "y"}
    (node,) = reply.devices
    assert (node.host_path, node.container_path, node.permissions) == (str(widget), str(widget), "rwm")
    (mount,) = reply.mounts
    assert (mount.host_path, mount.container_path, mount.read_only) == (str(lib), "/usr/lib", True)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (kdp.ContainerEdits.of_node("/dev/none"), "device node /dev/none is gone"),
        (kdp.ContainerEdits.of_node("/file"), "/file is no device node"),
        (
            kdp.ContainerEdits(mounts=[kdp.Mount(host_path="/none")]),
            "mount source /none does not exist; the runtime would put an empty directory there",
        ),
        (
            kdp.ContainerEdits(hooks=[CdiHook(name="prestart", path="/bin/x")]),
            (
                "OCI hook /bin/x: Allocate's reply cannot carry it, only a CDI spec can; run the plugin with --cdi "
                "beside or --cdi only, and give the hook to the device's own edits"
            ),
        ),
    ],
)
def test_what_cannot_be_given_is_an_error_with_its_reason(
    edits: kdp.ContainerEdits, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dev").mkdir()
    with pytest.raises(InvalidValueError) as caught:
        wire.render(edits, Host(tmp_path))
    assert str(caught.value) == message


def test_a_variable_with_which_no_program_starts_is_refused() -> None:
    """One device's own, or what the backend's ``allocate`` made."""
    with pytest.raises(kdp.AllocationError, match="variable IDS would have 9000005 bytes"):
        wire.render(kdp.ContainerEdits(env={"IDS": "x" * 9_000_000}), Host())


class Everything(Host):
    """A node on which every path is what it should be."""

    @override
    def device_node(self, host_path: str) -> str:
        return host_path

    @override
    def exists(self, host_path: str | os.PathLike[str]) -> bool:
        return True


@effort(80)
@given(strategies.edits)
def test_all_that_edits_say_is_in_the_reply(edits: kdp.ContainerEdits) -> None:
    edits = attrs.evolve(edits, hooks=())
    reply = pb.ContainerAllocateResponse.FromString(wire.render(edits, Everything()).SerializeToString())
    assert dict(reply.envs) == edits.env
    assert dict(reply.annotations) == edits.annotations
    assert [(d.host_path, d.container_path, d.permissions) for d in reply.devices] == [
        (d.host_path, d.container_path, d.permissions) for d in edits.device_nodes
    ]
    assert [(m.host_path, m.container_path, m.read_only) for m in reply.mounts] == [
        (m.host_path, m.container_path, m.read_only) for m in edits.mounts
    ]


# -- the small calls and registration ----------------------------------------------------------------------------------


def test_options_are_the_same_wherever_they_are_told() -> None:
    options = wire.PluginOptions(pre_start_required=True, preferred_allocation=True)
    alone = pb.DevicePluginOptions.FromString(wire.encode_options(options))
    request = pb.RegisterRequest.FromString(wire.encode_register("kdp-x.sock", "example.com/widget", options))
    assert request.options == alone
    assert alone.pre_start_required
    assert alone.get_preferred_allocation_available
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "kdp-x.sock", "example.com/widget")
    assert wire.encode_options(wire.PluginOptions(pre_start_required=False, preferred_allocation=False)) == b""


def test_preferences_are_asked_and_answered() -> None:
    request = pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=["a", "b"], must_include_deviceIDs=["b"], allocation_size=2
            )
        ]
    )
    (query,) = wire.decode_prefer(request.SerializeToString())
    assert query == wire.PreferQuery(("a", "b"), ("b",), 2)
    answer = pb.PreferredAllocationResponse.FromString(wire.encode_prefer([["b", "a"], []]))
    assert [list(container.deviceIDs) for container in answer.container_responses] == [["b", "a"], []]
