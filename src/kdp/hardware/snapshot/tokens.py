"""Tokens and passwords in texts: known by the name before them, or by their own shape.

They may be short, or words of a language. So each is replaced by `STAND_IN` where it stands, and as a whole word in all
other texts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHORTEST: Final = 4
"""Bytes from which on a secret is looked for in other texts."""

STAND_IN: Final = "***"

NAMES: Final = re.compile(
    r"(.*token.*|.*secret.*|.*passw(or)?d.*|.*passphrase.*|.*_?pwd|.*api_?-?key.*|.*access_?-?key.*"
    r"|.*private_?-?key.*|.*license_?-?key.*|.*credential.*|.*authorization|.*cookie.*|bearer|jwt)",
    re.IGNORECASE,
)
"""Names of what is kept secret: variables, keys, parameters."""

SHAPES: Final = re.compile(
    rb"\b(eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?)"  # a JSON web token, as of a service account
    rb"|\b((?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|hf_|nvapi-)[\w-]{10,})"
    rb"|\b((?:AKIA|ASIA)[0-9A-Z]{16})\b"
    rb"|\b([a-z0-9]{6}\.[a-z0-9]{16})\b"  # a bootstrap token of Kubernetes
    rb"|://[^/\s:@]*:([^/\s@]+)@"
    rb"|\b(?:Bearer|Basic)[ \t]+([\w.~+/=-]{8,})"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----([\s\S]*?)-----END"
)
"""Shapes of secrets; the one group that matched is the secret."""

_NAMED: Final = re.compile(
    rb"([A-Za-z][\w.-]{0,60}?)\\*[\"']?[ \t]*(?:[:=]|\bis\b)[ \t]*\\*(?:(?:Bearer|Basic)[ \t]+)?"
    rb"(?:\"([^\"\\\n]{1,512})|'([^'\\\n]{1,512})|([^\s\"'\\,;&}\])]{1,512}))"
)
_HARMLESS: Final = (b"null", b"true", b"false", STAND_IN.encode())


def without(texts: Mapping[str, bytes], known: Iterable[bytes]) -> tuple[dict[str, bytes], set[bytes]]:
    """Return texts with `STAND_IN` for each token and password, and those that were found in them.

    Args:
        texts: The texts by name.
        known: Further ones.
    """
    found: set[bytes] = set(known)

    def named(text: bytes) -> bytes:
        parts: list[bytes] = []
        at = 0
        while (match := _NAMED.search(text, at)) is not None:
            value = match[match.lastindex or 0]
            is_secret = NAMES.fullmatch(match[1].decode()) and value not in _HARMLESS
            # Behind another name may stand the name of a secret, as in "vendor: password=...".
            end = match.end() if is_secret else match.end(1)
            parts += [text[at : match.start()], shaped(match) if is_secret else match[1]]
            at = end
        return b"".join([*parts, text[at:]])

    def shaped(match: re.Match[bytes]) -> bytes:
        group = match.lastindex or 0
        found.add(match[group])
        before, after = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:before] + STAND_IN.encode() + match[0][after:]

    replaced = {name: SHAPES.sub(shaped, named(text)) for name, text in texts.items()}
    words = sorted((re.escape(each) for each in found if len(each) >= _SHORTEST), key=len, reverse=True)
    if words:
        pattern = re.compile(rb"(?<![0-9A-Za-z])(?:" + b"|".join(words) + rb")(?![0-9A-Za-z])", re.IGNORECASE)
        replaced = {name: pattern.sub(STAND_IN.encode(), text) for name, text in replaced.items()}
    return replaced, found


def without_values(value: object) -> object:
    """Return JSON-like data with `STAND_IN` for each value whose key is the name of a secret."""
    if isinstance(value, dict):
        held = cast("Mapping[str, Any]", value)
        return {key: STAND_IN if NAMES.fullmatch(key) and each else without_values(each) for key, each in held.items()}
    return [without_values(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


def values(value: object) -> list[bytes]:
    """Return the texts in JSON-like data whose key is the name of a secret, to look for them elsewhere."""
    if isinstance(value, dict):
        held = cast("Mapping[str, Any]", value)
        named = [text for key, each in held.items() if NAMES.fullmatch(key) for text in _texts(each)]
        return named + [text for key, each in held.items() if not NAMES.fullmatch(key) for text in values(each)]
    return [text for each in cast("list[object]", value) for text in values(each)] if isinstance(value, list) else []


def _texts(value: object) -> list[bytes]:
    if isinstance(value, dict):
        return [text for each in cast("Mapping[str, Any]", value).values() for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in cast("list[object]", value) for text in _texts(each)]
    is_text = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return (
        [text for text in str(value).encode(errors="surrogateescape").splitlines() if text.strip()] if is_text else []
    )
