"""How a setting's value is read: text, or a value of the right type, becomes what `Settings` holds.

Each reader raises `Unacceptable` with the rule that the value breaks and a valid example; whose value it was is known,
and said, in `kdp.daemon.settings`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, final, get_args

import attrs
from typing_extensions import override

from ..errors import InvalidValueError
from ..model.health_policy import HealthPolicy
from ..model.names import MAX_REPLICAS, check_label_name, check_label_value, check_resource_name
from ..startup import shown

if TYPE_CHECKING:
    from ..model.claims import TaintEffect


@final
@attrs.frozen
class Address:
    """Where the probes listen.

    Attributes:
        host: Name or address; empty: every address of the machine.
        port: 0: any free one, told in the log.
    """

    __repr__ = shown

    host: str
    port: int

    @override
    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_MOST_DIGITS: Final = 30
"""No setting is a longer number, and Python reads none of thousands of digits."""


class Unacceptable(ValueError):
    """The text is the rule that the value breaks, ending in a valid example."""


@contextmanager
def _refusing() -> Generator[None]:
    """Turn what the model refuses into `Unacceptable`."""
    try:
        yield
    except InvalidValueError as error:
        raise Unacceptable(f"is refused: {error}") from None


def path(value: object, rule: str = "must be a path; for example '/var/lib/kubelet'") -> Path:
    """Read a path, made absolute."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise Unacceptable(rule)
    found = Path(os.fspath(value)).absolute()
    try:
        is_path = b"\0" not in os.fsencode(found)
    except UnicodeEncodeError:  # JSON has letters that no file's name has
        is_path = False
    if not is_path:
        raise Unacceptable(rule)
    return found


def path_or_none(value: object) -> Path | None:
    """Read a path, or ``none``."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return path(value, "must be a path, or 'none' for nowhere; for example '/var/lib/kdp'")


@final
@attrs.frozen
class OneOf:
    """Reads one of the words of a `typing.Literal`, in any case."""

    __repr__ = shown

    words: tuple[str, ...] = attrs.field(converter=get_args)

    def __call__(self, value: object) -> str:
        """Return the word."""
        if isinstance(value, str) and value.lower() in self.words:
            return value.lower()
        from ..model.spelling import hint  # only after a slip

        near = hint(value.lower(), self.words) if isinstance(value, str) else ""
        raise Unacceptable(f"must be one of {', '.join(self.words)}; {near or f'for example {self.words[0]!r}'}")


@final
@attrs.frozen
class Number:
    """Reads a whole number within limits; None: there is no upper one."""

    __repr__ = shown

    least: int
    most: int | None
    example: int

    def __call__(self, value: object) -> int:
        """Return the number."""
        limits = f"from {self.least} to {self.most}" if self.most is not None else f"of {self.least} or more"
        digits = str(value).strip()
        is_number = isinstance(value, (int, str)) and not isinstance(value, bool) and digits.isascii()
        if is_number and digits.isdigit() and len(digits.lstrip("0")) <= _MOST_DIGITS:
            whole = int(digits[-_MOST_DIGITS:])
            if whole >= self.least and (self.most is None or whole <= self.most):
                return whole
        raise Unacceptable(f"must be a whole number {limits}; for example {self.example}")


def replicas_for(value: object) -> tuple[tuple[str, int], ...]:
    """Read ``SELECTOR=NUMBER`` pairs, in their order."""
    rule = "must be SELECTOR=NUMBER, several with commas, or in a file a mapping; for example 'model=A100*=8,gpu-1=1'"
    checked: list[tuple[str, int]] = []
    for selector, given in _pairs(value, rule, str.rpartition):
        if not isinstance(selector, str) or not selector or selector.endswith("="):
            raise Unacceptable(rule)
        try:
            checked.append((selector, Number(1, MAX_REPLICAS, 4)(given)))
        except Unacceptable as error:
            raise Unacceptable(f"gives {selector!r} {given!r} replicas: the number {error}") from None
    if not checked:
        raise Unacceptable(rule)
    return tuple(checked)


def _pairs(value: object, rule: str, split: Callable[[str, str], tuple[str, str, str]]) -> list[tuple[object, object]]:
    """Return the pairs of a mapping, or of a text with commas between them."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[object, object]", value).items())
    parts = [split(part.strip(), "=") for part in value.split(",") if part.strip()] if isinstance(value, str) else []
    if not parts or not all(equals for _, equals, _ in parts):
        raise Unacceptable(rule)
    return [(name, text) for name, _, text in parts]


