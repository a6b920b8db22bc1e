"""Each check finds the plugin that is broken for it: a check that cannot fail does not count."""

from __future__ import annotations

import time
from pathlib import Path

import attrs
import pytest

from kdp_testkit.conformance import CHECKS, ConformanceReport, run_checks
from kdp_testkit.conformance.checks import Route
from kdp_testkit.conformance.instance import Usage
from kdp_testkit.devicemanager.kubelet_process import KubeletProcess

from .broken import BareSubject
from .defects import DEFECTS, SCALE, is_found, judge_all
from .twice import judged


def test_every_check_has_a_broken_plugin() -> None:
    assert {check.id for check in CHECKS} == {defect.check for defect in DEFECTS}


@pytest.mark.slow
async def test_every_defect_is_found() -> None:
    results = await judge_all(DEFECTS)
    missed = [f"{defect}: {r.status}: {r.saw}" for defect, r in results.items() if not is_found(defect, r)]
    assert not missed, "\n\n".join(missed)
    assert results.keys() == set(DEFECTS)


@pytest.mark.parametrize(
    ("number", "habit", "route"),
    [
        (17, "one_name_for_ever", "kubelet"),  # a new kubelet has no record of the name
        (34, "keeps_the_order", "kubelet"),  # of the ids in a variable that lists them
        (65, "more_versions", "watcher"),  # the kubelet looks for one that it knows
    ],
)
async def test_a_habit_of_go_plugins_is_no_defect(number: int, habit: str, route: Route, tmp_path: Path) -> None:
    report = await run_checks(
        BareSubject(habit, tmp_path, route), only=[number], cdi_dirs=[tmp_path], scale=SCALE, meeting=3.0
    )
    report.raise_if_failed()


async def test_a_busy_machine_was_taken_for_a_plugin_that_polls_too_seldom(tmp_path: Path) -> None:
    """Each list comes 1.2 s after its change, so that none came within the second of the burst."""
    report = await run_checks(BareSubject("is_starved", tmp_path), only=[8], cdi_dirs=[tmp_path])
    report.raise_if_failed()
    assert report.summary["passed"] == 1


async def test_a_program_was_excused_when_it_dropped_a_device_that_a_pod_holds(tmp_path: Path) -> None:
    """The verdict said that the simulated kubelet serves no pod-resources API, which it did for long."""
    subject = BareSubject("drops_the_held", tmp_path, "kubelet")
    subject.has_process = True
    [result] = (await run_checks(subject, only=[10], cdi_dirs=[tmp_path], scale=SCALE)).results
    assert (result.status, "although a pod holds it" in result.saw) == ("failed", True), result.saw


async def test_the_first_list_of_a_further_resource_is_not_taken_for_a_repetition(tmp_path: Path) -> None:
    subject = BareSubject("second_is_late", tmp_path, "kubelet")
    report = await run_checks(subject, only=[5], cdi_dirs=[tmp_path], scale=0.004)
    report.raise_if_failed()


async def test_one_pause_of_the_plugin_is_not_taken_for_an_answer_to_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0
    of_process = Usage.of_process

    def with_a_pause(pid: int) -> Usage:
        nonlocal readings
        readings += 1
        used = of_process(pid)
        # The first two are of the kit's own noise, the last of the plugin's.
        return attrs.evolve(used, of_threads={**used.of_threads, 0: (0.08, 0.0)}) if readings >= 4 else used

    monkeypatch.setattr(Usage, "of_process", with_a_pause)
    report = await run_checks(BareSubject("", tmp_path, "watcher"), only=[25], cdi_dirs=[tmp_path], scale=0.02)
    assert readings == 4
    report.raise_if_failed()


async def test_a_plugin_that_is_always_busy_was_blamed_for_the_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_process = Usage.of_process

    def busy(pid: int) -> Usage:
        used = of_process(pid)
        return attrs.evolve(used, of_threads={**used.of_threads, 0: (0.8 * time.monotonic(), 0.0)})

    monkeypatch.setattr(Usage, "of_process", busy)
    subject = BareSubject("", tmp_path, "kubelet")
    subject.has_process = True
    report = await run_checks(subject, only=[25], cdi_dirs=[tmp_path], scale=0.02)
    report.raise_if_failed()


async def test_what_the_noise_costs_the_kit_is_not_the_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the simulated kubelet's own writing was more than half of a processor."""
    save = KubeletProcess.save

    def slow(life: KubeletProcess) -> None:
        until = time.thread_time() + 0.015
        while time.thread_time() < until:
            pass
        save(life)

    monkeypatch.setattr(KubeletProcess, "save", slow)
    report = await run_checks(BareSubject("", tmp_path, "kubelet"), only=[25], cdi_dirs=[tmp_path], scale=0.02)
    report.raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize("route", ["kubelet", "watcher"])
async def test_the_plugin_without_a_defect_passes(route: Route, tmp_path: Path) -> None:
    async def judge(failed: tuple[int, ...] | None) -> ConformanceReport:
        subject = BareSubject("", tmp_path, route)
        return await run_checks(subject, cdi_dirs=[tmp_path], patience=0.5, scale=0.02, quick=False, only=failed)

    report, _ = await judged(judge)
    failed = [f"{result.check.id}: {result.saw}" for result in report.of("failed")]
    assert not failed, "\n\n".join(failed)
    assert report.summary["passed"] > (60 if route == "kubelet" else 35)
