from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kdp.cdi import cdi_device_name, cdi_kind
from kdp.model.names import check_cdi_device_name, check_cdi_kind, check_device_id

from ..strategies import effort, resource_names

IDS = st.text(min_size=1, max_size=63).filter(lambda text: text.isprintable() and not any(c.isspace() for c in text))


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("example.com/widget", "kdp.example.com/widget"),
        ("example.com/mig-1g.5gb", "kdp.example.com/mig-1g_5gb"),
        ("3m.com/4k", "kdp.3m.com/x4k"),
        ("3m.com/x4k", "kdp.3m.com/x4k-7edfd37c"),
        ("example.com/w_x", "kdp.example.com/w_x-5b4ce595"),
        ("example.com/w.x-5b4ce595", "kdp.example.com/w_x-5b4ce595-ca78a4e5"),
    ],
)
def test_a_resource_has_a_kind(resource: str, kind: str) -> None:
    assert cdi_kind(resource) == kind


@given(resource_names)
def test_every_resource_has_a_kind_that_each_version_and_runtime_takes(resource: str) -> None:
    kind = check_cdi_kind(cdi_kind(resource))
    assert "." not in kind.partition("/")[2]


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[str, str]:
    """Two resource names that differ in what a class cannot have, or one of which is like the other's class."""
    one = draw(st.from_regex(r"[ax1]([-ax1._]{0,6}[ax1])?", fullmatch=True))
    other = draw(
        st.sampled_from([one, f"x{one}", one.removeprefix("x"), cdi_kind(f"example.com/{one}").partition("/")[2]])
    )
    other = "".join(draw(st.sampled_from("._")) if char in "._" else char for char in other)
    assume(other and other[0] not in "-._")
    return f"example.com/{one}", f"example.com/{other}"


@given(neighbours())
@effort(500)
def test_two_resources_that_differ_in_a_dot_or_an_x_never_share_a_kind(pair: tuple[str, str]) -> None:
    one, other = pair
    assert (cdi_kind(one) == cdi_kind(other)) == (one == other)


def test_an_id_that_cdi_allows_stays() -> None:
    assert cdi_device_name("0000:3b:00.0") == "0000:3b:00.0"


def test_other_ids_are_escaped() -> None:
    assert cdi_device_name("mlx5_0/3") == "x_mlx5_5f0_2f3"


@given(IDS)
def test_every_id_has_a_name(device_id: str) -> None:
    check_device_id(device_id)
    name = cdi_device_name(device_id)
    check_cdi_device_name(f"kdp.example.com/widget={name}")


@given(IDS, IDS)
def test_two_ids_never_share_a_name(one: str, other: str) -> None:
    assert (cdi_device_name(one) == cdi_device_name(other)) == (one == other)
