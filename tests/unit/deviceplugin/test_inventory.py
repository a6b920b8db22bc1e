from __future__ import annotations

import attrs
import pytest

import kdp
from kdp.deviceplugin.inventory import MIN_GAP, Cursor, Inventory, Snapshot
from kdp.deviceplugin.wire import encode_device, worst_case_bytes
from kdp.errors import ListTooLargeError
from kdp.proto.deviceplugin.v1beta1 import api_pb2 as pb


def make(max_bytes: int = 4_194_304, tombstone_seconds: float = 600.0) -> Inventory:
    return Inventory(
        encode=encode_device, worst_case=worst_case_bytes, max_bytes=max_bytes, tombstone_seconds=tombstone_seconds
    )


def widgets(*names: str, numa: tuple[int, ...] = ()) -> list[kdp.Device]:
    return [kdp.Device(id=name, numa_nodes=numa) for name in names]


def listed(inventory: Inventory) -> dict[str, str]:
    return {device.ID: device.health for device in pb.ListAndWatchResponse.FromString(inventory.message).devices}


def topology(inventory: Inventory) -> dict[str, list[int]]:
    devices = pb.ListAndWatchResponse.FromString(inventory.message).devices
    return {device.ID: [node.ID for node in device.topology.nodes] for device in devices if device.HasField("topology")}


def version(inventory: Inventory) -> int:
    assert inventory.snapshot is not None
    return inventory.snapshot.version


def test_before_the_first_update_there_is_nothing_to_send() -> None:
    inventory = make()
    assert inventory.snapshot is None
    assert inventory.next(Cursor(), 0.0) is None


def test_an_empty_list_is_a_list() -> None:
    inventory = make()
    assert inventory.update([], 0.0).on_wire
    assert inventory.message == b""
    assert isinstance(inventory.next(Cursor(), 0.0), Snapshot)


def test_forgetting_before_the_first_update_makes_no_list() -> None:
    inventory = make()
    assert not inventory.forget(["a"]).on_wire
    assert inventory.snapshot is None


def test_a_vanished_device_is_listed_as_unhealthy_until_its_time_is_over() -> None:
    inventory = make(tombstone_seconds=10.0)
    inventory.update(widgets("a", "b"), 0.0)
    inventory.update(widgets("a"), 1.0)
    assert listed(inventory) == {"a": "Healthy", "b": "Unhealthy"}
    assert inventory.tombstones == {"b"}
    assert inventory.next_expiry == 11.0
    inventory.update(widgets("a"), 10.9)
    assert "b" in listed(inventory)
    change = inventory.update(widgets("a"), 11.0)
    assert change.removed == ("b",)
    assert listed(inventory) == {"a": "Healthy"}


def test_a_device_that_comes_back_is_what_discovery_says_it_is() -> None:
    inventory = make()
    inventory.update(widgets("a"), 0.0)
    inventory.update([], 1.0)
    change = inventory.update(widgets("a"), 2.0)
    assert [str(t.before) for t in change.transitions] == ["Unhealthy (the device is gone)"]
    assert listed(inventory) == {"a": "Healthy"}
    assert inventory.tombstones == frozenset()


def test_an_unhealthy_device_that_vanishes_changes_its_reason_but_not_the_list() -> None:
    inventory = make()
    inventory.update([kdp.Device(id="a", health=kdp.Health.unhealthy("hot"))], 0.0)
    change = inventory.update([], 1.0)
    assert not change.on_wire
    assert [str(t.device.health) for t in change.transitions] == ["Unhealthy (the device is gone)"]


def test_only_tombstones_can_be_forgotten() -> None:
    inventory = make()
    inventory.update(widgets("a", "b"), 0.0)
    inventory.update(widgets("a"), 1.0)
    assert inventory.forget(["a", "b", "unknown"]).removed == ("b",)
    assert listed(inventory) == {"a": "Healthy"}


def test_handles_and_edits_are_replaced_without_a_new_version() -> None:
    inventory = make()
    old, new = object(), object()
    inventory.update([kdp.Device(id="a", handle=old)], 0.0)
    change = inventory.update([kdp.Device(id="a", handle=new, edits=kdp.ContainerEdits(env={"A": "1"}))], 1.0)
    assert not change.on_wire
    assert version(inventory) == 1
    assert inventory.snapshot is not None
    assert inventory.snapshot.devices["a"].handle is new


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


def test_a_node_that_is_not_told_is_no_news() -> None:
    """Topology is dropped for the whole resource, so the kubelet would get the same bytes again."""
    inventory = make()
    inventory.update([kdp.Device(id="a"), kdp.Device(id="b")], 0.0)
    message = inventory.message
    change = inventory.update([kdp.Device(id="a"), kdp.Device(id="b", numa_nodes=[1])], 1.0)
    assert change.topology_lost_by == "a"
    assert not change.on_wire
    assert inventory.message == message
    assert version(inventory) == 1


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


def test_tombstones_give_way_to_what_is_there_the_oldest_first() -> None:
    size = worst_case_bytes(encode_device(kdp.Device(id="a"), True), True)
    inventory = make(max_bytes=4 * size)
    inventory.update(widgets("a", "b"), 0.0)
    inventory.update(widgets("b", "c"), 1.0)
    inventory.update(widgets("c", "d"), 2.0)
    assert inventory.tombstones == {"a", "b"}
    assert inventory.update(widgets("c", "d", "e"), 3.0).removed == ("a",)
    assert inventory.tombstones == {"b"}


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


def test_a_stream_gets_the_first_change_at_once_and_the_last_after_the_gap() -> None:
    inventory, cursor = make(), Cursor()
    inventory.update(widgets("a"), 0.0)
    first = inventory.next(cursor, 100.0)
    assert isinstance(first, Snapshot)
    cursor.version, cursor.sent_at = first.version, 100.0
    assert inventory.next(cursor, 100.0) is None
    for number in range(10):
        inventory.update(widgets(f"b{number}"), 100.01)
    wait = inventory.next(cursor, 100.01)
    assert wait == pytest.approx(MIN_GAP - 0.01)
    assert inventory.next(cursor, 100.0 + MIN_GAP) is inventory.snapshot
    assert inventory.next(Cursor(), 100.01) is inventory.snapshot, "another stream has its own pace"
