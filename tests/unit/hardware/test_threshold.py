from __future__ import annotations

import math

import pytest

from kdp.errors import InvalidValueError
from kdp.hardware import Threshold


def test_a_value_that_swings_around_the_limit_made_a_device_flap() -> None:
    hot = Threshold(crossed_at=90, cleared_at=80)
    values = [85, 90, 89, 91, 81, 80, 89, None, 90, None, 70]
    assert [hot.is_crossed("c0", value) for value in values] == [
        *(False, True, True, True, True, False, False, False, True, True, False)
    ]


def test_small_values_can_be_the_bad_ones() -> None:
    slow = Threshold(crossed_at=500, cleared_at=800)
    assert [slow.is_crossed("fan", value) for value in (1000, 501, 500, 700, 800)] == [False, False, True, True, False]


def test_each_device_has_its_own_state() -> None:
    hot = Threshold(crossed_at=90, cleared_at=80)
    assert hot.is_crossed("c0", 95)
    assert not hot.is_crossed("c1", 85)
    assert hot.is_crossed("c0", 85)
    assert hot.is_crossed("c0", math.nan)


@pytest.mark.parametrize(("crossed", "cleared"), [(90, 90), (math.nan, 1), (1, math.inf)])
def test_limits_that_make_no_sense_are_refused(crossed: float, cleared: float) -> None:
    with pytest.raises(InvalidValueError, match="must be two different finite numbers"):
        Threshold(crossed_at=crossed, cleared_at=cleared)
