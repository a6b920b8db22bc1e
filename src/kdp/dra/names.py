"""Device ids as names of the API, and back; the names of drivers and slices.

The API takes DNS labels: at most 63 of ``a-z``, ``0-9`` and ``-``, with a letter or digit at both ends. What is one
stays as it is. Otherwise the name is the id in lower case with ``-`` for whatever does not fit, so that people
recognise it, and behind ``--`` what is needed to get the id back:

============================ ======================================
device id                    name
============================ ======================================
``widget-0``                 ``widget-0``
``GPU-8f5c1a2e``             ``gpu-8f5c1a2e--03``
``0000:3b:00.0``             ``0000-3b-00-0--ccd``
``mlx5_0/3``                 ``mlx5-0-3--us``
an id too long for that      its beginning, ``--y`` and a digest
============================ ======================================

What stands behind ``--``, in this order: pairs of digits, "so many letters as they are, then so many capitals"; a mark
for each ``-`` that says what it stands for (``m`` is ``-`` itself, ``x`` and two digits any byte; marks ``m`` at the
end are left out); ``z`` if an ``x`` was put in front. A digest cannot be read back: `device_id_of` looks among the ids
that it is told.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING

from ..errors import InvalidNameError
from ..model.names import check_resource_name

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LABEL = 63
MAX_OBJECT_NAME = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_DRIVER = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_POOL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([./][a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_MARKS = {
    "-": "m",
    ":": "c",
    ".": "d",
    "_": "u",
    "/": "s",
    "+": "p",
    "@": "a",
    "=": "e",
    "#": "h",
}
_MARKED = {mark: char for char, mark in _MARKS.items()}
_CODE = re.compile(r"((?:[0-9]{2})*)((?:[mcduspaeh]|x[0-9a-f]{2})*)(z?)\Z")
_MARK = re.compile(r"x([0-9a-f]{2})|([a-z])")
_DIGEST = "y"
_DIGEST_LENGTH = 13


def device_name(device_id: str) -> str:
    """Return the name of a device in the API; it depends on the id alone."""
    if len(device_id) <= MAX_LABEL and _LABEL.match(device_id) and "--" not in device_id:
        return device_id
    body = "".join(_plain(char) for char in device_id)
    is_prefixed = not body[:1].isalnum()
    body = f"x{body}" if is_prefixed else body
    code = _cases(device_id) + "".join(_mark(char) for char in device_id).rstrip("m") + ("z" if is_prefixed else "")
    name = f"{body}--{code or 'm'}"
    if len(name) <= MAX_LABEL:
        return name
    tail = f"--{_DIGEST}{_digest(device_id)}"
    return body[: MAX_LABEL - len(tail)] + tail


def device_id_of(name: str, known: Iterable[str] = ()) -> str:
    """Return the device id of which `device_name` made this name.

    Args:
        name: The name.
        known: Ids among which that of a digest is looked for.

    Raises:
        InvalidNameError: It made no such name, or none of the known ids has this digest.
    """
    body, dashes, code = name.rpartition("--")
    if not dashes:
        found = name
    elif code.startswith(_DIGEST):
        found = next((device_id for device_id in known if device_name(device_id) == name), "")
    else:
        found = _decoded(body, code)
    if not found or device_name(found) != name:
        raise InvalidNameError(f"device name {name!r}: kdp did not make this name from a known device id")
    return found


def _plain(char: str) -> str:
    if char.isascii():
        return char.lower() if char.isalnum() else "-"
    return "-" * len(char.encode())


def _mark(char: str) -> str:
    if char.isascii() and char.isalnum():
        return ""
    return _MARKS.get(char) or "".join(f"x{byte:02x}" for byte in char.encode())


def _cases(device_id: str) -> str:
    """Return the pairs of digits that say which letters are capitals."""
    code = ""
    letters = [char.isupper() for char in device_id if char.isascii() and char.isalpha()]
    at = 0
    while any(letters[at:]):
        lower = next(n for n in range(len(letters)) if letters[at + n])
        upper = next((n for n, is_upper in enumerate(letters[at + lower :]) if not is_upper), len(letters) - at - lower)
        at += lower + upper
        while lower > 9:
            code, lower = f"{code}90", lower - 9
        code, upper = f"{code}{lower}{min(upper, 9)}", upper - min(upper, 9)
        while upper:
            code, upper = f"{code}0{min(upper, 9)}", upper - min(upper, 9)
    return code


def _decoded(body: str, code: str) -> str:
    """Return the id of which this may be the name; "": of none."""
    match = _CODE.match(code)
    if match is None:
        return ""
    cases, marks, prefixed = match.groups()
    body = body[1:] if prefixed else body
    stands_for = [bytes.fromhex(m[1]) if m[1] else _MARKED[m[2]].encode() for m in _MARK.finditer(marks)]
    stands_for += [b"-"] * (body.count("-") - len(stands_for))
    capitals: list[bool] = []
    for lower, upper in zip(cases[::2], cases[1::2], strict=True):
        capitals += [False] * int(lower) + [True] * int(upper)
    raw = bytearray()
    marked, cased = iter(stands_for), iter(capitals)
    for char in body:
        if char == "-":
            raw += next(marked)
        elif char.isalpha():
            raw += (char.upper() if next(cased, False) else char).encode()
        else:
            raw += char.encode()
    return raw.decode(errors="replace")


def _digest(text: str) -> str:
    """Return 65 bits of a text's digest as 13 letters and digits."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:_DIGEST_LENGTH]


def driver_name(resource: str) -> str:
    """Return the name of the driver of an extended resource: that of ``example.com/widget`` is ``widget.example.com``.

    Raises:
        InvalidNameError: It would be longer than 63 characters, or begin with a digit.
    """
    domain, _, name = check_resource_name(resource).partition("/")
    return check_driver_name(f"{name.lower().replace('_', '-')}.{domain}")


def check_driver_name(value: str) -> str:
    """Check the name of a DRA driver: a DNS name that is a CDI vendor as well, so it begins with a letter.

    Raises:
        InvalidNameError: The API server, the kubelet or CDI would refuse it.
    """
    if len(value) > MAX_LABEL or not _DRIVER.match(value):
        raise InvalidNameError(
            f"driver name {value!r}: must be a DNS name of at most {MAX_LABEL} lower-case letters, digits, '-' and '.' "
            "that begins with a letter; valid is for example 'widget.example.com'"
        )
    return value


def check_pool_name(value: str) -> str:
    """Check the name of a pool that is no node's.

    Raises:
        InvalidNameError: It is not made of DNS names with ``/`` between them, or has more than 253 characters.
    """
    if len(value) > MAX_OBJECT_NAME or not _POOL.match(value):
        raise InvalidNameError(
            f"pool {value!r}: must be DNS names with '/' between them, at most 253 characters; valid is 'fabric-a'"
        )
    return value


def slice_name(position: int, driver: str, pool: str) -> str:
    """Return the name of a pool's slice. The scheduler goes through the slices in the order of their names.

    Args:
        position: Its place among the pool's slices, below 16^5.
        driver: The driver's name.
        pool: The pool's name.
    """
    tail = f"-{_digest(f'{driver}/{pool}')[:8]}"  # driver a-b, pool c is not driver a, pool b-c
    name = f"{position:05x}-{driver}-{pool.replace('/', '.')}"
    return name[: MAX_OBJECT_NAME - len(tail)].rstrip("-.") + tail
