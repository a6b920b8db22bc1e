"""The types that a constructor parameter's annotation may name: in words, as a schema, and a value made one of them.

The types that options have are converted here; anything else (attrs classes, dataclasses, mappings) goes to cattrs,
which is loaded only then.
"""

from __future__ import annotations

import enum
import inspect
import pathlib
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from ..model.devices import Version
from ..model.quantities import Quantity, parse_duration


class ConversionError(ValueError):
    """The value does not fit; the text says what is expected."""


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

_SIMPLE = {
    bool: "true or false (bool); for example true",
    int: "a whole number (int); for example 4",
    float: "a number (float); for example 2.5",
    str: "text (str)",
    Quantity: "an amount (kdp.Quantity); for example 80Gi",
    Version: "a semantic version (kdp.Version); for example 1.2.0",
    timedelta: "a duration, or a number of seconds (timedelta); for example 1m30s",
}
_SCHEMAS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Quantity: {"type": ["string", "number"]},
    Version: {"type": "string"},
    timedelta: {"type": ["string", "number"]},
}
_LISTS = (list, tuple, set, frozenset, Sequence, Iterable, Collection)


def describe(kind: Any) -> str:
    """Return in words what a value of this type looks like."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if _is_path(kind):
        return "a path; for example /srv/widgets"
    if _is_enum(kind):
        return f"one of {', '.join(_words_of_enum(kind))}"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return describe(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        words = [describe(member) for member in arguments if member is not types.NoneType]
        return " or ".join([*words, "none"] if types.NoneType in arguments else words)
    if _is_list(kind):
        if places := _places(kind):
            return f"{len(places)} values, with commas: {', then '.join(map(describe, places))}"
        return f"a list, with commas, of {describe(_element(kind))}"
    return f"a {getattr(kind, '__name__', kind)}, as JSON"


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of the values that `convert` takes for a type."""
    if kind in _SCHEMAS:
        return dict(_SCHEMAS[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return schema_of(arguments[0])
    if origin is Literal:
        return {"enum": list(arguments)}
    if _is_path(kind):
        return {"type": "string"}
    if _is_enum(kind):
        return {"enum": _words_of_enum(kind)}
    if origin in (Union, types.UnionType):
        parts = [schema_of(each) for each in arguments if each is not types.NoneType]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if _is_list(kind):
        return {"type": "array"} if _places(kind) else {"type": "array", "items": schema_of(_element(kind))}
    if kind is inspect.Parameter.empty or kind is Any or kind is object or isinstance(kind, (str, typing.ForwardRef)):
        return {}
    return {"type": ["object", "array"]}


def convert(value: object, kind: Any) -> Any:
    """Return the value as this type.

    Args:
        value: Text from a flag or a variable, a list of such texts, or what a file held.
        kind: The annotation; `inspect.Parameter.empty` and `typing.Any` take everything.

    Raises:
        ConversionError: It does not fit.
    """
    if kind is inspect.Parameter.empty or kind is Any or kind is object:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return convert(value, arguments[0])
    if kind in _SIMPLE:
        return _simple(value, kind)
    if _is_path(kind):
        path = (pathlib.Path if inspect.isabstract(kind) else kind)(_must(value, str, kind))
        return path.expanduser() if isinstance(path, pathlib.Path) else path
    if _is_enum(kind):
        return _member(value, kind)
    if origin is Literal:
        return _choice(value, arguments, kind)
    if origin in (Union, types.UnionType):
        return _union(value, kind)
    if _is_list(kind):
        return _list(value, kind)
    return _structured(value, kind)


def _must(value: object, held: type, kind: Any) -> Any:
    if not isinstance(value, held):
        raise ConversionError(describe(kind))
    return value


def _simple(value: object, kind: Any) -> Any:
    if kind is str:
        return _must(value, str, kind)
    if kind is bool:
        if isinstance(value, bool):
            return value
        word = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
        if word is None:
            raise ConversionError(describe(kind))
        return word
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConversionError(describe(kind))
    try:
        if kind is int:
            # 0x10 as in sysfs; a float of a file is no whole number.
            return int(value, 0) if isinstance(value, str) and "x" in value.lower() else int(str(value))
        if kind is timedelta:
            is_unitless = not isinstance(value, str) or value[-1:].isdecimal()
            return timedelta(seconds=float(value)) if is_unitless else parse_duration(str(value))
        return kind(str(value)) if kind is not float else float(value)
    except (ValueError, OverflowError):
        raise ConversionError(describe(kind)) from None


def _member(value: object, kind: Any) -> Any:
    for member in kind:
        if value is member or value in (member.name, member.value) or str(member.value) == value:
            return member
    raise ConversionError(describe(kind))


def _choice(value: object, choices: tuple[Any, ...], kind: Any) -> Any:
    for choice in choices:
        if (value == choice and type(value) is type(choice)) or (isinstance(value, str) and str(choice) == value):
            return choice
    raise ConversionError(describe(kind))


def _union(value: object, kind: Any) -> Any:
    members = get_args(kind)
    if types.NoneType in members and (value is None or (isinstance(value, str) and value.lower() in ("", "none"))):
        return None
    for member in members:
        if member is not types.NoneType:
            try:
                return convert(value, member)
            except ConversionError:
                continue
    raise ConversionError(describe(kind))


def _list(value: object, kind: Any) -> Any:
    if isinstance(value, str):
        value = (
            _from_json(value, kind) if value.startswith("[") else [part.strip() for part in value.split(",") if part]
        )
    if not isinstance(value, (list, tuple)):
        raise ConversionError(describe(kind))
    items = cast("Sequence[object]", value)
    places = _places(kind) or (_element(kind),) * len(items)
    try:
        converted = [convert(item, place) for item, place in zip(items, places, strict=True)]
    except ValueError:  # one does not fit, or their number
        raise ConversionError(describe(kind)) from None
    shape: Any = get_origin(kind) or kind
    try:
        return cast("Any", shape)(converted) if shape in (tuple, set, frozenset) else converted
    except TypeError:  # a set of lists
        raise ConversionError(describe(kind)) from None


def _structured(value: object, kind: Any) -> Any:
    import cattrs

    if isinstance(value, str):
        value = _from_json(value, kind)
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)

    def is_ours(held: Any) -> bool:
        return held in _SIMPLE or _is_path(held) or _is_enum(held) or get_origin(held) is Literal

    converter.register_structure_hook_func(is_ours, convert)
    converter.register_structure_hook(enum.Enum, convert)  # older versions look for this kind before the line above
    try:
        return converter.structure(value, kind)
    except Exception as error:
        reason = f"expects {error}" if isinstance(error, ConversionError) else str(error) or type(error).__name__
        raise ConversionError(f"{describe(kind)} ({reason})") from error


def _from_json(text: str, kind: Any) -> Any:
    from ..storage.documents import parse_json

    try:
        return parse_json(text)
    except ValueError:
        raise ConversionError(describe(kind)) from None


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pathlib.PurePath)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _words_of_enum(kind: Any) -> list[str]:
    return [member.value if isinstance(member.value, str) else member.name for member in kind]


def _is_list(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _LISTS


def _places(kind: Any) -> tuple[Any, ...]:
    """Return the types of a tuple with a fixed number of values, as ``tuple[int, str]``."""
    arguments = get_args(kind)
    return () if get_origin(kind) is not tuple or arguments[-1:] == (...,) else arguments


def _element(kind: Any) -> Any:
    arguments = get_args(kind)
    return arguments[0] if arguments else str
