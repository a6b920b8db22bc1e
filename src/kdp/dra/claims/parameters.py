"""What a claim's configuration says, as objects of the classes that the backend declares in ``config``.

The scheduler writes the configuration of the device class and of the claim into the allocation. Its order decides: all
entries of the class, then all of the claim, and the last one that is for a request counts, whole.
An entry without requests is for all; one for ``gpu`` is also for ``gpu/large``, the chosen part of a prioritised list.

Entries of other drivers are none of our business. Every one of ours must be right, also one that another outdoes, so
that a claim does not work by chance; the first mistake is a sentence with the entry's index and the field.

Source: the API's conventions for opaque parameters (``apiVersion``, ``kind``, fields in camelCase). The conversion is
strict, as the API server's is: no text becomes a number.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Union, cast, final, get_args, get_origin

import attrs

from ...errors import ClaimError, ConfigurationError
from ...model.devices import Version
from ...model.quantities import Quantity, parse_duration

Declared = type | tuple[type, ...] | None

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Quantity: "an amount as '80Gi'",
    Version: "a semantic version as '1.2.0'",
    timedelta: "a duration as '1m30s'",
}
_LISTS = (list, tuple, Sequence)
_MAPS = (dict, Mapping)


class _Mistake(Exception):
    """What is wrong, and the path of the field."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@final
@attrs.frozen
class Parameters:
    """The entries of one claim for one driver, those that count more last.

    Attributes:
        entries: Each with the requests that it is for; none: all of them.
    """

    entries: tuple[tuple[frozenset[str], object], ...] = ()

    def of_request(self, request: str) -> object | None:
        """Return the object that counts for a request, as ``gpu`` or ``gpu/large``; None: there is none."""
        names = {request, request.partition("/")[0]}
        found = (value for requests, value in reversed(self.entries) if not requests or requests & names)
        return next(found, None)


def read_parameters(entries: Sequence[Mapping[str, Any]], *, driver: str, declared: Declared) -> Parameters:
    """Return what the configuration of an allocated claim says for a driver.

    Args:
        entries: ``status.allocation.devices.config``.
        driver: The driver's name.
        declared: The backend's ``config``.

    Raises:
        ClaimError: An entry of ours is wrong.
    """
    found: list[tuple[bool, frozenset[str], object]] = []
    for index, entry in enumerate(entries):
        source = entry.get("source", "")
        opaque: Mapping[str, Any] | None = entry.get("opaque")
        if opaque is None:
            raise ClaimError(f"config[{index}] ({source}): has no opaque parameters; {driver} knows no other kind")
        if opaque.get("driver") != driver:
            continue
        try:
            value = _value(opaque.get("parameters"), driver, declared)
        except _Mistake as mistake:
            where = f".{mistake.path}" if mistake.path else ""
            raise ClaimError(f"config[{index}].opaque.parameters{where} ({source}): {mistake}") from None
        found.append((source != "FromClass", frozenset(entry.get("requests", ())), value))
    found.sort(key=lambda each: each[0])  # stable: the order within class and claim stays
    return Parameters(tuple((requests, value) for _, requests, value in found))


def check_declared(declared: Declared) -> None:
    """Check that the classes of a backend's ``config`` are ones that parameters can be made into.

    Raises:
        ConfigurationError: It is none, or a field has a type that JSON has no value for.
    """
    for cls in _classes(declared):
        if not _has_fields(cls):
            raise ConfigurationError(f"config {cls!r}: must be an attrs class, a dataclass, or a tuple of them")
        _check_fields(cls, cls.__name__)


def _classes(declared: Declared) -> tuple[type, ...]:
    if declared is None:
        return ()
    return declared if isinstance(declared, tuple) else (declared,)


def _check_fields(cls: type, name: str) -> None:
    kinds = _kinds(cls)
    for field in _fields(cls):
        if not _is_known(kinds[field.name], f"{name}.{field.name}"):
            raise ConfigurationError(
                f"config {name}.{field.name}: the type {kinds[field.name]} cannot be read from a claim; valid are "
                "bool, int, float, str, timedelta, kdp.Quantity, kdp.Version, Literal, an enum of texts, attrs "
                "classes, dataclasses, and lists, mappings and '| None' of them"
            )


@attrs.frozen
class _Field:
    """A field of an attrs class or a dataclass, with its name as a parameter of the constructor."""

    name: str
    parameter: str
    kind: Any
    is_required: bool


def _has_fields(cls: Any) -> bool:
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls))


def _fields(cls: type) -> list[_Field]:
    if not attrs.has(cls):
        missing = dataclasses.MISSING
        return [
            _Field(each.name, each.name, each.type, each.default is missing and each.default_factory is missing)
            for each in dataclasses.fields(cls)
            if each.init
        ]
    return [
        _Field(each.name, each.alias or each.name, each.type, each.default is attrs.NOTHING)
        for each in attrs.fields(cls)
        if each.init
    ]


