"""The checks of DRA drivers: a sound driver passes, kdp's own passes, and each check finds the defect it is for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp_testkit.conformance.dra.backend import DraBackendSubject
from kdp_testkit.conformance.dra.catalogue import CHECKS
from kdp_testkit.conformance.dra.runner import run_dra_checks
from kdp_testkit.conformance.dra.scene import DraScene
from kdp_testkit.dra.events import DriverGone, DriverRegistered

from ..twice import judged
from .broken import BareSubject
from .rich import Parts, kdp_itself

DEFECTS = {
    "old_first": 1,
    "registers_first": 2,
    "keeps_dead_sockets": 3,
    "says_nothing": 4,
    "long_names": 5,
    "random_names": 5,
    "ends_when_refused": 6,
    "publishes_once": 7,
    "leaves_sockets": 8,
    "remembers": 9,
    "no_file_lock": 9,
    "unlinks_all": 9,
    "stale_lock": 10,
    "only_v1": 11,
    "no_specs": 12,
    "no_request": 12,
    "fails_whole_call": 13,
    "empty_is_error": 14,
    "forgets": 15,
    "ignores_uid": 16,
    "takes_all_results": 17,
    "keeps_subrequest": 18,
    "reads_all_config": 19,
    "gives_twice": 20,
    "refuses_admin": 21,
    "one_share": 22,
    "no_share_id": 22,
    "ends_all_shares": 22,
    "one_cdi_device": 23,
    "prepares_twice": 24,
    "late_prepare": 25,
    "trusts_begun": 26,
    "trusts_specs": 27,
    "trusts_boot": 28,
    "invents_devices": 29,
    "names_no_device": 29,
    "ignores_cdi_errors": 30,
    "unknown_is_error": 31,
    "fetches_at_unprepare": 32,
    "second_is_error": 33,
    "refuses_jammed": 34,
    "forgets_jammed": 34,
    "never_releases": 34,
    "new_format": 35,
    "collects_nothing": 36,
    "collects_all": 36,
    "collects_at_errors": 36,
    "ends_when_damaged": 37,
    "drops_damaged": 37,
    "hides_damage": 37,
    "unpublishes": 38,
    "writes_for_ever": 39,
    "generation_each_time": 40,
    "keeps_foreign_edits": 42,
    "no_owner": 43,
    "keeps_owner": 43,
    "publishes_untainted": 44,
    "writes_dropped": 44,
    "hides_gate": 44,
    "sends_invalid": 45,
    "counters_together": 46,
    "writes_each_flip": 48,
    "deletes_slices": 49,
    "part_of_health": 50,
    "hides_faults": 52,
    "no_taints": 52,
    "long_messages": 53,
    "overlooks_templates": 54,
    "writable_metadata": 54,
    "leaves_metadata": 54,
    "replaces_status": 55,
    "hides_status_refusal": 55,
    "storms": 56,
    "hides_denials": 56,
    "beside_plugin": 57,
    "fussy_names": 58,
    "adopts_claims": 59,
}
"""Which check finds which defect, on a kubelet 1.37."""
MORE = {"publishes_once": (41, 47), "collects_nothing": (59,)}
PATIENCE = 0.05
"""A driver that never does what it should is found soon."""
WIDTH = 6
"""So many defects at a time."""


@pytest.mark.slow
async def test_kdp_passes() -> None:
    """Without real kubelets; `.ci/run` and tests/node judge it with every check."""
    report, _ = await judged(lambda failed: run_dra_checks(kdp_itself(), quick=True, jobs=8, only=failed))
    report.raise_if_failed()
    assert {each.check.id for each in report.of("not_applicable")} == {46, 51}


@pytest.mark.slow
async def test_a_sound_driver_passes() -> None:
    report, _ = await judged(
        lambda failed: run_dra_checks(BareSubject(), profile="k137", quick=True, jobs=8, only=failed)
    )
    report.raise_if_failed()
    assert {each.check.id for each in report.of("not_applicable")} == {46, 51}


async def _missed(defect: str) -> str:
    """Let the checks that are for it judge a defect; return what they saw in place of it."""
    ids = sorted((DEFECTS[defect], *MORE.get(defect, ())))
    report = await run_dra_checks(BareSubject(defect), profile="k137", only=ids, patience=PATIENCE)
    found = [each.check.id for each in report.of("failed")]
    return "" if found == ids else f"{defect}: {[each.saw for each in report.results]}"


@pytest.mark.slow
async def test_every_defect_is_found() -> None:
    """What is not found beside the others is tried once more with nothing beside it."""
    limiter = anyio.CapacityLimiter(WIDTH)
    again: list[str] = []

    async def judge(defect: str) -> None:
        async with limiter:
            if await _missed(defect):
                again.append(defect)

    async with anyio.create_task_group() as tasks:
        for defect in DEFECTS:
            tasks.start_soon(judge, defect)
    missed = [saw for defect in again if (saw := await _missed(defect))]
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("profile", ["k134", "k137"])
async def test_counters_are_laid_out_for_the_version(profile: str) -> None:
    for subject in (DraBackendSubject(Parts), BareSubject("counters")):
        [result] = (await run_dra_checks(subject, profile=profile, only=[46])).results
        assert result.status == "passed", result.saw


async def test_an_older_kubernetes_leaves_no_call_out() -> None:
    [result] = (await run_dra_checks(BareSubject("adopts_claims"), profile="k136", only=[59])).results
    assert result.status == "not_applicable"
    assert "knows no skipNodeOperations" in result.saw


async def test_kdp_undoes_what_nobody_unprepares() -> None:
    report = await run_dra_checks(kdp_itself(), only=[36])
    report.raise_if_failed()


async def test_a_driver_is_not_killed_while_the_kubelet_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that is seen again is unregistered for a look; the check called nobody then, killed, and waited."""
    require_free = DraScene.require_free

    async def seen_again(scene: DraScene, *devices: Any) -> None:
        await require_free(scene, *devices)
        await scene.until(lambda: not is_gone(scene), 5.0, "the driver was not registered")
        [path] = scene.node.paths.plugins_registry_dir.iterdir()
        path.rename(scene.node.state / path.name)
        (scene.node.state / path.name).rename(path)
        await scene.until(lambda: is_gone(scene), 5.0, "the socket was not seen again")

    def is_gone(scene: DraScene) -> bool:
        return len(scene.kubelet.events.of(DriverGone)) >= len(scene.kubelet.events.of(DriverRegistered))

    monkeypatch.setattr(DraScene, "require_free", seen_again)
    report = await run_dra_checks(BareSubject(), only=[26], patience=PATIENCE)
    report.raise_if_failed()


async def test_a_stream_that_nobody_asked_for_must_not_end() -> None:
    for profile, defect, status in (
        ("k136", "health_unimplemented", "failed"),
        ("k137", "health_unimplemented", "passed"),
        ("k136", "without_health", "passed"),
    ):
        [result] = (await run_dra_checks(BareSubject(defect), profile=profile, only=[51])).results
        assert result.status == status, result.saw


def test_each_check_has_a_defect() -> None:
    found = {*DEFECTS.values(), *(id for more in MORE.values() for id in more), 51}
    ids, waits = {check.id for check in CHECKS}, {check.id for check in CHECKS if check.waits}
    assert found <= ids
    assert ids - found <= waits


class OneSick(kdp.DeviceBackend):
    """Two devices, one of them unhealthy."""

    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id="w0"), kdp.Device(id="w1", health=kdp.Health.unhealthy("overheated"))]


async def test_an_unhealthy_device_failed_check_42() -> None:
    """The API server gives the taint another time when the slice is written again."""
    report = await run_dra_checks(DraBackendSubject(OneSick), quick=True, only=[42])
    report.raise_if_failed()
