"""Devices that share counters: which of them cannot be given while pods hold others."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from kdp.errors import InvalidValueError
from kdp.model.devices import Device
from kdp.model.quantities import Amount, Quantity
from kdp.supervision.counters import consumption_as_json, consumption_of_json, examined, shortages, undeclared

CARD = Device(id="c0", consumes={"c0": {"slots": 2, "memory": Quantity("16Gi")}})
SLOTS = [Device(id=f"s{number}", consumes={"c0": {"slots": 1, "memory": Quantity("8Gi")}}) for number in range(2)]
OTHER = Device(id="c1", consumes={"c1": {"slots": 2}})
ALL = [CARD, *SLOTS, OTHER, Device(id="free")]
COUNTERS: dict[str, dict[str, Amount]] = {"c0": {"slots": 2, "memory": Quantity("16Gi")}, "c1": {"slots": 2}}


def of(*ids: str) -> dict[str, Any]:
    """Return what these devices take."""
    return {device.id: device.consumes for device in ALL if device.id in ids}


@pytest.mark.parametrize(
    ("held", "short"),
    [
        ([], []),
        (["c0"], ["s0", "s1"]),
        (["s0"], ["c0"]),
        (["s0", "s1"], ["c0"]),
        (["free", "c1"], []),
        (["c0", "s0"], ["s1"]),
    ],
)
def test_what_pods_hold_is_taken_from_what_others_share(held: list[str], short: list[str]) -> None:
    assert sorted(shortages(ALL, held=of(*held), counters=COUNTERS)) == short


def test_the_reason_names_the_counter_and_what_is_allocated() -> None:
    [why] = shortages([CARD], held=of("s0"), counters=COUNTERS).values()
    assert why.kind == "share"
    assert why.reason == (
        "its share is in use: it needs 2 of slots of c0, and too little of 2 is left while these are allocated: s0"
    )


def test_a_device_that_takes_what_is_declared_nowhere_was_offered() -> None:
    [why] = undeclared([SLOTS[1], Device(id="free")], {}).values()
    assert why.kind == "undeclared"
    assert why.reason == "it needs 1 of slots of c0, which counters() does not declare"


def test_a_device_that_takes_more_than_there_is_was_offered() -> None:
    [why] = undeclared([CARD, *SLOTS], {"c0": {"slots": 1, "memory": Quantity("16Gi")}}).values()
    assert why.kind == "undeclared"
    assert why.reason == "it needs 2 of slots of c0, and counters() declares 1"


def test_replicas_take_what_their_device_takes_once() -> None:
    replicas = [attrs.evolve(SLOTS[0], id=f"s0::{number}") for number in range(2)]
    short = shortages([*replicas, CARD], held=of("s0"), counters=COUNTERS, device_of=lambda name: name[:2])
    assert list(short) == ["c0"]


def test_what_is_saved_of_a_consumption_is_read_again() -> None:
    saved = json.loads(json.dumps(consumption_as_json(CARD.consumes)))
    assert saved == {"c0": {"slots": 2, "memory": "16Gi"}}
    assert consumption_as_json(consumption_of_json(saved)) == {"c0": {"slots": "2", "memory": "16Gi"}}


@pytest.mark.parametrize("value", [7, ["c0"], {"c0": 7}])
def test_an_answer_that_is_no_counters_is_refused(value: object) -> None:
    with pytest.raises(InvalidValueError):
        examined(value)