def _kinds(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields; attrs before 24.1 annotates none that ``attrs.make_class`` made.

    Raises:
        ConfigurationError: An annotation names what the class's module does not have.
    """
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"config {cls.__name__}: its annotations cannot be read ({error}); import what they name at run time, "
            "not below 'if TYPE_CHECKING'"
        ) from None
    return {field.name: hints.get(field.name) or field.kind or Any for field in _fields(cls)}


def _is_known(kind: Any, name: str) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or kind is type(None) or kind in _WORDS or origin is Literal or _is_enum(kind):
        return True
    if _has_fields(kind):
        _check_fields(kind, name)
        return True
    if origin in _MAPS:
        return arguments[0] is str and _is_known(arguments[1], name)
    if origin in _LISTS:
        return (origin is not tuple or arguments[1:] == (...,)) and _is_known(arguments[0], name)
    return origin in (Union, types.UnionType) and all(_is_known(each, name) for each in arguments)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


# -- from JSON to objects ----------------------------------------------------------------------------------------------


def _value(raw: object, driver: str, declared: Declared) -> object:
    classes = {cls.__name__: cls for cls in _classes(declared)}
    if not classes:
        raise _Mistake(f"{driver} takes no parameters")
    if not isinstance(raw, Mapping):
        raise _Mistake(f"{_shown(raw)} must be an object with apiVersion and kind")
    fields = dict(cast("Mapping[str, Any]", raw))
    stated = fields.pop("apiVersion", "")
    kind = fields.pop("kind", "")
    cls = classes.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise _Mistake(f"{_shown(kind)} must be one of {', '.join(sorted(classes))}", "kind")
    version = getattr(cls, "api_version", f"{driver}/v1")
    if stated != version:
        raise _Mistake(f"{_shown(stated)} must be {version!r}", "apiVersion")
    return _object(cls, fields, "")


def _object(cls: type, raw: Mapping[str, Any], path: str) -> object:
    kinds = _kinds(cls)
    known = {_camel(field.parameter): field for field in _fields(cls)}
    given: dict[str, Any] = {}
    for name, value in raw.items():
        field = known.get(name)
        if field is None:
            raise _Mistake(f"is unknown; {cls.__name__} has {', '.join(known) or 'no fields'}", f"{path}{name}")
        given[field.parameter] = _converted(value, kinds[field.name], f"{path}{name}")
    for name, field in known.items():
        if field.is_required and name not in raw:
            raise _Mistake(f"must be given; {cls.__name__} has no default for it", f"{path}{name}")
    try:
        return cls(**given)
    except (ValueError, TypeError) as error:  # what a validator of the vendor's says is meant for the claim's author
        text = " ".join(str(error.args[0] if error.args else error).split())
        for name, field in known.items():
            text = text.replace(f"'{field.name}'", f"'{name}'")
        raise _Mistake(f"{cls.__name__}: {text}", path.rstrip(".")) from None


def _converted(value: Any, kind: Any, path: str) -> Any:
    """Return a value in its type, by the first rule that fits."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _of_union(value, arguments, path)
    if origin in _LISTS and _is(value, list):
        items = [_converted(each, arguments[0], f"{path}[{index}]") for index, each in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin in _MAPS and _is(value, dict):
        return {name: _converted(each, arguments[1], f"{path}[{name}]") for name, each in value.items()}
    if _has_fields(kind) and kind not in _WORDS and _is(value, dict):
        return _object(kind, value, f"{path}.")
    if origin is Literal and any(value == choice and type(value) is type(choice) for choice in arguments):
        return value
    if _is_enum(kind) and (member := next((each for each in kind if each.value == value), None)) is not None:
        return member
    try:
        if kind is Quantity and type(value) in (str, int, float):
            return Quantity(str(value))
        if kind is Version and _is(value, str):
            return Version(value)
        if kind is timedelta and _is(value, str):
            return parse_duration(value)
    except ValueError:
        pass
    if kind in (bool, int, float, str) and (type(value) is kind or (kind is float and type(value) is int)):
        return kind(value)
    raise _wrong(value, kind, path)


def _of_union(value: Any, kinds: Sequence[Any], path: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    mistakes: list[_Mistake] = []
    for kind in (each for each in kinds if each is not type(None)):
        try:
            return _converted(value, kind, path)
        except _Mistake as mistake:
            mistakes.append(mistake)
    if len(mistakes) == 1:
        raise mistakes[0]
    raise _wrong(value, kinds, path)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def _wrong(value: Any, kind: Any, path: str) -> _Mistake:
    return _Mistake(f"must be {_described(kind)}, this is {_shown(value)}", path)


def _described(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if _is_enum(kind):
        return f"one of {', '.join(repr(member.value) for member in kind)}"
    if origin in _LISTS:
        return "a list"
    if _is(kind, tuple):  # the members of a union
        return " or ".join(_described(each) for each in kind if each is not type(None))
    return "an object"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _camel(name: str) -> str:
    return re.sub(r"_+([a-z0-9])", lambda found: found[1].upper(), name.strip("_"))
