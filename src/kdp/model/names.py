"""The rules of names: what may be a resource, a device id, a CDI name, an environment variable, a socket path.

Each ``check_*`` function returns its argument, so that it can stand where a value is used, or raises
`InvalidNameError` with the value, the rule and a valid example. No rule is looser than the kubelet's own; where
ours is stricter the comment says why.
"""

from __future__ import annotations

import functools
import os
import re

from ..errors import InvalidNameError
from ..storage.addresses import MAX_SOCKET_PATH_BYTES

MAX_ATTRIBUTE_BYTES = 64
"""Of the text of a device's attribute, in each version of resource.k8s.io/v1 (DRA contract section 3.2)."""

MAX_DEVICE_ID_LENGTH = 63
"""What the API's documentation allows; the kubelet itself does not check it (contract section 1.1)."""

MAX_REPLICAS = 1000
"""Of a shared device: numbers 0 to 999, which with ``::`` take five characters of an id."""

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = re.compile(rf"{_DNS_LABEL}\Z")
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\Z")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_CDI_KIND_PART = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_CDI_DEVICE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}\Z")

_UID = "8c1b0e64-1d2f-4f0a-9d53-0f2b7c1f6a11"
_ENDS = "with a letter or digit at both ends"
_NAME_RULE = f"letters, digits, '-', '_' and '.', {_ENDS}"


def _refuse(kind: str, value: object, rule: str, example: str) -> InvalidNameError:
    return InvalidNameError(f"{kind} {value!r}: {rule}; for example {example!r}")


