from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp import Quantity
from kdp.dra.render import canonical
from kdp.errors import InvalidValueError

from .. import strategies
from ..strategies import effort


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1000, "1k"),
        (1024, "1024"),
        (Quantity("1024Mi"), "1Gi"),
        (Quantity("0.5Gi"), "512Mi"),
        (Quantity("1.5"), "1500m"),
        (Quantity("100n"), "100n"),
    ],
)
def test_amounts_are_written_as_the_api_server_writes_them(amount: int | Quantity, text: str) -> None:
    assert canonical(amount) == text


@pytest.mark.parametrize("text", ["8Ei", "1e-10"])
def test_what_the_server_would_change_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"the API server would change it$"):
        canonical(Quantity(text))


@effort(300)
@given(st.integers(-(2**63) + 1, 2**63 - 1) | strategies.quantities)
def test_an_amount_keeps_its_value_and_is_written_once_and_for_all(amount: int | Quantity) -> None:
    try:
        text = canonical(amount)
    except InvalidValueError:
        return
    value = amount.value if isinstance(amount, Quantity) else amount
    assert Fraction(Quantity(text).value) == Fraction(value)
    assert canonical(Quantity(text)) == text
