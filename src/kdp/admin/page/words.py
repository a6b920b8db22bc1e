"""How times, states, and numbers of the document are written for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...operations.status_facts import Moment

RESOURCES: Final = {
    "waiting": "Waiting",
    "serving": "Starting to serve",
    "registering": "Registering with the kubelet",
    "awaiting stream": "Registered, the kubelet has not asked for the devices yet",
    "connected": "Registered, the kubelet follows the devices",
    "lost": "The kubelet no longer follows the devices",
    "stopped": "Stopped",
    "no hardware": "This node has no such hardware",
    "registered": "Registered, the devices are not published yet",
    "published": "Published",
}
"""By the state of a resource or driver."""

STATES: Final = {
    "healthy": "Healthy",
    "suspect": "Healthy, in doubt",
    "unhealthy": "Unhealthy",
    "recovering": "Unhealthy, recovering",
    "quarantined": "Unhealthy, quarantined",
    "gone": "Gone",
    "withheld": "Unhealthy, withheld",
}
"""By the state of a device."""

MODES: Final = {"device-plugin": "device plugin", "dra": "DRA driver", "dra-controller": "DRA pool controller"}

EVENTS: Final = {
    "started": ("Started", "plain"),
    "reloaded": ("Reloaded", "plain"),
    "rejected": ("Configuration refused", "bad"),
    "registered": ("Registered", "good"),
    "disconnected": ("Not registered", "bad"),
    "kubelet restarted": ("Kubelet restarted", "doubt"),
    "fault": ("Fault", "bad"),
    "recovered": ("Recovered", "good"),
    "gone": ("Gone", "doubt"),
    "allocated": ("Allocated", "plain"),
    "refused": ("Allocation refused", "bad"),
    "held": ("Held", "plain"),
    "released": ("Released", "plain"),
    "prepared": ("Claim prepared", "plain"),
    "unprepared": ("Claim unprepared", "plain"),
    "failed": ("Claim failed", "bad"),
}
"""By the kind of an event: what it is called, and how it looks."""

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""Not those of the process's locale: the page is in English."""

_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "min"))

_SIGNS: Final = {"celsius": "°C", "watts": "W", "joules": "J", "volts": "V", "amperes": "A", "seconds": "s"}


def look_of(state: str) -> str:
    """Return how a device's state looks: ``good``, ``doubt``, or ``bad``."""
    return {"healthy": "good", "suspect": "doubt", "recovering": "doubt"}.get(state, "bad")


def instant(moment: Moment) -> datetime:
    """Return a time of the document."""
    return datetime.fromisoformat(moment)


def age(moment: Moment, now: datetime) -> str:
    """Return how long ago a time of the document was."""
    seconds = max(0, int((now - instant(moment)).total_seconds()))
    return next((f"{seconds // step} {sign}" for step, sign in _STEPS if seconds >= step), f"{seconds} s")


def clock(moment: Moment, now: datetime) -> str:
    """Return a time of the document in UTC, with as much of its date as tells it from today's."""
    at, today = instant(moment).astimezone(UTC), now.astimezone(UTC)
    day = f"{at.day} {_MONTHS[at.month - 1]}"
    if at.year != today.year:
        return f"{day} {at.year}"
    return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{day} {at:%H:%M}"


def amount(value: float, unit: str) -> str:
    """Return a measured value with its unit."""
    if unit == "ratio":
        return f"{100 * value:.3g} %"
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    if unit == "hertz":
        return _scaled(value, 1000, ("Hz", "kHz", "MHz", "GHz"))
    text = f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
    return f"{text} {_SIGNS.get(unit, unit.replace('_', ' '))}".rstrip()


def _scaled(value: float, step: int, signs: tuple[str, ...]) -> str:
    for sign in signs[:-1]:
        if abs(value) < step:
            return f"{value:.3g} {sign}"
        value /= step
    return f"{value:.4g} {signs[-1]}"


def count(number: int, one: str, many: str) -> str:
    """Return a number of things."""
    return f"{number} {one if number == 1 else many}"
