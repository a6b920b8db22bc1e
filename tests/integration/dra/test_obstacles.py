"""A driver whose directories take no files: what no claim can get is not published as healthy."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.dra.claims.claims_world import Widgets
from tests.waiting import until
from typing_extensions import override

import kdp

from .helpers import DRIVER, Driver, running


class Faulty(Widgets):
    """Lets a test report faults."""

    reporter: kdp.Reporter | None = None

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self.reporter = report
        report.stopping.wait()


def last(driver: Driver) -> list[kdp.Device]:
    return [*driver.publisher.published[-1]] if driver.publisher.published else []


@pytest.mark.parametrize("place", ["cdi", f"plugins/{DRIVER}/claims"])
async def test_a_directory_that_takes_no_files_is_no_black_hole_for_claims(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kdp.dra.plugin.LOOK_PAUSE", 0.05)
    caplog.set_level("INFO")
    directory = folder / place
    directory.parent.mkdir(parents=True, exist_ok=True)
    async with running(folder, Widgets("w0", "w1")) as driver:
        await driver.notify()
        await until(lambda: driver.driver.is_ready)
        assert not any(device.taints for device in last(driver))
        if directory.is_dir():
            directory.rmdir()
        directory.touch()
        await until(lambda: not driver.driver.is_ready)
        await until(lambda: all(device.taints for device in last(driver)))
        status = driver.driver.status().drivers[DRIVER]
        assert f"cannot be written in {directory} (Not a directory); mount it writable" in str(status.reason)
        assert status.unwritable == (directory.name,)
        assert status.healthy == 0
        assert set(status.faults) == {"w0", "w1"}
        directory.unlink()
        await until(lambda: driver.driver.is_ready)
        await until(lambda: not any(device.taints for device in last(driver)))
    assert [record.levelname for record in caplog.records if "no claim can" in record.message].count("ERROR") == 1
    assert caplog.text.count("claims can be prepared again") == 1


async def test_a_fault_and_a_device_that_vanishes_leave_lines_and_the_taint_says_the_kind(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The slices changed, and the driver's log had nothing of it."""
    caplog.set_level("INFO")
    backend = Faulty("w0", "w1")
    async with running(folder, backend) as driver:
        await driver.notify()
        await until(lambda: driver.driver.is_ready and backend.reporter is not None)
        assert backend.reporter is not None
        backend.reporter.fault("w0", "XID 79", kind="xid 79!")
        await until(lambda: any(device.taints for device in last(driver)))
        [taint] = next(device.taints for device in last(driver) if device.taints)
        assert (taint.key, taint.value) == (f"{DRIVER}/unhealthy", "xid-79")
        backend.reporter.clear("w0", kind="xid 79!")
        await until(lambda: not any(device.taints for device in last(driver)))
        backend.devices = backend.devices[:1]
        driver.driver.rescan()
        await until(lambda: len(last(driver)) == 1)
    told = [record.message for record in caplog.records if record.message.startswith(f"{DRIVER}: device")]
    assert told == [
        f"{DRIVER}: device w0 is now Unhealthy (XID 79)",
        f"{DRIVER}: device w0 is now Healthy",
        f"{DRIVER}: device w1 is gone, and is removed from the slices",
    ]
