"""Reasons, kinds, and ids without limits: a backend that reports too fast costs neither memory nor truth."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.model.health_policy import HealthPolicy
from kdp.supervision import fault_limits, reporter
from kdp.supervision.backend_validation import Findings
from kdp.supervision.health import HealthMonitor
from kdp.supervision.publisher import DiscoveryPublisher
from kdp.supervision.reporter import EventReporter
from kdp.supervision.shared_state import BackendCounts
from kdp_testkit.patience import PATIENCE


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return []


def publisher(*ids: str) -> DiscoveryPublisher:
    made = DiscoveryPublisher(Widgets(), HealthPolicy().changed({"flaps": None}), None, BackendCounts())
    devices = tuple(kdp.Device(id=each) for each in ids)
    made.take(Findings(devices=devices, conditions={}, resources=(), resource=Widgets.resource, stale_after=30.0))
    return made


def health(subject: DiscoveryPublisher, device_id: str = "w0") -> str | None:
    devices = {device.id: device for device in subject.discovery.value.devices or ()}
    return devices[device_id].health.reason


async def until(subject: DiscoveryPublisher, reason: str | None) -> None:
    with anyio.fail_after(PATIENCE):
        while health(subject) != reason:
            await subject.discovery.after(subject.discovery.version)


@pytest.mark.thorough
async def test_the_first_and_the_last_state_of_a_flood_are_published_in_bounded_memory() -> None:
    subject = publisher("w0")
    report = EventReporter(subject, lambda: None)
    most: list[int] = []

    def flood() -> None:
        report.fault("w0", "first")
        for n in range(1_500):
            report.fault("w0", f"reason {n}")
            report.clear("w0")
            most.append(report._waiting.qsize())  # pyright: ignore[reportPrivateUsage]
        report.fault("w0", "last")

    thread = threading.Thread(target=flood, daemon=True)
    versions = subject.discovery.version
    tracemalloc.start()
    thread.start()
    await until(subject, "last")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(most) <= reporter.MOST_WAITING
    assert peak < 8 << 20
    assert subject.discovery.version - versions < 300  # and not 3,000


async def test_one_event_is_published_in_the_next_turn_of_the_loop() -> None:
    subject = publisher("w0")
    report = EventReporter(subject, lambda: None)
    report.fault("w0", "hot")
    await asyncio.sleep(0)
    assert health(subject) == "hot"
    report.clear("w0")
    await until(subject, None)


async def test_a_thread_that_waits_for_room_ends_with_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_LOOK_PAUSE", 0.01)
    subject = publisher("w0")
    report = EventReporter(subject, lambda: None)

    def flood() -> None:
        while not report.stopping.is_set():
            report.fault("w0", "hot")

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    while not report._waiting.full():  # pyright: ignore[reportPrivateUsage]
        thread.join(0.001)  # in the loop's own thread
    report.stopping.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


async def test_a_hook_in_the_loop_that_reports_too_much_waits_for_nobody() -> None:
    subject = publisher("w0")
    report = EventReporter(subject, lambda: None)
    for n in range(reporter.MOST_WAITING + 3):
        report.fault("w0", f"{n}")
    await until(subject, f"{reporter.MOST_WAITING + 2}")


def monitor(*ids: str) -> HealthMonitor:
    made = HealthMonitor(HealthPolicy().changed({"flaps": None}))
    made.probed([kdp.Device(id=each) for each in ids], {}, 0.0)
    return made


def is_healthy(subject: HealthMonitor) -> bool:
    return subject.devices[0].health.is_healthy


@pytest.mark.thorough
def test_kinds_are_bounded_and_what_is_beyond_keeps_a_device_unhealthy() -> None:
    subject = monitor("w0")
    kinds = [f"kind {n}" for n in range(fault_limits.MOST_KINDS + 1)]
    for kind in kinds[:-1]:
        subject.fault(["w0"], "bad", kind=kind, now=1.0)
    for kind in kinds[:-1]:
        subject.clear(["w0"], kind=kind, now=2.0)
    assert is_healthy(subject)
    for kind in [*kinds, *(f"more {n}" for n in range(10_000))]:
        subject.fault(["w0"], f"bad {kind}", kind=kind, now=3.0)
    assert len(subject._faults["w0"]) == fault_limits.MOST_KINDS + 1  # pyright: ignore[reportPrivateUsage]
    for kind in kinds[:-1]:
        subject.clear(["w0"], kind=kind, now=4.0)
    assert subject.devices[0].health.reason == (
        "more than 32 kinds of faults at once; restart the plugin, and report fewer kinds"
    )


def test_faults_of_ids_that_are_not_there_are_bounded_and_those_of_devices_stay() -> None:
    subject = monitor("w0")
    subject.fault(["w0"], "hot", kind="heat", now=1.0)
    for n in range(20_000):
        subject.fault([f"nobody-{n}"], "x" * 1000, kind="heat", now=2.0)
    faults = subject._faults  # pyright: ignore[reportPrivateUsage]
    assert len(faults) <= fault_limits.MOST_UNKNOWN + 2
    assert "w0" in faults
    assert subject.forgotten >= 20_000 - fault_limits.MOST_UNKNOWN
    subject.probed([kdp.Device(id="w0"), kdp.Device(id="nobody-19999")], {}, 3.0)
    assert [device.health.is_healthy for device in subject.devices] == [False, False]
