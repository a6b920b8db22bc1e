"""What the kubelet is told, when, and what the end of a stream leads to."""

from __future__ import annotations

import time

import anyio
import attrs
import pytest

import kdp
from kdp.deviceplugin import inventory
from kdp.testing import SimulatedKubelet, events

from .helpers import RESOURCE, Figure, Widgets, connected, lists, registers, until


def health(kubelet: SimulatedKubelet) -> dict[str, str]:
    return {device.id: device.health for device in kubelet.devices(RESOURCE).values()}


async def test_a_fault_and_its_end_are_one_list_each(k137: SimulatedKubelet) -> None:
    """Scenarios 6 and 7; without a discovery in between."""
    backend = Widgets("w0", "w1")
    async with connected(k137, backend):
        report = await backend.report()
        report.fault("w0", "XID 79", kind="xid")
        await k137.until(allocatable={RESOURCE: 1})
        assert health(k137) == {"w0": "Unhealthy", "w1": "Healthy"}
        report.fault("w0", "too hot", kind="heat")
        report.clear("w0", kind="xid")
        report.clear("w0", kind="heat")
        await k137.until(allocatable={RESOURCE: 2})
        assert len(lists(k137)) == 3
        assert backend.discoveries == 1


async def test_a_pushed_fault_is_not_healed_by_a_discovery(k137: SimulatedKubelet) -> None:
    backend = Widgets("w0", "w1")
    async with connected(k137, backend) as manager:
        (await backend.report()).fault("w0", "XID 79")
        await k137.until(allocatable={RESOURCE: 1})
        backend.devices.append(kdp.Device(id="w2"))
        manager.rescan()
        await k137.until(capacity={RESOURCE: 3}, allocatable={RESOURCE: 2})


async def test_a_fault_of_a_unit_is_one_of_all_its_devices(k137: SimulatedKubelet) -> None:
    parts = [kdp.Device(id=f"part-{i}", unit="card-0") for i in range(3)]
    backend = Widgets(*parts, kdp.Device(id="other"))
    async with connected(k137, backend):
        (await backend.report()).fault("card-0", "fell off the bus")
        await k137.until(capacity={RESOURCE: 4}, allocatable={RESOURCE: 1})
        assert len(lists(k137)) == 2


async def test_what_does_not_change_is_not_sent(k137: SimulatedKubelet) -> None:
    """Scenario 5: the order, handles, edits and reasons are none of the kubelet's business."""
    backend = Widgets("w0", kdp.Device(id="w1", health=kdp.Health.unhealthy("fan failed")))
    async with connected(k137, backend) as manager:
        handle = object()
        for new in (
            list(reversed(backend.devices)),
            [attrs.evolve(device, handle=handle) for device in backend.devices],
            [attrs.evolve(device, edits=kdp.ContainerEdits(env={"A": "1"})) for device in backend.devices],
            [backend.devices[0], kdp.Device(id="w1", health=kdp.Health.unhealthy("too hot"))],
        ):
            backend.devices, before = new, backend.discoveries
            manager.rescan()
            await until(lambda before=before: backend.discoveries > before)  # type: ignore[misc]
        [one] = lists(k137)
        assert (one.healthy, one.unhealthy) == (1, 1)
        # Yet the newest edits are what a container gets, and the newest handle what a hook gets.
        edits = kdp.ContainerEdits(env={"B": "2"})
        backend.devices = [kdp.Device(id="w0", edits=edits), kdp.Device(id="w2")]
        manager.rescan()
        await k137.until(lambda: len(lists(k137)) == 2)
        [reply] = await k137.plugin(RESOURCE).allocate(["w0"])
        assert dict(reply.envs) == {"B": "2"}


async def test_a_vanished_device_stays_listed_as_unhealthy(k137: SimulatedKubelet) -> None:
    """Scenarios 9 to 11: the kubelet would show a vanished id as healthy to the pod that holds it."""
    backend = Widgets("w0", "w1")
    async with connected(k137, backend) as manager:
        gone = backend.devices.pop(0)
        manager.rescan()
        await k137.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        assert health(k137) == {"w0": "Unhealthy", "w1": "Healthy"}
        backend.devices += [gone, kdp.Device(id="w2")]
        manager.rescan()
        await k137.until(capacity={RESOURCE: 3}, allocatable={RESOURCE: 3})
        assert len(registers(k137)) == 1


async def test_a_vanished_device_leaves_the_list_in_the_end(
    k137: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = inventory.Inventory.__init__

    def impatient(self: inventory.Inventory, **options: object) -> None:
        original(self, **{**options, "tombstone_seconds": 0.2})  # type: ignore[arg-type]

    monkeypatch.setattr(inventory.Inventory, "__init__", impatient)
    backend = Widgets("w0", "w1")
    async with connected(k137, backend) as manager:
        backend.devices.pop()
        manager.rescan()
        await k137.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
        await k137.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 1})


async def test_a_burst_is_a_few_lists_and_the_last_one_is_right(k137: SimulatedKubelet, figure: Figure) -> None:
    """Scenario 8: the first change at once, at most 20 messages in a second, the last state always."""
    backend = Widgets("w0", "w1", "w2", "w3")
    backend.health_policy = kdp.HealthPolicy(flaps=None)  # with quarantine it would be four lists
    async with connected(k137, backend):
        report = await backend.report()
        await until(lambda: time.monotonic() > lists(k137)[-1].time + inventory.MIN_GAP)
        before, started = len(lists(k137)), time.monotonic()
        for i in range(1000):  # at 1 kHz
            if i % 2:
                report.clear(f"w{(i - 1) % 4}")
            else:
                report.fault(f"w{i % 4}", "flaps")
            await anyio.sleep(max(0.0, started + i / 1000 - time.monotonic()))
        report.fault("w3", "flaps")
        report.clear(["w0", "w1", "w2"])
        await k137.until(lambda: set(health(k137).items()) >= {("w3", "Unhealthy"), ("w0", "Healthy")})
        await k137.until(allocatable={RESOURCE: 3})
        times = [received.time for received in lists(k137)[before:]]
        assert all(sum(0 <= other - time < 1 for other in times) <= 20 for time in times)
        assert times[0] - started < 1
        figure("1000 changes at 1 kHz: first list", (times[0] - started) * 1e3, "ms")
        figure("1000 changes at 1 kHz", len(times), "lists")


