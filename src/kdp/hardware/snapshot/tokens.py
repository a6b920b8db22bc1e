"""Tokens and passwords in texts: known by the name before them, or by their own shape.

`RULES` is the one table of what counts as a secret. Each secret is replaced by `STAND_IN` where it stands, and as a
whole word in all other texts, because it may be short, or a word of a language. JSON is read, and its texts are looked
at one by one, so that it stays JSON.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast, final

import attrs

from ...storage.documents import parse_json
from .secret_forms import tree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

STAND_IN: Final = "***"

_SHORTEST: Final = 4
"""Bytes from which on a secret is looked for in other texts."""

_LONGEST: Final = 4096
"""Bytes up to which it is: what is longer is found by itself, and would take long to look for."""

_SHORTEST_NUMBER: Final = 6
"""Digits from which on a number is: shorter ones are ports and sizes."""

# -- names -------------------------------------------------------------------------------------------------------------

_SURE: Final = (
    r"token(?!s)|secret|passw|passphrase|passcode|pwd(?![a-z])|credential|bearer|cookie|jwt"
    r"|(?:api|access|private|client|licen[cs]e)[_-]?key"
)
"""Parts of names whose value is a secret, whatever it is."""

_PERHAPS: Final = (
    r"(?i:licen[cs]e|signature|session|tokens)"
    r"|(?<![A-Za-z])(?i:pass|pw|keys?|creds?|auth|sig|pin|pat|psk|otp|salt|seed)(?![a-z])"
    r"|(?<=[a-z0-9])(?:Pass|Pw|Keys?|Creds?|Auth|Sig|Pin|Pat|Psk|Otp)(?![a-z])"
)
"""Parts or words of names whose value may be a secret: it is not if it `is_plain`."""

NAMES: Final = re.compile(f".*(?:{_SURE}|authorization).*", re.IGNORECASE)
"""Names of what is kept secret: variables, keys, parameters, files."""

_PERHAPS_NAMES: Final = re.compile(f".*(?:{_PERHAPS}).*")


def _name(stems: str) -> bytes:
    """Return a pattern of a whole name with one of these parts; within JSON, it may follow a line break's letter."""
    word = rf"(?=[\w.-]*?(?:{stems}))[\w.-]++(?: (?:code|header|id|number|phrase|string|value))?"
    return rf"(?<![\w.-])(?:(?<=\\)[nrt])?{word}".encode()


_BECOMES: Final = (
    rb"(?:[\"'\\]{0,8}[ \t]{0,8}(?:=>|:=|=|:(?!:))[ \t]{0,8}|[ \t]+(?:is|was)[ \t]+)(?:(?:Bearer|Basic)[ \t]+)?"
)
_VALUE: Final = (
    rb"(?:b(?=[\"']))?(?:(\\{0,7})([\"'])((?:(?!(?<!\\)\1\2)[^\n])+)"  # until the same quote without a backslash
    rb"|((?![{\[(<$])[^\s\"'\\,;&}\])]+))"
)
_WORDS: Final = rb"[^\s\"'\\,;&{}\[\]()<>]+(?:[ \t]+[^\s\"'\\,;&{}\[\]()<>]+)*"  # until a comma, quote, or bracket
_LONGEST_PATH: Final = 1024
"""Bytes up to which a value may be a path, or be hidden already. What is longer is a secret where a rule is sure, so
that the search goes on behind it: a text costs a time that grows as its length does."""
_FLAG: Final = rb"(?<![\w.-])(?=--?[A-Za-z])"

_HARMLESS: Final = frozenset(
    b"null true false none yes no on off not missing invalid expired required refused denied rejected failed unknown "
    b"empty unset set given found wrong bad the a an and or for from in of is was must may can cannot has should too "
    b"there unauthorized forbidden changed rotated left needed optional default".split()
) | {b"left out"}
"""Words that follow the name of a secret in a sentence."""

# -- the table ---------------------------------------------------------------------------------------------------------


