"""The parameters of a backend's constructor as a JSON schema, with what its docstring says of each."""

from __future__ import annotations

import enum
import inspect
import pathlib
import re
import types
import typing
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from ..model.devices import Version
from ..model.quantities import Quantity
from .convert import describe
from .targets import settable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..manifests.chart_values import Schema
    from ..model.backend import DeviceBackend

_TYPES: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Quantity: {"type": ["string", "number"]},
    Version: {"type": "string"},
    timedelta: {"type": ["string", "number"]},
}


def parameters_schema(cls: type[DeviceBackend], given: Iterable[str] = ()) -> Schema:
    """Return the schema of what ``--set`` takes for a class.

    Args:
        cls: The class.
        given: Parameters that have a value already, so that none of them is required.
    """
    texts = documented(cls)
    known = settable(cls)
    properties: dict[str, Schema] = {}
    is_open = False
    for name, parameter in known.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            is_open = True
            continue
        said = texts.get(name) or f"{describe(parameter.annotation)}"
        properties[name] = {"description": said, **_schema(parameter.annotation)}
    missing = [
        name
        for name, parameter in known.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD and name not in given
    ]
    return {
        "type": "object",
        "additionalProperties": is_open,
        "properties": properties,
        **({"required": missing} if missing else {}),
    }


def alternatives(annotation: Any, default: object) -> list[object]:
    """Return values that a parameter may have instead of its default: as far as its type says which there are."""
    schema = _schema(annotation)
    for part in schema.get("anyOf", [schema]):
        if "enum" in part:
            return [value for value in part["enum"] if value != default]
        if part.get("type") == "boolean":
            return [value for value in (True, False) if value is not default]
        if part.get("type") == "integer":
            return [1, 2] if default in (0, None) else [0, 1]
        if part.get("type") == "string":
            return ["/opt/another"]
        if part.get("type") == "array" and "enum" in part["items"]:
            return [[value] for value in part["items"]["enum"]]
    return []


def words_of(annotation: Any) -> list[object]:
    """Return the words that a parameter may have; empty: it has other values than words."""
    return list(_schema(annotation).get("enum", ()))


def documented(cls: type) -> Mapping[str, str]:
    """Return what the ``Args:`` of the constructor's or the class's docstring say, by the parameter's name."""
    found: dict[str, str] = {}
    for text in (inspect.getdoc(cls) or "", inspect.getdoc(vars(cls).get("__init__")) or ""):
        _, _, arguments = text.partition("Args:\n")
        name, base = "", None
        for line in arguments.splitlines():
            indent = len(line) - len(line.lstrip())
            if not line.strip() or (base is not None and indent < base):
                break
            base = indent if base is None else base
            begins = re.match(r"\*{0,2}(\w+)(?: \(.*\))?: *(.*)", line.strip()) if indent == base else None
            if begins is not None:
                name = begins[1]
                found[name] = begins[2]
            elif name:
                found[name] += f" {line.strip()}"
    return {name: text.replace("``", "") for name, text in found.items()}


def _schema(kind: Any) -> Schema:
    """Return the schema of values that `kdp.cli.convert` takes for a type."""
    if kind in _TYPES:
        return dict(_TYPES[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _schema(arguments[0])
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(kind, type) and issubclass(kind, pathlib.PurePath):
        return {"type": "string"}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value if isinstance(member.value, str) else member.name for member in kind]}
    if origin in (Union, types.UnionType):
        parts = [_schema(each) for each in arguments if each is not types.NoneType]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if (origin or kind) in (list, set, frozenset, tuple) or _is_abstract_list(origin or kind):
        element = next((each for each in arguments if each is not ...), str)
        fixed = (origin or kind) is tuple and bool(arguments) and arguments[-1] is not ...
        return {"type": "array"} if fixed else {"type": "array", "items": _schema(element)}
    if kind is inspect.Parameter.empty or kind is Any or kind is object or isinstance(kind, (str, typing.ForwardRef)):
        return {}
    return {"type": ["object", "array"]}


def _is_abstract_list(kind: Any) -> bool:
    import collections.abc

    return kind in (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
