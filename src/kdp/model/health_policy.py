"""`HealthPolicy`: from when on a device counts as dead, and from when on as alive again. Numbers only; health.py acts.

A backend has one in its class attribute ``health_policy``; the option ``health_policy`` of the process changes single
numbers of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, final

import attrs

from ..errors import ConfigurationError, InvalidValueError
from ..startup import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValueError(f"{name}={value!r}: must be a whole number of 1 or more; for example {name}=3")
    return value


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise InvalidValueError(f"{name}={value!r}: must be a number of seconds above 0; for example {name}=60")
    return float(value)


def _field(default: object, rule: Callable[[Any, str], object], name: str) -> Any:
    def convert(value: Any) -> object:
        return rule(value, name)

    return attrs.field(default=default, converter=convert, metadata={"rule": rule})


@final
@attrs.frozen(kw_only=True)
class HealthPolicy:
    """The thresholds of a device's health. Those of a backend are in its class attribute ``health_policy``.

    What `kdp.Reporter` and the check of the device nodes say acts at once, both ways; ``failures`` and ``successes``
    are for what ``discover`` says. A flap is a fault of a device that was listed Healthy.

    Attributes:
        failures: Discoveries in a row that must call a device unhealthy before it is listed so. One that was never
            listed Healthy is not listed so on trust: there the first one counts.
        successes: Discoveries in a row that must call it healthy again.
        recheck: Seconds until the next discovery while such a row is unfinished, where ``poll_interval`` is longer or
            None.
        flaps: Number of flaps within ``flap_window`` that leads to quarantine. None disables quarantine.
        flap_window: Seconds for which a flap counts. A device that stays Healthy for so long has nothing on its record.
        hold_down: Seconds without any fault that a device in quarantine needs to leave it. Doubled each time that it
            flaps within ``flap_window`` after it left.
        hold_down_max: What ``hold_down`` does not grow beyond, in seconds.

    Raises:
        InvalidValueError: A number breaks its rule, or two of them contradict each other.
    """

    __repr__ = shown

    failures: int = _field(1, _count, "failures")
    successes: int = _field(3, _count, "successes")
    recheck: float = _field(1.0, _seconds, "recheck")
    flaps: int | None = _field(3, lambda value, name: None if value is None else _count(value, name), "flaps")
    flap_window: float = _field(600.0, _seconds, "flap_window")
    hold_down: float = _field(60.0, _seconds, "hold_down")
    hold_down_max: float = _field(1800.0, _seconds, "hold_down_max")

    def __attrs_post_init__(self) -> None:
        if self.hold_down_max < self.hold_down:
            raise InvalidValueError(
                f"hold_down={self.hold_down:g} is above hold_down_max={self.hold_down_max:g}: the time in quarantine "
                "grows from the first to the second; lower the one or raise the other"
            )
        if self.flap_window < self.recheck:
            raise InvalidValueError(
                f"flap_window={self.flap_window:g} is below recheck={self.recheck:g}: no two flaps that discover sees "
                "could ever fall into it; raise the one or lower the other"
            )

    def changed(self, numbers: Mapping[str, float | None]) -> HealthPolicy:
        """Return this policy with other numbers; those that are not named stay.

        Raises:
            InvalidValueError: There is no such number, it breaks its rule, or the result contradicts itself.
        """
        for name, number in numbers.items():
            _check(name, number)
        return attrs.evolve(self, **dict[str, Any](numbers))

    @classmethod
    def numbers(cls, given: str | Mapping[str, float | None]) -> dict[str, float | None]:
        """Return the numbers of ``failures=2,hold_down=30``; ``none`` is None, and ``-`` is as good as ``_``.

        Args:
            given: The text, or a mapping of names to numbers.

        Raises:
            InvalidValueError: It is written otherwise, there is no such number, or it breaks its rule.
        """
        if not isinstance(given, str):
            found = {str(name).replace("-", "_"): number for name, number in given.items()}
        else:
            found = {}
            for part in given.split(","):
                name, equals, value = (piece.strip() for piece in part.partition("="))
                name = name.replace("-", "_")
                if not equals or name in found:
                    raise InvalidValueError(
                        f"thresholds {given!r}: must be NAME=NUMBER, separated by commas, each name once; for example "
                        "'failures=2,hold_down=30'"
                    )
                found[name] = _number(value, name)
        for name, number in found.items():
            _check(name, number)
        return found


def policy_of(owner: object, numbers: Mapping[str, float | None]) -> HealthPolicy:
    """Return the thresholds of a backend's class attribute, with those of the option.

    Raises:
        ConfigurationError: The attribute is none, or the result contradicts itself.
    """
    name, policy = f"{type(owner).__name__}.health_policy", getattr(owner, "health_policy", None)
    if not isinstance(policy, HealthPolicy):
        raise ConfigurationError(
            f"{name}: {policy!r} must be a kdp.HealthPolicy; for example kdp.HealthPolicy(failures=2)"
        )
    try:
        return policy.changed(numbers)
    except InvalidValueError as error:
        raise ConfigurationError(f"{name} with the option's numbers: {error}") from None


def _number(text: str, name: str) -> float | None:
    if text.lower() in ("none", "never"):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"{name}={text}: must be a number; for example {name}=3") from None


def _check(name: str, number: object) -> None:
    rules: dict[str, Callable[[object, str], object]] = {f.name: f.metadata["rule"] for f in attrs.fields(HealthPolicy)}
    if name not in rules:
        raise InvalidValueError(f"{name!r}: there is no such threshold; there are {', '.join(rules)}")
    rules[name](number, name)
