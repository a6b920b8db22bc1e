"""JSON and TOML texts of anybody as plain values, or a `ValueError`: no other exception comes out.

The standard library accepts more than JSON is: a key twice, ``NaN``, and numbers that become infinite. What one reader
takes for the first value and another for the last is refused here. So is deep nesting, at which each version of Python
fails in another place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_T = TypeVar("_T")

MAX_DEPTH: Final = 100
"""Levels of nesting in a document: more than any file needs, fewer than any parser's own limit."""


MAX_STATE_DEPTH: Final = MAX_DEPTH - 10
"""Levels of nesting in what a backend has saved: the file around it has some of its own."""


_MOST_BITS: Final = 1000
"""Of a number; a float can hold it."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is not JSON, has a key twice, a number that is not finite, or is nested too deeply. The text
            says which.
    """
    import json  # a plugin without files of its own starts without it

    return bounded(
        lambda: json.loads(
            text, object_pairs_hook=unique, parse_constant=_refuse, parse_int=_whole, parse_float=_finite
        )
    )


def parse_toml(text: str) -> dict[str, Any]:
    """Return the value of a TOML text.

    Raises:
        ValueError: It is not TOML, has a number that Python does not write, or is nested too deeply.
    """
    import tomllib

    return bounded(lambda: tomllib.loads(text))


def bounded(parse: Callable[[], _T]) -> _T:
    """Return what a parser returns.

    Raises:
        ValueError: The parser raises it, or its value is nested too deeply or has a number of thousands of digits.
    """
    try:
        value = parse()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(value)
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a mapping.

    Raises:
        ValueError: They have a key twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has the key {next(name for name in names if names.count(name) > 1)[:60]!r} twice")
    return found


def check_depth(value: object, most: int = MAX_DEPTH) -> None:
    """Refuse a value of lists and mappings with more than ``most`` levels, or with a number of thousands of digits.

    Python refuses to write such a number, as into a message. No value may be inside itself.

    Raises:
        ValueError: It has more levels, or such a number.
    """
    level: list[object] = [[value]]
    for _ in range(most + 1):
        values = [held for each in level for held in _held(each)]
        if any(isinstance(held, int) and held.bit_length() > _MOST_BITS for held in values):
            raise ValueError("it has a number with too many digits")
        level = [held for held in values if isinstance(held, (dict, list))]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _held(value: object) -> Collection[object]:
    """Return what a list or a mapping holds."""
    if isinstance(value, dict):
        return cast("dict[object, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _whole(text: str) -> int:
    if len(text) > _MOST_BITS:
        raise ValueError("it has a number with too many digits")
    return int(text)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