@final
@attrs.frozen
class RedactionRule:
    """How a kind of secret is found in a text.

    Attributes:
        what: The secret.
        pattern: Finds it; the last group that matches is the secret.
        kept: What stays beside it.
        is_sure: Whether it is a secret in any case. If not, plain words and public names are none.
        is_to_the_end: Whether a sentence may go on behind the secret. Then its first word is looked for elsewhere, too.
    """

    what: str
    pattern: re.Pattern[bytes]
    kept: str
    is_sure: bool = True
    is_to_the_end: bool = False


RULES: Final = (
    RedactionRule(
        "a private key, to its end or to that of the text",
        re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----((?:[^-]|-(?!----))+)"),
        "the lines around it",
    ),
    RedactionRule(
        "the password in an address",
        re.compile(rb"://(?:[^\s/?#\"'<>:@]*:([^\s/?#\"'<>]+)|([^\s/?#\"'<>:@]{16,}))@"),
        "the user and the host",
    ),
    RedactionRule(
        "the rest of a header line",
        re.compile(rb"(?i:authorization|\bcookie)[\"'\\]{0,8}[ \t]*[:=][ \t\"'\\]*(?:[A-Za-z][\w-]*[ \t]+)?([^\n]+)"),
        "the header's name and scheme",
    ),
    RedactionRule(
        "the password of a command",
        re.compile(
            rb"(?<!\S)(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']*:([^\s\"']+)"
            rb"|\b(?:mysql|mariadb|sshpass)\S{0,64}+(?:[ \t]{1,9}+(?!-p)\S{1,200}+){0,9}[ \t]{1,9}+-p[ \t]?([^\s\"']+)"
        ),
        "the command and the user",
    ),
    RedactionRule(
        "a token with a known beginning, or of a known form",
        re.compile(
            rb"\b(eyJ[\w-]{6,2000}\.[\w-]{6,}(?:\.[\w-]*)?"  # a JSON web token
            rb"|(?=[\w.-]{0,200}[0-9])(?:gh[pousr]_|github_pat_|gl[a-z]{2,4}-|xox[a-z]-|sk[-_]|rk_live_|hf_|nvapi-"
            rb"|hv[bs]\.|npm_|pypi-|dckr_[a-z]+_|AIza|ya29\.|SG\.)[\w.-]{10,}"
            rb"|(?:AKIA|ASIA)[0-9A-Z]{16}\b"
            rb"|(?:DHHC|NVMeTLSkey)-1:[0-9]{2}:[A-Za-z0-9+/=]{8,}:?"  # a key of NVMe over Fabrics
            rb"|(?=[a-z.]{0,22}[0-9])[a-z0-9]{6}\.[a-z0-9]{16}\b)"  # a bootstrap token of Kubernetes
            rb"|://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks|[\w-]+\.webhook\.office\.com)/([^\s\"'<>]+)"
            rb"|\b(?:Bearer|Basic)[ \t]+(?=[a-z._~-]*[A-Z0-9+/=])([\w.~+/=-]{8,})"
        ),
        "nothing",
    ),
    RedactionRule(
        # Not in "cannot read the token: connection refused": there the name ends what an error says.
        "all words of a passphrase, and of what a label with such a name has after its colon",
        re.compile(
            rb"(?:(?:^|[:,;({\[\"'][ \t]{0,8})" + _name(f"(?i:{_SURE})") + rb"|" + _name("(?i:passphrase)") + rb")"
            rb":[ \t]+(?!(?i:" + b"|".join(sorted(_HARMLESS)) + rb")\b)(" + _WORDS + rb")",
            re.MULTILINE,
        ),
        "the name, and a sentence such as 'token: must be set'",
        is_to_the_end=True,
    ),
    RedactionRule(
        "what a name of a secret is given",
        re.compile(_name(f"(?i:{_SURE})") + _BECOMES + _VALUE),
        "the name",
    ),
    RedactionRule(
        "what a name that may be one of a secret is given",
        re.compile(_name(_PERHAPS) + _BECOMES + _VALUE),
        "the name, plain words, and public names",
        is_sure=False,
    ),
    RedactionRule(
        "the word after such a flag",
        re.compile(_FLAG + _name(f"(?i:{_SURE})|{_PERHAPS}") + rb"[ \t]+(?!-)" + _VALUE),
        "the flag, plain words, and public names",
        is_sure=False,
    ),
    RedactionRule(
        "a word with a digit after the name of a secret",
        re.compile(_name(f"(?i:{_SURE})") + rb"[ \t]+(?=[^\s\"',;:=/]*[0-9])([^\s\"'\\,;:=/}\])]{6,})(?![:=/])"),
        "the name, plain words, and public names",
        is_sure=False,
    ),
    RedactionRule(
        "a quoted text after the name of a secret",
        re.compile(_name(f"(?i:{_SURE})") + rb"[ \t]+(\\{0,7})([\"'])([^\s\"'\\]{4,})\1\2"),
        "the name, plain words, and public names",
        is_sure=False,
    ),
    RedactionRule(
        "a licence key: groups of capital letters and digits",
        re.compile(rb"(?<![\w-])(?=[A-Z-]*[0-9])(?=[0-9-]*[A-Z])([A-Z0-9]{4,8}(?:-[A-Z0-9]{4,8}){3,})(?![\w-])"),
        "public names",
        is_sure=False,
    ),
    RedactionRule(
        # A modalias has no capital letter beyond F, a hash none at all, and a path begins with a slash.
        "a long run of letters of both cases and digits",
        re.compile(
            rb"(?<![\w.+/-])(?=[A-Za-z+/]*[0-9])(?=[a-z0-9A-F+/]*[G-Z])(?=[A-Z0-9+/]*[a-z])"
            rb"([A-Za-z0-9][A-Za-z0-9+/]{39,}[\w+/-]*={0,2})"
        ),
        "public names",
        is_sure=False,
    ),
)

