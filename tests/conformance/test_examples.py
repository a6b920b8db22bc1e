"""The examples pass every check, and what does not apply to them is listed with its reason.

Here two of them under the newest kubelet, each over one of the two routes; tests/node has all of them under all
profiles over both, and what waits long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdp_testkit.conformance import CHECKS
from kdp_testkit.conformance.verdicts import Route

from .examples import MISSING, judge, listed

Figure = Callable[[str, float, str], None]


@pytest.mark.parametrize(
    ("example", "route"), [("minimal", "kubelet"), pytest.param("generic", "watcher", marks=pytest.mark.slow)]
)
async def test_an_example_passes(example: str, route: Route, tmp_path: Path, figure: Figure) -> None:
    if missing := MISSING.get(example):
        pytest.skip(missing)
    report, again = await judge(example, "k137", route, tmp_path)
    report.raise_if_failed()
    not_applicable = {result.check.id: result.saw for result in report.of("not_applicable")}
    expected = {number: reason for number, reason in listed(route, example).items() if number not in report.left_out}
    assert not_applicable == expected
    seconds = sum(result.seconds for result in report.results)
    twice = f", {again} at the second try" if again else ""
    figure(f"conformance of {example}, k137, {route}: all checks one after another{twice}", seconds, "s")


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
