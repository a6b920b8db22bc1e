"""The lists of checks, and the runner that plays them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from kdp_testkit.conformance.checks import Check, Checks, joined
from kdp_testkit.conformance.deviceplugin.catalogue import CHECKS
from kdp_testkit.conformance.dra.catalogue import CHECKS as DRA_CHECKS
from kdp_testkit.conformance.runner import Runner
from kdp_testkit.conformance.verdicts import Failed, NotApplicable
from kdp_testkit.protocol.wire import CallError


def _listed(*ids: int, waits: float = 0.0) -> Checks[str]:
    """Return a list of checks whose scene is a text, and which saw that text."""
    checks: Checks[str] = Checks()
    for id in ids:

        @checks.add(id, f"check {id}", expected="", rule="", cure="", waits=waits)
        async def _play(scene: str) -> str:
            return scene

    return checks


def _ids(checks: tuple[Check[str], ...]) -> list[int]:
    return [check.id for check in checks]


def test_lists_are_joined_in_the_order_of_their_ids() -> None:
    assert _ids(joined(_listed(5, 2), _listed(3))) == [2, 3, 5]


def test_two_checks_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="two checks have the id 2"):
        joined(_listed(1, 2), _listed(2))


def test_the_ids_are_those_of_the_contracts() -> None:
    assert [check.id for check in CHECKS] == list(range(1, 76))
    assert [check.id for check in DRA_CHECKS] == sorted({check.id for check in DRA_CHECKS})


def test_a_runner_leaves_out_what_waits_when_it_is_quick_unless_it_was_asked_for() -> None:
    checks = joined(_listed(1), _listed(2, waits=60.0))
    assert [check.id for check in Runner(checks, profile="k137").chosen] == [1, 2]
    quick = Runner(checks, profile="k137", quick=True)
    assert ([check.id for check in quick.chosen], quick.report().left_out) == ([1], (2,))
    assert [check.id for check in Runner(checks, profile="k137", quick=True, only=[2]).chosen] == [2]


def test_an_unknown_check_is_refused_with_the_ids_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"^there is no check 9; the ids are 1 to 3, 5$"):
        Runner(joined(_listed(1, 2, 3, 5)), profile="k137", only=[9])


async def _seeing(saw: str) -> str:
    return saw


async def _raising(error: Exception) -> str:
    raise error


async def _raising_in_a_group(*errors: Exception) -> str:
    async with anyio.create_task_group() as tasks:
        for error in errors:
            tasks.start_soon(_raising, error)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("play", "status", "saw"),
    [
        (partial(_seeing, "one list"), "passed", "one list"),
        (partial(_raising, Failed("two lists")), "failed", "two lists"),
        (partial(_raising, NotApplicable("no levers")), "not_applicable", "no levers"),
        (partial(_raising, OSError("no socket")), "failed", "no socket"),
        (partial(_raising, TimeoutError()), "failed", "the scenario did not come to its end within 120 s"),
        (partial(_raising, CallError("UNAVAILABLE", "gone")), "failed", "a call failed: "),
        (partial(_raising_in_a_group, OSError("no socket"), Failed("two lists")), "failed", "two lists"),
    ],
)
async def test_what_a_check_raises_is_its_result(play: Callable[[], Awaitable[str]], status: str, saw: str) -> None:
    [check] = joined(_listed(1))
    runner = Runner([check], profile="k137")
    await runner.judge(check, play, waits=0.0)
    [result] = runner.report().results
    assert result.status == status
    assert result.saw.startswith(saw)


@pytest.mark.parametrize("raising", [_raising, _raising_in_a_group])
async def test_a_check_that_crashed_lost_the_results_of_all(raising: Callable[..., Awaitable[str]]) -> None:
    checks = joined(_listed(1, 2))
    runner = Runner(checks, profile="k137")
    await runner.judge(checks[0], partial(raising, LookupError("a bug")), waits=0.0)
    await runner.judge(checks[1], partial(_seeing, "one list"), waits=0.0)
    crashed, other = runner.report().results
    assert (crashed.status, other.status) == ("failed", "passed")
    assert crashed.saw.startswith("the check itself failed with LookupError: a bug (")
    assert crashed.saw.endswith("; please report this")