PERSONAL: Final = (
    RedactionRule(
        "a mail address",
        re.compile(rb"(?<![\w.+-])([\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24})(?![\w-])"),
        "nothing",
    ),
    RedactionRule(
        "an address of IP, but of loopback and of all addresses; of version 6 in its short form",
        re.compile(
            rb"(?<![\w.-])(?!127\.|0\.0\.0\.0|255\.)((?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}"
            rb"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9]))(?![\w-]|\.[0-9])"
            rb"|(?<![\w:.])((?=[0-9a-fA-F:]{0,40}::)(?:[23][0-9a-fA-F]{3}|[fF][cCdDeE][0-9a-fA-F]{2})"
            rb"(?::[0-9a-fA-F]{0,4}){2,7})(?![\w:])"
        ),
        "nothing",
    ),
)
"""Names of people and of networks, in files that leave the machine: snapshots and bundles."""

_WORD: Final = r"(?:[A-Z]?[a-z]+|[A-Z]{2,9}|[a-z]{1,4}[0-9]{1,2})"
_NUMBER: Final = r"[0-9]{1,3}(?:\.[0-9]{1,3}){0,3}"
_PLAIN: Final = re.compile(
    rf"(?:{_WORD}(?:[-_./:, ]{_WORD}){{0,9}}(?:[-_./:, ]{_NUMBER})?|{_NUMBER}|0x[0-9a-f]{{1,4}}"
    r"|(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[.:;!]?".encode()
)
_PATH: Final = re.compile(
    rb"(?:file://)?(?:/(?:dev|sys|proc|etc|var|run|tmp|usr|opt|home|root|mnt|srv)(?:/[\w.@:+~-]+)*/?|\.{0,2}/[\w./-]+)"
)
_JSON_LINE: Final = re.compile(rb"^((?:\S+ std(?:out|err) [FP] )?)([{\[][^\n]*[}\]])[ \t\r]*$", re.MULTILINE)


