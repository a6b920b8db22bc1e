from __future__ import annotations

import math
from typing import Any

import pytest

from kdp.errors import InvalidValueError
from kdp.hardware import Threshold


def test_a_value_that_swings_around_the_limit_made_a_device_flap() -> None:
    hot = Threshold(above=90, until=80)
    values = [85, 90, 91, 89, 81, 80, 90, None, 90.5, None, 70]
    assert [hot.is_crossed("c0", value) for value in values] == [
        *(False, False, True, True, True, False, False, False, True, True, False)
    ]


def test_small_values_can_be_the_bad_ones() -> None:
    slow = Threshold(below=500, until=800)
    assert [slow.is_crossed("fan", value) for value in (1000, 500, 499, 700, 800)] == [False, False, True, True, False]


def test_each_device_has_its_own_state() -> None:
    hot = Threshold(above=90, until=80)
    assert hot.is_crossed("c0", 95)
    assert not hot.is_crossed("c1", 85)
    assert hot.is_crossed("c0", 85)
    assert hot.is_crossed("c0", math.nan)


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        ({"above": 85, "until": 95}, r"above=85 and until=95: until must be less than above; for example Thr.*e=90"),
        ({"below": 800, "until": 500}, r"below=800 and until=500: until must be more than below; for example .*w=500"),
    ],
)
def test_swapped_limits_turned_the_meaning_around(limits: Any, rule: str) -> None:
    with pytest.raises(InvalidValueError, match=rule):
        Threshold(**limits)


@pytest.mark.parametrize(
    "limits",
    [
        {"above": 90, "until": 90},
        {"above": math.nan, "until": 1},
        {"below": 1, "until": math.inf},
        {"above": 90, "below": 10, "until": 80},
        {"until": 80},
        {"above": "90", "until": 80},
        {"below": 10, "until": "20"},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"must be finite|give one of them|until must be"):
        Threshold(**limits)
