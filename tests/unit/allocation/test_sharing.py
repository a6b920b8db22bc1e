"""The rules of sharing, and what a shared backend shows to kdp and to the vendor."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import kdp
from kdp import Device, InvalidValueError
from kdp.allocation import Override, Sharing, share
from kdp.allocation.shared import _WRAPPERS
from kdp.allocation.sharing import base_id, replica_id
from kdp.model.backend import Allocation, is_overridden
from kdp.model.names import MAX_DEVICE_ID_LENGTH

from ..strategies import device_ids, effort

# -- ids ---------------------------------------------------------------------------------------------------------------


@effort(200)
@given(device_ids.filter(lambda name: len(name) <= 58), st.integers(0, 999))
def test_a_replicas_id_is_an_id_and_tells_its_device(name: str, number: int) -> None:
    made = replica_id(name, number)
    assert Device(id=made).id == made
    assert len(made) <= MAX_DEVICE_ID_LENGTH
    assert base_id(made) == name


def test_an_id_without_room_for_the_replicas_number_is_refused() -> None:
    assert replica_id("x" * 58, 999)
    with pytest.raises(InvalidValueError, match=r"must have at most 58 characters, this has 59"):
        replica_id("x" * 59, 0)


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"replicas": 0}, "replicas 0: must be a whole number from 1 to 1000"),
        ({"replicas": True}, "replicas True: must be"),
        ({"replicas": 2, "placement": "even"}, "placement 'even': must be one of distinct, packed, spread"),
        ({"replicas": 2, "limit": 0}, "limit 0: must be 1 or more"),
        ({}, "nothing is shared"),
    ],
)
def test_a_wrong_rule_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidValueError, match=what):
        Sharing(**options)


def test_a_selector_without_a_pattern_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must be a pattern of ids or NAME=PATTERN"):
        Override("model=", 2)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("gpu-*", True),
        ("mig-?", False),
        ("unit=card-*", True),
        ("resource=example.com/nic", False),
        ("model=A100*", True),
        ("memoryGiB=80", True),
        ("nothing=*", False),
    ],
)
def test_what_a_selector_selects(selector: str, selected: bool) -> None:
    device = Device(id="gpu-1", unit="card-1", attributes={"model": "A100-SXM4", "memoryGiB": 80})
    assert Override(selector, 2).selects(device, "example.com/gpu") is selected


# -- a shared backend --------------------------------------------------------------------------------------------------


class Gpus(kdp.DeviceBackend):
    """Remembers what its hooks were given."""

    resource: str | None = "example.com/gpu"

    def __init__(self) -> None:
        self.devices = [Device(id="gpu-0", handle="zero"), Device(id="gpu-1", attributes={"model": "T4"}, handle="one")]
        self.calls: list[tuple[str, Any]] = []

    @override
    def discover(self) -> Iterable[Device]:
        return self.devices

    @override
    def watch(self, report: kdp.Reporter) -> None:
        report.fault("gpu-0", "XID 79", kind="xid")
        report.clear(["gpu-1"], kind="heat")
        report.rescan()

    @override
    def allocate(self, devices: Allocation) -> kdp.ContainerEdits:
        self.calls.append(("allocate", (devices.resource, [d.handle for d in devices])))
        devices.state["seen"] = list(devices.ids)
        return kdp.ContainerEdits(env={"GPUS": ",".join(devices.ids)})

    @override
    async def released(self, devices: Allocation) -> None:
        self.calls.append(("released", devices.ids))

    @override
    def links(self, devices: Sequence[Device]) -> Mapping[tuple[str, str], float]:
        self.calls.append(("links", [d.id for d in devices]))
        return {("gpu-0", "gpu-1"): 5.0}

    @override
    def prefer(self, request: kdp.PreferRequest) -> list[str]:
        self.calls.append(("prefer", ([d.id for d in request.available], [d.id for d in request.must_include])))
        return [d.id for d in request.available][-request.size :]


def of(backend: kdp.DeviceBackend, *ids: str) -> Allocation:
    found: Any = backend.discover()
    held = {device.id: device for device in found}
    return Allocation(
        resource="example.com/gpu.shared", devices=tuple(held[i] for i in ids), deadline=time.monotonic() + 1
    )


def test_a_shared_backend_advertises_replicas_of_one_unit() -> None:
    found: Any = share(Gpus(), Sharing(replicas=2)).discover()
    assert [(d.id, d.unit) for d in found] == [
        ("gpu-0::0", "gpu-0"),
        ("gpu-0::1", "gpu-0"),
        ("gpu-1::0", "gpu-1"),
        ("gpu-1::1", "gpu-1"),
    ]


def test_overrides_count_for_what_they_select_and_the_rest_is_not_shared() -> None:
    sharing = Sharing(overrides=[Override("model=T4", 2), Override("gpu-*", 3)], rename=True)
    found: Any = share(Gpus(), sharing).discover()
    assert [d.id for d in found] == ["gpu-0::0", "gpu-0::1", "gpu-0::2", "gpu-1::0", "gpu-1::1"]
    only = share(Gpus(), Sharing(overrides=[Override("model=T4", 2)], rename=True))
    found = only.discover()
    assert [(d.id, d.resource) for d in found] == [
        ("gpu-0", None),
        ("gpu-1::0", "example.com/gpu.shared"),
        ("gpu-1::1", "example.com/gpu.shared"),
    ]
    assert only.resource == "example.com/gpu"


def test_a_renamed_resource_is_the_static_one_too() -> None:
    inner = Gpus()
    inner.resources = ["example.com/other"]
    shared = share(inner, Sharing(replicas=2, rename=True))
    assert shared.resource == "example.com/gpu.shared"
    assert list(shared.resources) == ["example.com/other.shared"]
    inner.resource = "example.com/" + "x" * 60
    with pytest.raises(InvalidValueError, match="1 to 63"):
        _ = shared.resource


@pytest.mark.parametrize(("replicas", "overrides"), [(2, ()), (None, (Override("other", 2),))])
def test_an_id_that_reads_like_a_replicas_is_refused(replicas: int | None, overrides: tuple[Override, ...]) -> None:
    inner = Gpus()
    inner.devices = [Device(id="card::1")]
    with pytest.raises(InvalidValueError, match=r"device id 'card::1': '::' and a number .* for example 'card'"):
        share(inner, Sharing(replicas=replicas, overrides=overrides)).discover()


def test_only_hooks_that_the_vendor_wrote_are_there_and_texts_name_his_class() -> None:
    shared = share(Gpus(), Sharing(replicas=2))
    assert type(shared).__name__ == "Gpus"
    assert {
        hook for hook in ("open", "close", "prefer", "prepare_container", "needs") if is_overridden(shared, hook)
    } == set()
    assert is_overridden(share(Gpus(), Sharing(replicas=2, placement="distinct")), "prefer")
    assert inspect.iscoroutinefunction(shared.released)
    assert not inspect.iscoroutinefunction(shared.watch)


def test_the_same_device_again_has_the_same_replicas_and_an_equal_one_new_handles() -> None:
    inner = Gpus()
    shared = share(inner, Sharing(replicas=2))
    first = [*shared.discover()]  # type: ignore[misc]
    assert all(one is other for one, other in zip(first, shared.discover(), strict=True))  # type: ignore[arg-type]
    inner.devices = [attrs.evolve(device, handle="new") for device in inner.devices]
    again = [*shared.discover()]  # type: ignore[misc]
    assert again == first
    assert {device.handle.device.handle for device in again} == {"new"}


def test_every_hook_of_a_backend_reaches_the_one_inside() -> None:
    hooks = {name for name, held in vars(kdp.DeviceBackend).items() if callable(held) and not name.startswith("_")}
    assert {*_WRAPPERS, "watched_file"} == hooks  # which is the vendor's to call


def test_allocate_sees_each_device_once_with_its_own_handle_and_its_state_is_kept() -> None:
    inner = Gpus()
    shared = share(inner, Sharing(replicas=4))
    allocation = of(shared, "gpu-1::3", "gpu-0::1", "gpu-0::2")
    edits: Any = shared.allocate(allocation)
    assert dict(edits.env) == {"GPUS": "gpu-0,gpu-1"}
    assert inner.calls == [("allocate", ("example.com/gpu", ["zero", "one"]))]
    assert allocation.state == {"seen": ["gpu-0", "gpu-1"]}


def test_too_many_replicas_for_a_container_are_refused_for_the_pods_author() -> None:
    shared = share(Gpus(), Sharing(replicas=4, limit=1))
    shared.allocate(of(shared, "gpu-0::0"))
    with pytest.raises(kdp.AllocationError) as refused:
        shared.allocate(of(shared, "gpu-0::0", "gpu-1::2"))
    assert str(refused.value) == (
        "example.com/gpu.shared: the container asks for 2 replicas of shared devices, at most 1 are allowed here; more "
        "replicas give no more of a device, so ask for 1"
    )


async def test_without_an_allocate_of_the_vendor_edits_are_merged_once() -> None:
    class Plain(kdp.DeviceBackend):
        resource = "example.com/gpu"

        @override
        def discover(self) -> list[Device]:
            return [Device(id="a", edits=kdp.ContainerEdits(env={"A": "1"}))]

    shared = share(Plain(), Sharing(replicas=3, limit=2))
    edits: Any = shared.allocate(of(shared, "a::0", "a::1"))
    assert dict((await edits).env) == {"A": "1"}
    refused: Any = shared.allocate(of(shared, "a::0", "a::1", "a::2"))
    with pytest.raises(kdp.AllocationError, match="at most 2"):
        await refused


async def test_a_device_is_released_when_its_last_replica_is() -> None:
    inner = Gpus()
    shared: Any = share(inner, Sharing(replicas=4))
    one, two = of(shared, "gpu-0::0", "gpu-1::0"), of(shared, "gpu-0::1")
    await shared.released(attrs.evolve(one, shared_with={"gpu-0": two.ids}))
    assert inner.calls == [("released", ("gpu-1",))]
    await shared.released(two)
    assert inner.calls == [("released", ("gpu-1",)), ("released", ("gpu-0",))]


async def test_a_device_that_is_gone_since_is_released_by_its_own_id() -> None:
    inner = Gpus()
    shared: Any = share(inner, Sharing(replicas=4))
    gone = Allocation(resource="example.com/gpu", devices=(Device(id="old::3"),), deadline=time.monotonic() + 1)
    await shared.released(gone)
    assert inner.calls == [("released", ("old",))]


async def test_a_release_that_raises_is_repeated_whole() -> None:
    class Failing(Gpus):
        fails = True

        @override
        async def released(self, devices: Allocation) -> None:
            if self.fails:
                raise OSError("busy")
            await super().released(devices)

    inner = Failing()
    shared: Any = share(inner, Sharing(replicas=2))
    allocation = of(shared, "gpu-0::0")
    shared.allocate(allocation)
    with pytest.raises(OSError, match="busy"):
        await shared.released(allocation)
    inner.fails = False
    await shared.released(allocation)
    assert inner.calls[-1] == ("released", ("gpu-0",))


def test_a_fault_of_a_device_is_one_of_all_its_replicas() -> None:
    class Listener:
        stopping = threading.Event()

        def __init__(self) -> None:
            self.heard: list[tuple[object, ...]] = []

        def rescan(self) -> None:
            self.heard.append(("rescan",))

        def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
            self.heard.append(("fault", list(ids_or_unit), reason, kind))

        def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
            self.heard.append(("clear", list(ids_or_unit), kind))

    listener = Listener()
    share(Gpus(), Sharing(replicas=1, overrides=[Override("gpu-0", 2)])).watch(listener)
    assert listener.heard == [
        ("fault", ["gpu-0", "gpu-0::0", "gpu-0::1"], "XID 79", "xid"),
        ("clear", ["gpu-1", "gpu-1::0", "gpu-1::1"], "heat"),
        ("rescan",),
    ]


def test_links_are_asked_for_the_devices_not_the_replicas() -> None:
    inner = Gpus()
    shared = share(inner, Sharing(replicas=3))
    found: Any = shared.discover()
    assert shared.links(found) == {("gpu-0", "gpu-1"): 5.0}
    assert inner.calls == [("links", ["gpu-0", "gpu-1"])]


def request(shared: kdp.DeviceBackend, size: int, *must: str) -> kdp.PreferRequest:
    found: Any = shared.discover()
    held = tuple(d for d in found if d.id in must)
    return kdp.PreferRequest(resource="example.com/gpu", available=tuple(found), must_include=held, size=size)


def test_the_vendors_prefer_chooses_among_units() -> None:
    inner = Gpus()
    shared = share(inner, Sharing(replicas=3, placement="distinct"))
    assert shared.prefer(request(shared, 1)) == ["gpu-1::0"]
    assert shared.prefer(request(shared, 2, "gpu-0::2")) == ["gpu-0::2", "gpu-1::0"]
    assert inner.calls[-1] == ("prefer", (["gpu-0", "gpu-1"], ["gpu-0"]))


def test_the_vendors_prefer_is_not_asked_where_units_have_to_repeat() -> None:
    inner = Gpus()
    shared = share(inner, Sharing(replicas=3, placement="distinct"))
    assert shared.prefer(request(shared, 3)) is None
    assert shared.prefer(request(shared, 2, "gpu-0::1", "gpu-0::2")) is None
    assert inner.calls == []
