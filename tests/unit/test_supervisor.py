from __future__ import annotations

import pytest

from kdp.supervisor import pause_after


@pytest.mark.parametrize(
    ("took", "rest"), [(0.0, 5.0), (0.1, 4.9), (2.5, 2.5), (2.6, 2.5), (30.0, 2.5)], ids=lambda value: str(value)
)
def test_discoveries_begin_an_interval_apart_unless_they_are_slow(took: float, rest: float) -> None:
    assert pause_after(took, interval=5.0) == pytest.approx(rest)
