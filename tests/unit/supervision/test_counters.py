"""Devices that share counters: which of them cannot be given while pods hold others."""

from __future__ import annotations

import pytest

from kdp.errors import InvalidValueError
from kdp.model.devices import Device
from kdp.model.quantities import Amount, Quantity
from kdp.supervision.counters import examined, shortages

CARD = Device(id="c0", consumes={"c0": {"slots": 2, "memory": Quantity("16Gi")}})
SLOTS = [Device(id=f"s{number}", consumes={"c0": {"slots": 1, "memory": Quantity("8Gi")}}) for number in range(2)]
OTHER = Device(id="c1", consumes={"c1": {"slots": 2}})
ALL = [CARD, *SLOTS, OTHER, Device(id="free")]
COUNTERS: dict[str, dict[str, Amount]] = {"c0": {"slots": 2, "memory": Quantity("16Gi")}, "c1": {"slots": 2}}


@pytest.mark.parametrize(
    ("held", "short"),
    [
        (set[str](), []),
        ({"c0"}, ["s0", "s1"]),
        ({"s0"}, ["c0"]),
        ({"s0", "s1"}, ["c0"]),
        ({"free", "c1"}, []),
        ({"c0", "s0"}, ["s1"]),
    ],
)
def test_what_pods_hold_is_taken_from_what_others_share(held: set[str], short: list[str]) -> None:
    assert sorted(shortages(ALL, devices=ALL, held=held, counters=COUNTERS)) == short


def test_the_reason_names_the_counter_and_who_holds_it() -> None:
    [why] = shortages([CARD], devices=ALL, held={"s0"}, counters=COUNTERS).values()
    assert why == "its share is in use: it needs 2 of slots of c0, and 1 of 2 are free while pods hold s0"


def test_what_is_declared_nowhere_is_not_there() -> None:
    assert list(shortages([SLOTS[1]], devices=ALL, held={"s0"}, counters={})) == ["s1"]


@pytest.mark.parametrize("value", [7, ["c0"], {"c0": 7}])
def test_an_answer_that_is_no_counters_is_refused(value: object) -> None:
    with pytest.raises(InvalidValueError):
        examined(value)
