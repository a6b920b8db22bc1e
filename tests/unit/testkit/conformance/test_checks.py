"""The lists of checks, and the runner that plays them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from typing_extensions import override

from kdp_testkit.conformance import CheckResult, ConformanceCheck
from kdp_testkit.conformance.checks import Check, Checks, Failed, NotApplicable, joined
from kdp_testkit.conformance.deviceplugin.catalogue import CHECKS
from kdp_testkit.conformance.dra.catalogue import CHECKS as DRA_CHECKS
from kdp_testkit.conformance.runner import Progress, Runner
from kdp_testkit.protocol.wire import CallError


def _listed(*ids: int, waits: float = 0.0, levers: Sequence[str] = ()) -> Checks[str]:
    """Return a list of checks whose scene is a text, and which saw that text."""
    checks: Checks[str] = Checks()
    for id in ids:

        @checks.add(id, f"check {id}", expected="", rule="", cure="", waits=waits, levers=levers)
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


def test_a_runner_leaves_out_what_waits_when_it_is_quick() -> None:
    checks = joined(_listed(1), _listed(2, waits=60.0))
    assert [check.id for check in Runner(checks, profile="k137").chosen] == [1, 2]
    for only in (None, [1, 2]):
        quick = Runner(checks, profile="k137", quick=True, only=only)
        assert ([check.id for check in quick.chosen], quick.report().left_out) == ([1], (2,))


def test_quick_and_a_check_that_waits_waited_20_minutes() -> None:
    checks = joined(_listed(1), _listed(2, waits=1200.0))
    with pytest.raises(ValueError, match=r"^no check is left to run: 2 must wait long, and quick leaves that out$"):
        Runner(checks, profile="k137", quick=True, only=[2])


def test_a_runner_leaves_out_what_is_to_be_skipped() -> None:
    checks = joined(_listed(1, 2, 3))
    assert [check.id for check in Runner(checks, profile="k137", skip=[2]).chosen] == [1, 3]
    assert [check.id for check in Runner(checks, profile="k137", only=[2, 3], skip=[2]).chosen] == [3]
    with pytest.raises(ValueError, match=r"^there is no check 7; the ids are 1 to 3$"):
        Runner(checks, profile="k137", skip=[7])
    with pytest.raises(ValueError, match=r"^no check is left to run$"):
        Runner(checks, profile="k137", only=[2], skip=[2])


async def _crowd(
    *lists: Checks[str], jobs: int, shares_hardware: bool
) -> tuple[Runner[str], dict[int, int], dict[int, set[int]]]:
    """Play checks, each until nothing new begins; return how many began before each, and which ran beside it."""
    runner = Runner(joined(*lists), profile="k137")
    running: set[int] = set()
    place: dict[int, int] = {}
    beside: dict[int, set[int]] = {}

    async def play(check: Check[str]) -> str:
        place[check.id] = len(place)
        running.add(check.id)
        for id in running:
            beside.setdefault(id, set()).update(running - {id})
        began = -1
        while began != len(place):
            began = len(place)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
        running.discard(check.id)
        return ""

    await runner.judge_all(play, jobs=jobs, shares_hardware=shares_hardware)
    return runner, place, beside


async def test_levers_of_shared_hardware_are_pulled_with_nothing_beside_them() -> None:
    """Check 5 waits for five minutes without a change, and others made devices fail meanwhile."""
    lists = (_listed(1, levers=["vanish"]), _listed(2, levers=["fail"]), _listed(3, 4), _listed(5, waits=300.0))
    _, place, beside = await _crowd(*lists, jobs=4, shares_hardware=True)
    assert beside == {1: set(), 2: set(), 3: {4, 5}, 4: {3, 5}, 5: {3, 4}}
    assert sorted(place, key=place.__getitem__)[-2:] == [2, 1]
    _, _, beside = await _crowd(*lists, jobs=4, shares_hardware=False)
    assert {1, 2, 3, 4} <= beside[5]


async def test_one_job_is_one_check_at_a_time() -> None:
    _, place, beside = await _crowd(_listed(1, 2), _listed(3, waits=300.0), jobs=1, shares_hardware=False)
    assert len(place) == 3
    assert not any(beside.values())


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


class _Followed(Progress):
    """Keeps what it is given, in the order in which it comes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @override
    def begin(self, chosen: Sequence[ConformanceCheck]) -> None:
        self.seen.append(f"{len(chosen)} checks")

    @override
    def start(self, check: ConformanceCheck) -> None:
        self.seen.append(f"{check.id} starts")

    @override
    def end(self, result: CheckResult) -> None:
        self.seen.append(f"{result.check.id} {result.status}")


async def test_a_run_is_followed_check_by_check() -> None:
    progress = _Followed()
    runner = Runner(joined(_listed(1, 2)), profile="k137", progress=progress)

    async def play(check: Check[str]) -> str:
        return await check.play("one list")

    await runner.judge_all(play, jobs=1, shares_hardware=False)
    assert progress.seen == ["2 checks", "1 starts", "1 passed", "2 starts", "2 passed"]
