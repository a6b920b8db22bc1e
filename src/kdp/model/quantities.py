"""`Quantity`: an amount in Kubernetes' notation, compared by what it means; and durations in that notation."""

from __future__ import annotations

import functools
import logging
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

import attrs
from typing_extensions import override

from ..errors import InvalidValueError
from ..startup import shown
from .frozen import FrozenDict, dict_of
from .names import check_attribute_name

if TYPE_CHECKING:
    from datetime import timedelta
    from decimal import Decimal

logger = logging.getLogger(__name__)

_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?\d{1,3})\Z", re.ASCII)
_FACTORS = {
    **{f"{prefix}i": str(1024**power) for power, prefix in enumerate("KMGTPE", start=1)},
    **{
        prefix: f"1e{3 * power}"
        for power, prefix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], start=-3)
    },
}


def _quantity(value: str) -> str:
    if not _QUANTITY.match(value):
        raise InvalidValueError(f"quantity {value!r}: must be a number with a Kubernetes suffix; for example '80Gi'")
    return value


@final
@functools.total_ordering
@attrs.frozen(eq=False)
class Quantity:
    """An amount in Kubernetes' notation: ``80Gi``, ``1500m``, ``2``. Equal amounts are equal, however written.

    Attributes:
        text: The notation (Kubernetes API, ``resource.Quantity``).
    """

    __repr__ = shown

    text: str = attrs.field(converter=_quantity)

    @property
    def value(self) -> Decimal:
        """The amount as a plain number."""
        from decimal import Decimal  # only those who compute with amounts pay for it

        match = _QUANTITY.match(self.text)
        assert match is not None  # the converter has matched it
        sign, number, suffix = match.groups()
        return Decimal(f"{sign}{number}") * Decimal(_FACTORS.get(suffix) or f"1{suffix}")

    @override
    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    @override
    def __hash__(self) -> int:
        return hash(self.value)

    @override
    def __str__(self) -> str:
        return self.text


Amount = int | Quantity
"""How much of something: a whole number, or Kubernetes' notation."""

Consumption = Mapping[str, Mapping[str, Amount]]
"""What a device takes, by counter set and counter."""


def integer(value: object) -> int | None:
    """Return any integer as an int, for example numpy's; None: it is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_amount(value: Amount, what: str) -> Amount:
    """Check an amount, which messages call ``what``, and return it; any integer becomes an int.

    Raises:
        InvalidValueError: It is neither an integer nor `Quantity`.
    """
    amount = value if isinstance(value, Quantity) else integer(value)
    if amount is None:
        raise InvalidValueError(f"{what}={value!r}: must be int or kdp.Quantity; for example Quantity('80Gi')")
    return amount


def exact(amount: Amount) -> Decimal:
    """Return an amount as a plain number, to compare an int with a `Quantity`."""
    from decimal import Decimal

    return amount.value if isinstance(amount, Quantity) else Decimal(amount)


def capacities(value: Mapping[str, Amount]) -> Mapping[str, Amount]:
    """Check and freeze the capacities of a device. Warn once for each memory that is hardly given in bytes.

    Raises:
        InvalidValueError: A name is none of DRA's, or an amount is none or negative.
    """
    return FrozenDict[str, Amount](
        (check_attribute_name(name), _capacity(name, amount))
        for name, amount in dict_of(value, "capacity", {"memory": 1}).items()
    )


def _capacity(name: str, value: Amount) -> Amount:
    amount = check_amount(value, f"capacity {name}")
    if str(amount).startswith("-"):  # `exact` would load decimal at each start
        raise InvalidValueError(f"capacity {name}={amount}: must be 0 or more; leave out a capacity that is not known")
    if isinstance(amount, int) and 0 < amount < _LEAST_MEMORY and _MEMORY.search(name):
        _warn_of_unit(name, amount)
    return amount


_MEMORY = re.compile("(memory|MEMORY|[vV]ram|VRAM|[a-z]Ram|hbm|HBM|[fF]rame[bB]uffer|Memory)$")
"""Not every name with the word is an amount of memory: memoryChannels are counted."""

_LEAST_MEMORY = 2**20
"""Bytes. Drivers report memory in MiB or GiB, and these numbers are below it."""


@functools.lru_cache(maxsize=256)
def _warn_of_unit(name: str, amount: int) -> None:
    """Warn once for each value: a backend repeats it with each discovery."""
    logger.warning(
        "capacity %s=%d means %d bytes; write kdp.Quantity('%dMi') if the number is MiB, or kdp.Quantity('%d') if it "
        "is bytes",
        *(name, amount, amount, amount, amount),
    )


_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> timedelta:
    """Return a duration as Kubernetes writes it: ``1h30m``, ``2.5s``, ``300ms``.

    Raises:
        ValueError: It is written otherwise, or is longer than a `timedelta` can be.
    """
    from datetime import timedelta  # only those who read durations pay for it

    part = r"(\d+(?:\.\d+)?)(ms|s|m|h)"
    if not re.fullmatch(rf"(?:{part})+", text, re.ASCII):
        raise ValueError(text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(part, text, re.ASCII))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(text) from None
