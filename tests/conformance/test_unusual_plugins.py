"""The kit's verdicts on plugins that are correct but unusual, and on their sabotaged twins: `unusual` has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdp_testkit.conformance import ConformanceReport, check_backend
from kdp_testkit.conformance.dra.backend import DraBackendSubject
from kdp_testkit.conformance.dra.runner import run_dra_checks

from .twice import judged
from .unusual import (
    CORRECT,
    SABOTAGED,
    BlockingAllocate,
    Correct,
    EmptyAtEachStart,
    EmptyAtFirst,
    IdsOfEveryForm,
    LongName,
    LooksSeldom,
    OneIsSick,
    OneReplicaForEach,
    PairsOnly,
    PrefersNothing,
    RecordedNode,
    RefusesTwo,
    ReleasesSlowly,
    Row,
    Sabotaged,
    TokenInEachReply,
)


async def judge(
    row: type[Row], folder: Path, only: tuple[int, ...] | None = None, *, as_driver: bool = False
) -> ConformanceReport:
    """Judge a row; without ``only`` by all checks that need not wait."""
    node = folder / "node"
    if not node.exists():
        node.mkdir()
        row.prepare(node)
    if as_driver:
        subject = DraBackendSubject(lambda: row.made(node), levers=row.levers(node), **row.settings())
        return await run_dra_checks(subject, quick=True, only=only)
    return await check_backend(
        lambda: row.made(node),
        levers=row.levers(node),
        quick=True,
        only=only,
        host_root=node if row.takes_node else "/",
        cdi_dirs=[folder],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "as_driver"), [(row, as_driver) for row in CORRECT for as_driver in (False, True)[: 1 + row.is_for_both]]
)
async def test_a_correct_but_unusual_plugin_passes_every_check_that_applies(
    row: type[Correct], as_driver: bool, tmp_path: Path
) -> None:
    report, _ = await judged(lambda failed: judge(row, tmp_path, failed, as_driver=as_driver))
    report.raise_if_failed()
    assert len(report.of("passed")) > len(report.of("not_applicable"))
    for result in report.of("not_applicable"):
        assert NAMED.search(result.saw), f"{result.check.id} does not name what the plugin declares or lacks: {result}"


NAMED = re.compile(r"the (plugin|driver|backend)|healthy devices? (is|are) needed|device of the driver|was given")


@pytest.mark.parametrize("row", SABOTAGED)
async def test_a_sabotaged_plugin_fails(row: type[Sabotaged], tmp_path: Path) -> None:
    [result] = (await judge(row, tmp_path, (row.check,), as_driver=row.is_driver)).results
    assert (result.status, row.words in result.saw) == ("failed", True), result.saw


FALSE: list[tuple[type[Correct], tuple[int, ...], bool]] = [
    (RefusesTwo, (72,), False),
    (OneReplicaForEach, (72,), False),
    (PairsOnly, (34,), False),
    (TokenInEachReply, (34, 39, 41), False),
    (BlockingAllocate, (41, 58), False),
    (EmptyAtFirst, (4, 33, 46), False),
    (EmptyAtEachStart, (4, 33, 46, 55, 56, 63), False),
    (LooksSeldom, (8,), False),
    (PrefersNothing, (48, 49), False),
    (OneIsSick, (56, 72), False),
    (IdsOfEveryForm, (38, 40, 52, 53), True),
    (EmptyAtFirst, (12, 20), True),
    (ReleasesSlowly, (9,), True),
    (LongName, (5,), True),
    (RecordedNode, (24,), True),
    (OneIsSick, (44, 48, 52, 53), True),
]
"""Which checks once gave a false verdict on which plugin, and whether on it as a DRA driver."""


@pytest.mark.parametrize(("row", "only", "as_driver"), FALSE)
async def test_a_correct_plugin_got_a_false_verdict(
    row: type[Correct], only: tuple[int, ...], as_driver: bool, tmp_path: Path
) -> None:
    report, _ = await judged(lambda failed: judge(row, tmp_path, failed or only, as_driver=as_driver))
    report.raise_if_failed()
    assert [result.check.id for result in report.of("passed")] == list(only)


@pytest.mark.parametrize("row", [RefusesTwo, OneReplicaForEach])
async def test_a_plugin_that_refuses_two_devices_failed_the_check_of_their_order(
    row: type[Correct], tmp_path: Path
) -> None:
    [result] = (await judge(row, tmp_path, (34,))).results
    assert result.status == "not_applicable"
    assert result.saw.startswith("the plugin refuses two devices for one container: rpc error: code = FailedPrecond")
