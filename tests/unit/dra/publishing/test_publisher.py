from __future__ import annotations

import copy
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.waiting import until

import kdp
from kdp.cluster.api import ApiError
from kdp.dra.publishing import pacing, planner
from kdp.dra.publishing.actions import PublisherStatus
from kdp.dra.publishing.publisher import Publisher
from kdp.dra.publishing.slices import Pool
from kdp_testkit.patience import PATIENCE

from ..memory_api import MemoryApi, MemoryServer

POOL = Pool.of_node("gpu.example.com", "node-0")


def widgets(count: int, **more: object) -> list[kdp.Device]:
    return [kdp.Device(id=f"w{n:03}", **more) for n in range(count)]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gaps of the core, ten times shorter."""
    for module, name in ((pacing, "SLICE_GAP"), (planner, "SETTLE"), (planner, "MOST_SETTLE"), (planner, "WATCH_GAP")):
        monkeypatch.setattr(module, name, getattr(module, name) / 10)


class Bench:
    """A publisher at a server in memory."""

    def __init__(self, pool: Pool = POOL, *, owner: str | None = "node-0") -> None:
        self.server = MemoryServer()
        self.api = MemoryApi(self.server)
        self.publisher = Publisher(self.api, pool, owner=owner)

    @property
    def status(self) -> PublisherStatus:
        return self.publisher.status.value

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.publisher.run)
            yield
            tasks.cancel_scope.cancel()

    async def until(self, condition: Callable[[PublisherStatus], object], seconds: float = PATIENCE) -> None:
        """Wait until the status is so."""
        with anyio.fail_after(seconds):
            while not condition(self.status):
                await self.publisher.status.after(self.publisher.status.version)

    async def published(self, devices: list[kdp.Device]) -> None:
        self.publisher.publish(devices)
        await until(lambda: self.server.devices() == [device.id for device in devices])
        await self.until(lambda status: status.is_current and status.problem is None)


async def test_no_device_is_one_empty_slice() -> None:
    """Scenario 38."""
    bench = Bench()
    async with bench.running():
        await bench.published([])
        (item,) = bench.server.items.values()
        assert item["spec"] == {
            "driver": "gpu.example.com",
            "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "node-0",
        }
        assert item["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "uid-1", "controller": True}
        ]
        assert (bench.status.generation, bench.status.slices) == (1, 1)
        assert sorted(bench.api.asked) == sorted(["version", "node", "list", "watch", "create"])


async def test_same_input_writes_nothing_and_one_change_is_one_write() -> None:
    """Scenarios 39 and 40."""
    bench = Bench()
    devices = widgets(130)
    async with bench.running():
        await bench.published(devices)
        assert [each.verb for each in bench.server.writes] == ["create"] * 3
        bench.server.writes.clear()
        bench.publisher.publish(list(devices))
        await bench.until(lambda status: status.is_current)
        assert bench.server.writes == []
        devices[70] = kdp.Device(id="w070", attributes={"hot": True})
        bench.publisher.publish(devices)
        await until(lambda: bench.server.writes)
        await bench.until(lambda status: status.is_current)
        assert [each.verb for each in bench.server.writes] == ["update"]
        assert bench.server.generations() == {1}
        devices[0], devices[129] = (kdp.Device(id=devices[n].id, attributes={"x": n}) for n in (0, 129))
        bench.publisher.publish(devices)
        await bench.until(lambda status: status.generation == 2)
        assert [each.verb for each in bench.server.writes] == ["update"] * 4


async def test_a_new_process_takes_over_what_is_there() -> None:
    bench = Bench()
    async with bench.running():
        await bench.published(widgets(70))
    assert len(bench.server.items) == 2  # a shutdown leaves the slices
    bench.server.writes.clear()
    again = Publisher(bench.api, POOL, owner="node-0")
    again.publish(widgets(70))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again.run)
        with anyio.fail_after(5):
            while not again.status.value.is_current:
                await again.status.after(again.status.version)
        tasks.cancel_scope.cancel()
    assert bench.server.writes == []


async def test_wiped_slices_come_back() -> None:
    """Scenario 41."""
    bench = Bench()
    devices = widgets(130)
    async with bench.running():
        await bench.published(devices)
        devices[0] = kdp.Device(id="w000", attributes={"x": 1})
        bench.publisher.publish(devices)
        await until(lambda: len(bench.server.writes) == 4)
        for _ in range(3):
            bench.server.writes.clear()
            start = time.monotonic()
            bench.server.wipe()
            bench.api.tell()
            await until(lambda: bench.server.devices() == [device.id for device in devices])
            await bench.until(lambda status: status.is_current)
            assert [each.verb for each in bench.server.writes] == ["create"] * 3
            assert time.monotonic() - start < PATIENCE
            assert len(bench.server.generations()) == 1


async def test_a_node_that_is_made_anew_owns_the_slices() -> None:
    """Scenario 43."""
    bench = Bench()
    async with bench.running():
        await bench.published(widgets(3))
        del bench.server.nodes["node-0"]
        bench.server.wipe()  # by the garbage collector
        bench.api.tell()
        await bench.until(lambda status: status.problem is not None)
        assert bench.status.problem == "node 'node-0' is not in the API server: its slices are published when it is"
        assert not bench.server.items
        bench.server.nodes["node-0"] = "uid-2"
        await bench.published(widgets(3))
        (item,) = bench.server.items.values()
        assert item["metadata"]["ownerReferences"][0]["uid"] == "uid-2"


async def test_a_pool_of_the_network_has_no_owner_and_is_removed_at_uninstall() -> None:
    """Scenario 49."""
    pool = Pool(driver="gpu.example.com", name="fabric", nodes={"allNodes": True})
    bench = Bench(pool, owner=None)
    async with bench.running():
        await bench.published(widgets(70))
    assert all("ownerReferences" not in item["metadata"] for item in bench.server.items.values())
    assert all(item["spec"]["allNodes"] is True for item in bench.server.items.values())
    faults = iter([ApiError("later", status=503), ApiError("changed", status=409)])
    bench.api.fault = lambda verb: next(faults, None) if verb == "delete" else None
    assert await bench.publisher.remove() == 2
    assert bench.server.items == {}
    assert await bench.publisher.remove() == 0
    bench.api.fault = lambda _: ApiError("no", status=403)
    with pytest.raises(ApiError, match="no"):
        await bench.publisher.remove()


async def test_a_slice_that_somebody_else_removed_broke_off_the_removal_of_a_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    async with bench.running():
        await bench.published(widgets(300))
    assert len(bench.server.items) > 1
    monkeypatch.setattr("kdp.dra.publishing.publisher.REMOVE_FOR", 0.0)

    async def all_go(_: object) -> None:
        bench.server.items.clear()
        raise ApiError("gone", status=404)

    monkeypatch.setattr(bench.api, "delete_slice", all_go)
    assert await bench.publisher.remove() > 1


# -- what the server cannot hold ---------------------------------------------------------------------------------------

PARTS = [
    kdp.Device(id="whole"),
    kdp.Device(id="part", consumes={"card": {"memory": 1}}),
    kdp.Device(id="worn", taints=[kdp.Taint(key="worn")]),
]


async def test_gates_that_are_off_are_named_and_what_would_be_a_lie_is_withheld() -> None:
    """Scenario 44."""
    bench = Bench()
    bench.server.gates_off = {"DRAPartitionableDevices", "DRADeviceTaints"}
    async with bench.running():
        bench.publisher.publish(PARTS, counters={"card": {"memory": 4}})
        await bench.until(lambda status: status.is_current)
        assert bench.status.withheld == {"part": "DRAPartitionableDevices", "worn": "DRADeviceTaints"}
        assert [field.gate for field in bench.status.dropped] == ["DRADeviceTaints", "DRAPartitionableDevices"]
        assert bench.server.devices() == ["whole"]
        writes = len(bench.server.writes)
        assert writes <= 6
        bench.publisher.publish([*PARTS, kdp.Device(id="more")], counters={"card": {"memory": 4}})
        await until(lambda: bench.server.devices() == ["whole", "more"])
        assert len(bench.server.writes) == writes + 1
        bench.server.gates_off.clear()
        bench.server.release = "v1.37.2"
        bench.api.cut()
        await until(lambda: bench.server.devices() == ["whole", "part", "worn", "more"])
        await bench.until(lambda status: status.is_current and not status.withheld)


async def test_a_partition_whose_counters_were_left_out_is_taken_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 1.34 counters are in the slice of their devices: it was offered without them until the gap was over."""
    monkeypatch.setattr(pacing, "SLICE_GAP", 3600.0)
    bench = Bench()
    bench.server.release = "v1.34.4"
    bench.server.gates_off = {"DRAPartitionableDevices"}
    async with bench.running():
        bench.publisher.publish(PARTS, counters={"card": {"memory": 4}})
        await bench.until(lambda status: status.withheld and status.is_current)
        assert bench.server.devices() == ["whole", "worn"]
        assert len(bench.server.writes) == 2


