"""kdp's own driver before all checks of DRA drivers, under each profile, those that wait included."""

from __future__ import annotations

import pytest
from tests.conformance.dra.broken import BareSubject
from tests.conformance.dra.rich import kdp_itself
from tests.conformance.twice import judged
from tests.unit.dra.claims.claims_world import Widgets

from kdp_testkit.conformance.dra.backend import DraBackendSubject
from kdp_testkit.conformance.dra.catalogue import CHECKS
from kdp_testkit.conformance.dra.runner import run_dra_checks


@pytest.mark.parametrize("profile", ["k134", "k136", "k137"])
async def test_kdp_passes(profile: str) -> None:
    report, _ = await judged(lambda failed: run_dra_checks(kdp_itself(), profile=profile, jobs=8, only=failed))
    report.raise_if_failed()
    assert len(report.results) == len(CHECKS)
    # Without taints a failing device changes no slice, and without its gate none is shared; calls are left out from
    # 1.37 on; kdp always tells health, and counters have a test of their own.
    more = {"k134": {22, 40, 59}, "k136": {59}, "k137": set[int]()}[profile]
    assert {each.check.id for each in report.of("not_applicable")} == {46, 51} | more


async def test_kdp_without_health_keeps_the_stream_open() -> None:
    report = await run_dra_checks(DraBackendSubject(Widgets, health=False), profile="k136", only=[51])
    report.raise_if_failed()


async def test_a_call_of_the_api_server_without_a_deadline_is_found() -> None:
    [result] = (await run_dra_checks(BareSubject("no_deadline"), only=[60])).results
    assert result.status == "failed"
