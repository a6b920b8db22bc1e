"""ResourceSlices before a real API server: it stores what kdp makes unchanged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest
from tests.slice_cases import good

import kdp
from kdp.dra.claims.parameters import read_parameters
from kdp.dra.names import device_name
from kdp.dra.publishing.feature_gates import dropped_fields, publishable
from kdp.dra.publishing.slices import Limits, Pool, PoolSlice, pool_slices, writes

from .conftest import MakeCluster, Namespace
from .deploy import pod
from .nodekit import Cluster
from .nodekit.cluster import ApiError

SLICES = "resource.k8s.io/v1/resourceslices"
PATH = f"/apis/{SLICES}"
Object = dict[str, Any]


@pytest.fixture
async def limits(shared_cluster: Cluster) -> AsyncIterator[Limits]:
    """Those of the server; the slices and classes of the test are gone at its end."""
    version = await shared_cluster.api("GET", "/version")
    yield Limits.of(version["gitVersion"])
    await shared_cluster.clear_published()


async def test_a_slice_that_is_judged_only_is_not_stored(shared_cluster: Cluster, limits: Limits) -> None:
    """A pool is replaced when the server has taken all of its slices in a dry run."""
    await shared_cluster.api("POST", f"{PATH}?dryRun=All", good())
    bad = good()
    bad["spec"]["devices"][0]["attributes"]["model"] = {"string": "x" * 65}
    with pytest.raises(ApiError, match=r"spec\.devices\[0\]\.attributes\[model\]\.string"):
        await shared_cluster.api("POST", f"{PATH}?dryRun=All", bad)
    assert await shared_cluster.list(SLICES) == []


# -- what kdp makes ----------------------------------------------------------------------------------------------------

DRIVER = "gpu.example.com"


def _plain() -> list[kdp.Device]:
    """300 devices with odd names, attributes of all types, and amounts in all notations."""
    amounts = ["1024Mi", "1.5", "1e3", "0.5Gi", "1000", "1Ki", "12345678901234567", "0", "100n", "1", "1536Ki", ".5M"]
    return [
        kdp.Device(
            id=f"GPU-{n:08x}:{n % 7}/x",
            attributes={
                "index": n,
                "model": "Ångström" * (n % 6),
                "fast": n % 2 == 0,
                "driver": kdp.Version(f"1.2.{n}-rc.1+b"),
                "example.com/rack": "r1",
            },
            capacity={"memory": kdp.Quantity(amounts[n % len(amounts)]), "cores": n},
        )
        for n in range(300)
    ]


def _partitions(cards: int = 20) -> tuple[list[kdp.Device], dict[str, dict[str, kdp.Quantity | int]]]:
    """Cards with partitions that exclude each other, more than 8 counter sets."""
    counters: dict[str, dict[str, kdp.Quantity | int]] = {}
    devices: list[kdp.Device] = []
    for card in range(cards):
        counters[f"gpu-{card}"] = {"memory": kdp.Quantity("80Gi"), "slices": 7}
        for size in (7, 3, 1):
            devices += [
                kdp.Device(
                    id=f"MIG-{card}-{size}g-{place}",
                    unit=f"gpu-{card}",
                    consumes={f"gpu-{card}": {"memory": kdp.Quantity(f"{10 * size}Gi"), "slices": size}},
                    exists=size == 7,
                )
                for place in range(7 // size)
            ]
    return devices, counters


def _shared() -> list[kdp.Device]:
    """Devices with request policies, taints and binding conditions."""
    whole = kdp.RequestPolicy(default=1, min=1, step=1)
    some = kdp.RequestPolicy(default=kdp.Quantity("1Gi"), valid_values=[kdp.Quantity("1Gi"), kdp.Quantity("2048Mi")])
    binding = kdp.BindingConditions(
        conditions=["example.com/up"], failure_conditions=["example.com/down"], binds_to_node=True
    )
    return [
        kdp.Device(
            id="mlx5_0/3",
            capacity={"bandwidth": 100, "mem": kdp.Quantity("8Gi")},
            shareable={"bandwidth": whole, "mem": some},
        ),
        kdp.Device(id="mlx5_0/4", shareable=True),
        kdp.Device(
            id="0000:3b:00.0",
            taints=[
                kdp.Taint(key="example.com/worn", effect="NoExecute", value="fan"),
                kdp.Taint(key="seen", effect="None"),
            ],
        ),
        kdp.Device(id="fabric", binding_conditions=binding),
    ]


def _pool(kind: str) -> Pool:
    return Pool.of_node(DRIVER, f"elsewhere-{kind}")


async def _write(cluster: Cluster, pool: Pool, wanted: Sequence[PoolSlice], last: int = 0) -> tuple[int, int, int, int]:
    """Do what `writes` says; returns how many were deleted, updated and created, and the generation."""
    done = writes(wanted, await _stored(cluster, pool), last=last)
    for item in done.delete:
        await cluster.api("DELETE", f"{PATH}/{item['metadata']['name']}")
    for item in done.update:
        await cluster.api("PUT", f"{PATH}/{item['metadata']['name']}?fieldValidation=Strict", dict(item))
    for item in done.create:
        await cluster.api("POST", f"{PATH}?fieldValidation=Strict", dict(item))
    return len(done.delete), len(done.update), len(done.create), done.generation


async def _stored(cluster: Cluster, pool: Pool) -> list[Object]:
    return [item for item in await cluster.list(SLICES) if item["spec"]["pool"]["name"] == pool.name]


def _without_times(item: Object) -> Object:
    devices = [
        {**device, "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]}
        if "taints" in device
        else device
        for device in item["spec"].get("devices", [])
    ]
    return {**item["spec"], "devices": devices}


@pytest.mark.parametrize("kind", ["none", "plain", "partitions", "shared"])
async def test_what_is_stored_is_what_was_sent(shared_cluster: Cluster, limits: Limits, kind: str) -> None:
    counters: dict[str, dict[str, kdp.Quantity | int]] = {}
    devices: list[kdp.Device] = []
    match kind:
        case "plain":
            devices = _plain()
        case "partitions":
            devices, counters = _partitions()
        case "shared":
            devices = _shared()
    pool = _pool(kind)
    wanted = pool_slices(devices, pool=pool, limits=limits, counters=counters)
    count = len(wanted)
    assert count == {"none": 1, "plain": 5, "partitions": 4 + 3, "shared": 1}[kind]
    assert await _write(shared_cluster, pool, wanted) == (0, 0, count, 1)
    stored = await _stored(shared_cluster, pool)
    sent = {each.name: each.as_object(1, count)["spec"] for each in wanted}
    assert {item["metadata"]["name"]: _without_times(item) for item in stored} == {
        name: {**spec, "devices": list(spec.get("devices", []))} for name, spec in sent.items()
    }
    assert not writes(wanted, stored)
    assert pool_slices(devices, pool=pool, limits=limits, counters=counters) == wanted


async def test_a_change_is_one_write_and_a_taint_keeps_its_time(shared_cluster: Cluster, limits: Limits) -> None:
    pool = _pool("life")
    worn, seen = kdp.Taint(key="worn"), kdp.Taint(key="seen", effect="None")
    devices = [kdp.Device(id=f"w{n:03}", taints=[worn] if n == 70 else []) for n in range(130)]

    async def publish(last: int = 0) -> tuple[int, int, int, int]:
        return await _write(shared_cluster, pool, pool_slices(devices, pool=pool, limits=limits), last)

    async def times() -> dict[str, str]:
        entries = [d for item in await _stored(shared_cluster, pool) for d in item["spec"]["devices"]]
        return {taint["key"]: taint["timeAdded"] for d in entries for taint in d.get("taints", [])}

    assert await publish() == (0, 0, 3, 1)
    assert await publish() == (0, 0, 0, 1)
    before = await times()
    devices[70] = kdp.Device(id="w070", taints=[worn, seen])
    assert await publish() == (0, 1, 0, 1)
    after = await times()
    assert after["worn"] == before["worn"]
    assert after["seen"]
    del devices[5]
    assert await publish() == (0, 3, 0, 2)
    devices[1], devices[128] = (kdp.Device(id=devices[n].id, attributes={"x": n}) for n in (1, 128))
    assert await publish() == (0, 3, 0, 3)
    gone = (await _stored(shared_cluster, pool))[1]["metadata"]["name"]
    await shared_cluster.api("DELETE", f"{PATH}/{gone}")
    assert await publish(3) == (0, 0, 1, 3)
    await shared_cluster.api("DELETE", PATH)
    assert await publish(3) == (0, 0, 3, 4)
    assert await publish(4) == (0, 0, 0, 4)
    devices.clear()
    assert await publish(4) == (2, 1, 0, 5)


async def test_what_a_server_drops_is_named_and_what_is_published_then_stays(make_cluster: MakeCluster) -> None:
    off = ["DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceBindingConditions"]
    cluster = await make_cluster(feature_gates=dict.fromkeys(off, False), has_node=False)
    limits = Limits.of((await cluster.api("GET", "/version"))["gitVersion"])
    pool = _pool("dropped")
    partitions, counters = _partitions(2)
    devices = [*_shared(), *partitions]
    wanted = pool_slices(devices, pool=pool, limits=limits, counters=counters)
    dropped: set[str] = set()
    for item in writes(wanted, []).create:
        stored = await cluster.api("POST", PATH, dict(item))
        dropped |= {field.gate for field in dropped_fields(item, stored)}
    assert dropped == set(off)
    honest = publishable(devices, dropped)
    assert honest.withheld.keys() == {device.id for device in devices if device.consumes or device.binding_conditions}
    less = pool_slices(honest.devices, pool=pool, limits=limits)
    await _write(cluster, pool, less, last=1)
    assert not writes(less, await _stored(cluster, pool))
    sent = {each.name: each.as_object(2, len(less)) for each in less}
    for item in await _stored(cluster, pool):
        assert dropped_fields(sent[item["metadata"]["name"]], item) == []


# -- what the scheduler makes of it ------------------------------------------------------------------------------------


async def test_the_scheduler_takes_devices_in_their_order_and_within_their_counters(
    namespace: Namespace, limits: Limits
) -> None:
    cluster = namespace.cluster
    pool = Pool.of_node(DRIVER, "node0")
    counters = {f"gpu-{card}": {"memory": kdp.Quantity("20Gi")} for card in range(2)}
    devices = [
        kdp.Device(id=f"GPU-{card}_{part}", consumes={f"gpu-{card}": {"memory": kdp.Quantity("10Gi")}})
        for card in (1, 0)
        for part in (2, 1, 0)
    ]
    fillers = [kdp.Device(id=f"Z{n}", attributes={"filler": True}) for n in range(70)]
    wanted = pool_slices([*fillers, *devices], pool=pool, limits=limits, counters=counters)
    await _write(cluster, pool, wanted)
    chosen: list[str] = []
    expression = f'device.driver == "{DRIVER}" && !("filler" in device.attributes["{DRIVER}"])'
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    await cluster.apply(kind)
    for n in range(4):
        await cluster.apply(*_claim_and_pod(f"one-{n}", exactly), namespace=namespace.name)
        claim = await cluster.until_object(
            "resource.k8s.io/v1/resourceclaims",
            f"one-{n}",
            lambda claim: claim.get("status", {}).get("allocation"),
            "is allocated",
            namespace=namespace.name,
        )
        chosen += [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]]
    assert chosen == [device_name(each) for each in ("GPU-1_2", "GPU-1_1", "GPU-0_2", "GPU-0_1")]
    await cluster.apply(*_claim_and_pod("fifth", exactly), namespace=namespace.name)
    pod = await cluster.until_object(
        "v1/pods",
        "fifth",
        lambda pod: any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", ())),
        "is unschedulable",
        namespace=namespace.name,
    )
    assert "cannot allocate all claims" in json.dumps(pod["status"]["conditions"])


@attrs.frozen
class GpuConfig:
    """What a claim may ask of the devices of this test."""

    power_limit: int
    label: str = ""


async def test_parameters_of_class_and_claim_are_read_as_the_scheduler_wrote_them(
    namespace: Namespace, limits: Limits
) -> None:
    cluster = namespace.cluster
    pool = Pool.of_node(DRIVER, "node0")
    await _write(cluster, pool, pool_slices([kdp.Device(id=f"g{n}") for n in range(3)], pool=pool, limits=limits))

    def config(power: int, *requests: str) -> Object:
        parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "GpuConfig", "powerLimit": power}
        entry: Object = {"opaque": {"driver": DRIVER, "parameters": parameters}}
        return {**entry, "requests": list(requests)} if requests else entry

    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], "config": [config(100)]}
    await cluster.apply(
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "limited"}, "spec": spec}
    )
    impossible = {"cel": {"expression": "false"}}
    claim, user = _claim_and_pod("limited", {})
    claim["spec"]["devices"] = {
        "requests": [
            {
                "name": "listed",
                "firstAvailable": [
                    {"name": "large", "deviceClassName": "limited", "selectors": [impossible]},
                    {"name": "small", "deviceClassName": "limited"},
                ],
            },
            {"name": "plain", "exactly": {"deviceClassName": "limited"}},
            {"name": "own", "exactly": {"deviceClassName": "limited"}},
        ],
        "config": [config(200, "listed"), config(300, "listed/large"), config(400, "own")],
    }
    await cluster.apply(claim, user, namespace=namespace.name)
    allocated = await cluster.until_object(
        "resource.k8s.io/v1/resourceclaims",
        "limited",
        lambda claim: claim.get("status", {}).get("allocation"),
        "is allocated",
        namespace=namespace.name,
    )
    devices = allocated["status"]["allocation"]["devices"]
    found = read_parameters(devices["config"], driver=DRIVER, declared=GpuConfig)
    power = {each["request"]: found.of_request(each["request"]) for each in devices["results"]}
    assert power == {"listed/small": GpuConfig(200), "plain": GpuConfig(100), "own": GpuConfig(400)}


def _claim_and_pod(name: str, exactly: Object) -> tuple[Object, Object]:
    request = {"name": "r", "exactly": exactly}
    claim: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    user = pod(name, 0)
    user["spec"]["containers"][0]["resources"] = {"claims": [{"name": "c"}]}
    user["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": name}]
    return claim, user
