from __future__ import annotations

import pytest

from kdp.dra.publishing.limits import Limits
from kdp.errors import InvalidValueError


@pytest.mark.parametrize(
    ("version", "minor"),
    [("v1.34.4", (1, 34)), ("1.35", (1, 35)), ("v1.36.3+k3s1", (1, 36)), ("v1.37.1-eks-1", (1, 37)), ("2.0.0", (2, 0))],
)
def test_a_servers_version_is_read_as_it_says_it(version: str, minor: tuple[int, int]) -> None:
    assert Limits.of(version).version == minor


@pytest.mark.parametrize("version", ["", "1", "one.two", "v1.x"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(InvalidValueError, match=r"must be a version of Kubernetes; valid is 'v1.37.1'$"):
        Limits.of(version)


def test_an_old_server_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidValueError, match=r"DRA needs Kubernetes 1.34 or newer; use the device plugin there$"):
        Limits.of("v1.33.1")


def test_the_versions_differ_as_the_contract_says() -> None:
    v134, v135, v136, v137 = (Limits.of(f"1.{minor}") for minor in (34, 35, 36, 37))
    assert [each.combined for each in (v134, v135, v136, v137)] == [True, False, False, False]
    assert [each.taints for each in (v134, v135, v136, v137)] == [4, 16, 16, 16]
    assert [each.devices_with_more for each in (v134, v135, v136, v137)] == [128, 64, 64, 64]
    assert [each.attribute_values for each in (v134, v135, v136, v137)] == [None, None, 48, 48]
    assert [each.has_effect_none for each in (v134, v135, v136, v137)] == [False, True, True, True]
    assert [each.has_lists for each in (v134, v135, v136, v137)] == [False, False, True, True]
