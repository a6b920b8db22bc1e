"""Times, numbers, and states in words."""

from __future__ import annotations

from typing import get_args

import pytest

from kdp.concurrency.history import Kind
from kdp.deviceplugin.session import State
from kdp.deviceplugin.status import ABSENT
from kdp.operations.page import words
from kdp.supervision.health import HealthState

from .samples import NOW


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.256, "ratio", "25.6 %"),
        (80 * 2.0**30, "bytes", "80 GiB"),
        (1.98e9, "hertz", "1.98 GHz"),
        (71.0, "celsius", "71 °C"),
        (3.0, "packets", "3 packets"),
    ],
)
def test_an_amount_has_its_unit(value: float, unit: str, text: str) -> None:
    assert words.amount(value, unit) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("2026-03-04T11:59:01+00:00", "59 s"),
        ("2026-03-04T10:00:01+00:00", "1 h"),
        ("2026-03-01T12:00:00+00:00", "3 d"),
        ("2026-03-04T12:00:09+00:00", "0 s"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(moment: str, text: str) -> None:
    assert words.age(moment, NOW) == text


def test_a_time_of_another_day_has_its_date() -> None:
    assert words.clock("2026-03-04T01:02:03+00:00", NOW) == "01:02:03"
    assert words.clock("2026-03-04T01:02:03+02:00", NOW) == "3 Mar 23:02"
    assert words.clock("2025-12-31T23:59:59+00:00", NOW) == "31 Dec 2025"


def test_each_state_and_each_kind_of_event_has_words() -> None:
    assert words.EVENTS.keys() == {*get_args(Kind)}
    assert words.STATES.keys() == {*(state.value for state in HealthState), "gone"}
    assert words.RESOURCES.keys() == {*(state.value for state in State), ABSENT, "registered", "published"}
