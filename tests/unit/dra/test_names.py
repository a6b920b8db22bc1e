from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kdp.dra.names import check_driver_name, device_name, driver_name, slice_name
from kdp.errors import InvalidNameError

from .. import strategies
from ..strategies import effort

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


@pytest.mark.parametrize(
    ("device_id", "name"),
    [
        ("widget-0", "widget-0"),
        ("GPU-8f5c1a2e-5a4b-4c3d-9e8f-0123456789ab", "gpu-8f5c1a2e-5a4b-4c3d-9e8f-0123456789ab--ao43vaxwis"),
        ("0000:3b:00.0", "0000-3b-00-0--wthyddtomj"),
        ("a--b", "a--b--scbhulswgy"),
        ("_a", "x-a--gt5xcybu5w"),
        ("é", "x---jkmvk7sagp"),
        ("Card_" * 12, "card-card-card-card-card-card-card-card-card-card-c--ed26vtndqf"),
    ],
)
def test_names_are_those_of_the_table(device_id: str, name: str) -> None:
    assert device_name(device_id) == name


@effort(300)
@given(strategies.device_ids | st.text("aA-_:./0", min_size=1, max_size=63))
@example("a" * 63)
@example("A" * 63)
@example("-" * 63)
@example("a--03")
def test_every_id_has_a_name(device_id: str) -> None:
    name = device_name(device_id)
    assert LABEL.match(name)
    if LABEL.match(device_id) and "--" not in device_id:
        assert name == device_id


@effort(300)
@given(st.lists(st.text("aA-_:0xz", min_size=1, max_size=6), unique=True, max_size=30))
def test_no_two_ids_have_one_name(device_ids: list[str]) -> None:
    assert len({device_name(device_id) for device_id in device_ids}) == len(device_ids)


@pytest.mark.parametrize(
    ("resource", "name"),
    [("nvidia.com/gpu", "gpu.nvidia.com"), ("example.com/Big_Widget", "big-widget.example.com")],
)
def test_a_driver_has_its_resources_name_the_other_way_round(resource: str, name: str) -> None:
    assert driver_name(resource) == name


@pytest.mark.parametrize("resource", ["example.com/3d", f"example.com/{'x' * 60}"])
def test_a_resource_that_makes_no_driver_name_is_refused(resource: str) -> None:
    with pytest.raises(InvalidNameError, match=r"begins with a letter; for example 'widget.example.com'$"):
        driver_name(resource)


@pytest.mark.parametrize("name", ["Gpu.example.com", "3d.example.com", "a..b"])
def test_a_driver_name_is_one_for_dns_and_for_cdi(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_driver_name(name)


def test_slices_sort_by_their_position() -> None:
    names = [slice_name(position, "gpu.example.com", "node-0") for position in (0, 1, 255, 256, 65536)]
    assert names == sorted(names)
    assert names[0].startswith("00000-gpu.example.com-node-0-")


def test_the_slices_of_two_pools_never_share_a_name() -> None:
    assert slice_name(1, "a-b.c", "d") != slice_name(1, "a", "b.c-d")
    assert slice_name(1, "a", "b/c") != slice_name(1, "a", "b.c")


def test_a_slices_name_fits() -> None:
    name = slice_name(1, f"{'d' * 59}.com", ".".join(["p" * 62] * 4))
    assert len(name) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)
