"""What is said and what it costs; what is listed, and when, is in test_inventory_properties.py."""

from __future__ import annotations

import attrs
import pytest

import kdp
from kdp.deviceplugin.inventory import Cursor, Inventory, ListSnapshot
from kdp.deviceplugin.wire import encode_device, worst_case_bytes
from kdp.errors import ListTooLargeError
from kdp.proto import deviceplugin_v1beta1_pb2 as pb


def make(max_bytes: int = 4_194_304) -> Inventory:
    return Inventory(encode=encode_device, worst_case=worst_case_bytes, max_bytes=max_bytes)


def widgets(*names: str, numa: tuple[int, ...] = ()) -> list[kdp.Device]:
    return [kdp.Device(id=name, numa_nodes=numa) for name in names]


def listed(inventory: Inventory) -> dict[str, str]:
    return {device.ID: device.health for device in pb.ListAndWatchResponse.FromString(inventory.message).devices}


def topology(inventory: Inventory) -> dict[str, list[int]]:
    devices = pb.ListAndWatchResponse.FromString(inventory.message).devices
    return {device.ID: [node.ID for node in device.topology.nodes] for device in devices if device.HasField("topology")}


def test_an_empty_list_is_a_list() -> None:
    inventory = make()
    assert inventory.update([], 0.0).on_wire
    assert inventory.message == b""
    assert isinstance(inventory.next(Cursor(), 0.0), ListSnapshot)


def test_a_snapshot_stays_as_it_was() -> None:
    inventory = make()
    inventory.update(widgets("a"), 0.0)
    before = inventory.snapshot
    inventory.update(widgets("b"), 0.0)
    assert before is not None
    assert list(before.devices) == ["a"]


def test_one_device_without_a_node_costs_all_their_topology_and_is_named_once() -> None:
    inventory = make()
    inventory.update(widgets("a", "b", numa=(0,)), 0.0)
    assert topology(inventory) == {"a": [0], "b": [0]}
    change = inventory.update([*widgets("a", "b", numa=(0,)), kdp.Device(id="c"), kdp.Device(id="d")], 1.0)
    assert change.topology_lost_by == "c"
    assert topology(inventory) == {}
    assert inventory.update([*widgets("a", "b", numa=(1,)), kdp.Device(id="d")], 2.0).topology_lost_by is None
    assert topology(inventory) == {}
    inventory.update(widgets("a", "b", numa=(1,)), 3.0)
    assert topology(inventory) == {"a": [1], "b": [1]}, "a tombstone without a node has no say"


def test_a_resource_without_any_node_has_lost_nothing() -> None:
    inventory = make()
    assert inventory.update(widgets("a", "b"), 0.0).topology_lost_by is None


def test_a_list_that_would_not_fit_if_all_were_unhealthy_is_refused_and_changes_nothing() -> None:
    devices = widgets(*(f"widget-{number}" for number in range(10)))
    healthy = sum(len(encode_device(device, True)) for device in devices)
    inventory = make(max_bytes=healthy + 5)
    inventory.update(devices[:3], 0.0)
    before, message = inventory.snapshot, inventory.message
    with pytest.raises(ListTooLargeError) as caught:
        inventory.update(devices, 1.0)
    assert caught.value.fits == 9
    assert str(caught.value) == (
        f"10 devices can need {healthy + 20} bytes in one list, the kubelet takes {healthy + 5}: 9 of them fit; "
        "declare fewer or coarser devices, fewer replicas, or shorter ids"
    )
    assert inventory.snapshot is before
    assert inventory.message is message
    assert inventory.update(devices[:9], 2.0).on_wire


@pytest.mark.thorough
def test_ten_thousand_tombstones_can_give_way_at_once() -> None:
    old, new = ([kdp.Device(id=f"{kind}-{number}") for number in range(10_000)] for kind in ("old", "new"))
    size = sum(worst_case_bytes(encode_device(device, True), True) for device in old)
    inventory = make(max_bytes=size)
    inventory.update(old, 0.0)
    assert len(inventory.update(new, 1.0).removed) == 10_000
    assert set(listed(inventory)) == {device.id for device in new}


def test_a_change_costs_one_device_and_the_message_is_made_once() -> None:
    calls: list[str] = []

    def encode(device: kdp.Device, with_topology: bool) -> bytes:
        calls.append(device.id)
        return encode_device(device, with_topology)

    inventory = Inventory(encode=encode, worst_case=worst_case_bytes)
    devices = [kdp.Device(id=f"widget-{number}") for number in range(1000)]
    inventory.update(devices, 0.0)
    assert inventory.message is inventory.message
    calls.clear()
    devices[500] = attrs.evolve(devices[500], health=kdp.Health.unhealthy("broken"))
    inventory.update(devices, 1.0)
    assert calls == ["widget-500"]
    assert [i for i, health in listed(inventory).items() if health == "Unhealthy"] == ["widget-500"]
