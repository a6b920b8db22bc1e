"""Leaving out of a snapshot what tells one machine from another.

Equal values get equal stand-ins, different ones different, and each keeps its shape (``5054:00ff:fe12:3456`` becomes
``0000:0000:0000:0001``), so that a backend reads the snapshot as it would the node. Values that mean something (all
zeros, all ones, empty) stay.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .archive import Snapshot

KINDS = {
    "serials": re.compile(
        r"(.*serial.*|.*_uuid|uuid|unique_id|wwid|wwn|nguid|eui|vpd|asset_tag|.*asset_tag)", re.IGNORECASE
    ),
    "addresses": re.compile(
        r"(address|perm_address|broadcast|node_guid|sys_image_guid|port_guid|node_desc|phys_port_id|phys_switch_id"
        r"|permaddr)"
    ),
}
"""By kind the names of the attributes whose values are replaced."""

_GID = re.compile(r"/gids/[0-9]+$")
_MEANS_NOTHING = re.compile(r"[0fF\W_]*")
_SHORTEST = 6
"""Values of so many letters and digits are also replaced where they stand inside of other attributes."""


def redact(snapshot: Snapshot, kinds: Iterable[str]) -> int:
    """Replace the values of these kinds in a snapshot; return how many attributes were changed."""
    stand_ins: dict[str, str] = {}
    changed: set[str] = set()
    patterns = {kind: KINDS[kind] for kind in kinds}
    for path, file in sorted(snapshot.files.items()):
        name = posixpath.basename(path)
        named = any(pattern.fullmatch(name) for pattern in patterns.values())
        if not named and not ("addresses" in patterns and _GID.search(path)):
            continue
        text = file.data.decode(errors="surrogateescape")
        value = text.strip()
        if _GID.search(path):  # the prefix says what kind of address it is
            value = ":".join(value.split(":")[4:])
        if _MEANS_NOTHING.fullmatch(value):
            continue
        stand_in = stand_ins.setdefault(value, _in_shape(value, len(stand_ins) + 1))
        _put(snapshot, path, text.replace(value, stand_in))
        changed.add(path)
    long = {value: to for value, to in stand_ins.items() if sum(map(str.isalnum, value)) >= _SHORTEST}
    if long:
        inside = re.compile("|".join(re.escape(value) for value in sorted(long, key=len, reverse=True)))
        for path, file in snapshot.files.items():
            text = file.data.decode(errors="surrogateescape")
            replaced = inside.sub(lambda match: long[match[0]], text)
            if path not in changed and replaced != text:
                _put(snapshot, path, replaced)
                changed.add(path)
    return len(changed)


def _put(snapshot: Snapshot, path: str, text: str) -> None:
    snapshot.files[path] = attrs.evolve(snapshot.files[path], data=text.encode(errors="surrogateescape"))


def _in_shape(value: str, number: int) -> str:
    """Return the number in the shape of a value: its letters and digits become digits, all else stays."""
    count = sum(map(str.isalnum, value))
    digits = iter(str(number).rjust(count, "0"))
    shaped = "".join(next(digits) if char.isalnum() else char for char in value)
    return shaped + "".join(digits)
