"""Dynamic MIG: what could be made is published, what a claim gets is made for it, and nothing is left of it."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest

import kdp
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState
from kdp_nvidia_gpu.nvml import pynvml

from .support import Make, found, opened

PROFILES = ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")
STATE = NvmlState(gpus=(GpuState(), GpuState(is_mig=True, numa_node=1)), profiles=PROFILES)
GPU = NvmlState.uuid(1)
SET = GPU.lower()


@pytest.fixture
def dynamic(make: Make) -> tuple[FakeNode, NvidiaGpu]:
    return make(STATE, mig="dynamic")


def part(name: str) -> str:
    return f"{GPU}/{name}"


def allocation(backend: NvidiaGpu, *names: str, **more: Any) -> kdp.Allocation:
    devices = {device.id: device for device in backend.discover()}
    return kdp.Allocation(
        resource="nvidia.com/mig", devices=tuple(devices[part(name)] for name in names), deadline=0, **more
    )


def there(profiles: Iterable[str] = PROFILES) -> list[tuple[str, int]]:
    """Return the GPU instances that NVML shows, by profile and first memory slice."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    seen: list[tuple[str, int]] = []
    for number, name in enumerate(profiles):
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV(handle, number)
        held, count = (pynvml.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint(8)
        pynvml.nvmlDeviceGetGpuInstances(handle, info.id, held, ctypes.byref(count))
        seen += [(name, pynvml.nvmlGpuInstanceGetInfo(each).placement.start) for each in held[: count.value]]
    return sorted(seen)


def by_hand(profile: str, start: int, size: int) -> Any:
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV(handle, PROFILES.index(profile))
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, info.id, ctypes.byref(place))


# -- what is published -------------------------------------------------------------------------------------------------