async def test_a_server_that_changes_what_it_stores_is_not_fought() -> None:
    bench = Bench()
    put = bench.server.put

    def odd(item: object) -> object:
        changed = copy.deepcopy(item)
        for device in changed["spec"].get("devices", ()):  # type: ignore[index]
            device.pop("attributes", None)
        return put(changed)  # type: ignore[arg-type]

    bench.server.put = odd  # type: ignore[assignment, method-assign]
    async with bench.running():
        bench.publisher.publish(widgets(1, attributes={"x": 1}))
        await bench.until(lambda status: status.is_current)
        assert [(field.path, field.gate) for field in bench.status.dropped] == [("spec.devices[0].attributes", "")]
        bench.api.cut()
        await until(lambda: bench.api.asked.count("list") == 2)
        await bench.until(lambda status: status.is_current and status.problem is None)
        assert len(bench.server.writes) == 1


@pytest.mark.parametrize("count", [2, 130])
async def test_what_the_server_refuses_leaves_the_last_good_state_in_force(count: int) -> None:
    """Scenario 45. Of many slices some were written before the server refused one, and the pool was incomplete."""
    bench, good, worn = Bench(), widgets(count), [kdp.Taint(key=f"k{n}") for n in range(5)]
    bench.server.most_taints = 4
    async with bench.running():
        await bench.published(good)
        writes = len(bench.server.writes)
        changed = [kdp.Device(id=each.id, attributes={"x": 1}) for each in good[:-1]]
        bench.publisher.publish([*changed, kdp.Device(id=good[-1].id, taints=worn)])
        await bench.until(lambda status: status.problem is not None)
        assert str(bench.status.problem).startswith(f"device 'w{count - 1:03}': ")
        assert not bench.status.is_current
        assert (bench.status.generation, len(bench.server.writes)) == (1, writes)
        bench.server.wipe()
        bench.api.tell()
        await until(lambda: bench.server.devices() == [each.id for each in good])
        assert bench.status.problem is not None
        await bench.published(widgets(3))


