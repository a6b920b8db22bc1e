from __future__ import annotations

import copy
from typing import Any

import pytest

import kdp
from kdp.dra.publishing.feature_gates import DroppedField, dropped_fields, publishable
from kdp.dra.publishing.slices import Limits, Pool, pool_slices

SHARED = kdp.Device(id="shared", capacity={"m": 4}, shareable={"m": kdp.RequestPolicy(default=1)})
WORN = kdp.Device(id="worn", taints=[kdp.Taint(key="worn")])
SEEN = kdp.Device(id="seen", taints=[kdp.Taint(key="seen", effect="None")])
PART = kdp.Device(id="part", consumes={"card": {"m": 1}})
FABRIC = kdp.Device(
    id="fabric", binding_conditions=kdp.BindingConditions(conditions=["up"], failure_conditions=["down"])
)
ALL = [SHARED, WORN, SEEN, PART, FABRIC]


def objects() -> list[dict[str, Any]]:
    pool = Pool.of_node("gpu.example.com", "node-0")
    slices = pool_slices(ALL, pool=pool, limits=Limits.of("1.37"), counters={"card": {"m": 4}})
    return [each.as_object(1, len(slices)) for each in slices]


def test_what_is_stored_as_it_was_sent_has_lost_nothing() -> None:
    for item in objects():
        stored = copy.deepcopy(item)
        for device in stored["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                taint["timeAdded"] = "now"
        assert dropped_fields(item, stored) == []


@pytest.mark.parametrize(
    ("device", "field", "gate"),
    [(1, "taints", "DRADeviceTaints"), (3, "consumesCounters", "DRAPartitionableDevices"), (4, "name", "")],
)
def test_a_dropped_field_is_named_with_its_gate(device: int, field: str, gate: str) -> None:
    item = objects()[0]
    stored = copy.deepcopy(item)
    del stored["spec"]["devices"][device][field]
    assert dropped_fields(item, stored) == [DroppedField(f"spec.devices[{device}].{field}", gate)]


def test_deep_fields_are_named_as_well() -> None:
    devices, counters = objects()
    stored = copy.deepcopy(devices)
    del stored["spec"]["devices"][0]["capacity"]["m"]["requestPolicy"]
    path = "spec.devices[0].capacity[m].requestPolicy"
    assert dropped_fields(devices, stored) == [DroppedField(path, "DRAConsumableCapacity")]
    stored = copy.deepcopy(counters)
    del stored["spec"]["sharedCounters"]
    assert dropped_fields(counters, stored) == [DroppedField("spec.sharedCounters", "DRAPartitionableDevices")]
    listed = {"spec": {"devices": [{"attributes": {"a": {"strings": ["x"]}}}]}}
    empty: dict[str, Any] = {"spec": {"devices": [{"attributes": {"a": {}}}]}}
    assert dropped_fields(listed, empty) == [
        DroppedField("spec.devices[0].attributes[a].strings", "DRAListTypeAttributes")
    ]


def test_an_empty_field_that_is_not_stored_was_not_dropped() -> None:
    assert dropped_fields({"spec": {"devices": [], "allNodes": False}}, {"spec": {}}) == []


def test_what_would_be_a_lie_is_withheld() -> None:
    gates = {"DRAPartitionableDevices", "DRADeviceTaints", "DRADeviceBindingConditions", "DRAConsumableCapacity"}
    found = publishable(ALL, gates)
    assert found.devices == (kdp.Device(id="shared", capacity={"m": 4}), kdp.Device(id="seen"))
    assert found.withheld == {
        "worn": "DRADeviceTaints",
        "part": "DRAPartitionableDevices",
        "fabric": "DRADeviceBindingConditions",
    }


def test_a_server_with_all_gates_gets_all() -> None:
    assert publishable(ALL, {"DRAListTypeAttributes"}).devices == tuple(ALL)
