"""`Measurement`: what a backend measures of its devices, declared so that it can be exported to Prometheus."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, final

import attrs

from ..errors import InvalidValueError
from ..startup import shown
from .text import shown_value

MOST_MEASUREMENTS: Final = 32
"""Measurements of one backend."""

LONGEST: Final = 63
"""Characters of a name."""

LONGEST_HELP: Final = 200

KINDS: Final = ("gauge", "counter")
"""What a value can be: one that goes up and down, or one that counts from the device's start."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

_TAKEN: Final = ("total", "count", "sum", "bucket", "created", "info")
"""Ends of names that mean something to Prometheus."""

_BASE_UNITS: Final = {
    "percent": "ratio, from 0 to 1",
    **dict.fromkeys(("s", "ms", "us", "ns", "milliseconds", "microseconds", "minutes", "hours"), "seconds"),
    **dict.fromkeys(("b", "kb", "mb", "gb", "kib", "mib", "gib", "kilobytes", "megabytes", "gigabytes"), "bytes"),
    **dict.fromkeys(("bits", "kilobits", "megabits"), "bytes"),
    **dict.fromkeys(("c", "fahrenheit", "kelvin", "millicelsius"), "celsius"),
    **dict.fromkeys(("w", "milliwatts", "microwatts", "kilowatts"), "watts"),
    **dict.fromkeys(("j", "millijoules", "microjoules", "kilojoules"), "joules"),
    **dict.fromkeys(("v", "millivolts", "microvolts"), "volts"),
    **dict.fromkeys(("a", "milliamperes"), "amperes"),
    **dict.fromkeys(("hz", "kilohertz", "megahertz", "gigahertz", "mhz", "ghz"), "hertz"),
}
"""Units of which Prometheus wants the base unit instead."""


def _check_name(_instance: object, _field: object, name: Any) -> None:
    rule = "must be lower-case letters, digits and '_', must begin with a letter and have at most 63 characters"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST:
        raise InvalidValueError(f"measurement {shown_value(name)}: {rule}; for example 'gpu_utilization'")
    if (end := name.rpartition("_")[2]) in _TAKEN:
        hint = "; kind='counter' adds it" if end == "total" else ""
        raise InvalidValueError(
            f"measurement {name!r}: must not end with '{end}', which Prometheus reserves{hint}; for example "
            "'gpu_utilization'"
        )


def _check_unit(_instance: object, _field: object, unit: Any) -> None:
    if not isinstance(unit, str) or (unit and not _NAME.fullmatch(unit)) or len(unit) > LONGEST or unit in _TAKEN:
        raise InvalidValueError(
            f"unit {shown_value(unit)}: must be lower-case letters, the plural of a base unit, or ''; "
            "for example 'bytes'"
        )
    if unit in _BASE_UNITS:
        raise InvalidValueError(f"unit {unit!r}: must be a base unit of Prometheus; for example {_BASE_UNITS[unit]}")


def _check_help(_instance: object, _field: object, text: Any) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InvalidValueError(
            f"help {shown_value(text)}: must say what is measured; for example 'Share of time in use.'"
        )


def _check_kind(_instance: object, _field: object, kind: Literal["gauge", "counter"]) -> None:
    if kind not in KINDS:
        raise InvalidValueError(
            f"kind {shown_value(kind)}: must be {' or '.join(map(repr, KINDS))}; for example 'gauge'"
        )


@final
@attrs.frozen
class Measurement:
    """Something that `DeviceBackend.measure` measures.

    It is exported as ``kdp_<name>_<unit>``, and a counter as ``kdp_<name>_<unit>_total``.

    Attributes:
        name: What it is, as ``gpu_utilization``.
        unit: Its base unit in the plural, as Prometheus wants it: ``ratio``, ``celsius``, ``bytes``, ``watts``; empty
            for a plain number.
        help: What it says, as a sentence.
        kind: ``gauge`` for a value that goes up and down; ``counter`` for one that only grows until the device or its
            driver starts again. Give a counter's whole value, not its growth.

    Raises:
        InvalidValueError: One of them breaks its rule.
    """

    __repr__ = shown

    name: str = attrs.field(validator=_check_name)
    unit: str = attrs.field(default="", kw_only=True, validator=_check_unit)
    help: str = attrs.field(kw_only=True, validator=_check_help)
    kind: Literal["gauge", "counter"] = attrs.field(default="gauge", kw_only=True, validator=_check_kind)

    @property
    def series(self) -> str:
        """The name that Prometheus has for it."""
        has_unit = not self.unit or self.name.endswith(f"_{self.unit}")
        name = f"kdp_{self.name}" if has_unit else f"kdp_{self.name}_{self.unit}"
        return f"{name}_total" if self.kind == "counter" else name
