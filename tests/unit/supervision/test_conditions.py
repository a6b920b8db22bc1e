"""The table of kdp's own kinds: whoever decides by a kind reads it, and no reason is read."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import attrs
import pytest
from tests.conditions import condition, conditions

from kdp.model.conditions import Condition
from kdp.model.devices import Device
from kdp.supervision.conditions import (
    KINDS,
    QUARANTINE,
    SCRUB,
    OwnKind,
    has_failed,
    health_of,
    is_withheld,
    label_of,
    lets_allocate,
    own_kind,
)
from kdp.supervision.publisher import without_blocked

ROOT = Path(__file__).parents[3]

FLAGS = [field.name for field in attrs.fields(OwnKind) if field.name not in ("name", "text")]

DECISIONS = {"is_withheld": is_withheld, "lets_allocate": lets_allocate, "is_failure": has_failed}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
def test_each_decision_is_that_of_the_entry(own: OwnKind) -> None:
    made = own.because("why", 1.0)
    assert own_kind(made) is own
    assert {flag: decide((made,)) for flag, decide in DECISIONS.items()} == {
        flag: getattr(own, flag) for flag in DECISIONS
    }
    assert re.fullmatch(r"[A-Z`k].*\.", own.text), "a sentence"


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
def test_a_backends_fault_of_such_a_kind_is_never_kdps_own(own: OwnKind) -> None:
    theirs = Condition(kind=own.name, reason="why", since=1.0, whose="backend")
    assert own_kind(theirs) is None
    assert label_of(theirs) == f"backend:{own.name}"
    assert [decide((theirs,)) for decide in DECISIONS.values()] == [False, False, True]
    assert not own.is_in((theirs,))


def test_one_condition_that_forbids_it_is_enough() -> None:
    for decide in (is_withheld, lets_allocate):
        assert decide(conditions("scrub"))
        assert not decide(conditions("scrub", "xid"))
        assert not decide(())
    assert has_failed(conditions("scrub", "xid"))


def test_two_conditions_that_began_at_other_times_are_equal() -> None:
    assert SCRUB.because("why", 1.0) == SCRUB.because("why", 2.0)
    assert hash(SCRUB.because("why", 1.0)) == hash(SCRUB.because("why", 2.0))
    assert SCRUB.because("why", 1.0) != QUARANTINE.because("why", 1.0)
    assert SCRUB.because("why", 1.0) != attrs.evolve(condition("scrub"), whose="backend")


def test_the_reason_joins_those_of_the_conditions() -> None:
    health = health_of(condition("xid", "XID 79"), condition("scrub", "scrubbed"), condition("nvlink", "XID 79"))
    assert health.reason == "XID 79; scrubbed"
    assert [each.kind for each in health.conditions] == ["xid", "scrub", "nvlink"]


def test_a_new_entry_has_its_row_in_the_docs(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    new = OwnKind(name="new", text="A condition that a test adds.", is_withheld=True)
    monkeypatch.setitem(KINDS, new.name, new)
    [row] = [line for line in reference.conditions().splitlines() if line.startswith("| `new` |")]
    assert new.text in row
    assert row.count("yes") == 1


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_has_an_entry(flag: str) -> None:
    assert any(getattr(own, flag) for own in KINDS.values())


def test_an_obstacle_keeps_the_time_at_which_it_began_and_the_reason_of_a_sick_device_stays_first() -> None:
    sick, well = Device(id="a", health=health_of(condition("xid", "XID 79"))), Device(id="b")
    first = without_blocked((sick, well), lambda _: SCRUB.because("scrubbed", 1.0))
    assert [device.health.reason for device in first] == ["XID 79; scrubbed", "scrubbed"]
    again = without_blocked((sick, well), lambda _: SCRUB.because("scrubbed", 2.0), {each.id: each for each in first})
    assert [device.health.conditions[-1].since for device in again] == [1.0, 1.0]
    assert [lets_allocate(device.health.conditions) for device in again] == [False, True]
