from __future__ import annotations

import pytest

from kdp.storage.documents import MAX_DEPTH, check_depth, parse_json


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        (b"\xff", "codec can't decode"),
        ('{"a": 1, "b": 2, "a": 3}', "it has the key 'a' twice"),
        ("[NaN]", "NaN is not a number in JSON"),
        ("1e999", "the number 1e999 is too large"),
        ("1" * 5000, "too many digits"),
        ("[" * 1_000_000, "it is nested too deeply"),
    ],
)
def test_what_is_no_json_of_ours_is_a_value_error(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_what_is_json_is_read() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, true, "\\ud800"]}') == {"a": [1, 2.5, None, True, "\ud800"]}
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_depth_counts_lists_and_mappings() -> None:
    check_depth([[], {"a": 1}], 2)
    with pytest.raises(ValueError, match="nested"):
        check_depth([[], {"a": [1, []]}], 2)
