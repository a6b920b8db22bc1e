"""When a release that failed is tried again; the rest is in test_allocations_properties.py."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking.allocation_record import AllocationRecord
from kdp.deviceplugin.tracking.allocations import Allocations


@pytest.mark.parametrize(
    ("scrubs", "pauses"), [(False, [5, 10, 20, 40, 80, 160, 300, 300]), (True, [5, 10, 20, 40, 60, 60, 60, 60])]
)
def test_a_device_that_had_been_erased_after_three_minutes_was_withheld_for_five(
    scrubs: bool, pauses: list[int]
) -> None:
    """The pauses between two tries doubled, up to 5 min, while nobody could use the device."""
    allocations = Allocations(Pace())
    record = AllocationRecord(uid="u", resource="example.com/scratch", ids=("s0",), state={}, is_back=scrubs)
    allocations.add(record, 0.0)
    found: list[float] = []
    for _ in pauses:
        allocations.failed(record, 100.0)
        found.append(record.retry_at - 100.0)
    assert found == pauses


R = "example.com/toy"


def given(uid: str, state: dict[str, Any], second: float, *, boot_id: str = "now") -> AllocationRecord:
    return AllocationRecord(uid=uid, resource=R, ids=("w0",), state=state, is_seen=True, at=(boot_id, second))


@pytest.mark.parametrize(
    "older",
    [given("a", {"of": "pod A"}, 5.0), given("a", {"of": "pod A"}, 9e6, boot_id="before")],
    ids=["the same boot", "another boot"],
)
def test_a_container_got_the_state_of_the_pod_that_had_its_device_before(older: AllocationRecord) -> None:
    """In an update, the new process had given the device to pod B, and then took over what the old one owed of A."""
    allocations = Allocations(Pace(), boot_id="now")
    newer = given("b", {"of": "pod B"}, 7.0)
    allocations.add(newer, 100.0)
    allocations.adopt([older], 101.0)
    assert allocations.newest(R, ["w0"]) is newer
    assert allocations.newest_of(R, "w0") is newer
    assert {each.uid for each in allocations.owed()} == {"a", "b"}


def test_of_saved_allocations_without_a_time_the_last_one_is_the_newest() -> None:
    """0.1 saves no time. Where an earlier one was unseen, the end of the last one's pod was never noticed."""
    allocations = Allocations(Pace(), boot_id="now")
    first = attrs.evolve(given("a", {"of": "pod A"}, 0.0, boot_id=""), ids=("w0", "w1"), is_seen=False)
    last = given("b", {"of": "pod B"}, 0.0, boot_id="")
    allocations.adopt([first, last], 100.0)
    assert allocations.is_seen(last)
    assert not allocations.is_seen(first)
    assert allocations.latest([first, last]) is last


def test_an_equal_allocation_of_before_took_the_place_of_the_present_one() -> None:
    allocations = Allocations(Pace(), boot_id="now")
    newer, older = given("b", {}, 7.0), given("a", {}, 5.0)
    allocations.add(newer, 100.0)
    allocations.adopt([older], 101.0)
    assert allocations.owed() == [newer]
    latest = given("c", {}, 8.0)
    assert allocations.add(latest, 102.0) is newer
    assert allocations.owed() == [latest]


def test_the_devices_of_a_release_that_are_away_are_a_release_of_their_own() -> None:
    allocations = Allocations(Pace())
    allocations.scrub(R)
    record = AllocationRecord(uid="u", resource=R, ids=("w0", "w1"), state={"n": 1}, is_back=True)
    allocations.add(record, 0.0)
    assert allocations.back(1.0) == [record]
    part = allocations.split(record, "v", ["w0"])
    assert (record.ids, part.ids, part.state, part.is_back) == (("w1",), ("w0",), {"n": 1}, True)
    allocations.released(record)
    assert allocations.withheld(R, ["w0", "w1"]) == {"w0": part}
    assert allocations.back(2.0) == [part]


