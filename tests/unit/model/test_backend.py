from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.errors import EditConflictError, InvalidValueError
from kdp.model.backend import Allocation, DeviceBackend, Needs, PreferRequest, is_overridden

HOOKS = ("open", "close", "watch", "allocate", "prefer", "links", "counters", "prepare_container", "released", "needs")


class Widgets(DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return []


def allocation(*devices: kdp.Device) -> Allocation:
    return Allocation(resource="example.com/widget", devices=devices, deadline=5.0)


def test_discover_is_the_only_thing_to_write() -> None:
    assert DeviceBackend.__abstractmethods__ == {"discover"}
    with pytest.raises(TypeError, match=r"abstract method '?discover"):
        DeviceBackend()  # type: ignore[abstract]


class Scrubbing(Widgets):
    """An option switches a hook on, as vendors are told to do it."""

    def __init__(self, *, scrub: bool = False) -> None:
        self.unused_hooks = () if scrub else ("released",)

    @override
    def released(self, devices: Allocation) -> None: ...


def test_an_object_says_which_hooks_of_its_class_it_does_not_use() -> None:
    assert is_overridden(Scrubbing(scrub=True), "released")
    assert not is_overridden(Scrubbing(), "released")
    assert not is_overridden(Widgets(), "released")


@pytest.mark.parametrize("name", ["release", "discover", "resource"])
def test_what_is_no_optional_hook_is_refused_by_name(name: str) -> None:
    backend = Scrubbing()
    backend.unused_hooks = ["watch", name]
    with pytest.raises(
        InvalidValueError, match=f"^unused_hooks of Scrubbing: '{name}' is no optional hook; there are "
    ):
        is_overridden(backend, "released")


def test_the_defaults_do_nothing() -> None:
    backend = Widgets()
    devices = allocation(kdp.Device(id="a"))
    assert backend.open() is None
    assert backend.close() is None
    assert backend.prepare_container(devices) is None
    assert backend.released(devices) is None
    assert backend.prefer(PreferRequest(resource="example.com/widget", available=(), must_include=(), size=1)) is None
    assert backend.links([]) == {}
    assert backend.counters() == {}
    assert backend.config is None
    assert backend.needs() == Needs(host_paths=(), capabilities=(), host_network=False, host_pid=False)
    assert (backend.poll_interval, backend.stale_after, dict(backend.joined_env)) == (5.0, 30.0, {})


def test_needs_take_paths_as_path_too() -> None:
    assert Needs(host_paths=[Path("/dev/shm")]) == Needs(host_paths=["/dev/shm"])


def test_an_allocation_of_a_device_plugin_knows_no_claim() -> None:
    devices = allocation(kdp.Device(id="a"))
    assert (devices.claim, devices.request, devices.config) == (None, "", None)
    assert devices.consumed == {}
    assert devices.share_id == {}


def test_allocate_merges_the_devices_edits() -> None:
    class Joined(Widgets):
        joined_env: Mapping[str, str] = {"IDS": ","}

    devices = allocation(*(kdp.Device(id=i, edits=kdp.ContainerEdits(env={"IDS": i})) for i in ("a", "b")))
    assert Joined().allocate(devices) == kdp.ContainerEdits(env={"IDS": "a,b"})
    with pytest.raises(EditConflictError, match="'a' and 'b'"):
        Widgets().allocate(devices)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_found_by_being_overridden(hook: str) -> None:
    class Base(Widgets):
        pass

    setattr(Base, hook, lambda self, *args: None)

    class Derived(Base):
        pass

    assert not is_overridden(Widgets(), hook)
    assert is_overridden(Base(), hook)
    assert is_overridden(Derived(), hook)


@pytest.mark.parametrize("hook", ["discover", *HOOKS])
def test_each_hook_says_when_it_is_called(hook: str) -> None:
    assert "Called" in inspect.cleandoc(getattr(DeviceBackend, hook).__doc__)


def test_an_allocation_is_a_frozen_sequence_of_devices() -> None:
    devices = [kdp.Device(id=i) for i in "abc"]
    found = allocation(*devices)
    assert isinstance(found, Sequence)
    assert list(found) == devices
    assert found[1] is devices[1]
    assert found[1:] == tuple(devices[1:])
    assert len(found) == 3
    assert devices[2] in found
    assert found.ids == ("a", "b", "c")
    assert found.state == {}
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        found.resource = "x"  # type: ignore[misc]
