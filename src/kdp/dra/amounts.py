"""Amounts as the API server writes them, so that what is read back is what was sent.

The server keeps a quantity's kind of suffix (1024 or 1000) and writes the largest one that leaves a whole number:
``1024Mi`` is ``1Gi``, ``1.5`` is ``1500m`` (``k8s.io/apimachinery`` ``pkg/api/resource``). What has more than nine
decimals or is beyond 63 bits it would change silently; we refuse that.
"""

from __future__ import annotations

import functools

from ..errors import InvalidValueError
from ..model.quantities import Amount, Quantity, exact

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_LARGEST = 2**63 - 1


def canonical(amount: Amount) -> str:
    """Return an amount in the server's notation.

    Raises:
        InvalidValueError: The server would round it or cut it off.
    """
    # A node's devices have the same few amounts, again and again.
    return _of_text(amount.text) if isinstance(amount, Quantity) else _canonical(amount)


@functools.lru_cache(maxsize=1024)
def _of_text(text: str) -> str:
    return _canonical(Quantity(text))


def _canonical(amount: Amount) -> str:
    value = exact(amount)
    nano = value * 10**9
    if abs(value) > _LARGEST or nano != int(nano):
        raise InvalidValueError(
            f"amount {amount}: must be at most {_LARGEST} and have at most 9 decimals: the API server would change it"
        )
    if isinstance(amount, Quantity) and amount.text.endswith("i") and abs(value) >= 1024 and value == int(value):
        return _suffixed(int(value), 1024, _BINARY)
    return _suffixed(int(nano), 1000, _DECIMAL)


def _suffixed(whole: int, base: int, suffixes: tuple[str, ...]) -> str:
    if whole == 0:
        return "0"
    place = 0
    while whole % base == 0 and place < len(suffixes) - 1:
        whole //= base
        place += 1
    return f"{whole}{suffixes[place]}"