@functools.lru_cache(maxsize=4096)
def natural(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return a key for sorting that compares numbers as numbers (``gpu-2``, ``gpu-10``); no two texts have the same."""
    pieces = re.split("([0-9]+)", text)  # text, number, text, number, ..., text
    return tuple(zip(pieces[::2], [*map(int, pieces[1::2]), -1], strict=True)), text


def is_utf8(text: str) -> bool:
    """Return whether protobuf can carry a text: names of files may hold bytes that are no UTF-8."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def check_resource_name(value: str) -> str:
    """Check an extended resource name as the kubelet does (contract section 2.2)."""
    kind, example = "resource name", "example.com/widget"
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - vendors' code may be untyped
        raise _refuse(kind, value, "must be text", example)
    domain, slash, name = value.partition("/")
    if not slash or "/" in name:
        raise _refuse(kind, value, "must be a domain, one slash and a name", example)
    if "kubernetes.io/" in value:
        raise _refuse(kind, value, "the domain kubernetes.io is reserved", example)
    if value.startswith("requests."):
        raise _refuse(kind, value, "must not start with 'requests.'", example)
    # The kubelet checks "requests." + name as a qualified name, which leaves 244 of 253 characters to the domain.
    if len(domain) > 244 or not _SUBDOMAIN.match(domain):
        rule = "the domain must be at most 244 lower-case letters, digits, '-' and '.' (DNS-1123)"
        raise _refuse(kind, value, rule, example)
    if len(name) > 63 or not _NAME_PART.match(name):
        raise _refuse(kind, value, f"the name must be 1 to 63 {_NAME_RULE}", example)
    return value


def check_device_id(value: str) -> str:
    """Check a device id: 1 to 63 printable characters without a space.

    The kubelet takes any text; ours must survive logs, file names of its checkpoint tools and ``kubectl``.
    """
    kind, example = "device id", "widget-0"
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refuse(kind, value, "must be text", example)
    if not 1 <= len(value) <= MAX_DEVICE_ID_LENGTH:
        raise _refuse(kind, value, f"must have 1 to {MAX_DEVICE_ID_LENGTH} characters, this has {len(value)}", example)
    if not value.isprintable() or " " in value:  # no other white space is printable
        raise _refuse(kind, value, "must be printable and without spaces", example)
    return str.__str__(value)  # a member of an enumeration is text, too, and may print otherwise


def check_cdi_kind(value: str) -> str:
    """Check a CDI kind, ``vendor/class`` (Container Device Interface specification, section "Kind")."""
    vendor, _, cls = value.partition("/")
    if not _CDI_KIND_PART.match(vendor) or not _CDI_KIND_PART.match(cls):
        raise _refuse(
            "CDI kind",
            value,
            "must be vendor/class, both of letters, digits, '-', '_', '.', with a letter first and a letter or digit "
            "last",
            "example.com/widget",
        )
    return value


def check_cdi_device_name(value: str) -> str:
    """Check a qualified CDI device name, ``vendor/class=device``."""
    kind, equals, device = value.partition("=")
    if not equals or not _CDI_DEVICE.match(device):
        rule = f"must be vendor/class=device, the device of letters, digits, '-', '_', '.', ':' {_ENDS}"
        raise _refuse("CDI device name", value, rule, "example.com/widget=widget-0")
    check_cdi_kind(kind)
    return value


@functools.lru_cache(maxsize=1024)  # a node's devices have the same few, again and again
def check_attribute_name(value: str) -> str:
    """Check the name of an attribute or a capacity: a C identifier, optionally behind ``domain/``.

    The rule is that of DRA's QualifiedName, so that one device serves both protocols.
    """
    domain, slash, name = value.rpartition("/")
    if (slash and (len(domain) > 63 or not _SUBDOMAIN.match(domain))) or not _IDENTIFIER.match(name):
        raise _refuse(
            "attribute name",
            value,
            "must be an identifier of at most 32 letters, digits and '_', optionally behind a domain of at most 63 "
            "characters and a slash",
            "driverVersion",
        )
    return value


def check_counter_name(value: str, what: str = "counter name") -> str:
    """Check the name of a DRA counter or counter set, which messages call ``what``: a DNS label of 63 characters."""
    if not isinstance(value, str) or len(value) > 63 or not _LABEL.match(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refuse(what, value, f"must be 1 to 63 lower-case letters, digits and '-', {_ENDS}", "gpu-0-memory")
    return value


def check_label_name(value: str) -> str:
    """Check the key of a taint or the name of a condition, by the rule of Kubernetes' label names."""
    domain, slash, name = value.rpartition("/") if isinstance(value, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance]
    if (slash and (len(domain) > 253 or not _SUBDOMAIN.match(domain))) or len(name) > 63 or not _NAME_PART.match(name):
        rule = f"must be at most 63 {_NAME_RULE}, optionally behind a lower-case domain and a slash"
        raise _refuse("label name", value, rule, "example.com/worn")
    return value


def check_label_value(value: str) -> str:
    """Check the value of a taint, by the rule of Kubernetes' label values; it may be empty."""
    if not isinstance(value, str) or len(value) > 63 or (value and not _NAME_PART.match(value)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refuse("label value", value, f"must be at most 63 {_NAME_RULE}", "fan-failed")
    return value


def check_claim_uid(value: str) -> str:
    """Check the UID of a claim, of which files get their names: at most 128 letters, digits and ``-_.``.

    The API server makes UUIDs and refuses nothing in a UID, so this rule is ours.
    """
    if not isinstance(value, str) or len(value) > 128 or not _NAME_PART.match(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        rule = f"must be at most 128 {_NAME_RULE}"
        raise _refuse("claim UID", value if len(value) <= 128 else f"{value[:128]}...", rule, _UID)
    return value


def check_env_name(value: str) -> str:
    """Check the name of an environment variable: not empty, printable, without ``=``."""
    if not value or "=" in value or not value.isprintable() or " " in value:
        raise _refuse(
            "environment variable", value, "must be printable and without '=' and spaces", "WIDGET_VISIBLE_DEVICES"
        )
    return value


def check_env_variable(value: str) -> str:
    """Check an environment variable as ``NAME=VALUE``; the value may be empty."""
    kind, example = "environment variable", "WIDGET=0"
    if not isinstance(value, str) or value.find("=") <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refuse(kind, value, "must be NAME=VALUE", example)
    check_env_name(value.partition("=")[0])
    if "\0" in value or not is_utf8(value):
        raise _refuse(kind, value, "the value must be UTF-8 without a NUL", example)
    return value


def check_absolute_path(value: str, *, kind: str) -> str:
    """Check a path of the node or of a container and return it normalised (no ``//``, ``.`` or final slash).

    Args:
        value: The path.
        kind: What the path is, for the message ("host path").
    """
    if not value.startswith("/"):
        raise _refuse(kind, value, "must be absolute", "/dev/widget0")
    if "\0" in value or ("/.." in value and ".." in value.split("/")):
        raise _refuse(kind, value, "must not contain '..' or a NUL", "/dev/widget0")
    if not is_utf8(value):
        raise _refuse(kind, value, "must be UTF-8: no protocol could carry it", "/dev/widget0")
    if "/." not in value and "//" not in value and not value.endswith("/"):
        return value  # most are so, and a large node has ten thousand
    return os.path.normpath(value).replace("//", "/", 1)


def check_socket_path(value: str) -> str:
    """Check that a unix socket can be bound at this path: at most 107 bytes."""
    size = len(os.fsencode(value))
    if size > MAX_SOCKET_PATH_BYTES:
        rule = f"must have at most {MAX_SOCKET_PATH_BYTES} bytes, this has {size}: use a shorter directory"
        raise _refuse("socket path", value, rule, "/var/lib/kubelet/device-plugins/kdp-widget-1.sock")
    return value
