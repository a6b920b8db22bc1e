"""Times, numbers, and states in words."""

from __future__ import annotations

from typing import get_args

import pytest

from kdp.concurrency.history import Kind
from kdp.deviceplugin.session import State
from kdp.deviceplugin.status import ABSENT
from kdp.operations.page import words
from kdp.supervision.health import HealthState


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


def test_each_state_and_each_kind_of_event_has_words() -> None:
    assert words.EVENTS.keys() == {*get_args(Kind)}
    assert words.STATES.keys() == {*(state.value for state in HealthState), "gone"}
    assert words.RESOURCES.keys() == {*(state.value for state in State), ABSENT, "registered", "published"}
