"""Checks a backend's attributes before anything is served: one sentence now, no traceback later."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, InvalidValueError, message_of
from ..model.backend import is_overridden
from ..model.measurements import MOST_MEASUREMENTS, Measurement
from ..model.names import check_resource_name

if TYPE_CHECKING:
    from ..model.backend import DeviceBackend


def check_attributes(backend: DeviceBackend) -> None:
    """Check all attributes of a backend but its thresholds, for which there is `kdp.model.health_policy.policy_of`.

    Raises:
        ConfigurationError: One is of another kind than `DeviceBackend` says, or cannot be read.
    """
    for name, check in _CHECKS.items():
        label = f"{type(backend).__name__}.{name}"
        try:
            value = getattr(backend, name)
        except Exception as error:
            raise ConfigurationError(
                f"{label} raised {type(error).__name__}: {message_of(error)}; it is read before the backend is open"
            ) from error
        try:
            check(value)
        except InvalidValueError as error:
            raise ConfigurationError(f"{label}: {error}") from None
    try:
        measures = is_overridden(backend, "measure")
    except InvalidValueError as error:
        raise ConfigurationError(str(error)) from None
    if backend.measurements and not measures:
        raise ConfigurationError(
            f"{type(backend).__name__}: measurements are declared, and there is no hook 'measure' that gives them; "
            "write one, or declare none"
        )


def scrubs(backend: DeviceBackend, policy: str | None) -> bool:
    """Return whether devices of a backend are scrubbed between two pods.

    Args:
        backend: The backend.
        policy: The policy that goes before its own; None: there is none.

    Raises:
        ConfigurationError: It has no hook that could do it.
    """
    if (policy or backend.release_policy) != "scrub":
        return False
    if not is_overridden(backend, "released"):
        raise ConfigurationError(
            f"{type(backend).__name__}: the release policy is 'scrub', and there is no hook 'released' that scrubs; "
            "write one, or leave the policy at 'notify'"
        )
    return True


def _resource(value: Any) -> None:
    if value is not None:
        check_resource_name(_text(value, "a resource's name or None; valid is 'example.com/widget'"))


def _resources(value: Any) -> None:
    rule = "a sequence of resources' names; valid is ['example.com/widget']"
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidValueError(f"{value!r} must be {rule}")
    for name in value:  # pyright: ignore[reportUnknownVariableType]
        check_resource_name(_text(name, "a resource's name; valid is 'example.com/widget'"))


def _poll_interval(value: Any) -> None:
    if value is not None and not (_is_number(value) and 0 < value < math.inf):
        raise InvalidValueError(f"{value!r} must be a number of seconds above 0, or None for never; valid is 5.0")


def _stale_after(value: Any) -> None:
    if not (_is_number(value) and value >= 0):
        raise InvalidValueError(f"{value!r} must be a number of seconds; valid is 30.0")


def _joined_env(value: Any) -> None:
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str)
        for pair in value.items()  # pyright: ignore[reportUnknownVariableType]
        for text in pair  # pyright: ignore[reportUnknownVariableType]
    ):
        raise InvalidValueError(f"{value!r} must map variables to separators; valid is {{'WIDGETS': ','}}")


def _policy(value: Any) -> None:
    if value is not None:
        from ..allocation.policies import check_policy  # late: few backends have a policy

        check_policy(_text(value, "the name of a policy or None; valid is 'packed'"))


def _release_policy(value: Any) -> None:
    if value not in ("notify", "scrub"):
        raise InvalidValueError(f"{value!r} must be 'notify' or 'scrub'")


def _unused_hooks(value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidValueError(f"{value!r} must be a collection of hooks' names; valid is ('released',)")
    for name in value:  # pyright: ignore[reportUnknownVariableType]
        _text(name, "a hook's name; valid is 'released'")


def _measurements(value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidValueError(f"{value!r} must be a sequence of kdp.Measurement")
    found: set[str] = set()
    for each in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(each, Measurement):
            raise InvalidValueError(f"{each!r} must be a kdp.Measurement")
        if each.name in found:
            raise InvalidValueError(f"measurement {each.name!r} is there twice: name one of them otherwise")
        found.add(each.name)
    if len(found) > MOST_MEASUREMENTS:
        raise InvalidValueError(f"{len(found)} measurements: at most {MOST_MEASUREMENTS} are exported; leave some out")


def _measure_interval(value: Any) -> None:
    if not (_is_number(value) and 0 < value < math.inf):
        raise InvalidValueError(f"{value!r} must be a number of seconds above 0; valid is 10.0")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any, rule: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{value!r} must be {rule}")
    return value


_CHECKS = {
    "resource": _resource,
    "resources": _resources,
    "poll_interval": _poll_interval,
    "stale_after": _stale_after,
    "joined_env": _joined_env,
    "policy": _policy,
    "release_policy": _release_policy,
    "unused_hooks": _unused_hooks,
    "measurements": _measurements,
    "measure_interval": _measure_interval,
}
