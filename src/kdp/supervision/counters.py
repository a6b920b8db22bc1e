"""Counters that devices share, such as the slots of a card: which devices cannot be given while pods hold others."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from ..model.devices import counter_sets
from ..model.quantities import exact
from .health import TAKEN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from decimal import Decimal

    from ..model.devices import Device
    from ..model.quantities import Amount


def examined(value: Any) -> Mapping[str, Mapping[str, Amount]]:
    """Return what ``counters`` returned, checked.

    Raises:
        InvalidValueError: It is none of what the hook may return.
    """
    try:
        return counter_sets(value, "counters")
    except (AttributeError, TypeError):
        raise InvalidValueError(f"it returned {value!r}: must map counter sets to their counters") from None


def shortages(
    asked: Iterable[Device],
    *,
    devices: Sequence[Device],
    held: Collection[str],
    counters: Mapping[str, Mapping[str, Amount]],
) -> dict[str, str]:
    """Return why devices cannot be given, by id.

    Args:
        asked: Of which devices.
        devices: All devices.
        held: The ids of those that pods hold.
        counters: What there is.
    """
    holders: defaultdict[tuple[str, str], dict[str, Decimal]] = defaultdict(dict)
    for device in devices:
        if device.id in held:
            for key, amount in _consumed(device):
                holders[key][device.id] = exact(amount)
    found: dict[str, str] = {}
    for device in asked:
        wanted = [] if device.id in held else [pair for pair in _consumed(device) if pair[0] in holders]
        for (name, counter), amount in wanted:
            total = counters.get(name, {}).get(counter, 0)
            free = exact(total) - sum(holders[name, counter].values())
            if exact(amount) > free:
                ids = sorted(holders[name, counter])
                by = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
                need = f"it needs {amount} of {counter} of {name}, and {free:f} of {total} are free"
                found[device.id] = f"{TAKEN}: {need} while pods hold {by}"
                break
    return found


def _consumed(device: Device) -> list[tuple[tuple[str, str], Amount]]:
    return [((name, counter), amount) for name, each in device.consumes.items() for counter, amount in each.items()]
