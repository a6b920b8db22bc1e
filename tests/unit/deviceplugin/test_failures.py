"""A device has failed if that is known; what is only not known, or kept from new containers, has not."""

from __future__ import annotations

import pytest

from kdp.deviceplugin.status import failures_of
from kdp.supervision.health import DeviceHealth, HealthState
from kdp.supervision.publisher import Discovery


def discovery(*kinds: str, state: HealthState = HealthState.UNHEALTHY, unknown: str | None = None) -> Discovery:
    health = DeviceHealth(state=state, reason="why", since=0.0, kinds=kinds)
    return Discovery(devices=(), problem=None, health={"d": health}, unknown=unknown)


@pytest.mark.parametrize(
    ("kinds", "has_failed"),
    [(("xid",), True), (("silence",), False), (("xid", "silence"), True), (("obstacle",), False), ((), False)],
)
def test_what_counts_as_a_failure(kinds: tuple[str, ...], has_failed: bool) -> None:
    assert bool(failures_of(discovery(*kinds), {"d"}, ())) == has_failed


def test_a_suspect_has_not_failed_and_one_that_recovers_has() -> None:
    assert failures_of(discovery("discover", state=HealthState.SUSPECT), {"d"}, ()) == {}
    assert failures_of(discovery("discover", state=HealthState.RECOVERING), {"d"}, ()) == {"d": "why"}


def test_a_device_of_another_resource_is_not_named() -> None:
    assert failures_of(discovery("xid"), {"e"}, ()) == {}


def test_what_has_vanished_has_failed_while_somebody_knows_it() -> None:
    assert failures_of(discovery(), {"d", "v"}, {"v"}) == {"v": "the device is gone"}
    assert failures_of(discovery(unknown="for 30 s"), {"d", "v"}, {"v"}) == {}
    assert failures_of(Discovery(devices=(), problem="driver not loaded"), {"v"}, {"v"}) == {}
