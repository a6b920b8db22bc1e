"""`Reading`: the value of one attribute, or the reason why there is none.

Every attribute of sysfs may be absent, empty, nonsense, or fail with EINVAL, ENODEV, ENOENT, EOPNOTSUPP and others: a
port that is down has no speed, a card that is being pulled out has no attribute. So reading returns and never raises:
what one card does not tell must not end the scan of the others.
"""

from __future__ import annotations

import errno as codes
import os
from typing import TYPE_CHECKING, Generic, TypeVar, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_U = TypeVar("_U")

_ABSENT = {codes.ENOENT, codes.ENODEV, codes.ENXIO, codes.ENOTDIR}
_FLAGS = {
    **dict.fromkeys(("1", "y", "yes", "on", "true", "enabled"), True),
    **dict.fromkeys(("0", "n", "no", "off", "false", "disabled"), False),
}


@final
@attrs.frozen
class Reading(Generic[_T]):
    """What came of reading one attribute: a value, or the reason why there is none.

    Attributes:
        path: The attribute, as a path of the node.
        value: The value; None: there is none, and `problem` says why.
        problem: A sentence that names the attribute; "": there is a value.
        errno: The error with which reading it failed; None: it was read, though it may be empty or nonsense.
    """

    path: str
    value: _T | None
    problem: str = ""
    errno: int | None = None

    @property
    def is_absent(self) -> bool:
        """Whether there is no such attribute, or no device any more (ENOENT, ENODEV, ENXIO), unlike one that fails."""
        return self.errno in _ABSENT

    def or_else(self, default: _U) -> _T | _U:
        """Return the value, or this where there is none."""
        return default if self.value is None else self.value

    def parsed(self, parse: Callable[[_T], _U], expected: str) -> Reading[_U]:
        """Return a reading of what a function makes of the value.

        Args:
            parse: Raises ValueError for nonsense. Not called where there is no value.
            expected: What it wants, for the sentence: "a number".
        """
        if self.value is None:
            return Reading(self.path, None, self.problem, self.errno)
        if self.value == "":
            return Reading(self.path, None, f"{self.path} is empty; expected {expected}")
        try:
            return Reading(self.path, parse(self.value))
        except ValueError:
            return Reading(self.path, None, f"{self.path} says {str(self.value)[:60]!r}; expected {expected}")


def read(path: str, get: Callable[[], bytes]) -> Reading[str]:
    """Return what a file says as text, without white space and NULs around it; an empty file says ``""``."""
    try:
        data = get()
    except OSError as error:
        code = error.errno or codes.EIO
        reason = "is not there" if code == codes.ENOENT else f"cannot be read: {error.strerror or os.strerror(code)}"
        return Reading(path, None, f"{path} {reason}", code)
    return Reading(path, data.decode(errors="replace").strip().strip("\0").strip())


_MOST_DIGITS = 64
"""No attribute is a longer number, and Python refuses to write one of 4,300 digits."""


def parse_integer(text: str) -> int:
    """Return a decimal number, or a hexadecimal one that says so with ``0x``."""
    return _number(text, 16 if text.lower().startswith(("0x", "-0x")) else 10)


def parse_hexadecimal(text: str) -> int:
    """Return a hexadecimal number, with ``0x`` in front or without."""
    return _number(text, 16)


_MOST_NUMBERS = 1 << 20
"""Of a list; a short text can name one range any number of times."""


def _number(text: str, base: int) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return int(text, base)


def parse_flag(text: str) -> bool:
    """Return what ``1``, ``Y``, ``yes``, ``on``, ``true``, ``enabled`` and their opposites mean."""
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def parse_words(text: str) -> tuple[str, ...]:
    """Return the words between white space."""
    return tuple(text.split())


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as the kernel writes it: ``0-3,8``."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < _MOST_NUMBERS or len(numbers) + high - low >= _MOST_NUMBERS:
            raise ValueError(text)
        numbers.extend(range(low, high + 1))
    return tuple(numbers)
