"""The log of changes: the first ones at once, the last state always, and a bounded number of lines in between."""

from __future__ import annotations

import itertools
import logging

import pytest
from tests.conditions import condition
from tests.waiting import until

from kdp.model.devices import Device, Health
from kdp.supervision import change_log
from kdp.supervision.change_log import MOST_LINES, ChangeLog, Transition
from kdp.supervision.conditions import KINDS, OwnKind, health_of


def change(*devices: Device) -> tuple[Transition, ...]:
    return tuple(Transition(device=device, before=Health.healthy()) for device in devices)


def sick(device_id: str, reason: object) -> Device:
    return Device(id=device_id, health=Health.unhealthy(f"fault {reason}"))


def sick_of(reason: str) -> Device:
    return Device(id="w0", health=health_of(condition("discover", reason)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "kdp.supervision.change_log")
    monkeypatch.setattr(change_log, "PERIOD", 0.3)
    return caplog


async def test_one_device_that_changes_all_the_time_has_few_lines_and_its_last_state(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "PERIOD", 3600.0)  # however slow the machine is, it is one
    told = ChangeLog("example.com/w")
    shown = [told.changed(change(sick("w0", n))) for n in range(10_000)]
    assert shown[:2] == [("w0",), ("w0",)]
    assert not shown[-1]
    assert len(lines.messages) == MOST_LINES
    assert lines.messages[0] == "example.com/w: device w0 is now Unhealthy (fault 0)"
    told.end()
    assert lines.messages[MOST_LINES:] == [
        f"example.com/w: {10_000 - MOST_LINES} changes were not shown; this is how they ended",
        "example.com/w: device w0 is now Unhealthy (fault 9999)",
    ]
    told.changed(change(Device(id="w0")))
    assert lines.messages[-1] == "example.com/w: device w0 is now Healthy"
    told.end()


async def test_a_period_ends_without_another_change(lines: pytest.LogCaptureFixture) -> None:
    told = ChangeLog("example.com/w")
    changes = itertools.count()
    while told.changed(change(sick("w0", number := next(changes)))):
        pass
    await until(lambda: "changes were not shown" in lines.messages[-2])
    assert lines.messages[-1] == f"example.com/w: device w0 is now Unhealthy (fault {number})"


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
async def test_the_table_says_which_condition_is_no_warning(lines: pytest.LogCaptureFixture, own: OwnKind) -> None:
    told = ChangeLog("example.com/w")
    device = Device(id="w0", health=health_of(condition(own.name)))
    assert told.changed(change(device)) == (() if own.is_withheld else ("w0",))
    assert [record.levelname for record in lines.records] == ["INFO" if own.is_withheld else "WARNING"]
    told.end()


async def test_a_reason_that_begins_as_that_of_a_quarantine_was_not_logged(lines: pytest.LogCaptureFixture) -> None:
    told = ChangeLog("example.com/w")
    for number in range(2):
        before = Health.unhealthy(f"quarantined, by its firmware: {number}")
        device = sick_of(f"quarantined, by its firmware: {number + 1}")
        told.changed([Transition(device=device, before=before)])
    assert len(lines.messages) == 2
    told.end()


async def test_a_flap_in_quarantine_is_no_news(lines: pytest.LogCaptureFixture) -> None:
    told = ChangeLog("example.com/w")
    before, after = (health_of(condition("quarantine", f"quarantined, last: {last}")) for last in ("fan", "XID 79"))
    told.changed([Transition(device=Device(id="w0", health=after), before=before)])
    assert lines.messages == []


async def test_many_devices_have_a_bound_together(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "PERIOD", 3600.0)  # however slow the machine is, it is one
    told = ChangeLog("example.com/w")
    for n in range(5_000):
        told.changed(change(sick(f"w{n}", n)))
    told.end()
    assert len(lines.messages) == 2 * MOST_LINES + 1


async def test_what_is_quiet_is_logged_as_ever(lines: pytest.LogCaptureFixture) -> None:
    told = ChangeLog("example.com/w")
    told.changed(change(sick("w0", 1)))
    told.changed(change(Device(id="w0")))
    told.changed((), ("w0",))
    told.changed(change(*(sick(f"w{n}", 1) for n in range(9))))
    told.end()
    assert [line.partition(": ")[2] for line in lines.messages] == [
        "device w0 is now Unhealthy (fault 1)",
        "device w0 is now Healthy",
        "device w0 is no longer listed",
        "9 devices are now Unhealthy (fault 1): w0, w1, w2, w3, w4, ...",
    ]
