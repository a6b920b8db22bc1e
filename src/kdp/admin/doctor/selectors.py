"""Why a selector of a claim matches no published device, as far as its plain comparisons show it. Without I/O.

Only an API server evaluates CEL. Each part of an expression that is joined by ``&&`` must hold for one device, so a
part that holds for none is a cause for sure. An expression with alternatives is not judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ...model.spelling import nearest
from .node import some
from .plain import mapping_in, mappings_in, string_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_TEXT: Final = r"""(?:"([^"\\]*)"|'([^'\\]*)')"""
_OF_DEVICE: Final = re.compile(rf"device\.(attributes|capacity)\[\s*{_TEXT}\s*\]\s*(?:\.\s*(\w+)|\[\s*{_TEXT}\s*\])")
_EQUALS: Final = re.compile(rf"({_OF_DEVICE.pattern})\s*==\s*({_TEXT}|-?\d+|true|false)")
_DRIVER: Final = re.compile(rf"device\.driver\s*==\s*{_TEXT}")
_ALTERNATIVES: Final = re.compile(r"\|\||\?|!(?!=)")

_Key = tuple[str, str, str]
"""``attributes`` or ``capacity``, the domain, and the name."""


def fault_of(expressions: Iterable[str], slices: Sequence[Mapping[str, Any]]) -> str:
    """Return why no device of these ResourceSlices matches all expressions. Empty if nothing shows that."""
    devices = [*_devices(slices)]
    for expression in expressions:
        if _ALTERNATIVES.search(expression):
            continue
        if fault := _missing(expression, devices) or _unequal(expression, devices):
            return fault
    return ""


def _devices(slices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[_Key, object]]]:
    """Yield the driver of each device, and its values."""
    for item in slices:
        spec = mapping_in(item.get("spec"))
        driver = string_in(spec.get("driver"))
        for device in mappings_in(spec.get("devices")):
            values: dict[_Key, object] = {}
            for kind in ("attributes", "capacity"):
                for full, value in mapping_in(device.get(kind)).items():
                    domain, _, name = full.rpartition("/")
                    values[kind, domain or driver, name] = next(iter(mapping_in(value).values()), None)
            yield driver, values


def _missing(expression: str, devices: Sequence[tuple[str, Mapping[_Key, object]]]) -> str:
    """Return the first name of an expression that no device has, as a fault. Empty if there is none."""
    known = {key for _, values in devices for key in values}
    for found in _OF_DEVICE.finditer(expression):
        kind, domain, name = key = _key(found)
        if key in known:
            continue
        others = sorted(f"{each[1]}/{each[2]}" for each in known if each[0] == kind)
        meant = nearest(f"{domain}/{name}", others)
        noun = "attribute" if kind == "attributes" else "capacity"
        return f"no device here has the {noun} {domain}/{name}{f'; did you mean {meant}?' if meant else ''}"
    return ""


def _unequal(expression: str, devices: Sequence[tuple[str, Mapping[_Key, object]]]) -> str:
    """Return which comparison of an expression holds for no device. Empty if each may hold."""
    for part in expression.split("&&"):
        if found := _DRIVER.fullmatch(part.strip()):
            wanted = found[1] or found[2]
            there = sorted({driver for driver, _ in devices})
            if devices and wanted not in there:
                return f"no device here is of the driver {wanted}; there are those of {some(there)}"
        if found := _EQUALS.fullmatch(part.strip()):
            inner = _OF_DEVICE.match(found[1])
            if inner is None:
                continue
            key = _key(inner)
            literal = found[found.re.groups - 2]
            values = {_as_cel(values[key]) for _, values in devices if key in values}
            if literal.replace("'", '"') not in values:
                return f"no device here has {key[1]}/{key[2]} == {literal}; there are {some(sorted(values))}"
    return ""


def _key(found: re.Match[str]) -> _Key:
    kind, first, second, plain, third, fourth = found.groups()[:6]
    return kind, first or second or "", plain or third or fourth or ""


def _as_cel(value: object) -> str:
    """Return an attribute's value as an expression has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'