async def test_every_stream_gets_everything(k137: SimulatedKubelet) -> None:
    """Scenario 12: each has its own cursor."""
    backend = Widgets("w0")
    async with connected(k137, backend) as manager:
        second = k137.plugin(RESOURCE).watch()
        first = await second.next()
        assert first is not None
        assert [device.id for device in first] == ["w0"]
        backend.devices.append(kdp.Device(id="w1"))
        manager.rescan()
        await k137.until(capacity={RESOURCE: 2})
        changed = await second.next()
        assert changed is not None
        assert {device.id for device in changed} == {"w0", "w1"}
        second.cancel()
        backend.devices.append(kdp.Device(id="w2"))
        manager.rescan()
        await k137.until(capacity={RESOURCE: 3})
        assert len(registers(k137)) == 1  # one stream lives


async def test_a_reader_that_pauses_gets_the_newest_state(
    k137: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """Scenario 13."""
    monkeypatch.setattr(inventory, "MIN_GAP", 0.0)
    backend = Widgets(*(f"widget-{i:05}" for i in range(20_000)))  # some lists fill the flow control's window
    async with connected(k137, backend) as manager:
        report = await backend.report()
        k137.pause_reading(RESOURCE)
        changes = 60
        for i in range(changes):
            report.fault(f"widget-{i:05}", "broken")
            await until(lambda i=i: manager.status().resources[RESOURCE].healthy == 20_000 - i - 1)  # type: ignore[misc]
        before = len(lists(k137))
        k137.resume_reading(RESOURCE)
        await k137.until(allocatable={RESOURCE: 20_000 - changes})
        got = len(lists(k137)) - before
        figure(f"lists after a pause of {changes} changes", got, "lists")
        assert got < changes / 2


@pytest.mark.parametrize("how", ["drop_stream", "sever"])
async def test_a_lost_stream_is_registered_again(kubelet: SimulatedKubelet, figure: Figure, how: str) -> None:
    """Scenario 14, fault 32."""
    async with connected(kubelet, Widgets("w0", "w1")) as manager:
        getattr(kubelet, how)(RESOURCE)
        await kubelet.until(lambda: len(registers(kubelet)) == 2, allocatable={RESOURCE: 2})
        lost = kubelet.events.of(events.StreamEnded)[-1].time
        figure(
            f"{how}, {kubelet.profile.name}: stream's end -> Register", (registers(kubelet)[-1].time - lost) * 1e3, "ms"
        )
        assert registers(kubelet)[0].endpoint != registers(kubelet)[1].endpoint
        assert manager.is_ready


async def test_streams_that_end_at_once_are_answered_with_growing_gaps(kubelet: SimulatedKubelet) -> None:
    """Scenario 16."""
    async with connected(kubelet, Widgets("w0")):
        for tries in range(1, 6):
            await kubelet.until(lambda tries=tries: len(registers(kubelet)) == tries, streaming=RESOURCE)  # type: ignore[misc]
            kubelet.drop_stream(RESOURCE)
        await kubelet.until(lambda: len(registers(kubelet)) == 6, streaming=RESOURCE)
        received = registers(kubelet)
        assert len({one.endpoint for one in received}) == len(received) == 6
        assert received[5].time - received[4].time > received[2].time - received[1].time


async def test_ten_thousand_devices(k137: SimulatedKubelet, figure: Figure) -> None:
    """Scenario 55."""
    backend = Widgets(*(f"widget-{i:05}" for i in range(10_000)))
    async with connected(k137, backend):
        [received] = registers(k137)
        assert k137.capacity() == {RESOURCE: 10_000}
        figure("10,000 devices: Register -> list", (lists(k137)[0].time - received.time) * 1e3, "ms")
        report = await backend.report()
        before = lists(k137)[-1].time
        report.fault("widget-05000", "broken")
        await k137.until(allocatable={RESOURCE: 9_999})
        assert lists(k137)[-1].time > before


async def test_topology_is_told_for_all_devices_or_for_none(
    k137: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 56: node 0 is explicit, -1 is no node, one device without a node costs the resource its topology."""
    near = [kdp.Device(id="w0", numa_nodes=[0]), kdp.Device(id="w1", numa_nodes=[1, 0])]
    backend = Widgets(*near)
    async with connected(k137, backend) as manager:
        assert {d.id: d.numa_nodes for d in k137.devices(RESOURCE).values()} == {"w0": (0,), "w1": (0, 1)}
        backend.devices.append(kdp.Device(id="w2", numa_nodes=[-1]))
        manager.rescan()
        await k137.until(capacity={RESOURCE: 3})
        assert {d.numa_nodes for d in k137.devices(RESOURCE).values()} == {None}
        [line] = [r.getMessage() for r in caplog.records if "NUMA" in r.getMessage()]
        assert "w2" in line
        backend.devices[-1] = kdp.Device(id="w2", numa_nodes=[1])
        manager.rescan()
        await k137.until(lambda: {d.numa_nodes for d in k137.devices(RESOURCE).values()} == {(0,), (0, 1), (1,)})
