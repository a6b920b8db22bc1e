"""What hardware says of itself, as attributes of a `kdp.Device`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..model.names import MAX_ATTRIBUTE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")

_MOST = 1 << 63


def attributes_of(facts: Mapping[str, _T | None]) -> dict[str, _T]:
    """Return facts as attributes: without those that are unknown, and those that no ResourceSlice can carry.

    Hardware says what it likes: a model's name of 80 bytes, or with a control character. The attributes of a device are
    checked together, and in a pool all devices are, so that one such text would keep all of them from the cluster. What
    a vendor's own code says goes to `kdp.Device` as it is: there a text that is too long is an error that he wants to
    hear of.

    Args:
        facts: By the name of the attribute. Unknown: None, or an empty text. Not to be carried: a text of more than 64
            bytes, or with a character that cannot be printed (also what is no UTF-8); a number that does not fit 64
            bits (``DeviceAttribute`` of resource.k8s.io/v1).
    """
    return {name: value for name, value in facts.items() if value is not None and _can_be_carried(value)}


def _can_be_carried(value: object) -> bool:
    if isinstance(value, str):
        return bool(value) and value.isprintable() and len(value.encode()) <= MAX_ATTRIBUTE_BYTES
    return not isinstance(value, int) or -_MOST <= value < _MOST
