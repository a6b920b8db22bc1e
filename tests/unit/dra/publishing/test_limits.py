from __future__ import annotations

import pytest

from kdp.dra.publishing.slices import Limits
from kdp.errors import InvalidValueError


@pytest.mark.parametrize(
    ("version", "minor"),
    [("v1.34.4", (1, 34)), ("v1.36.3+k3s1", (1, 36)), ("2.0.0", (2, 0))],
)
def test_a_servers_version_is_read_as_it_says_it(version: str, minor: tuple[int, int]) -> None:
    assert Limits.of(version).version == minor


@pytest.mark.parametrize("version", ["one.two", "v1.x"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(InvalidValueError, match=r"must be a version of Kubernetes; for example 'v1.37.1'$"):
        Limits.of(version)


def test_an_old_server_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidValueError, match=r"DRA needs Kubernetes 1.34 or newer; use the device plugin there$"):
        Limits.of("v1.33.1")
