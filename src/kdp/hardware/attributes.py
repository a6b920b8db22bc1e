"""What a backend makes of what hardware says: attributes of a `kdp.Device`, `LastKnown`, and `Threshold`."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast, final

from ..errors import InvalidValueError
from ..model.names import MAX_ATTRIBUTE_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

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


@final
class LastKnown:
    """What attributes said, as long as each `scan` asks for them with `recall`. For one backend and one thread.

    A device is called after what attributes say, and is of a resource because of them. One that fails for once, as a
    board's under reset, must not give its device another name or place, for a pod may hold it: the device stays what it
    was, and is unhealthy.
    """

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}
        self._now: dict[str, str | None] = {}

    @contextmanager
    def scan(self) -> Generator[None]:
        """Keep what is asked for inside, and forget the rest: another device may come to the same place.

        A scan that raises forgets nothing, and nothing of it is kept.
        """
        self._now = {}
        yield
        self._last = self._now

    def recall(self, key: str, value: str | None) -> str | None:
        """Return what an attribute says, else what it said, in this scan or the last; None: nothing.

        Args:
            key: The attribute. Where a device's successor at the same place must not inherit it, with what tells them
                apart.
            value: What it says; None: no usable value.
        """
        if value is None:
            value = self._now.get(key, self._last.get(key))
        self._now[key] = value
        return value

    def was_asked(self, key: str) -> bool:
        """Return whether this scan asked for an attribute already, so that `recall` needs no new value."""
        return key in self._now


@final
class Threshold:
    """Says whether a value has gone too far: beyond one limit, and not yet back behind the other.

    Without the second limit a temperature that swings around the first makes a device Unhealthy and Healthy in turn::

        from kdp.hardware import Threshold

        too_hot = Threshold(above=90, until=80)
        assert [too_hot.is_crossed("card0", celsius) for celsius in (90, 91, 81, 80)] == [False, True, True, False]

    Keep one on the backend for each kind of value. Any thread may call it.

    Args:
        above: Larger values cross it; the limit itself does not.
        below: Smaller values cross it, such as the speed of a fan that stops. Give either ``above`` or ``below``.
        until: The value at which it is cleared again: less than ``above``, or more than ``below``.

    Raises:
        InvalidValueError: One limit is missing or no finite number, or ``until`` is on the wrong side.
    """

    def __init__(self, *, above: float | None = None, below: float | None = None, until: float) -> None:
        name, limit, self._sign = ("above", above, 1) if below is None else ("below", below, -1)
        if limit is None or None not in (above, below):
            raise InvalidValueError(
                f"above={above} and below={below}: give one of them; for example Threshold(above=90, until=80)"
            )
        limits = cast("tuple[object, ...]", (limit, until))  # of a file or an option they may be texts
        if not all(isinstance(each, (int, float)) and math.isfinite(each) for each in limits):
            raise InvalidValueError(
                f"{name}={limit!r} and until={until!r}: must be finite numbers; for example {_VALID[name]}"
            )
        if self._sign * until >= self._sign * limit:  # swapped limits would turn the meaning around
            side = "less than above" if name == "above" else "more than below"
            raise InvalidValueError(
                f"{name}={limit} and until={until}: until must be {side}; for example {_VALID[name]}"
            )
        self._limit = limit
        self._until = until
        self._crossed: set[str] = set()

    def is_crossed(self, name: str, value: float | None) -> bool:
        """Return whether the value of a device has gone too far; None: it cannot be read, and all is as before."""
        if value is not None:
            if self._sign * value > self._sign * self._limit:
                self._crossed.add(name)
            elif self._sign * value <= self._sign * self._until:
                self._crossed.discard(name)
        return name in self._crossed


_VALID = {"above": "Threshold(above=90, until=80)", "below": "Threshold(below=500, until=800)"}