def test_an_allocation_was_saved_as_seen_by_a_list_that_had_named_an_earlier_one() -> None:
    """After a kill the plugin released the device of a living pod."""
    allocations = Allocations(Pace(), boot_id="now")
    pod = ("default", "train-0")
    first, second = given("a", {"n": 1}, 5.0), given("b", {"n": 2}, 7.0)
    for record, now in ((first, 100.0), (second, 102.0)):
        allocations.begin(R, ["w0"], now)
        allocations.add(record, now)
        assert not allocations.is_seen(record)
        assert allocations.suspects(record) is None
        allocations.end(R, ["w0"], now + 0.1, given=True)
        assert not any(map(allocations.is_seen, allocations.owed()))
        allocations.listed({(R, "w0"): (pod,)}, [pod], asked_at=now + 1.0, now=now + 1.0, is_complete=True)
        assert [*map(allocations.is_seen, allocations.owed())] == [False] * (len(allocations.owed()) - 1) + [True]


def test_a_list_that_had_named_an_older_allocation_counted_for_the_newest_after_a_restart() -> None:
    older, newer = given("a", {"n": 1}, 5.0), attrs.evolve(given("b", {"n": 2}, 7.0), is_seen=False)
    for records in ([older, newer], [newer, older]):
        allocations = Allocations(Pace(), boot_id="now")
        allocations.adopt(records, 100.0)
        assert not any(map(allocations.is_seen, records))


def test_a_device_given_anew_made_the_other_devices_of_its_first_pod_wait_for_all_pods() -> None:
    """The record has one word for all its devices. After a restart each pod was a suspect for the others."""
    old, new, stays = ("default", "old"), ("default", "new"), ("default", "stays")
    allocations = Allocations(Pace(), boot_id="now")
    both = AllocationRecord(uid="a", resource=R, ids=("w0", "w1"), state={"n": 1}, at=("now", 5.0))
    second = AllocationRecord(uid="b", resource=R, ids=("w0",), state={"n": 2}, at=("now", 7.0))
    allocations.begin(R, both.ids, 100.0)
    allocations.add(both, 100.0)
    allocations.end(R, both.ids, 100.1, given=True)
    named = dict.fromkeys([(R, "w0"), (R, "w1")], (old,))
    allocations.listed(named, [old, stays], asked_at=101.0, now=101.0, is_complete=True)
    allocations.begin(R, second.ids, 102.0)
    allocations.add(second, 102.0)
    allocations.end(R, second.ids, 102.1, given=True)
    saved = [
        attrs.evolve(each, is_seen=allocations.is_seen(each), suspects=allocations.suspects(each))
        for each in allocations.owed()
    ]
    after = Allocations(Pace(), boot_id="now")
    after.adopt(saved, 200.0)
    for now in (201.0, 300.0):
        named = {(R, "w0"): (new,)}
        assert after.listed(named, [new, stays], asked_at=now, now=now, is_complete=True).ended == ()
    found = [after.listed({}, [stays], asked_at=now, now=now, is_complete=True) for now in (301.0, 400.0)]
    assert [{record.uid for record in each.ended} for each in found] == [set(), {"a", "b"}]


def test_an_earlier_pods_devices_were_not_scrubbed_while_one_of_the_two_next_pods_lived() -> None:
    """A list names the two next pods, and kdp took the first allocation, which had no pod yet, for one of theirs."""
    one, two = ("default", "one"), ("default", "two")
    allocations = Allocations(Pace(), boot_id="now")
    allocations.scrub(R)
    both = AllocationRecord(uid="a", resource=R, ids=("w0", "w1"), state={"n": 1}, at=("now", 5.0))
    first = AllocationRecord(uid="b", resource=R, ids=("w0",), state={"n": 2}, at=("now", 7.0), is_started=False)
    second = AllocationRecord(uid="c", resource=R, ids=("w1",), state={"n": 3}, at=("now", 8.0), is_started=False)
    for record in (first, second):
        allocations.begin(R, record.ids, 100.0)
        allocations.add(record, 100.0)
        allocations.end(R, record.ids, 100.1, given=True)
    allocations.add(both, 100.2)  # of a process that has ended, and taken over after the next Allocates
    named = {(R, "w0"): (one,), (R, "w1"): (two,)}
    allocations.listed(named, [one, two], asked_at=101.0, now=101.0, is_complete=True)
    assert [each.pod for each in (both, first, second)] == [None, one, two]
    allocations.take_back(R, ["w0"])
    found = allocations.listed(named, [one, two], asked_at=102.0, now=102.0, is_complete=True)
    assert found.ended == (both,)
