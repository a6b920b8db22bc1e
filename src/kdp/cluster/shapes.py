"""What kdp reads of the API server's objects, as shapes, and the check of an answer against them. Without I/O.

A shape is a type; a function that returns what is wrong; a list with the shape of its items; or a mapping from a field
to its shape. A field whose name ends with ``?`` may be missing, and ``*`` stands for any name. What no shape names is
let through as it is.

The API server checks what it stores. What does not fit comes from something else: a proxy, a load balancer, a cache, or
a version of the API that does not exist yet.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MOST_OF_VERSION: Final = 64
_MOST_SHOWN: Final = 60

_WORDS: Final[dict[Any, str]] = {str: "text", int: "a whole number", bool: "true or false", dict: "an object"}


class ShapeError(ValueError):
    """A value is not what it must be; the text says where, and what it is."""


def _name(value: object) -> str | None:
    """Return what is wrong with a name, which becomes a part of a URL."""
    return None if isinstance(value, str) and _NAME.fullmatch(value) else "must be the name of an object"


def _version(value: object) -> str | None:
    good = isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MOST_OF_VERSION
    return None if good else f"must be text of at most {_MOST_OF_VERSION} characters"


def _count(value: object) -> str | None:
    good = type(value) is int and 0 <= value < 2**62
    return None if good else "must be a whole number of 0 or more"


VERSION: Final = {"gitVersion": str}

_TAINT: Final = {"key": str, "effect": str, "value?": str, "timeAdded?": str}

NODE: Final = {
    "metadata": {"uid": str},
    "spec?": {"taints?": [_TAINT]},
    "status?": {"allocatable?": {"*": object}, "conditions?": [{"type": str, "status": str}]},
}

POD: Final = {
    "metadata": {"uid": str, "deletionTimestamp?": str, "annotations?": {"*": str}},
    "spec?": {"nodeName?": str},
    "status?": {"phase?": str},
}

EVENT: Final = {"metadata": {"name": _name}}

_NAMED: Final = {"name": str}

SLICE: Final = {
    "metadata": {"name": _name, "uid?": str, "resourceVersion": _version, "ownerReferences?": [dict]},
    "spec": {
        "driver": str,
        "nodeName?": str,
        "pool": {"name": str, "generation": _count, "resourceSliceCount": _count},
        "devices?": [{"name": str, "taints?": [_TAINT]}],
        "sharedCounters?": [_NAMED],
    },
}

BOOKMARK: Final = {"metadata": {"resourceVersion": _version}}

_RESULT: Final = {
    "request": str,
    "driver?": str,
    "pool": str,
    "device": str,
    "shareID?": str,
    "adminAccess?": bool,
    "consumedCapacity?": {"*": object},
    "tolerations?": [{"key?": str, "operator?": str}],
}
_CONFIG: Final = {"source?": str, "requests?": [str], "opaque?": {"driver?": str}}
_DEVICE_STATUS: Final = {
    "driver?": str,
    "pool?": str,
    "device?": str,
    "shareID?": str,
    "conditions?": [{"type?": str, "status?": str}],
}

CLAIM: Final = {
    "metadata": {"uid": str, "annotations?": {"*": str}},
    "status?": {
        "allocation?": {"devices?": {"results?": [_RESULT], "config?": [_CONFIG]}},
        "devices?": [_DEVICE_STATUS],
    },
}


def check(value: object, shape: object, path: str = "") -> None:
    """Check a value. Fields that may be missing and are null are removed from it, so that nobody meets the null.

    Raises:
        ShapeError: It has another shape.
    """
    if isinstance(shape, dict):
        _check_object(value, cast("dict[str, Any]", shape), path)
    elif isinstance(shape, list):
        of_items = cast("Any", shape)[0]
        if not isinstance(value, (list, tuple)):
            raise _wrong(path, "must be a list", value)
        for index, item in enumerate(cast("list[Any]", value)):
            check(item, of_items, f"{path}[{index}]")
    elif isinstance(shape, type):
        is_right = type(value) is shape if shape in (int, bool) else isinstance(value, shape)
        if not is_right:
            raise _wrong(path, f"must be {_WORDS[shape]}", value)
        if isinstance(value, str) and not _is_sendable(value):
            raise _wrong(path, "must be text that UTF-8 carries", value)
    elif problem := cast("Any", shape)(value):
        raise _wrong(path, problem, value)


def _check_object(value: object, shape: dict[str, Any], path: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, "must be an object", value)
    fields = cast("dict[str, Any]", value)
    for name, of_field in shape.items():
        field = name.removesuffix("?")
        if name == "*":
            for key, held in fields.items():
                check(key, str, f"{path}{{}}")
                check(held, of_field, f"{path}[{_shown(key)}]")
        elif field is not name and fields.get(field) is None:
            fields.pop(field, None)
        elif field not in fields:
            raise ShapeError(f"{_at(path, field)} is missing")
        else:
            check(fields[field], of_field, _at(path, field))


def _is_sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _at(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _wrong(path: str, rule: str, value: object) -> ShapeError:
    return ShapeError(f"{path or 'it'} {rule}, this is {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value[:_MOST_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
