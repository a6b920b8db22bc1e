"""From devices to slices, and to what is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kdp
from kdp.dra.names import device_name
from kdp.dra.publishing.slices import Limits, Memory, Pool, PoolSlice, pool_slices, writes
from kdp.errors import InvalidSlicesError, InvalidValueError

from ... import strategies
from ...strategies import effort
from ..memory_api import MemoryServer

V134, V135, V137 = (Limits.of(f"1.{minor}") for minor in (34, 35, 37))
POOL = Pool.of_node("gpu.example.com", "node-0")


def make(*devices: kdp.Device, limits: Limits = V137, **more: Any) -> tuple[PoolSlice, ...]:
    return pool_slices(devices, pool=POOL, limits=limits, **more)


def widgets(count: int, **more: Any) -> list[kdp.Device]:
    return [kdp.Device(id=f"w{n}", **more) for n in range(count)]


def sizes(slices: Sequence[PoolSlice], kind: str = "devices") -> list[int]:
    return [len(each.body.get(kind, ())) for each in slices]


def listed(slices: Sequence[PoolSlice]) -> list[str]:
    return [device["name"] for each in slices for device in each.body.get("devices", ())]


# -- what becomes of a device ------------------------------------------------------------------------------------------


def test_a_device_is_rendered_whole() -> None:
    device = kdp.Device(
        id="mlx5_0/3",
        attributes={"fast": True, "index": 3, "model": "A", "driver": kdp.Version("1.2.3")},
        capacity={"memory": kdp.Quantity("1024Mi"), "bandwidth": 100},
        shareable={"bandwidth": kdp.RequestPolicy(default=1, min=1, max=50, step=1)},
        consumes={"nic-0": {"queues": 4}},
        taints=[kdp.Taint(key="worn", value="fan"), kdp.Taint(key="seen", effect="None")],
        binding_conditions=kdp.BindingConditions(conditions=["up"], failure_conditions=["down"], binds_to_node=True),
    )
    slices = make(
        device, counters={"nic-0": {"queues": 64}}, standard={"mlx5_0/3": {"resource.kubernetes.io/numaNode": 0}}
    )
    assert [each.as_object(7, 2) for each in slices] == [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": slices[0].name},
            "spec": {
                "driver": "gpu.example.com",
                "pool": {"name": "node-0", "generation": 7, "resourceSliceCount": 2},
                "nodeName": "node-0",
                "devices": [
                    {
                        "name": "mlx5-0-3--x2o5ckpv2d",
                        "attributes": {
                            "driver": {"version": "1.2.3"},
                            "fast": {"bool": True},
                            "index": {"int": 3},
                            "model": {"string": "A"},
                            "resource.kubernetes.io/numaNode": {"int": 0},
                        },
                        "capacity": {
                            "bandwidth": {
                                "value": "100",
                                "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "50", "step": "1"}},
                            },
                            "memory": {"value": "1Gi"},
                        },
                        "consumesCounters": [{"counterSet": "nic-0", "counters": {"queues": {"value": "4"}}}],
                        "taints": [
                            {"key": "worn", "value": "fan", "effect": "NoSchedule"},
                            {"key": "seen", "effect": "None"},
                        ],
                        "bindsToNode": True,
                        "bindingConditions": ["up"],
                        "bindingFailureConditions": ["down"],
                        "allowMultipleAllocations": True,
                    }
                ],
            },
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": slices[1].name},
            "spec": {
                "driver": "gpu.example.com",
                "pool": {"name": "node-0", "generation": 7, "resourceSliceCount": 2},
                "nodeName": "node-0",
                "sharedCounters": [{"name": "nic-0", "counters": {"queues": {"value": "64"}}}],
            },
        },
    ]


def test_the_backends_attribute_goes_before_the_standard_one() -> None:
    name = "resource.kubernetes.io/numaNode"
    (only,) = make(kdp.Device(id="a", attributes={name: 1}), standard={"a": {name: 0}})
    assert only.body["devices"][0]["attributes"] == {name: {"int": 1}}


# -- how many lie in a slice -------------------------------------------------------------------------------------------


def test_64_from_the_start_so_that_the_first_taint_divides_nothing() -> None:
    """Scenario 39."""
    tainted = [*widgets(299), kdp.Device(id="w299", taints=[kdp.Taint(key="worn")])]
    for limits in (V134, V137):
        assert sizes(make(*widgets(300), limits=limits)) == [64, 64, 64, 64, 44]
        assert sizes(make(*tainted, limits=limits)) == [64, 64, 64, 64, 44]


def partitions(cards: int, parts: int) -> tuple[list[kdp.Device], dict[str, Any]]:
    devices = [
        kdp.Device(id=f"c{card}-{part}", consumes={f"card-{card}": {"memory": 1}})
        for card in range(cards)
        for part in range(parts)
    ]
    return devices, {f"card-{card}": {"memory": parts} for card in range(cards)}


def test_counters_have_slices_of_their_own_since_1_35() -> None:
    """Scenario 46."""
    devices, counters = partitions(20, 7)
    slices = make(*devices, counters=counters)
    assert sizes(slices) == [64, 64, 12, 0, 0, 0]
    assert sizes(slices, "sharedCounters") == [0, 0, 0, 8, 8, 4]
    assert sorted(each.name for each in slices) == [each.name for each in slices]


def test_counters_lie_beside_their_devices_in_1_34() -> None:
    devices, counters = partitions(20, 7)
    slices = make(*devices, counters=counters, limits=V134)
    assert sizes(slices) == [63, 63, 14]
    assert sizes(slices, "sharedCounters") == [9, 9, 2]
    assert listed(slices) == [device.id for device in devices]


def test_a_counter_set_is_never_in_two_slices_of_1_34() -> None:
    """The scheduler of 1.34 counts slice by slice, so the card would be given away twice."""
    devices, counters = partitions(2, 40)
    mixed = [device for pair in zip(devices[:40], devices[40:], strict=True) for device in pair]
    slices = make(*mixed, counters=counters, limits=V134)
    assert sizes(slices) == [40, 40]
    assert [[each["name"] for each in s.body["sharedCounters"]] for s in slices] == [["card-0"], ["card-1"]]
    joined = [*devices, kdp.Device(id="both", consumes={"card-0": {"memory": 1}, "card-1": {"memory": 1}})]
    (only,) = make(*joined, counters=counters, limits=V134)
    assert sizes([only]) == [81]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "counters", "message"),
    [
        (
            kdp.Device(id="a", consumes={"gpu-0": {"memory": 1}}),
            {"gpu-0": {"slices": 7}},
            "device 'a': consumes 'memory', which must be a counter of 'gpu-0': slices",
        ),
        (
            kdp.Device(id="a", consumes={"gpu-1": {"memory": 1}}),
            {"gpu-0": {"slices": 7}},
            "device 'a': consumes of the counter set 'gpu-1', which must be declared: gpu-0",
        ),
        (
            kdp.Device(id="a", capacity={"memory": kdp.Quantity("1.0000000001")}),
            {},
            f"device 'a': amount 1.0000000001: must be at most {2**63 - 1} and have at most 9 decimals: the API",
        ),
    ],
)
def test_what_the_server_would_not_refuse_is_refused_here(
    device: kdp.Device, counters: dict[str, Any], message: str
) -> None:
    """It rounds an amount, or does not see the other slices; the scheduler ignores such a pool."""
    with pytest.raises(InvalidSlicesError) as caught:
        make(device, counters=counters)
    assert str(caught.value).startswith(message)


def test_a_driver_name_is_checked_where_the_pool_is_made() -> None:
    with pytest.raises(InvalidValueError, match=r"^driver name 'GPU'"):
        Pool.of_node("GPU", "node-0")


# -- least change ------------------------------------------------------------------------------------------------------

devices_of_a_node = st.lists(
    st.builds(
        kdp.Device,
        id=strategies.device_ids,
        attributes=st.dictionaries(strategies.identifiers, st.booleans() | st.integers(0, 9), max_size=2),
        consumes=st.sampled_from([{}, {}, *({f"s{n}": {"c": 1}} for n in range(12)), {"s0": {"c": 1}, "s1": {"c": 1}}]),
        taints=st.sampled_from([(), (), (kdp.Taint(key="worn"),)]),
    ),
    unique_by=lambda device: device.id,
    max_size=90,
)
COUNTERS = {f"s{n}": {"c": 5, "d": 1} for n in range(12)}


@effort(40)
@given(devices_of_a_node, st.sampled_from([V134, V135, V137]))
def test_no_device_is_lost_or_there_twice_and_every_limit_is_kept(devices: list[kdp.Device], limits: Limits) -> None:
    slices = make(*devices, limits=limits, counters=COUNTERS)
    names = [device_name(device.id) for device in devices]
    assert sorted(listed(slices)) == sorted(names)
    if not limits.combined:
        assert listed(slices) == names
    assert all(size <= 64 for size in sizes(slices))
    assert all(size <= 8 for size in sizes(slices, "sharedCounters") if not limits.combined)


@effort(25)
@given(st.integers(1, 200), st.integers(0, 10**6), st.sampled_from([V134, V137]))
def test_a_change_of_one_device_changes_one_slice(count: int, at: int, limits: Limits) -> None:
    """Scenario 40."""
    devices = widgets(count)
    before = make(*devices, limits=limits)
    devices[at % count] = attrs.evolve(devices[at % count], attributes={"hot": True})
    after = make(*devices, limits=limits)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


# -- what is written ---------------------------------------------------------------------------------------------------


def write(server: MemoryServer, wanted: Sequence[PoolSlice], **more: Any) -> tuple[int, int, int, int]:
    """Do these writes; return how many slices were deleted, updated and created, and the generation."""
    done = writes(wanted, server.items.values(), **more)
    for item in done.delete:
        server.delete(item)
    for item in done.update:
        server.update(item)
    for item in done.create:
        server.create(item)
    if done:
        pools = {str(item["spec"]["pool"]) for item in server.items.values()}
        assert pools == {str({"name": "node-0", "generation": done.generation, "resourceSliceCount": len(wanted)})}
    return len(done.delete), len(done.update), len(done.create), done.generation


def test_a_taint_that_stays_keeps_its_time() -> None:
    """Scenario 52."""
    server = MemoryServer()
    worn, seen = kdp.Taint(key="worn"), kdp.Taint(key="seen")

    def times() -> dict[str, str]:
        (item,) = server.items.values()
        return {taint["key"]: taint["timeAdded"] for taint in item["spec"]["devices"][0].get("taints", ())}

    write(server, make(kdp.Device(id="a", taints=[worn])))
    assert write(server, make(kdp.Device(id="a", taints=[worn])))[:3] == (0, 0, 0)
    write(server, make(kdp.Device(id="a", taints=[seen, worn])))
    assert times() == {"worn": "time 101", "seen": "time 102"}
    write(server, make(kdp.Device(id="a")))
    write(server, make(kdp.Device(id="a", taints=[attrs.evolve(worn, value="fan")])))
    assert times() == {"worn": "time 104"}


@effort(40)
@given(st.lists(st.lists(st.integers(0, 150), unique=True, max_size=150), min_size=1, max_size=4))
def test_whatever_comes_and_goes_the_server_ends_up_with_it(steps: list[list[int]]) -> None:
    server = MemoryServer()
    last = 0
    for step in steps:
        wanted = make(*(kdp.Device(id=f"w{n}") for n in step))
        *_, generation = write(server, wanted, last=last)
        assert generation >= last
        last = generation
        stored = sorted(server.items.values(), key=lambda item: item["metadata"]["name"])
        assert [d["name"] for item in stored for d in item["spec"].get("devices", ())] == [f"w{n}" for n in step]
        assert write(server, wanted, last=last)[:3] == (0, 0, 0)


# -- what is remembered from call to call ------------------------------------------------------------------------------


@effort(60)
@given(st.lists(st.tuples(devices_of_a_node, st.sampled_from([V134, V135, V137])), min_size=1, max_size=5))
def test_memory_changes_no_result(steps: list[tuple[list[kdp.Device], Limits]]) -> None:
    memory = Memory()
    for devices, limits in steps:
        for _ in range(2):
            assert _made(devices, limits, memory) == _made(devices, limits, None)


def _made(devices: Sequence[kdp.Device], limits: Limits, memory: Memory | None) -> tuple[PoolSlice, ...] | str:
    try:
        return pool_slices(devices, pool=POOL, limits=limits, counters=COUNTERS, memory=memory)
    except InvalidValueError as error:
        return str(error)


def test_an_attribute_that_becomes_another_type_is_rendered_anew() -> None:
    memory = Memory()
    for value, rendered in ((1, {"int": 1}), (True, {"bool": True})):  # the devices are equal, as 1 is True
        (made,) = make(kdp.Device(id="w", attributes={"x": value}), memory=memory)
        assert made.body["devices"][0]["attributes"]["x"] == rendered
