"""What a backend says in words: text as text, and everything else, too."""

from __future__ import annotations

import enum
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from kdp.model.text import LONGEST, plain_text


class Reason(enum.StrEnum):
    HOT = "it is hot"


class Mute:
    @override
    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Reason.HOT, "it is hot"),
        (ValueError("it is hot"), "ValueError: it is hot"),
        (b"it is \xff", "it is �"),
        (79, "79"),
        (Mute(), "a Mute"),
        ("\ud800", "?"),
        ("x" * 2000, "x" * (LONGEST - 3) + "..."),
    ],
)
def test_everything_becomes_plain_text(value: object, text: str) -> None:
    found = plain_text(value, "a reason")
    assert found == text
    assert type(found) is str


def test_what_is_no_text_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            plain_text(number, "the reason of a test that says it once")
    assert [record.getMessage() for record in caplog.records] == [
        "the reason of a test that says it once must be text, this was of type int; kdp converts it to text"
    ]


@given(
    st.one_of(st.text(), st.binary(), st.integers(), st.lists(st.text()), st.floats(), st.none()), st.integers(4, 99)
)
def test_it_is_always_text_that_utf_8_carries_and_never_too_long(value: object, most: int) -> None:
    found = plain_text(value, "a value of a property", most=most)
    assert len(found.encode().decode()) <= most
