from __future__ import annotations

import pytest

from kdp.deviceplugin import session

from .mutants import InvariantBrokenError, Mutant, holds


def test_a_mutant_is_a_copy_with_one_change() -> None:
    mutant = Mutant(1, "slow", 'STREAM_DEADLINE = 10.0\n"', 'STREAM_DEADLINE = 99.0\n"').load(
        "kdp.deviceplugin.session"
    )
    assert mutant.STREAM_DEADLINE == 99.0
    assert session.STREAM_DEADLINE == 10.0
    assert mutant.Session is not session.Session


def test_a_mutant_of_a_line_that_is_no_longer_there_says_so() -> None:
    with pytest.raises(
        AssertionError, match=r"has 0 times and not once: write the mutant anew for the module as it is"
    ):
        Mutant(1, "old", "no such line", "").load("kdp.deviceplugin.session")


def test_a_broken_invariant_says_which() -> None:
    holds(1, True, "fine")
    with pytest.raises(InvariantBrokenError, match=r"^invariant 3: two streams$"):
        holds(3, [], "two streams")