def _number(value: object, rule: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Unacceptable(rule)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise Unacceptable(rule) from None


def poll_interval(value: object) -> float | None:
    """Read seconds, or ``none`` for never."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("none", "never")):
        return None
    rule = "must be a number of seconds above 0, or 'none' for never; for example 5"
    seconds = _number(value, rule)
    if not 0 < seconds < math.inf:
        raise Unacceptable(rule)
    return seconds


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}

MOST_DURATION: Final = 30 * 24 * 3600.0
"""Seconds: a month."""


def duration(value: object) -> float:
    """Read seconds, or a number with a unit."""
    rule = "must be from 1 second to 30 days, in seconds or as '90s', '5m' or '1h'; for example '5m'"
    unit = 1.0
    if isinstance(value, str) and value.strip()[-1:].lower() in _UNITS:
        value, unit = value.strip()[:-1], _UNITS[value.strip()[-1].lower()]
    seconds = _number(value, rule) * unit
    if not 1.0 <= seconds <= MOST_DURATION:
        raise Unacceptable(rule)
    return seconds


def health_policy(value: object) -> dict[str, float | None]:
    """Read thresholds of health by name."""
    if isinstance(value, HealthPolicy):
        value = attrs.asdict(value)
    if not isinstance(value, (str, Mapping)):
        raise Unacceptable("must be thresholds by name; for example 'failures=2,hold_down=30'")
    with _refusing():
        return HealthPolicy.numbers(cast("str | Mapping[str, float | None]", value))


def text(value: object) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise Unacceptable("must be a text; for example 'node-0'")
    return value.strip()


def driver_name(value: object) -> str:
    """Read a DRA driver's name."""
    from ..dra.names import check_driver_name

    with _refusing():
        return check_driver_name(text(value))


def resource(value: object) -> str:
    """Read the name of an extended resource."""
    with _refusing():
        return check_resource_name(text(value))


def pool(value: object) -> str:
    """Read the name of a DRA pool."""
    from ..dra.names import check_pool_name

    with _refusing():
        return check_pool_name(text(value))


def labels(value: object) -> tuple[tuple[str, str], ...]:
    """Read ``LABEL=VALUE`` pairs, sorted; none: ``all``."""
    rule = "must be LABEL=VALUE, several with commas, or 'all'; for example 'example.com/fabric=a'"
    if isinstance(value, str) and value.strip().lower() == "all":
        return ()
    pairs = _pairs(value, rule, str.partition)
    with _refusing():
        found = {check_label_name(cast("str", name)): check_label_value(cast("str", text)) for name, text in pairs}
    if len(found) < len(pairs) or not found:
        raise Unacceptable(rule)
    return tuple(sorted(found.items()))


def taint_key(value: object) -> str:
    """Read the key of a taint."""
    with _refusing():
        return check_label_name(text(value))


def taint(value: object) -> TaintEffect | None:
    """Read a taint's effect; None: ``off``."""
    effects: dict[str, TaintEffect | None] = {"off": None, "noschedule": "NoSchedule", "noexecute": "NoExecute"}
    effects["none"] = "None"
    if isinstance(value, str) and value.lower() in effects:
        return effects[value.lower()]
    raise Unacceptable("must be one of NoSchedule, NoExecute, None, off; for example 'NoExecute'")


def address(value: object) -> Address:
    """Read where to listen."""
    rule = (
        "must be ADDRESS:PORT, or :PORT for every address; for example ':8080' or '[::1]:8080', ':0' for any free port"
    )
    if isinstance(value, Address):
        return value
    if not isinstance(value, str):
        raise Unacceptable(rule)
    host, colon, port = value.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not port.isascii()
        or not port.isdigit()
        or len(port) > 5
        or int(port) > 65535
        or (":" in host and not bracketed)
    ):
        raise Unacceptable(rule)
    return Address(host[1:-1] if bracketed else host, int(port))
