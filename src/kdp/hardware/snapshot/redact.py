"""Leaving out of a snapshot what tells one machine from another, and what opens a door.

Two rules find a secret: the name of the attribute that holds it (`KINDS`), and its shape, in any place (`_SHAPES`; of
tokens and passwords `tokens.RULES`). Each secret is then replaced in contents, names, and link targets, whatever its
case and separators, also with its bytes in reverse, in binary, written in hexadecimal, and as part of a modified EUI-64
(`secret_forms`). Tokens and passwords are replaced as words, too (`tokens`).

Equal secrets get equal stand-ins and keep their shape (``5054:00ff:fe12:3456`` becomes ``0000:0000:0000:0001``), also
inside a name, so links lead where they led. Values that mean something (all zeros, all ones, empty) stay, and so do
PCI addresses.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING

import attrs

from . import tokens
from .secret_forms import Secrets, blank_binary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .archive import Snapshot

KINDS = {
    "serials": re.compile(
        r"(.*serial.*|sn|.*uuid.*|.*uniq|unique_id|wwid|wwn|nguid|eui|eui64|host_?id|hostnqn|subsysnqn|cid|vpd.*|inquiry"
        r"|.*asset_tag|machine[_-]id|boot_id|imei|imsi|iccid|.*_secret|.*password.*|tls_key)",
        re.IGNORECASE,
    ),
    "addresses": re.compile(
        r"(address|perm_?addr(ess)?|broadcast|hw_?addr|bd_?addr|.*mac_?addr(ess)?|.*_guid|node_desc|phys_port_id"
        r"|phys_switch_id|ifalias|(.*_)?(port|node|fabric)_name|(.*_)?sas_address|wwpn|wwnn|initiator_?name|target_?name)",
        re.IGNORECASE,
    ),
    "secrets": tokens.NAMES,
}
"""By kind the names of the attributes whose values are replaced; also of keys, as in ``uevent``."""

_WORLD_WIDE = (
    rb"(?:naa\.|eui\.|wwn-0x|nguid\.)([0-9a-f]{16,32})|\b0x([12356][0-9a-f]{15})\b"  # no PCI resource is so high
)
_SHAPES = {
    "serials": re.compile(
        rb"(?<![0-9a-f])([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])|"
        + _WORLD_WIDE
        + rb"|\bserial(?:[ _-]?(?:number|no\.?|nr\.?))?\b[\"']?[ :=#]+[\"']?([0-9a-z-]*[0-9][0-9a-z-]*)",
        re.IGNORECASE,
    ),
    "addresses": re.compile(
        rb"(?<![0-9a-f:-])([0-9a-f]{2}(?:(?::[0-9a-f]{2}){5,}|(?:-[0-9a-f]{2}){5,}))(?![0-9a-f]|[:-][0-9a-f])"
        rb"|(?<![0-9a-f])((?:[0-9a-f]{4}:){3}[0-9a-f]{4})(?![0-9a-f:])"
        rb"|(?<![0-9a-f])([0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4})(?![0-9a-f.])"
        rb"|(?:en|wl|ww|ib|sl)x([0-9a-f]{12})(?![0-9a-f])"
        rb"|(?<![0-9a-f])([0-9a-f]{1,4}:[0-9a-f]{1,2}ff:fe[0-9a-f]{2}:[0-9a-f]{1,4})(?![0-9a-f:])|" + _WORLD_WIDE,
        re.IGNORECASE,
    ),
}

_GID = re.compile(r"/gids/[0-9]+$")
_PCI = re.compile(rb"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?", re.IGNORECASE)
_MEANS_NOTHING = re.compile(
    rb"[0f\W_]*|none|null|unknown|n/?a|not (specified|applicable|available|present|provided)|default string"
    rb"|to be filled by o\.?e\.?m\.?|(system|chassis|base ?board) serial number",
    re.IGNORECASE,
)
_PREFIX = re.compile(rb"(?:0x|naa\.|eui\.|uuid[.:]|t10\.|nvme\.|(?:nqn|iqn)\.[^:]*:(?:uuid:)?)", re.IGNORECASE)
_KEYED = re.compile(rb"^[ \t]*([A-Za-z][\w -]{0,60}?)[ \t]*[:=][ \t]*(\S.*?)\s*$", re.MULTILINE)


_MOST_FORMS = 1000
"""Tokens of which other forms, such as hexadecimal ones, are looked for. All of them are replaced as words."""


def redact(
    snapshot: Snapshot,
    kinds: Iterable[str],
    *,
    known: Iterable[bytes] = (),
    hidden: Iterable[bytes] = (),
    public: Iterable[bytes] = (),
) -> int:
    """Replace the secrets of these kinds in a snapshot; return how many attributes were changed.

    Args:
        snapshot: The snapshot.
        kinds: Of `KINDS`.
        known: Tokens and passwords that are known already.
        hidden: Texts that are not in the snapshot and hold tokens and passwords, such as variables.
        public: Names that are no tokens, besides those of the snapshot's files.
    """
    kinds = sorted(kinds)
    if not kinds:
        return 0
    found = Secrets()
    changed = set[str]()
    if "secrets" in kinds:
        names = [*_texts(snapshot)]
        public = {*public, *(part for name in names for part in name.split(b"/"))}
        before = {path: file.data for path, file in snapshot.files.items()}
        rules = (*tokens.RULES, *tokens.PERSONAL)
        after, secrets = tokens.without(before, known, hidden=[*hidden, b"\n".join(names)], public=public, rules=rules)
        for secret in sorted(secrets, key=lambda each: (-len(each), each))[:_MOST_FORMS]:
            found.add(secret)
        changed = {path for path, data in after.items() if data != before[path]}
        for path in changed:
            snapshot.files[path] = attrs.evolve(snapshot.files[path], data=after[path])
    shaped = [kind for kind in kinds if kind in _SHAPES]
    own: dict[str, bytes] = {}
    for path, file in sorted(snapshot.files.items()):
        if any(KINDS[kind].fullmatch(posixpath.basename(path)) for kind in kinds) or (
            "addresses" in kinds and _GID.search(path)
        ):
            own[path] = _named(found, path, file.data, shaped)
        else:
            for match in _KEYED.finditer(file.data[:65536]):
                key = match[1].decode().replace(" ", "_")
                if any(KINDS[kind].fullmatch(key) for kind in shaped):
                    _value(found, match[2], shaped)
            _by_shape(found, file.data, shaped)
    for text in _texts(snapshot):
        _by_shape(found, text, shaped)
    return _replace(snapshot, found, own, changed)


def _named(found: Secrets, path: str, data: bytes, kinds: list[str]) -> bytes:
    """Take the secret of an attribute that is known by its name; return the attribute without it."""
    if (blanked := blank_binary(posixpath.basename(path), data, found)) is not None:
        return blanked
    value = data.strip()
    if _GID.search(path):  # the prefix says what kind of address it is
        value = b":".join(value.split(b":")[4:])
    core = _value(found, value, kinds)
    return data.replace(core, found.stand_in(core)) if core else data


def _value(found: Secrets, value: bytes, kinds: list[str]) -> bytes:
    """Take the secret in a value; return it, or nothing where it means nothing or has a shape of its own."""
    if _MEANS_NOTHING.fullmatch(value) or _PCI.fullmatch(value) or _by_shape(found, value, kinds):
        return b""
    prefix = _PREFIX.match(value)
    core = value[prefix.end() :] if prefix else value
    if not _MEANS_NOTHING.fullmatch(core):
        found.add(core)
        return core
    return b""


def _by_shape(found: Secrets, text: bytes, kinds: list[str]) -> bool:
    before = False
    for kind in kinds:
        for match in _SHAPES[kind].finditer(text):
            secret = next(group for group in match.groups() if group)
            if not _MEANS_NOTHING.fullmatch(secret):
                found.add(secret)
                before = True
    return before


def _texts(snapshot: Snapshot) -> Iterator[bytes]:
    """Give every name, link target, and list entry."""
    for text in (
        *snapshot.files,
        *snapshot.directories,
        *snapshot.links,
        *snapshot.links.values(),
        *snapshot.nodes,
        *snapshot.unreadable,
        *snapshot.unreadable.values(),
    ):
        yield os.fsencode(text)


def _replace(snapshot: Snapshot, found: Secrets, own: dict[str, bytes], changed: set[str]) -> int:
    def name(text: str) -> str:
        return os.fsdecode(found.replace(os.fsencode(text)))

    for path, file in snapshot.files.items():
        data = found.replace(own.get(path, file.data), within=file.data)
        if data != file.data:
            changed.add(path)
            snapshot.files[path] = attrs.evolve(file, data=data)
    snapshot.files = {name(path): file for path, file in snapshot.files.items()}
    snapshot.directories = {name(path) for path in snapshot.directories}
    snapshot.links = {name(path): name(target) for path, target in snapshot.links.items()}
    snapshot.nodes = {name(path): node for path, node in snapshot.nodes.items()}
    snapshot.unreadable = {name(path): name(reason) for path, reason in snapshot.unreadable.items()}
    return len(changed)
