"""A device has failed if that is known; what is only not known, or kept from new containers, has not."""

from __future__ import annotations

import attrs
import pytest
from tests.conditions import condition, conditions

from kdp.deviceplugin.status import failures_of
from kdp.supervision.conditions import KINDS, OwnKind
from kdp.supervision.health import DeviceHealth, HealthState
from kdp.supervision.publisher import Discovery


def discovery(*kinds: str, state: HealthState = HealthState.UNHEALTHY, unknown: str | None = None) -> Discovery:
    health = DeviceHealth(state=state, reason="why", since=0.0, conditions=conditions(*kinds))
    return Discovery(devices=(), problem=None, health={"d": health}, unknown=unknown)


@pytest.mark.parametrize(
    ("kinds", "has_failed"),
    [(("xid",), True), (("silence",), False), (("xid", "silence"), True), (("obstacle",), False), ((), False)],
)
def test_what_counts_as_a_failure(kinds: tuple[str, ...], has_failed: bool) -> None:
    assert bool(failures_of(discovery(*kinds), {"d"}, ())) == has_failed


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
def test_the_table_says_which_of_kdps_own_conditions_is_a_failure(own: OwnKind) -> None:
    assert bool(failures_of(discovery(own.name), {"d"}, ())) == own.is_failure
    is_known = own.is_failure and not own.rests_on_discovery
    assert bool(failures_of(discovery(own.name, "silence"), {"d"}, ())) == is_known


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_the_backend_was_none_if_its_kind_is_a_word_of_kdps_own(kind: str) -> None:
    fault = attrs.evolve(condition(kind), whose="backend")
    health = DeviceHealth(state=HealthState.UNHEALTHY, reason="why", since=0.0, conditions=(fault,))
    assert failures_of(Discovery(devices=(), problem=None, health={"d": health}), {"d"}, ())


def test_a_suspect_has_not_failed_and_one_that_recovers_has() -> None:
    assert failures_of(discovery("discover", state=HealthState.SUSPECT), {"d"}, ()) == {}
    assert failures_of(discovery("discover", state=HealthState.RECOVERING), {"d"}, ()) == {"d": "why"}


def test_a_device_of_another_resource_is_not_named() -> None:
    assert failures_of(discovery("xid"), {"e"}, ()) == {}


def test_what_has_vanished_has_failed_while_somebody_knows_it() -> None:
    assert failures_of(discovery(), {"d", "v"}, {"v"}) == {"v": "the device is gone"}
    assert failures_of(discovery(unknown="for 30 s"), {"d", "v"}, {"v"}) == {}
    assert failures_of(Discovery(devices=(), problem="driver not loaded"), {"v"}, {"v"}) == {}
