from __future__ import annotations

from kdp.concurrency.counts import BUCKETS, MOST_ENTRIES, OTHER, Durations, Names, Tally


def test_names_beyond_the_limit_are_one() -> None:
    names = Names(2)
    assert [names.of(name) for name in ("a", "b", "c", "a", "c")] == ["a", "b", OTHER, "a", OTHER]


def test_a_name_prints_and_has_an_end() -> None:
    name = Names(1).of("\x1b[31m" + "x" * 1000)
    assert name.isprintable()
    assert len(name) <= 253


def test_a_tally_of_new_labels_without_end_stays_small_and_loses_none() -> None:
    tally = Tally()
    for i in range(MOST_ENTRIES + 500):
        tally.add(str(i), "x")
    assert len(tally.counts) == MOST_ENTRIES + 1
    assert tally.counts[OTHER, OTHER] == 500
    assert sum(tally.counts.values()) == MOST_ENTRIES + 500


def test_durations_fall_into_their_buckets() -> None:
    durations = Durations()
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, 1e9):
        durations.add("a", seconds=seconds)
    found = durations.counts[("a",)]
    assert found.buckets == (2, 1, *(0 for _ in BUCKETS[2:]), 1)
    assert found.total > 1e9
    assert found.plus(found).buckets[0] == 4
