from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.hardware.readings import (
    Reading,
    parse_flag,
    parse_hexadecimal,
    parse_integer,
    parse_numbers,
    parse_words,
    read,
)
from kdp.model.names import natural

from ..strategies import effort


def of(text: str) -> Reading[str]:
    return read("/sys/x", text.encode)


def failing(code: int) -> Reading[str]:
    def fail() -> bytes:
        raise OSError(code, "text of the system")

    return read("/sys/x", fail)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_integer, "-1", -1),
        (parse_integer, "0x10de", 0x10DE),
        (parse_hexadecimal, "0x10DE\n", 0x10DE),
        (parse_hexadecimal, "9926ab6d", 0x9926AB6D),
        (parse_flag, "Y\n", True),
        (parse_flag, "disabled", False),
        (parse_words, " a  b\tc\n", ("a", "b", "c")),
        (parse_numbers, "0-3,8\n", (0, 1, 2, 3, 8)),
    ],
)
def test_a_value_is_what_the_kernel_means(parse, text: str, value: object) -> None:  # type: ignore[no-untyped-def]
    reading = of(text).parsed(parse, "something")
    assert (reading.value, reading.problem, reading.errno) == (value, "", None)


@pytest.mark.parametrize("parse", [parse_integer, parse_hexadecimal])
def test_a_number_of_thousands_of_digits_is_none(parse: Callable[[str], int]) -> None:
    """Python reads it with the base 16, and then cannot write it."""
    with pytest.raises(ValueError, match=r"^0x"):
        parse("0x" + 4000 * "f")


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_integer, "maybe"), (parse_hexadecimal, "0x"), (parse_flag, "1 2"), (parse_numbers, "3-1")],
)
def test_nonsense_has_a_reason_and_no_value(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    reading = of(text).parsed(parse, "a number")
    assert reading.value is None
    assert reading.problem == f"/sys/x says {text!r}; expected a number"
    assert reading.errno is None
    assert not reading.is_absent


def test_a_range_without_end_is_none() -> None:
    assert of("1-99999999999").parsed(parse_numbers, "a list of CPUs").value is None


def test_empty_is_a_text_but_no_number() -> None:
    assert of("\n").value == ""
    assert of("\n").parsed(parse_integer, "a number").problem == "/sys/x is empty; expected a number"
    assert of("").or_else("?") == ""


@pytest.mark.parametrize(
    ("code", "absent"),
    [(errno.ENOENT, True), (errno.ENODEV, True), (errno.EINVAL, False)],
)
def test_an_error_is_a_reason_and_is_handed_on(code: int, absent: bool) -> None:
    reading = failing(code).parsed(parse_integer, "a number")
    assert reading.value is None
    assert reading.errno == code
    assert reading.is_absent is absent
    expected = "/sys/x is not there" if code == errno.ENOENT else "/sys/x cannot be read: text of the system"
    assert reading.problem == expected
    assert reading.or_else(7) == 7


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert read("/sys/x", lambda: b"ab\xff\0\0\n").value == "ab�"


@effort(200)
@given(st.binary(max_size=40))
def test_no_content_raises(data: bytes) -> None:
    reading = read("/sys/x", lambda: data)
    for parse in (parse_integer, parse_hexadecimal, parse_flag, parse_numbers, parse_words):
        parsed = reading.parsed(parse, "something")
        assert (parsed.value is None) == bool(parsed.problem)


def test_two_comes_before_ten() -> None:
    assert sorted(["u10", "u2", "u02", "u"], key=natural) == ["u", "u02", "u2", "u10"]
