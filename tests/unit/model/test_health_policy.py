from __future__ import annotations

from typing import Any

import pytest

from kdp import HealthPolicy, InvalidValueError


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"failures": 0}, "failures=0: must be a whole number of 1 or more; for example failures=3"),
        ({"successes": True}, "successes=True: must be a whole number"),
        ({"flap_window": float("nan")}, "flap_window=nan: must be a number of seconds"),
        ({"hold_down": 3600}, r"hold_down=3600 is above hold_down_max=1800: .* lower the one or raise the other"),
        ({"recheck": 700}, "flap_window=600 is below recheck=700"),
    ],
)
def test_a_wrong_number_or_a_contradiction_is_refused(numbers: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{words}"):
        HealthPolicy(**numbers)
    with pytest.raises(InvalidValueError, match=f"^{words}"):
        HealthPolicy().changed(numbers)


def test_an_option_changes_what_it_names() -> None:
    numbers = HealthPolicy.numbers(" failures=2, hold-down = 0.5,flaps=none")
    assert numbers == {"failures": 2, "hold_down": 0.5, "flaps": None}
    assert HealthPolicy(successes=5).changed(numbers) == HealthPolicy(
        failures=2, successes=5, hold_down=0.5, flaps=None
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "thresholds '': must be NAME=NUMBER"),
        ("failures=1,failures=2", "thresholds .* each name once"),
        ("failures=two", "failures=two: must be a number; for example failures=3"),
        ("failure=2", "'failure': there is no such threshold; there are failures, successes, recheck, flaps"),
    ],
)
def test_a_text_that_is_wrong_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{words}"):
        HealthPolicy.numbers(text)


def test_numbers_without_a_name_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"^'patience': there is no such threshold"):
        HealthPolicy().changed({"patience": 3})
