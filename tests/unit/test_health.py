from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdp.devices import Device, Health
from kdp.health import Conditions

from .strategies import effort

CARD = [Device(id="card-0", unit="card"), Device(id="card-1", unit="card"), Device(id="other")]


def reasons(conditions: Conditions, devices: list[Device], extra: dict[str, str] | None = None) -> list[str | None]:
    return [device.health.reason for device in conditions.judge(devices, extra or {})]


def test_without_a_fault_nothing_is_touched() -> None:
    devices = Conditions().judge(CARD, {})
    assert all(judged is device for judged, device in zip(devices, CARD, strict=True))


def test_a_fault_of_a_unit_is_a_fault_of_all_its_devices() -> None:
    conditions = Conditions()
    conditions.fault(["card"], "too hot", kind="heat")
    assert reasons(conditions, CARD) == ["too hot", "too hot", None]


def test_a_fault_of_one_device_is_only_its_own() -> None:
    conditions = Conditions()
    conditions.fault(["card-1"], "dead", kind="fault")
    assert reasons(conditions, CARD) == [None, "dead", None]


def test_faults_of_different_kinds_are_cleared_separately() -> None:
    conditions = Conditions()
    conditions.fault(["other"], "too hot", kind="heat")
    conditions.fault(["other"], "XID 79", kind="xid")
    assert reasons(conditions, CARD)[2] == "too hot; XID 79"
    conditions.clear(["other"], kind="heat")
    assert reasons(conditions, CARD)[2] == "XID 79"
    conditions.clear(["other", "unknown"], kind="heat")
    conditions.clear(["other"], kind="xid")
    assert reasons(conditions, CARD) == [None, None, None]


def test_the_next_discovery_heals_no_reported_fault() -> None:
    conditions = Conditions()
    conditions.fault(["other"], "XID 79", kind="xid")
    assert reasons(conditions, CARD)[2] == reasons(conditions, [Device(id="other")])[0] == "XID 79"


def test_a_fault_waits_for_a_device_that_is_not_there_yet() -> None:
    conditions = Conditions()
    conditions.fault(["later"], "broken", kind="fault")
    assert reasons(conditions, CARD) == [None, None, None]
    assert reasons(conditions, [Device(id="later")]) == ["broken"]


def test_what_discovery_says_comes_first_and_each_reason_once() -> None:
    conditions = Conditions()
    sick = Device(id="a", unit="u", health=Health.unhealthy("fan failed"))
    conditions.fault(["u"], "too hot", kind="heat")
    conditions.fault(["a"], "fan failed", kind="fan")
    assert reasons(conditions, [sick], {"a": "device node /dev/a is gone"}) == [
        "fan failed; device node /dev/a is gone; too hot"
    ]


def test_a_device_without_news_is_the_same_object() -> None:
    conditions = Conditions()
    conditions.fault(["x"], "broken", kind="fault")
    assert conditions.judge(CARD, {})[0] is CARD[0]


names = st.sampled_from(["card", "card-0", "card-1", "other", "unknown"])
kinds = st.sampled_from(["heat", "xid"])


@effort(100)
@given(st.lists(st.tuples(st.booleans(), st.lists(names, max_size=2), kinds), max_size=12))
def test_a_device_is_healthy_only_if_no_kind_is_faulty(events: list[tuple[bool, list[str], str]]) -> None:
    conditions = Conditions()
    faulty: set[tuple[str, str]] = set()
    for is_fault, ids, kind in events:
        if is_fault:
            conditions.fault(ids, kind, kind=kind)
            faulty |= {(name, kind) for name in ids}
        else:
            conditions.clear(ids, kind=kind)
            faulty -= {(name, kind) for name in ids}
        for device in conditions.judge(CARD, {}):
            expected = {kind for name, kind in faulty if name in (device.id, device.unit)}
            assert set(filter(None, (device.health.reason or "").split("; "))) == expected
