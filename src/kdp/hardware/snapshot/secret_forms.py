"""The forms in which one secret is written, and their replacement: bytes in, bytes out."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORTEST: Final = 6
"""Secrets of so many letters and digits are replaced wherever they stand; shorter ones only where they were found."""

_SURE: Final = 12
"""Letters alone are a word, and digits alone a number, unless there are so many of them."""

_DEEPEST: Final = 64
"""Letters after which forms are no longer sorted into branches: the compiler of patterns nests no deeper."""

_PCI = rb"(?<![0-9a-z:])(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])"
_IS_HEX = re.compile(rb"[0-9a-f]{8,}")
_NOT_ALNUM = re.compile(rb"[^0-9a-z]+", re.IGNORECASE)


@final
class Secrets:
    """The secrets of one snapshot, each with its number: equal ones are equal whatever their case and separators."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._forms: dict[bytes, int] = {}
        self._pattern: re.Pattern[bytes] | None = None

    def add(self, secret: bytes) -> int:
        """Take a secret; return its number."""
        key = _key(secret)
        if key in self._forms:  # as the reversed form of another
            return self._forms[key]
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._forms[key] = number
        for form in _forms(key):
            self._forms.setdefault(form, number)
        self._pattern = None
        return number

    def stand_in(self, secret: bytes) -> bytes:
        """Return what stands for a secret, in its shape."""
        return _in_shape(secret, self.add(secret))

    def replace(self, text: bytes, *, within: bytes | None = None) -> bytes:
        """Return a text with every form of every secret replaced.

        Args:
            text: The text, or what is left of it if its own secret is gone.
            within: The text as it was; what differs is not looked at again.
        """
        if within is not None and text != within:
            return text
        if self._pattern is None:
            self._pattern = _pattern(self._forms)
        return self._pattern.sub(self._of_match, text)

    def _of_match(self, match: re.Match[bytes]) -> bytes:
        if match.lastgroup == "pci":
            return match[0]
        number = self._forms.get(_key(match[0]), self._forms.get(match[0]))
        if number is None:
            return b"0" * len(match[0])
        if match[0] in self._forms and not match[0].isalnum():
            return number.to_bytes(max(len(match[0]), 8), "big")[-len(match[0]) :]
        return _in_shape(match[0], number)


def _key(secret: bytes) -> bytes:
    return _NOT_ALNUM.sub(b"", secret).lower() or secret


def _forms(key: bytes) -> Iterator[bytes]:
    """Give the other forms of a secret: letters and digits in lower case, or raw bytes."""
    yield key.hex().encode()  # NVMe's wwid writes the serial so
    if not _IS_HEX.fullmatch(key) or len(key) % 2:
        return
    raws = [bytes.fromhex(key.decode())]
    if len(raws[0]) == 6:
        for middle in (b"\xff\xfe", b"\xff\xff"):  # IPv6 and InfiniBand; the PCI serial number capability
            raws += [bytes([first]) + raws[0][1:3] + middle + raws[0][3:] for first in (raws[0][0], raws[0][0] ^ 2)]
    for raw in raws:
        for order in (raw, raw[::-1]):
            yield order.hex().encode()
            if len(order) == 8:
                yield order.hex().lstrip("0").encode()  # IPv6 leaves zeros out
            if len(order) >= 6:
                yield order


def _pattern(forms: dict[bytes, int]) -> re.Pattern[bytes]:
    """Return one pattern for all forms: each kind as a tree of prefixes, for a node has thousands of secrets."""
    kinds: dict[tuple[bytes, bytes], list[bytes]] = {}
    for form in forms:
        is_short = len(form) < _SURE
        if len(form) < _SHORTEST or (form.isalpha() and is_short):
            continue
        if not form.isalnum():
            kind = (b"%b", b"")
        elif form.isdigit() and is_short:
            kind = (b"(?<![0-9])%b(?![0-9])", b"[^0-9a-zA-Z/\n]{0,4}")
        else:
            kind = (b"%b", rb"[:.\- _]?" if _IS_HEX.fullmatch(form) else rb"[^0-9a-zA-Z/\n]{0,4}")
        kinds.setdefault(kind, []).append(form)
    trees = [around % tree(sorted(held), 0, joint) for (around, joint), held in sorted(kinds.items(), reverse=True)]
    return re.compile(b"|".join([b"(?P<pci>" + _PCI + b")", *trees]), re.IGNORECASE)


def tree(forms: list[bytes], at: int, joint: bytes) -> bytes:
    """Return a pattern for the rest of sorted forms that are equal up to here; the longest match is tried first."""
    first, last = forms[0], forms[-1]
    if first == last or at >= _DEEPEST:
        rests = (joint.join(re.escape(bytes([char])) for char in form[at:]) for form in reversed(forms))
        return b"(?:" + b"|".join(rests) + b")"
    end = at
    while end < len(first) and first[end] == last[end]:
        end += 1
    shared = b"".join(re.escape(bytes([char])) + joint for char in first[at:end])
    if ends := end == len(first):
        forms = forms[1:]
        shared = joint.join(re.escape(bytes([char])) for char in first[at:end])
    branches = [
        tree(list(held), end, joint) for _, held in itertools.groupby(forms, key=lambda form: form[end : end + 1])
    ]
    below = b"(?:" + b"|".join(branches) + b")"
    return shared + (b"(?:" + joint + below + b")?" if ends else below)


def _in_shape(value: bytes, number: int) -> bytes:
    """Return the number in the shape of a value: its letters and digits become digits, all else stays."""
    count = sum(bytes([char]).isalnum() for char in value)
    digits = iter(str(number).rjust(count, "0").encode()[-max(count, len(str(number))) :])
    shaped = b"".join(bytes([next(digits)]) if bytes([char]).isalnum() else bytes([char]) for char in value)
    return shaped + bytes(digits)


def blank_binary(name: str, data: bytes, found: Secrets) -> bytes | None:
    """Return a binary attribute without what it says, its headers kept; None: it is text.

    What SCSI's pages hold is taken as a secret, because names and other attributes repeat it.
    """
    if name.startswith("vpd_pg83"):
        at, out = 4, bytearray(data[:4])
        while at + 4 <= len(data):
            length = data[at + 3]
            held = data[at + 4 : at + 4 + length]
            is_text = data[at] & 0x0F in (2, 3)
            for secret in held.split() if is_text else [held.hex().encode()]:
                if len(secret) >= 8 and any(char in b"0123456789" for char in secret):
                    found.add(secret)
            out += data[at : at + 4] + (b"0" if is_text else b"\0") * len(held)
            at += 4 + length
        return bytes(out)
    if name.startswith("vpd_pg80"):
        if serial := data[4:].strip(b"\0 "):
            found.add(serial)
        return data[:4] + b"0" * len(data[4:])
    if name.startswith("vpd") or (name == "inquiry" and len(data) > 36):
        keep = 36 if name == "inquiry" else 0
        return data[:keep] + bytes(len(data) - keep)
    return None
