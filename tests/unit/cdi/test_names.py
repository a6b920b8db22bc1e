from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.cdi import cdi_device_name, cdi_kind, device_id_of
from kdp.errors import InvalidNameError
from kdp.names import check_cdi_device_name, check_device_id

IDS = st.text(min_size=1, max_size=63).filter(lambda text: text.isprintable() and not any(c.isspace() for c in text))


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("example.com/widget", "kdp.example.com/widget"),
        ("example.com/mig-1g.5gb", "kdp.example.com/mig-1g_5gb"),
        ("3m.com/4k", "kdp.3m.com/x4k"),
    ],
)
def test_a_resource_has_a_kind(resource: str, kind: str) -> None:
    assert cdi_kind(resource) == kind


@pytest.mark.parametrize("plain", ["w-0", "0000:3b:00.0", "GPU-8f1c", "x-1", "a"])
def test_an_id_that_cdi_allows_stays(plain: str) -> None:
    assert cdi_device_name(plain) == plain


def test_other_ids_are_escaped() -> None:
    assert cdi_device_name("mlx5_0/3") == "x_mlx5_5f0_2f3"


@given(IDS)
def test_every_id_has_a_name_and_comes_back(device_id: str) -> None:
    check_device_id(device_id)
    name = cdi_device_name(device_id)
    check_cdi_device_name(f"kdp.example.com/widget={name}")
    assert device_id_of(name) == device_id


@given(IDS, IDS)
def test_two_ids_never_share_a_name(one: str, other: str) -> None:
    assert (cdi_device_name(one) == cdi_device_name(other)) == (one == other)


@pytest.mark.parametrize("strange", ["", "x_", "x_w-0", "x_plain", "x_ff", "x_2F", "w/0"])
def test_a_name_that_is_not_ours_is_refused(strange: str) -> None:
    with pytest.raises(InvalidNameError, match="is not a name that kdp makes"):
        device_id_of(strange)