def is_plain(value: bytes) -> bool:
    """Return whether a value is words, a small number, the address of a device, or a path."""
    return len(value) <= 200 and (_PLAIN.fullmatch(value) or _PATH.fullmatch(value)) is not None


# -- the search --------------------------------------------------------------------------------------------------------


@final
class _Search:
    """Replaces the secrets of texts where they stand, and collects those to look for elsewhere."""

    def __init__(self, public: Collection[bytes], rules: Sequence[RedactionRule] = RULES) -> None:
        self.found: set[bytes] = set()
        self._public = public
        self._rules = rules

    def text(self, text: bytes) -> bytes:
        """Return a text without its secrets. The whole of it, or lines of it, may be JSON."""
        if text.lstrip()[:1] in (b"{", b"[") and (whole := self._json(text)) is not None:
            return whole
        parts: list[bytes] = []
        at = 0
        for match in _JSON_LINE.finditer(text):
            if (line := self._json(match[2])) is not None:
                parts += [self._plain(text[at : match.start(2)]), line]
                at = match.end(2)
        return b"".join([*parts, self._plain(text[at:])])

    def _json(self, text: bytes) -> bytes | None:
        try:
            value = parse_json(text.decode())
            left = self.value(value)
        except (ValueError, RecursionError):
            return None
        end = b"\n" if text.endswith(b"\n") else b""
        indent = 1 if b"\n" in text.strip() else None
        return text if left == value else json.dumps(left, indent=indent).encode() + end

    def value(self, value: object, name: str = "") -> object:
        """Return JSON-like data without its secrets."""
        if isinstance(value, dict):
            held = cast("Mapping[str, Any]", value)
            paired = str(held["name"]) if {"name", "value"} <= held.keys() else ""  # a variable of a container
            return {
                self._string(str(key)): self.value(each, name or (paired if key == "value" else _telling(str(key))))
                for key, each in held.items()
            }
        if isinstance(value, list):
            return [self.value(each, name) for each in cast("list[object]", value)]
        if value is None or isinstance(value, bool):
            return value
        text = str(value).encode(errors="replace")
        is_sure = NAMES.fullmatch(name) is not None
        if (is_sure or _PERHAPS_NAMES.fullmatch(name)) and self._is_secret(text, is_sure=is_sure):
            self._spread(text, is_sure=is_sure)
            return STAND_IN
        return self._string(value) if isinstance(value, str) else value

    def _string(self, text: str) -> str:
        return self._plain(text.encode(errors="replace")).decode(errors="replace")

    def _plain(self, text: bytes) -> bytes:
        for rule in self._rules:
            text = self._without(rule, text)
        return text

    def _without(self, rule: RedactionRule, text: bytes) -> bytes:
        parts: list[bytes] = []
        at = kept = 0
        while (match := rule.pattern.search(text, at)) is not None:
            start, end = match.span(match.lastindex or 0)
            secret = text[start:end]
            if self._is_secret(secret, is_sure=rule.is_sure):
                for each in (secret, *secret.split()[:1]) if rule.is_to_the_end else (secret,):
                    self._spread(each, is_sure=rule.is_sure)
                parts += [text[kept:start], STAND_IN.encode()]
                at = kept = end
            else:  # it may hold the name of another one, as in "session: password=..."
                at = max(start, match.start() + 1)
        return b"".join([*parts, text[kept:]]) if parts else text

    def _is_secret(self, value: bytes, *, is_sure: bool) -> bool:
        if value.lower().rstrip(b".,:;!") in _HARMLESS or not value.strip():
            return False
        if len(value) <= _LONGEST_PATH and (value.startswith(STAND_IN.encode()) or _PATH.fullmatch(value)):
            return False
        return is_sure or not (is_plain(value) or value in self._public)

    def _spread(self, value: bytes, *, is_sure: bool) -> None:
        """Look for a secret elsewhere, too, unless it would be found in ordinary sentences and numbers."""
        if not is_plain(value) or (is_sure and value.islower()):
            self.found.update(line for line in value[:_LONGEST].splitlines() if not _is_short(line))


