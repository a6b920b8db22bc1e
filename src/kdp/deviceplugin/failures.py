"""Which devices have failed, as far as that is known: what is told of pods, and what they may be evicted for.

A device may be listed Unhealthy although nobody knows that it has failed: because discovery is silent, or because
something keeps new containers from it. The containers that have it go on, so that is no failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..supervision.obstacles import KIND as OBSTACLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..supervision.health import DeviceHealth
    from ..supervision.publisher import Discovery

_OF_DISCOVERY: Final = frozenset(["discover", "quarantine"])
"""Conditions that rest on what discovery has said, and are as old as that."""

_NO_FAILURE: Final = frozenset(["silence", OBSTACLE])


def failures_of(discovery: Discovery, listed: Collection[str], vanished: Collection[str]) -> Mapping[str, str]:
    """Return which listed devices have failed, and why, by id.

    Args:
        discovery: What is known of the backend.
        listed: The ids of the resource's list.
        vanished: Those of them that are no longer in the hardware.
    """
    found = {
        device_id: health.reason or health.state.value
        for device_id, health in discovery.health.items()
        if device_id in listed and _has_failed(health)
    }
    if discovery.problem is None and discovery.unknown is None:
        found |= dict.fromkeys(vanished, "the device is gone")
    return found


def _has_failed(health: DeviceHealth) -> bool:
    if health.state.is_listed_healthy:
        return False
    known = frozenset(health.kinds) - _NO_FAILURE
    return bool(known - _OF_DISCOVERY if "silence" in health.kinds else known)
