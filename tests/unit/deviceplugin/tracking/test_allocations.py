"""When a release that failed is tried again; the rest is in test_allocations_properties.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking.allocation_record import AllocationRecord, Pod
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
    allocations.take_back(R, ["w0"], ("now", 7.0))
    found = allocations.listed(named, [one, two], asked_at=102.0, now=102.0, is_complete=True)
    assert found.ended == (both,)


def scrubbed(place: Callable[[str], str] = str) -> Allocations:
    allocations = Allocations(Pace(), boot_id="now")
    allocations.scrub(R)
    allocations.share(R, place)
    allocations.doubt(R, 0.0)
    return allocations


def allocate(allocations: Allocations, uid: str, now: float, *ids: str, is_started: bool = False) -> AllocationRecord:
    record = AllocationRecord(uid=uid, resource=R, ids=ids, state={}, at=("now", now), is_started=False)
    allocations.take_back(R, ids, record.at)
    allocations.begin(R, ids, now)
    allocations.add(record, now)
    allocations.end(R, ids, now + 0.1, given=True)
    record.is_started = is_started
    return record


def lists(allocations: Allocations, named: dict[str, Pod], now: float, *more: Pod) -> list[str]:
    """Return the uids of the allocations that a complete List ends."""
    keys = {(R, device_id): (pod,) for device_id, pod in named.items()}
    pods = [*named.values(), *more]
    return [each.uid for each in allocations.listed(keys, pods, asked_at=now, now=now, is_complete=True).ended]


def test_an_allocation_is_superseded_only_by_a_pod_that_has_its_device_alone() -> None:
    """Of two pods that a List names, the allocation may be either's."""
    old, new, next_one = ("default", "old"), ("default", "new"), ("default", "next")
    allocations = Allocations(Pace(), boot_id="now")
    record = allocate(allocations, "a", 100.0, "w0", is_started=True)
    for now, pods in ((101.0, (old, new)), (102.0, (new,)), (103.0, (new, old)), (104.0, (old, new))):
        allocations.listed({(R, "w0"): pods}, pods, asked_at=now, now=now, is_complete=True)
        assert not record.is_superseded
    assert record.pod == new
    allocations.listed({(R, "w0"): (next_one,)}, [next_one], asked_at=105.0, now=105.0, is_complete=True)
    assert record.is_superseded


def test_a_container_waited_for_its_own_pod_whose_device_the_next_process_had_given() -> None:
    """In an update, the old process took the pod for that of its own allocation, and each waited for the other."""
    old, new = scrubbed(), scrubbed()
    first = allocate(old, "first", 100.0, "w0", "w1", is_started=True)
    waits = allocate(new, "waits", 105.0, "w1")
    lists(old, {"w1": ("default", "next")}, 106.0)
    assert first.pod == ("default", "next")  # nobody has told it of the other process
    lists(new, {"w1": ("default", "next")}, 106.0)
    allocate(new, "other", 107.0, "w0")
    saved = attrs.evolve(first, file="old")
    new.adopt([saved], 110.0)
    assert new.waits_for(R, ["w1"]) is saved
    assert lists(new, {"w0": ("default", "other"), "w1": ("default", "next")}, 111.0) == ["first"]
    new.released(saved)
    assert new.waits_for(R, waits.ids) is None


def test_of_processes_that_ended_together_the_later_ones_pod_read_what_the_earlier_ones_had_left() -> None:
    after = scrubbed()
    left = AllocationRecord(uid="a", resource=R, ids=("w0",), state={}, at=("now", 5.0), file="old")
    waits = AllocationRecord(uid="b", resource=R, ids=("w0",), state={}, at=("now", 7.0), file="new", is_started=False)
    after.adopt([left, waits], 100.0)
    assert after.waits_for(R, ["w0"]) is left


def test_a_device_of_a_statefulset_waited_for_the_pod_that_had_taken_the_name() -> None:
    """set-0 came again with another device, and the next pod with the first one waited for its end."""
    allocations, name = scrubbed(), ("default", "set-0")
    first = allocate(allocations, "first", 100.0, "w0", is_started=True)
    assert lists(allocations, {"w0": name}, 101.0) == []
    allocate(allocations, "again", 110.0, "w1", is_started=True)
    allocate(allocations, "other", 111.0, "w0")
    assert allocations.waits_for(R, ["w0"]) is first
    assert lists(allocations, {"w0": ("default", "other"), "w1": name}, 112.0) == ["first"]


def test_a_kubelet_that_may_have_lost_its_checkpoint_is_not_believed_that_a_pod_has_ended() -> None:
    allocations, name = scrubbed(), ("default", "set-0")
    allocate(allocations, "first", 100.0, "w0", is_started=True)
    lists(allocations, {"w0": name}, 101.0)
    allocations.doubt(R, 105.0)
    allocate(allocations, "other", 111.0, "w0")
    assert lists(allocations, {"w0": ("default", "other")}, 112.0, name) == []
    assert lists(allocations, {"w0": ("default", "other")}, 113.0) == ["first"]


def test_a_replica_waited_for_the_pod_that_had_taken_the_name_of_the_one_before() -> None:
    """Two Lists of the kubelet that had named the device do not name it any more."""
    allocations, name = scrubbed(lambda each: each.partition("::")[0]), ("default", "set-0")
    first = allocate(allocations, "first", 100.0, "w0::0", is_started=True)
    lists(allocations, {"w0::0": name}, 101.0)
    allocate(allocations, "again", 110.0, "w1::0", is_started=True)
    allocate(allocations, "waits", 111.0, "w0::1")
    named = {"w1::0": name, "w0::1": ("default", "other")}
    assert allocations.waits_for(R, ["w0::1"]) is first
    assert [lists(allocations, named, now) for now in (112.0, 150.0)] == [[], ["first"]]
