"""The API server's formats of names, versions, and quantities, each as a question that answers with the broken rule.

Source: ``k8s.io/apimachinery`` ``pkg/util/validation`` and ``pkg/api/resource``, and the DRA contract section 3.1. They
are written here anew and not taken from kdp, because the kit judges kdp by them.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?([0-9]+\.?[0-9]*|\.[0-9]+))(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]+)"
)
_SEMANTIC_VERSION: Final = re.compile(
    r"(?P<core>[0-9]+\.[0-9]+\.[0-9]+)(-(?P<pre>[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*))?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_BINARY: Final = "KMGTPE"
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def dns_label(text: str) -> str:
    """Return the rule that a text breaks as a DNS label of RFC 1123, or ""."""
    if len(text) <= 63 and _LABEL.fullmatch(text):
        return ""
    return "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', at most 63"


def dns_subdomain(text: str, most: int = 253) -> str:
    """Return the rule that a text of at most so many characters breaks as a DNS subdomain of RFC 1123, or ""."""
    if len(text) <= most and all(_LABEL.fullmatch(part) for part in text.split(".")):
        return ""
    return f"a lowercase RFC 1123 subdomain must consist of lower case labels with '.' between them, at most {most}"


def label_key(text: str) -> str:
    """Return the rule that a text breaks as the key of a label, or ""."""
    domain, slash, name = text.rpartition("/")
    if len(name) <= 63 and _NAME.fullmatch(name) and (not slash or not dns_subdomain(domain)):
        return ""
    return (
        "name part must consist of alphanumeric characters, '-', '_' or '.', at most 63, after an optional DNS prefix"
    )


def label_value(text: str) -> str:
    """Return the rule that a text breaks as the value of a label, or ""."""
    if not text or (len(text) <= 63 and _NAME.fullmatch(text)):
        return ""
    return "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', at most 63"


def qualified_name(text: str) -> str:
    """Return the rule that a text breaks as the name of an attribute or a capacity, or "".

    Like the server, this does not look at a name with two slashes or more, and takes capitals in the domain.
    """
    parts = text.split("/")
    if len(parts) > 2:
        return ""
    if len(parts) == 2 and dns_subdomain(parts[0].lower(), 63):
        return "the domain must be a DNS subdomain of at most 63 characters"
    if len(parts[-1]) > 32 or not _IDENTIFIER.fullmatch(parts[-1]):
        return "the name must be a C identifier of at most 32 characters"
    return ""


def semantic_version(text: str) -> str:
    """Return the rule that a text breaks as a version by semver.org 2.0.0, or ""."""
    match = _SEMANTIC_VERSION.fullmatch(text)
    if match is None:
        return "must be a string compatible with semver.org spec 2.0.0"
    numbers = [*match["core"].split("."), *(part for part in (match["pre"] or "").split(".") if part.isdigit())]
    if any(len(number) > 1 and number.startswith("0") for number in numbers):
        return "must not have a number with a leading zero"
    return ""


def quantity(text: str) -> Decimal | None:
    """Return the number that a quantity stands for; None: it is no quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix = Decimal(match["number"]), match["suffix"]
    if suffix.endswith("i"):
        return number * (1 << 10 * (_BINARY.index(suffix[0]) + 1))
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return number.scaleb(exponent)
