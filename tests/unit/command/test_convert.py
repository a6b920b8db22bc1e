from __future__ import annotations

import enum
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import pytest

import kdp
from kdp.command.convert import ConversionError, convert, describe


class Mode(enum.Enum):
    FAST = "quick"
    SLOW = 2


@attrs.frozen
class Group:
    name: str
    paths: list[Path]
    mode: Mode = Mode.FAST


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("4", int, 4),
        ("0x1f", int, 31),
        ("2.5", float, 2.5),
        ("Yes", bool, True),
        (False, bool, False),
        ("/dev/x", Path, Path("/dev/x")),
        ("quick", Mode, Mode.FAST),
        ("SLOW", Mode, Mode.SLOW),
        ("2", Literal[1, 2], 2),
        ("none", int | None, None),
        ("x", int | str, "x"),
        ("7", int | str, 7),
        ("a, b", list[str], ["a", "b"]),
        ('["a,b", "c"]', list[str], ["a,b", "c"]),
        ("1,a", tuple[int, str], (1, "a")),
        ("1,1", frozenset[int], frozenset({1})),
        ("80Gi", kdp.Quantity, kdp.Quantity("80Gi")),
        ("1.2.3", kdp.Version, kdp.Version("1.2.3")),
        ("1m30s", timedelta, timedelta(seconds=90)),
        ("2.5", timedelta, timedelta(seconds=2.5)),
        (3, timedelta, timedelta(seconds=3)),
        ("1h300ms", timedelta, timedelta(hours=1, milliseconds=300)),
        ("~/x", Path, Path.home() / "x"),
        ("5", Annotated[int, "more"], 5),
        ("5", Any, "5"),
        ('{"a": 1}', dict[str, int], {"a": 1}),
        ({"name": "g", "paths": ["/x"]}, Group, Group("g", [Path("/x")])),
        ([{"name": "g", "paths": [], "mode": "SLOW"}], list[Group], [Group("g", [], Mode.SLOW)]),
    ],
)
def test_values_become_what_the_annotation_says(value: object, kind: Any, expected: object) -> None:
    converted = convert(value, kind)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "expectation"),
    [
        ("four", int, "a whole number (int); for example 4"),
        (True, int, "a whole number (int); for example 4"),
        (10**400, float, "a number (float); for example 2.5"),
        ("maybe", bool, "true or false (bool); for example true"),
        (1.1, str, "text (str)"),
        ("middle", Mode, "one of quick, SLOW"),
        ("c", Literal["a", "b"], "one of a, b"),
        ("x", int | None, "a whole number (int); for example 4 or none"),
        ("1,x", list[int], "a list, with commas, of a whole number (int); for example 4"),
        ("[1", list[int], "a list, with commas, of a whole number (int); for example 4"),
        ("1,2,3", tuple[int, str], "2 values, with commas: a whole number (int); for example 4, then text (str)"),
        ("lots", kdp.Quantity, "an amount (kdp.Quantity); for example 80Gi"),
        ("soon", timedelta, "a duration, or a number of seconds (timedelta); for example 1m30s"),
        ("5x", timedelta, "a duration, or a number of seconds (timedelta); for example 1m30s"),
        ("nan", timedelta, "a duration, or a number of seconds (timedelta); for example 1m30s"),
        ("9" * 40, timedelta, "a duration, or a number of seconds (timedelta); for example 1m30s"),
        ("{", dict[str, int], "a dict, as JSON"),
        ({"name": "g", "paths": [], "colour": 1}, Group, "a Group, as JSON ("),
        ({"name": "g", "paths": [], "mode": "middle"}, Group, "a Group, as JSON (expects one of quick, SLOW)"),
    ],
)
def test_what_does_not_fit_is_told_by_what_is_expected(value: object, kind: Any, expectation: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(value, kind)
    assert str(caught.value).startswith(expectation)
    assert describe(kind) in str(caught.value)
