"""Many resources, of one or several backends: each with a socket and a life of its own."""

from __future__ import annotations

import dataclasses
import errno

import anyio
import anyio.lowlevel
import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.tracking.store import AllocationOwner
from kdp.deviceplugin.tracking.tracker import Tracker
from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .helpers import RESOURCE, Widgets, connected, own_sockets, registers, running, until

OTHER = "example.com/other"


def part(device_id: str, resource: str) -> kdp.Device:
    return kdp.Device(id=device_id, resource=resource)


async def test_a_resource_whose_start_failed_once_was_never_served(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a free descriptor a module was not loaded, and the resource was taken for one that is served."""
    attach, failures = Tracker.attach, [OSError(errno.EMFILE, "Too many open files")]

    def fails_once(tracker: Tracker, resource: str, owner: AllocationOwner) -> None:
        if failures:
            raise failures.pop()
        attach(tracker, resource, owner)

    monkeypatch.setattr(Tracker, "attach", fails_once)
    backend = Widgets("w0")
    async with running(kubelet, backend) as manager:
        await until(lambda: "it starts again" in caplog.text)
        backend.devices.append(kdp.Device(id="w1"))
        manager.rescan()
        await kubelet.until(allocatable={RESOURCE: 2})


async def test_resources_appear_and_vanish_while_it_runs(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the partitions of a card do: each resource that devices name exists while there is one of it."""
    from kdp.deviceplugin import inventory

    original = inventory.Inventory.__init__

    def impatient(self: inventory.Inventory, **options: object) -> None:
        original(self, **{**options, "tombstone_seconds": 0.3})  # type: ignore[arg-type]

    monkeypatch.setattr(inventory.Inventory, "__init__", impatient)
    backend = Widgets(part("a", "example.com/small"), resource=None)
    async with connected(kubelet, backend) as manager:
        await kubelet.until(lambda: kubelet.capacity() == {"example.com/small": 1})
        backend.devices.append(part("b", "example.com/large"))
        manager.rescan()
        await kubelet.until(allocatable={"example.com/small": 1, "example.com/large": 1})
        backend.devices.pop(0)
        manager.rescan()
        await kubelet.until(allocatable={"example.com/small": 0, "example.com/large": 1})
        await until(lambda: manager.status().resources.keys() == {"example.com/large"})
        await kubelet.until(lambda: kubelet.streams("example.com/small") == 0)
        await until(lambda: len(own_sockets(kubelet.paths.device_plugin_dir)) == 1)
        assert manager.is_ready
        backend.devices.append(part("a", "example.com/small"))
        manager.rescan()
        await kubelet.until(allocatable={"example.com/small": 1, "example.com/large": 1})
        endpoints = [received.endpoint for received in registers(kubelet, "example.com/small")]
        assert len(endpoints) == len(set(endpoints)) == 2
        assert len(registers(kubelet, "example.com/large")) == 1


async def test_a_device_moves_to_another_resource(kubelet: SimulatedKubelet) -> None:
    """An id lives in one resource: where it was, no ghost of it stays."""
    device = part("a", "example.com/small")
    backend = Widgets(device, part("b", "example.com/small"), resource=None)
    async with connected(kubelet, backend) as manager:
        backend.devices[0] = attrs.evolve(device, resource="example.com/large")
        manager.rescan()
        await kubelet.until(capacity={"example.com/small": 1, "example.com/large": 1})
        assert set(kubelet.devices("example.com/small")) == {"b"}


async def test_no_device_names_a_resource_and_none_exists(kubelet: SimulatedKubelet) -> None:
    backend = Widgets(resource=None)
    async with running(kubelet, backend) as manager:
        await until(lambda: backend.discoveries)
        await until(lambda: manager.status().backends == (("Widgets", None),))
        assert not manager.status().resources
        backend.devices.append(part("a", "example.com/small"))
        manager.rescan()
        await kubelet.until(allocatable={"example.com/small": 1})


async def test_a_backend_that_is_not_ready_leaves_the_others_alone(kubelet: SimulatedKubelet) -> None:
    class Away(Widgets):
        @override
        def open(self) -> None:
            raise kdp.NotReady("no driver")

    async with running(kubelet, Widgets("w0"), Away("a0", resource=OTHER)) as manager:
        await kubelet.until(allocatable={RESOURCE: 1})
        assert not manager.is_ready
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1})
        assert not registers(kubelet, OTHER)


@dataclasses.dataclass
class Equal(kdp.DeviceBackend):
    """As vendors write it: it has ``__eq__``, and so no hash."""

    count: int
    resource: str = RESOURCE

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id=f"{self.resource[-1]}{number}") for number in range(self.count)]


async def test_a_backend_may_be_a_dataclass(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Equal(2), Equal(2, OTHER)) as manager:
        await kubelet.until(allocatable={RESOURCE: 2, OTHER: 2})
        assert manager.is_ready


async def test_what_was_served_once_is_not_served_again_in_silence(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Widgets("w0")) as manager:
        await kubelet.until(allocatable={RESOURCE: 1})
    with pytest.raises(
        kdp.ConfigurationError, match="PluginManager was entered before, and can be entered only once; create a new one"
    ):
        await manager.__aenter__()


async def test_two_backends_cannot_name_one_resource() -> None:
    with pytest.raises(kdp.ConfigurationError, match="two backends serve"):
        PluginManager([Widgets("w0"), Widgets("w1")])


def test_a_resource_that_was_never_served_stayed_with_the_backend_that_had_found_it() -> None:
    """Its devices had gone before it was set up, and another backend that had them later was refused for good."""
    first, second = Widgets("w0"), Widgets("x0", resource="example.com/gadget")
    manager = PluginManager([first, second])
    manager._check(first, [part("w1", OTHER)], [RESOURCE])
    with pytest.raises(kdp.InvalidValueError, match="already served by"):
        manager._check(second, [part("x1", OTHER)], [])
    manager._check(first, [], [RESOURCE])
    manager._check(second, [part("x1", OTHER)], [])


async def test_two_backends_whose_devices_name_one_resource(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Widgets("w0"), Widgets(part("x0", OTHER), resource=None)
    async with connected(kubelet, first, second) as manager:
        second.devices.append(part("x1", RESOURCE))
        manager.rescan()
        await until(lambda: any("already served by" in r.getMessage() for r in caplog.records))
        assert kubelet.capacity() == {RESOURCE: 1, OTHER: 1}


async def test_a_partition_that_is_still_to_be_made_is_not_listed(kubelet: SimulatedKubelet) -> None:
    """Neither is its missing device node a fault of it: DRA makes it when a claim gets it."""
    future = kdp.Device(id="later", exists=False, edits=kdp.ContainerEdits.of_node("/dev/no-such-node"))
    backend = Widgets("now", future)
    async with connected(kubelet, backend) as manager:
        await kubelet.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 1})
        backend.devices[1] = kdp.Device(id="later")
        manager.rescan()
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})


async def test_it_is_not_ready_between_the_first_discovery_and_its_plugins(kubelet: SimulatedKubelet) -> None:
    """A backend whose devices name their resources has no plugin before: nothing was there that could be unready."""
    devices = [part(f"w{n}", f"example.com/w{n}") for n in range(2)]
    async with running(kubelet, Widgets(*devices, resource=None)) as manager:
        with anyio.fail_after(PATIENCE):
            while not manager.is_ready:
                await anyio.lowlevel.checkpoint()
        assert manager.status().resources.keys() == {"example.com/w0", "example.com/w1"}
