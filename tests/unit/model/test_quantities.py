"""Durations as Kubernetes writes them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kdp.model.quantities import parse_duration


def test_a_duration_is_read_as_kubernetes_writes_it() -> None:
    assert parse_duration("1h30m") == timedelta(minutes=90)
    assert parse_duration("2.5s300ms") == timedelta(seconds=2.8)


@pytest.mark.parametrize("text", ["99999999999999h", f"{'9' * 400}h", "", "5", "1h 5m", "1d", "-1h", "\N{DIGIT ONE}x"])
def test_a_duration_that_none_can_be_was_an_internal_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller says what is wrong
        parse_duration(text)
