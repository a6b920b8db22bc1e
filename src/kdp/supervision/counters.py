"""Counters that devices share, such as the slots of a card: which devices cannot be given while pods hold others."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from ..model.devices import counter_sets
from ..model.quantities import Amount, Consumption, Quantity, exact
from .conditions import SHARE, UNDECLARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from decimal import Decimal

    from ..model.conditions import Condition
    from ..model.devices import Device


def examined(value: Any) -> Mapping[str, Mapping[str, Amount]]:
    """Return what ``counters`` returned, checked.

    Raises:
        InvalidValueError: It is none of what the hook may return.
    """
    try:
        return counter_sets(value, "counters")
    except (AttributeError, TypeError):
        raise InvalidValueError(f"it returned {value!r}: must map counter sets to their counters") from None


def consumption_as_json(consumes: Consumption) -> dict[str, dict[str, int | str]]:
    """Return what a device takes, as JSON has it."""
    return {
        name: {counter: each if isinstance(each, int) else each.text for counter, each in amounts.items()}
        for name, amounts in consumes.items()
    }


def consumption_of_json(saved: Mapping[str, Mapping[str, int | str]]) -> Consumption:
    """Return what a device takes, as it was saved.

    Raises:
        ValueError: An amount is none.
    """
    return {
        str(name): {str(counter): Quantity(str(each)) for counter, each in amounts.items()}
        for name, amounts in saved.items()
    }


def shortages(
    asked: Iterable[Device],
    *,
    held: Mapping[str, Consumption],
    counters: Mapping[str, Mapping[str, Amount]],
    device_of: Callable[[str], str] = str,
) -> dict[str, Condition]:
    """Return the reasons, by id, why pods cannot get devices now: pods hold too much of a declared counter.

    Args:
        asked: Of which devices.
        held: What the devices that are allocated take, by id, as it was when they were allocated.
        counters: What there is.
        device_of: Returns the id of a replica's device, as in ``held``.
    """
    holders: defaultdict[tuple[str, str], dict[str, Decimal]] = defaultdict(dict)
    for device_id, consumes in held.items():
        for key, amount in _consumed(consumes):
            holders[key][device_id] = exact(amount)
    found: dict[str, Condition] = {}
    now = time.monotonic()
    for device in asked:
        if device_of(device.id) in held:
            continue
        for (name, counter), amount in _consumed(device.consumes):
            total, ids = counters.get(name, {}).get(counter), sorted(holders[name, counter])
            if total is None or exact(amount) <= exact(total) - sum(holders[name, counter].values()):
                continue
            by = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
            left = f"too little of {total} is left while these are allocated: {by}"
            found[device.id] = SHARE.because(f"its share is in use: {_need(name, counter, amount)}, and {left}", now)
            break
    return found


def undeclared(asked: Iterable[Device], counters: Mapping[str, Mapping[str, Amount]]) -> dict[str, Condition]:
    """Return the reasons, by id, why no pod can ever get a device: it consumes more than the backend declares.

    Args:
        asked: The devices.
        counters: The declared amounts.
    """
    found: dict[str, Condition] = {}
    for device in asked:
        for (name, counter), amount in _consumed(device.consumes):
            total = counters.get(name, {}).get(counter)
            if total is not None and exact(amount) <= exact(total):
                continue
            rest = "which counters() does not declare" if total is None else f"and counters() declares {total}"
            found[device.id] = UNDECLARED.because(f"{_need(name, counter, amount)}, {rest}", time.monotonic())
            break
    return found


def _need(name: str, counter: str, amount: Amount) -> str:
    return f"it needs {amount} of {counter} of {name}"


def _consumed(consumes: Consumption) -> list[tuple[tuple[str, str], Amount]]:
    return [((name, counter), amount) for name, each in consumes.items() for counter, amount in each.items()]
