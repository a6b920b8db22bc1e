"""Labels of a node that say which devices it has: the rules of their names and values, and a default for each backend.

Pods choose nodes by them (``nodeSelector``, ``nodeAffinity``). A count that changes with each fault is not for labels:
that is what a node's allocatable resources are for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidNameError, InvalidValueError
from .devices import Version
from .names import check_label_name, check_label_value
from .quantities import exact
from .text import shown_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .devices import AttributeValue, Device

MOST_LABELS: Final = 128
"""Labels of one backend; more would not fit into a file for Node Feature Discovery."""

_LONGEST: Final = 63
"""Characters of a label's value."""

_MIB: Final = 1 << 20
_ALLOWED_OF_KUBERNETES: Final = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")
_EXAMPLE: Final = "example.com/widget.count"

_PRODUCT: Final = ("product", "productName", "model")
_DRIVER: Final = ("driverVersion", "driver")
"""Names of attributes, the first that is there counts."""


def label_value(text: str) -> str:
    """Return a text as the value of a label, for names of products: ``NVIDIA H100 80GB HBM3`` has dashes for spaces.

    Each run of white space becomes a dash, what a label's value may not contain is left out, and 63 characters are
    kept. GPU Feature Discovery does the same, so its selectors fit. The result may be empty.
    """
    spaced = "-".join(str.__str__(text).split())
    kept = re.sub(r"[^-A-Za-z0-9_.]", "", spaced).lstrip("-_.")
    return kept[:_LONGEST].rstrip("-_.")


def check_node_label(name: Any, value: Any) -> tuple[str, str]:
    """Return a label's name and value if a node can have it, and Node Feature Discovery passes it on.

    Raises:
        InvalidNameError: A rule is broken; the text has the value and the rule.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"label name {shown_value(name)}: must be text; for example {_EXAMPLE!r}")
    check_label_name(name)
    domain, slash, _ = name.rpartition("/")
    if not slash:
        raise InvalidNameError(
            f"label name {name!r}: must begin with a domain of yours and a slash; for example {_EXAMPLE!r}"
        )
    is_allowed = any(domain == each or domain.endswith(f".{each}") for each in _ALLOWED_OF_KUBERNETES)
    if not is_allowed and (domain == "kubernetes.io" or domain.endswith(".kubernetes.io")):
        raise InvalidNameError(f"label name {name!r}: the domain kubernetes.io is reserved; for example {_EXAMPLE!r}")
    if not isinstance(value, str):
        raise InvalidNameError(
            f"value {shown_value(value)} of label {name}: must be text, this is {type(value).__name__}; "
            "for example '80GB'"
        )
    try:
        return name, check_label_value(value)
    except InvalidNameError as error:
        raise InvalidNameError(f"label {name}: {error}; kdp.label_value() makes one of any text") from None


def default_labels(devices: Sequence[Device], resource: str | None) -> dict[str, str]:
    """Return the labels that follow from the devices' attributes and capacities, by resource.

    Of ``example.com/widget`` they are ``example.com/widget.count``, ``.product``, ``.memory`` in MiB, and
    ``.driver-version``, of the attributes ``product``, ``driverVersion``, and the capacity ``memory``. A fact is a
    label if all devices of the resource that exist agree on it.

    Args:
        devices: The devices of a backend.
        resource: The resource of those that name none.
    """
    held: dict[str, list[Device]] = {}
    for device in devices:
        if device.exists and (name := device.resource or resource) is not None:
            held.setdefault(name, []).append(device)
    found: dict[str, str] = {}
    for name, members in held.items():
        facts = {
            "count": str(len(members)),
            "product": _agreed(_text(_first(device.attributes, _PRODUCT)) for device in members),
            "memory": _agreed(_memory(device) for device in members),
            "driver-version": _agreed(_text(_first(device.attributes, _DRIVER)) for device in members),
        }
        found.update({f"{name}.{fact}": value for fact, value in facts.items() if value})
    return {name: value for name, value in found.items() if _is_valid(name)}


def checked_labels(found: Any) -> tuple[dict[str, str], list[str]]:
    """Return those labels of a hook's result that are valid, and a sentence for each that is not.

    Raises:
        InvalidValueError: It is no mapping.
    """
    from collections.abc import Mapping

    if not isinstance(found, Mapping):
        raise InvalidValueError(
            f"it returned {shown_value(found)}: must map labels to values; for example {{{_EXAMPLE!r}: '4'}}"
        )
    labels: dict[str, str] = {}
    wrong: list[str] = []
    for name, value in found.items():  # pyright: ignore[reportUnknownVariableType]
        if len(labels) + len(wrong) >= MOST_LABELS:
            wrong.append(f"it returned more than {MOST_LABELS} labels; the others are left out")
            break
        try:
            checked = check_node_label(name, value)
        except InvalidNameError as error:
            wrong.append(str(error))
        else:
            labels[checked[0]] = checked[1]
    return labels, wrong


def _is_valid(name: str) -> bool:
    """Return whether a resource's name leaves room for what is appended to it."""
    try:
        check_label_name(name)
    except InvalidNameError:
        return False
    return True


def _first(attributes: Mapping[str, AttributeValue], names: Iterable[str]) -> AttributeValue | None:
    """Return the attribute with one of these names, with a domain or without."""
    by_name = {name.rpartition("/")[2]: value for name, value in attributes.items()}
    return next((by_name[name] for name in names if name in by_name), None)


def _text(value: AttributeValue | None) -> str:
    """Return an attribute as a label's value; empty: it makes none."""
    return label_value(str(value)) if isinstance(value, (str, int, Version)) and not isinstance(value, bool) else ""


def _memory(device: Device) -> str:
    """Return a device's memory in MiB; empty: it does not say."""
    by_name = {name.rpartition("/")[2]: amount for name, amount in device.capacity.items()}
    return str(int(exact(by_name["memory"])) // _MIB) if "memory" in by_name else ""


def _agreed(values: Iterable[str]) -> str:
    """Return what all say; empty: they differ, or say nothing."""
    different = set(values)
    return different.pop() if len(different) == 1 else ""
