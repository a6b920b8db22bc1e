"""kdp's own kinds of conditions, in one table: `KINDS`. Health, servicer, metrics, status, and docs read it.

To add a condition, add one entry here, and let the code that finds the condition call `OwnKind.because`.

`Condition.whose` tells kdp's own conditions from a backend's. A kind or a reason does not: a backend may report a fault
with the kind ``scrub``, and with any reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, final

import attrs

from ..model.conditions import Condition
from ..model.devices import Health
from ..startup import shown

Conditions = Mapping[str, tuple[Condition, ...]]
"""Conditions by device id."""


@final
@attrs.frozen(kw_only=True)
class OwnKind:
    """A kind of condition that kdp itself sets.

    Attributes:
        name: The kind, as metrics and the status document show it.
        text: The sentence that docs/reference/conditions.md has for it.
        is_withheld: Whether the device works, and kdp only does not offer it now. Such a condition is no flap, its log
            line has the level INFO, and metrics and status count the device as withheld.
        lets_allocate: Whether Allocate grants the device, because the container's start waits for the condition's end.
            A start waits only if the release policy is ``scrub``.
        is_failure: Whether the device has failed. kdp writes Events for the pods that hold it, and may evict them.
        rests_on_discovery: Whether the condition repeats the last discovery. While discovery is silent, it is no
            failure.
    """

    __repr__ = shown

    name: str
    text: str
    is_withheld: bool = False
    lets_allocate: bool = False
    is_failure: bool = False
    rests_on_discovery: bool = False

    def because(self, reason: str, since: float) -> Condition:
        """Return a condition of this kind."""
        return Condition(kind=self.name, reason=reason, since=since, whose="kdp")

    def is_in(self, conditions: Iterable[Condition]) -> bool:
        """Return whether the conditions include one with this kind."""
        return any(own_kind(each) is self for each in conditions)


KINDS: Final[dict[str, OwnKind]] = {}
"""The table: kdp's own kinds by name."""


def _entry(name: str, text: str, **flags: bool) -> OwnKind:
    made = KINDS[name] = OwnKind(name=name, text=text, **flags)
    return made


DISCOVER: Final = _entry("discover", "`discover` calls the device unhealthy.", is_failure=True, rests_on_discovery=True)
DEVICE_NODE: Final = _entry(
    "device_node", "A device node or the source of a mount is missing, or is something else.", is_failure=True
)
SILENCE: Final = _entry("silence", "`discover` fails or hangs, or the backend is not ready.")
QUARANTINE: Final = _entry(
    "quarantine", "The device flapped too often, and its hold-down runs.", is_failure=True, rests_on_discovery=True
)
FURTHER: Final = _entry("further", "The backend reported more kinds of faults than kdp keeps.", is_failure=True)
VANISHED: Final = _entry(
    "vanished",
    "The hardware no longer has the device, and kdp still lists it.",
    is_failure=True,
    rests_on_discovery=True,
)
OUTDATED: Final = _entry(
    "outdated", "The device is no longer the hardware that its pod or claim was given.", is_failure=True
)
HELD: Final = _entry("held", "A pod or claim holds the device under another name.", is_withheld=True)
CONTESTED: Final = _entry("contested", "The kubelet names two pods that hold the device.", is_withheld=True)
SCRUB: Final = _entry(
    "scrub",
    "`released` has not succeeded yet for the device's last pod or claim.",
    is_withheld=True,
    lets_allocate=True,
)
CLEANUP: Final = _entry("cleanup", "`released` runs longer than its deadline.")
UNSAVED: Final = _entry("unsaved", "kdp cannot save which devices must be scrubbed.")
SHARE: Final = _entry("share", "Pods hold other devices that use up a shared counter.", is_withheld=True)
UNDECLARED: Final = _entry("undeclared", "The device consumes more of a counter than `counters` declares.")
OBSTACLE: Final = _entry("obstacle", "A directory or file that every container needs does not work.")


def own_kind(condition: Condition) -> OwnKind | None:
    """Return the table's entry for a condition; `None` if the backend named its kind."""
    return KINDS[condition.kind] if condition.whose == "kdp" else None


def label_of(condition: Condition) -> str:
    """Return a condition's kind as metrics and the status document show it.

    A backend's kind that is also a word of kdp's own is shown with a prefix.
    """
    is_clash = condition.whose == "backend" and condition.kind in KINDS
    return f"backend:{condition.kind}" if is_clash else condition.kind


def labels_of(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Return the kinds of conditions as metrics and the status document show them, each once."""
    return tuple(dict.fromkeys(map(label_of, conditions)))


def is_withheld(conditions: Collection[Condition]) -> bool:
    """Return whether a device with these conditions works, and kdp only does not offer it now."""
    return bool(conditions) and all((own := own_kind(each)) is not None and own.is_withheld for each in conditions)


def lets_allocate(conditions: Collection[Condition]) -> bool:
    """Return whether Allocate may give a device with these conditions, because the container's start waits."""
    return bool(conditions) and all((own := own_kind(each)) is not None and own.lets_allocate for each in conditions)


def has_failed(conditions: Collection[Condition]) -> bool:
    """Return whether a device with these conditions has failed. An old word of discovery does not prove it."""
    is_silent = SILENCE.is_in(conditions)
    return any(
        (own := own_kind(each)) is None or (own.is_failure and not (is_silent and own.rests_on_discovery))
        for each in conditions
    )


def lasting(conditions: Iterable[Condition], before: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return conditions, each with the time at which its kind began; ``before`` are the conditions until now."""
    since = {(each.kind, each.whose): each.since for each in before}
    return tuple(
        [
            attrs.evolve(each, since=since[key]) if (key := (each.kind, each.whose)) in since else each
            for each in conditions
        ]
    )


def joined(conditions: Iterable[Condition]) -> str:
    """Return the reasons of conditions as one sentence, each reason once."""
    return "; ".join(dict.fromkeys(each.reason for each in conditions))


def health_of(*conditions: Condition) -> Health:
    """Return the health of a device with these conditions; at least one."""
    return Health(joined(conditions), conditions)


def being_scrubbed(note: str, since: float) -> Condition:
    """Return the condition of a device that a pod or claim gave back; the note says since when."""
    return SCRUB.because(f"being scrubbed after its last pod, {note}", since)