async def test_a_server_that_is_too_old_is_a_problem() -> None:
    bench = Bench()
    bench.server.release = "v1.33.1"
    async with bench.running():
        bench.publisher.publish([])
        await bench.until(lambda status: status.problem is not None)
        assert "DRA needs Kubernetes 1.34 or newer" in str(bench.status.problem)


# -- faults ------------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_away_is_asked_ever_more_rarely() -> None:
    """Scenario 47."""
    bench = Bench()
    async with bench.running():
        await bench.published(widgets(3))
        bench.api.fault = lambda verb: ApiError(f"{verb}: the API server was not reached: refused")
        bench.api.cut()
        await bench.until(lambda status: status.problem is not None)
        bench.server.wipe()
        bench.api.asked.clear()
        await anyio.sleep(1)
        assert len(bench.api.asked) <= 6
        bench.api.fault = lambda _: None
        await bench.published(widgets(4))
    assert len(bench.server.items) == 1


async def test_a_watch_that_breaks_is_begun_anew_and_misses_nothing() -> None:
    """Scenario 47."""
    bench = Bench()
    async with bench.running():
        await bench.published(widgets(130))
        bench.server.remove(min(bench.server.items))
        bench.server.compact()
        bench.api.cut()
        await bench.published(widgets(130))
        assert bench.api.asked.count("list") == 2


async def test_what_is_refused_is_said_and_not_stormed() -> None:
    """Scenario 56."""
    bench = Bench()
    bench.api.fault = lambda verb: (
        ApiError("create: denied request: not your node", status=403) if verb == "create" else None
    )
    async with bench.running():
        bench.publisher.publish(widgets(130))
        await bench.until(lambda status: status.problem is not None)
        assert bench.status.problem == "create: denied request: not your node"
        await anyio.sleep(1.2)
        assert bench.api.asked.count("create") <= 3
        bench.api.fault = lambda _: None
        await bench.published(widgets(130))
