from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from typing_extensions import override

import kdp
from kdp.errors import EditConflictError, InvalidValueError
from kdp.model.backend import Allocation, DeviceBackend, is_overridden


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


@pytest.mark.parametrize("name", ["release", "discover"])
def test_what_is_no_optional_hook_is_refused_by_name(name: str) -> None:
    backend = Scrubbing()
    backend.unused_hooks = ["watch", name]
    with pytest.raises(
        InvalidValueError, match=f"^unused_hooks of Scrubbing: '{name}' is no optional hook; there are "
    ):
        is_overridden(backend, "released")


def test_allocate_merges_the_devices_edits() -> None:
    class Joined(Widgets):
        joined_env: Mapping[str, str] = {"IDS": ","}

    devices = allocation(*(kdp.Device(id=i, edits=kdp.ContainerEdits(env={"IDS": i})) for i in ("a", "b")))
    assert Joined().allocate(devices) == kdp.ContainerEdits(env={"IDS": "a,b"})
    with pytest.raises(EditConflictError, match="'a' and 'b'"):
        Widgets().allocate(devices)


def test_a_hook_is_found_by_being_overridden() -> None:
    class Base(Widgets):
        @override
        def links(self, devices: Sequence[kdp.Device]) -> Mapping[tuple[str, str], float]:
            return {}

    class Derived(Base):
        pass

    assert not is_overridden(Widgets(), "links")
    assert is_overridden(Base(), "links")
    assert is_overridden(Derived(), "links")
