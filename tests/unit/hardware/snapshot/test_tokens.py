"""Tokens and passwords in texts of anybody."""

from __future__ import annotations

import pytest

from kdp.hardware.snapshot.tokens import values, without, without_values


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password=xyzzy", "password=***"),
        ("the password is xyzzy, as ever", "the password is ***, as ever"),
        ('{"apiKey": "a b c", "n": 1}', '{"apiKey": "***", "n": 1}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("https://me:secret1@example.com/x", "https://me:***@example.com/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\nabc\n-----END", "-----BEGIN RSA PRIVATE KEY-----***-----END"),
        ("token: null", "token: null"),
        ("count=4 at 10.0.0.1:8080 is fine", "count=4 at 10.0.0.1:8080 is fine"),
    ],
)
def test_a_token_is_replaced_where_it_stands(text: str, left: str) -> None:
    assert without({"a": text.encode()}, ())[0] == {"a": left.encode()}


def test_what_one_text_gives_away_is_replaced_in_the_others_as_a_whole_word() -> None:
    texts = {"a": b"pwd: swordfish", "b": b"swordfish! SWORDFISH, swordfishes", "c": b"given: opensesame"}
    found, secrets = without(texts, (b"opensesame", b"abc"))
    assert found == {"a": b"pwd: ***", "b": b"***! ***, swordfishes", "c": b"given: ***"}
    assert secrets == {b"swordfish", b"opensesame", b"abc"}


def test_values_are_known_by_their_keys() -> None:
    document = {"a": [{"token": "x1", "n": 1}], "passwords": {"of": ["y2", 33]}, "secret": None}
    assert without_values(document) == {"a": [{"token": "***", "n": 1}], "passwords": "***", "secret": None}
    assert sorted(values(document)) == [b"33", b"x1", b"y2"]


@pytest.mark.parametrize(
    "text",
    [b"ERROR vendor: password=hunter2horse was refused", b"a=b=c: token=hunter2horse"],
)
def test_a_secret_behind_another_name_was_left(text: bytes) -> None:
    """A line of a log begins with the logger's name and a colon."""
    replaced, found = without({"log": text}, ())
    assert b"hunter2horse" not in replaced["log"]
    assert b"***" in replaced["log"]
    assert found == {b"hunter2horse"}
    assert without({"log": b"kdp: state: connected, a=b=c"}, ())[0] == {"log": b"kdp: state: connected, a=b=c"}