def test_all_that_could_be_made_is_published_with_its_counters(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    node, backend = dynamic
    devices = [*found(backend).values()]
    slices = pool_slices(
        devices, pool=Pool.of_node("gpu.nvidia.com", "node-0"), limits=Limits.of("v1.34.9"), counters=backend.counters()
    )
    bodies = [each.body for each in slices]
    published = [device for body in bodies for device in body.get("devices", ())]
    assert len(published) == 1 + 7 + 7 + 4 + 3 + 2 + 1 + 1
    large = next(each for each in published if each["attributes"].get("profile") == {"string": "3g.71gb"})
    told = {name: large["attributes"][name] for name in ("type", "parentUUID", "resource.kubernetes.io/pciBusID")}
    assert told == {
        "type": {"string": "mig"},
        "parentUUID": {"string": GPU},
        "resource.kubernetes.io/pciBusID": {"string": node.state.bus(1)},
    }
    assert "uuid" not in large["attributes"], "it has none before it is made"
    assert large["capacity"]["memory"] == {"value": "71424Mi"}
    [consumed] = large["consumesCounters"]
    assert consumed["counterSet"] == SET
    assert consumed["counters"] == {
        **{f"memory-slice-{number}": {"value": "1"} for number in range(4)},
        **{name: {"value": "3"} for name in ("copy-engines", "decoders", "jpeg-engines")},
        "multiprocessors": {"value": "60"},
    }
    [shared] = [counters for body in bodies for counters in body.get("sharedCounters", ())]
    assert (shared["name"], len(shared["counters"])) == (SET, 8 + 5)
    assert shared["counters"]["multiprocessors"] == {"value": "132"}


def test_a_gpu_that_is_lost_keeps_its_partitions_which_are_unhealthy(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    node, backend = dynamic
    with opened(backend):
        before = [device.id for device in backend.discover()]
        node.change(1, is_lost=True)
        after = [*backend.discover()]
    assert [device.id for device in after] == before
    assert {device.health.is_healthy for device in after if device.unit == GPU} == {False}


def _fits(taken: Mapping[str, int], device: kdp.Device, limits: Mapping[str, Any]) -> bool:
    return all(taken.get(name, 0) + amount <= limits[name] for name, amount in device.consumes[SET].items())  # type: ignore[operator]


def test_what_the_counters_allow_can_be_made(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    """The scheduler knows the counters only; NVML has the last word. Whatever the first allows, the second must."""
    _, backend = dynamic
    chance = random.Random(1)  # noqa: S311 - reproducible
    with opened(backend):
        all_of_it = [device for device in backend.discover() if device.unit == GPU]
        limits = backend.counters()[SET]
        for _ in range(40):
            taken: dict[str, int] = {}
            names: list[str] = []
            for device in chance.sample(all_of_it, len(all_of_it)):
                if _fits(taken, device, limits):
                    taken = {k: taken.get(k, 0) + int(device.consumes[SET].get(k, 0)) for k in limits}  # type: ignore[arg-type]
                    names.append(device.id.partition("/")[2])
            given = [allocation(backend, name) for name in names]
            assert all(backend.allocate(each).device_nodes for each in given)
            assert len(there()) == len(names)
            for each in given:
                backend.released(each)
            assert there() == []


# -- made and destroyed ------------------------------------------------------------------------------------------------


def test_a_claim_gets_an_instance_that_goes_with_it(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    _, backend = dynamic
    with opened(backend):
        given = allocation(backend, "3g.71gb-4", "1g.18gb-0")
        edits = backend.allocate(given)
        assert there() == [("1g.18gb", 0), ("3g.71gb", 4)]
        nodes = [node.host_path for node in edits.device_nodes]
        assert {node for node in nodes if "caps" not in node} == {
            *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia1")
        }
        assert len([node for node in nodes if "caps" in node]) == 4, "two instances, each with two"
        assert backend.allocate(given) == edits, "asked again, nothing is made"
        assert there() == [("1g.18gb", 0), ("3g.71gb", 4)]
        backend.released(given)
        assert there() == []
        backend.released(given)


def test_killed_between_the_two_halves_of_an_instance_it_is_completed_or_destroyed(
    dynamic: tuple[FakeNode, NvidiaGpu],
) -> None:
    _, backend = dynamic
    with opened(backend):
        by_hand("3g.71gb", 0, 4)
        assert backend.allocate(allocation(backend, "3g.71gb-0")).device_nodes
        assert there() == [("3g.71gb", 0)]
        by_hand("2g.35gb", 4, 2)
        backend.released(allocation(backend, "2g.35gb-4"))
        assert there() == [("3g.71gb", 0)]


def test_if_the_second_half_cannot_be_made_the_first_is_destroyed(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    node, backend = dynamic
    with opened(backend):
        given = allocation(backend, "3g.71gb-0")
        node.set(attrs.evolve(STATE, failing=(("nvmlGpuInstanceCreateComputeInstance", 23, 1),)))
        with pytest.raises(kdp.AllocationError, match=r"3g.71gb-0 cannot be made: .*error 23\)$"):
            backend.allocate(given)
        node.set(STATE)
        assert there() == []


def test_what_is_in_use_is_not_destroyed(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    node, backend = dynamic
    with opened(backend):
        given = allocation(backend, "3g.71gb-0")
        backend.allocate(given)
        node.change(1, pids=(4711,))
        with pytest.raises(kdp.AllocationError, match=r"3g.71gb-0 cannot be destroyed: .*error 19\)$"):
            backend.released(given)
        with pytest.raises(kdp.AllocationError, match=r"7g.141gb-0 cannot be made: .*error 19\)$"):
            backend.allocate(allocation(backend, "7g.141gb-0"))
        assert there() == [("3g.71gb", 0)]
        node.change(1, pids=())
        backend.released(given)
        assert there() == []


def test_admin_access_makes_and_destroys_nothing(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    _, backend = dynamic
    with opened(backend):
        admin = allocation(backend, "3g.71gb-0", admin_access=True)
        with pytest.raises(kdp.AllocationError, match=r"no claim has created it, and admin access creates nothing$"):
            backend.allocate(admin)
        edits = backend.allocate(allocation(backend, "3g.71gb-0"))
        assert backend.allocate(admin) == edits
        backend.released(admin)
        assert there() == [("3g.71gb", 0)]


def test_after_a_reboot_or_a_loss_there_is_nothing_to_destroy(dynamic: tuple[FakeNode, NvidiaGpu]) -> None:
    node, backend = dynamic
    with opened(backend):
        given = allocation(backend, "3g.71gb-0")
        backend.allocate(given)
        node.reboot()
        backend.released(given)
        backend.allocate(given)
        node.change(1, is_lost=True)
        backend.released(allocation(backend, "3g.71gb-0"))
        gone = attrs.evolve(given, devices=(kdp.Device(id=part("3g.71gb-0"), health=kdp.Health.unhealthy("gone")),))
        backend.released(gone)


def test_a_driver_that_does_not_tell_the_places_has_nothing_on_offer_and_that_is_said(
    dynamic: tuple[FakeNode, NvidiaGpu], caplog: pytest.LogCaptureFixture
) -> None:
    node, backend = dynamic
    node.set(attrs.evolve(STATE, failing=(("nvmlDeviceGetGpuInstancePossiblePlacements_v2", 3, -1),)))
    assert [device.id for device in found(backend).values()] == [NvmlState.uuid(0)]
    assert f"{GPU}: the driver does not report what it can be divided into" in caplog.text
    assert backend.counters() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategies": ["cdi"]}, "^strategies=cdi: contradicts mig=dynamic"),
        ({"mps": 2}, "^mps=2: contradicts mig=dynamic"),
    ],
)
def test_options_that_contradict_it(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kdp.ConfigurationError, match=message):
        make(STATE, mig="dynamic", **options)
