"""What a backend makes of what hardware says: attributes of a `kdp.Device`, `LastKnown`, and `Threshold`."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, final

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

        too_hot = Threshold(crossed_at=90, cleared_at=80)
        assert [too_hot.is_crossed("card0", celsius) for celsius in (89, 91, 89, 80)] == [False, True, True, False]

    Keep one on the backend for each kind of value. It may be asked in any thread.

    Args:
        crossed_at: The value at which it is crossed.
        cleared_at: The value at which it is cleared again. If it is larger than ``crossed_at``, small values are the
            bad ones, as of a fan's speed.

    Raises:
        InvalidValueError: The limits are equal, or one is no finite number.
    """

    def __init__(self, *, crossed_at: float, cleared_at: float) -> None:
        if not (math.isfinite(crossed_at) and math.isfinite(cleared_at)) or crossed_at == cleared_at:
            raise InvalidValueError(
                f"crossed_at={crossed_at} and cleared_at={cleared_at}: must be two different finite numbers; valid is "
                "Threshold(crossed_at=90, cleared_at=80)"
            )
        self._crossed_at = crossed_at
        self._cleared_at = cleared_at
        self._crossed: set[str] = set()

    def is_crossed(self, name: str, value: float | None) -> bool:
        """Return whether the value of a device has gone too far; None: it cannot be read, and all is as before."""
        if value is not None:
            sign = 1.0 if self._crossed_at > self._cleared_at else -1.0
            if sign * value >= sign * self._crossed_at:
                self._crossed.add(name)
            elif sign * value <= sign * self._cleared_at:
                self._crossed.discard(name)
        return name in self._crossed