def _telling(key: str) -> str:
    return key if NAMES.fullmatch(key) or _PERHAPS_NAMES.fullmatch(key) else ""


def _is_short(value: bytes) -> bool:
    return len(value.strip()) < (_SHORTEST_NUMBER if value.isdigit() else _SHORTEST)


def without(
    texts: Mapping[str, bytes],
    known: Iterable[bytes] = (),
    *,
    hidden: Iterable[bytes] = (),
    public: Collection[bytes] = (),
    rules: Sequence[RedactionRule] = RULES,
) -> tuple[dict[str, bytes], set[bytes]]:
    """Return texts with `STAND_IN` for each token and password, and those to look for elsewhere.

    Args:
        texts: The texts by name.
        known: Further secrets.
        hidden: Further texts that hold secrets, such as variables; they are not returned.
        public: Names of devices and files, which are secrets only where a rule is sure.
        rules: The patterns of secrets.
    """
    search = _Search(public, rules)
    for text in hidden:
        search.text(text)
    # Known secrets come first, whole: a rule may replace a part of one, and leave the rest.
    known = {*known, *search.found}
    replaced = {name: search.text(text) for name, text in _without_words(texts, known).items()}
    search.found |= known
    return _without_words(replaced, search.found - known), search.found


def _without_words(texts: Mapping[str, bytes], secrets: Collection[bytes]) -> dict[str, bytes]:
    words = sorted({each.lower() for each in secrets if not _is_short(each)})
    if not words:
        return dict(texts)
    pattern = re.compile(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % tree(words, 0, b""), re.IGNORECASE)
    return {name: pattern.sub(STAND_IN.encode(), text) for name, text in texts.items()}


def without_values(mapping: Mapping[str, object]) -> dict[str, object]:
    """Return JSON-like data without tokens and passwords."""
    return cast("dict[str, object]", _Search(()).value(dict(mapping)))


def shown(name: str, value: object) -> str:
    """Return how an error shows the value of a setting or parameter: as Python writes it, without its secrets."""
    return hiding(repr(without_values({name: value})[name]), {name: value})


def hiding(text: str, given: Mapping[str, object]) -> str:
    """Return a text that may repeat these values, without those that are secrets by their names, and by `RULES`."""
    leaves = {name: [*_leaves(value)] for name, value in given.items() if _telling(name)}
    known = [each for name, held in leaves.items() for each in held if NAMES.fullmatch(name) or not is_plain(each)]
    return without({"": text.encode(errors="backslashreplace")}, known)[0][""].decode()


def unreadable(parameters: Mapping[str, object], public: Collection[bytes] = ()) -> list[bytes]:
    """Return values that may be secrets by themselves: free texts, and all whose name is one of a secret.

    A single word, a number of up to five digits, a path, an address, and a public name stay readable.
    """
    return [
        text
        for name, value in parameters.items()
        for text in _leaves(value)
        if not (text in public or is_path(text))
        if _telling(name) or not _READABLE.fullmatch(text)
    ]


def is_path(value: bytes) -> bool:
    """Return whether a value is a path of a file."""
    return _PATH.fullmatch(value[:1024]) is not None


_READABLE: Final = re.compile(
    rb"[A-Za-z]{1,15}[0-9]{0,3}|[0-9.]{1,5}|0x[0-9a-fA-F]{1,4}|[a-z][a-z0-9+.-]*://\S+|[\d.:]{1,21}"
    rb"|(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
)


def _leaves(value: object) -> Iterator[bytes]:
    if isinstance(value, dict):
        for each in cast("Mapping[str, Any]", value).values():
            yield from _leaves(each)
    elif isinstance(value, (list, tuple)):
        for each in cast("list[object]", value):
            yield from _leaves(each)
    elif value is not None and not isinstance(value, bool):
        yield from filter(None, str(value).encode(errors="surrogateescape").splitlines())
