"""The single steps; that they hold in any order is in test_health_properties.py."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest
from tests.conditions import conditions

from kdp.model.devices import Device, Health
from kdp.model.health_policy import HealthPolicy
from kdp.supervision.conditions import DEVICE_NODE, KINDS, Conditions, OwnKind, is_withheld
from kdp.supervision.health import DeviceHealth, HealthChange, HealthMonitor, HealthState
from kdp_testkit.patience import PATIENCE

CARD = [Device(id="card-0", unit="card"), Device(id="card-1", unit="card"), Device(id="other")]


def monitor(*devices: Device, **policy: float | None) -> HealthMonitor:
    made = HealthMonitor(HealthPolicy().changed(policy))
    made.probed(devices or CARD, {}, 0)
    return made


def sick(reason: str = "fan failed", device_id: str = "a") -> Device:
    return Device(id=device_id, health=Health.unhealthy(reason))


WELL = Device(id="a")


def a_node_is_gone() -> Conditions:
    return {"a": (DEVICE_NODE.because("/dev/a is gone", 0),)}


def reasons(subject: HealthMonitor) -> list[str | None]:
    return [device.health.reason for device in subject.devices]


def states(transitions: tuple[HealthChange, ...]) -> list[tuple[str, str | None, str]]:
    return [(t.device.id, t.before.value if t.before else None, t.health.state.value) for t in transitions]


def test_a_fault_of_a_unit_is_a_fault_of_all_its_devices() -> None:
    subject = monitor()
    told = subject.fault(["card"], "too hot", kind="heat", now=1)
    assert reasons(subject) == ["too hot", "too hot", None]
    assert states(told) == [("card-0", "healthy", "unhealthy"), ("card-1", "healthy", "unhealthy")]
    assert subject.health["card-1"] == DeviceHealth(state=HealthState.UNHEALTHY, reason="too hot", since=1)


def test_what_discovery_says_comes_first_and_each_reason_once() -> None:
    subject = monitor(Device(id="a", unit="u"))
    subject.fault(["u"], "too hot", kind="heat", now=1)
    subject.fault(["a"], "fan failed", kind="fan", now=1)
    subject.probed([Device(id="a", unit="u", health=Health.unhealthy("fan failed"))], a_node_is_gone(), 2)
    assert reasons(subject) == ["fan failed; /dev/a is gone; too hot"]


def test_discovery_needs_one_bad_word_and_three_good_ones() -> None:
    subject = monitor(WELL)
    assert states(subject.probed([sick()], {}, 10)) == [("a", "healthy", "unhealthy")]
    assert not subject.wants_probe
    assert states(subject.probed([WELL], {}, 20)) == [("a", "unhealthy", "recovering")]
    assert reasons(subject) == ["recovering, it needs 3 good probes in a row; it was: fan failed"]
    assert subject.wants_probe
    assert subject.probed([WELL], {}, 30) == ()
    assert states(subject.probed([WELL], {}, 40)) == [("a", "recovering", "healthy")]
    assert (reasons(subject), subject.wants_probe) == ([None], False)


def test_the_third_flap_leads_to_quarantine_which_grows_and_ends() -> None:
    subject = monitor(WELL)
    now = 0.0
    for expected in ("unhealthy", "unhealthy", "quarantined"):
        now += 100
        assert states(subject.fault(["a"], "XID 79", kind="x", now=now)) == [("a", "healthy", expected)]
        subject.clear(["a"], kind="x", now=now + 1)
    assert subject.deadline == now + 1 + 60
    assert reasons(subject) == [
        "quarantined, it flapped 3 times lately and needs 60 s without a fault; last: XID 79",
    ]
    # A further fault in quarantine is no news, and the hold-down begins after it.
    assert subject.fault(["a"], "XID 79", kind="x", now=now + 50) == ()
    assert subject.deadline is None
    assert subject.clear(["a"], kind="x", now=now + 55) == ()
    assert subject.tick(now + 114) == ()
    assert states(subject.tick(now + 115)) == [("a", "quarantined", "healthy")]
    # Out on probation: the next flap leads back, for twice as long.
    now += 500
    assert states(subject.fault(["a"], "XID 79", kind="x", now=now)) == [("a", "healthy", "quarantined")]
    subject.clear(["a"], kind="x", now=now)
    assert subject.deadline == now + 120
    subject.tick(now + 120)
    # Ten quiet minutes, and nothing is on its record.
    now += 120 + 600
    assert states(subject.fault(["a"], "XID 79", kind="x", now=now)) == [("a", "healthy", "unhealthy")]


@pytest.mark.thorough
def test_a_device_that_was_scrubbed_after_each_pod_was_quarantined() -> None:
    """Three short pods, and no further one got it for a minute, then for two, then for four."""
    subject = monitor(WELL)
    scrub: Conditions = {"a": conditions("scrub")}
    for now in range(10):
        assert states(subject.looked(scrub, now)) == [("a", "healthy", "unhealthy")]
        assert states(subject.looked({}, now + 0.5)) == [("a", "unhealthy", "healthy")]
    assert states(subject.looked(scrub, 10)) == [("a", "healthy", "unhealthy")]
    subject.looked({}, 11)
    for now in (20, 30):  # what is broken besides still counts
        subject.looked(a_node_is_gone(), now)
        subject.looked({}, now + 1)
    assert states(subject.looked(a_node_is_gone(), 40)) == [("a", "healthy", "quarantined")]


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
def test_the_table_says_what_is_a_flap(own: OwnKind) -> None:
    subject = monitor(WELL, flaps=1)
    [(_, _, state)] = states(subject.looked({"a": conditions(own.name)}, 1))
    assert state == ("unhealthy" if own.is_withheld else "quarantined")


@pytest.mark.parametrize(
    "reason",
    [
        "being scrubbed after its last pod failed for good: FLR timeout",
        "its share is in use, says the firmware, and the firmware is wrong",
        "quarantined, by its own firmware",
        "the device is gone",
    ],
)
@pytest.mark.parametrize("kind", ["fault", *KINDS])
def test_a_fault_in_kdps_own_words_was_no_flap(reason: str, kind: str) -> None:
    subject = monitor(WELL, flaps=2)
    subject.fault(["a"], reason, kind=kind, now=1)
    subject.clear(["a"], kind=kind, now=2)
    assert states(subject.probed([sick(reason)], {}, 3)) == [("a", "healthy", "quarantined")]
    assert subject.fault(["a"], reason, kind=kind, now=4) == ()
    [device] = subject.devices
    assert [(each.kind, each.whose) for each in device.health.conditions] == [
        ("discover", "kdp"),
        (kind, "backend"),
        ("quarantine", "kdp"),
    ]


def test_a_backend_cannot_make_a_condition_of_kdps_own() -> None:
    claimed = Device(id="a", health=Health("fan failed", conditions("scrub")))
    subject = monitor(claimed)
    [device] = subject.devices
    assert [(each.kind, each.reason) for each in device.health.conditions] == [("discover", "fan failed")]
    assert not is_withheld(device.health.conditions)


def test_a_condition_keeps_its_time_while_it_lasts() -> None:
    subject = monitor(WELL)
    for now in (1, 2):
        subject.looked({"a": (DEVICE_NODE.because("/dev/a is gone", now),)}, now)
        subject.fault(["a"], f"XID {now}", kind="xid", now=now)
    [device] = subject.devices
    assert [(each.reason, each.since) for each in device.health.conditions] == [("/dev/a is gone", 1), ("XID 2", 1)]
    subject.clear(["a"], kind="xid", now=3)
    subject.fault(["a"], "XID 4", kind="xid", now=4)
    assert [each.since for each in subject.devices[0].health.conditions] == [1, 4]


def test_a_kind_is_the_backends_if_there_is_one() -> None:
    subject = monitor(WELL)
    subject.looked(a_node_is_gone(), 1)
    assert subject.health["a"].kind == "device_node"
    subject.fault(["a"], "FLR timeout", kind="scrub", now=2)
    assert (subject.health["a"].kind, subject.health["a"].kinds) == ("backend:scrub", ("device_node", "backend:scrub"))


def test_a_device_that_flaps_a_thousand_times_a_second_costs_no_more_each_time() -> None:
    """All flaps of ten minutes were kept where no number of them leads to a quarantine, and counted at each one."""
    subject = monitor(WELL, flaps=None)

    def flap(times: int) -> None:
        for number in range(times):
            subject.fault(["a"], "loose", kind="x", now=number / 1000)
            subject.clear(["a"], kind="x", now=number / 1000)

    tracemalloc.start()
    try:
        flap(100)
        before, _ = tracemalloc.get_traced_memory()
        flap(2_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000, "bytes"


@pytest.mark.thorough
def test_the_hold_down_stays_finite_however_often_it_doubles() -> None:
    subject = monitor(WELL, flaps=1, hold_down=1, hold_down_max=1e9, flap_window=1e12)
    now = 0.0
    for _ in range(2000):
        subject.fault(["a"], "XID 79", kind="x", now=now)
        subject.clear(["a"], kind="x", now=now)
        now = subject.deadline or now
        subject.tick(now)
        assert reasons(subject) == [None]


def test_a_quarantine_names_a_handful_of_faults() -> None:
    subject = monitor(WELL, flaps=1)
    for number in range(1000):
        subject.fault(["a"], f"fault {number}", kind="x", now=1)
    assert reasons(subject)[0].endswith("last: fault 0; fault 1; fault 2; fault 3; fault 4")  # type: ignore[union-attr]


def test_what_is_gone_for_long_is_forgotten() -> None:
    subject = monitor(sick())
    subject.probed([], {}, 1)
    subject.probed([], {}, 601)
    assert not vars(subject)["_records"]
    subject.probed([WELL], {}, 602)
    assert reasons(subject) == [None]


def test_what_is_well_for_long_is_forgotten() -> None:
    subject = monitor(WELL)
    subject.fault(["a"], "XID 79", kind="x", now=1)
    subject.clear(["a"], kind="x", now=2)
    subject.probed([WELL], {}, 601)
    assert vars(subject)["_records"]
    subject.probed([WELL], {}, 602)
    assert not vars(subject)["_records"]


def test_ten_thousand_devices_cost_a_poll_little(record_property: Callable[[str, object], None]) -> None:
    devices = [Device(id=f"d{i}", unit=f"u{i // 10}") for i in range(10_000)]
    subject = monitor(*devices)
    subject.fault(["u7"], "broken", kind="x", now=1)
    began = time.perf_counter()
    subject.probed(devices, {}, 2)
    record_property(
        "figure", f"a poll of 10,000 devices, one unit faulty: {1e3 * (time.perf_counter() - began):.2f} ms"
    )
    assert sum(reason is not None for reason in reasons(subject)) == 10
    assert time.perf_counter() - began < PATIENCE
