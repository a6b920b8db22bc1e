"""What does not apply to the examples is listed with its reason; that they pass every check is tests/node's."""

from __future__ import annotations

from kdp_testkit.conformance import CHECKS

from .examples import listed


def test_over_both_routes_nothing_is_left_out() -> None:
    assert not listed("kubelet").keys() & listed("watcher").keys()


def test_the_list_of_what_does_not_apply_does_not_grow() -> None:
    """Whoever makes a check apply takes it off the list and lowers the number; nobody raises it."""
    assert len(listed("kubelet")) <= 5
    assert len(listed("watcher")) <= 27


def test_the_checks_are_the_75_of_the_contract() -> None:
    assert [check.id for check in CHECKS] == list(range(1, 76))
    assert len({check.name for check in CHECKS}) == 75
    for check in CHECKS:
        assert check.rule.startswith("section "), check
        assert check.cure
        assert check.expected
