from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kdp.concurrency.backoff import Backoff

from ..strategies import effort


@effort(100)
@given(st.integers(), st.integers(1, 60))
def test_pauses_double_with_jitter_up_to_the_longest(number: int, failures: int) -> None:
    backoff = Backoff(rng=random.Random(number))  # noqa: S311 - jitter
    for failure in range(failures):
        pause = backoff.next()
        whole = min(5.0, 0.1 * 2.0**failure)
        assert whole / 2 <= pause <= whole


def test_after_a_success_it_starts_again() -> None:
    backoff = Backoff(first=1.0, most=100.0)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1.0


def test_it_never_overflows() -> None:
    backoff = Backoff()
    backoff.failures = 10**6
    assert backoff.next() <= 5.0
