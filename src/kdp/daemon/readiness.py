"""`Readiness`: what ``/readyz`` says, and how it follows from where everything stands."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import attrs

from ..operations.status_facts import moment
from ..startup import shown

if TYPE_CHECKING:
    from ..supervision.health import DeviceHealth
    from ..supervision.service import BaseStatus
    from .settings import Settings


@final
@attrs.frozen
class Readiness:
    """What ``/readyz`` says.

    Attributes:
        is_ready: Whether it answers 200.
        details: What its body says besides, as JSON has it.
    """

    __repr__ = shown

    is_ready: bool
    details: Mapping[str, object]


@final
@attrs.frozen(kw_only=True)
class Rejection:
    """A bad configuration, which is not in force: the earlier one is.

    Attributes:
        reason: What is wrong with it.
        since: When that was found, in Unix seconds.
    """

    __repr__ = shown

    reason: str
    since: float

    def as_json(self) -> dict[str, object]:
        """Return what ``/readyz`` says of it."""
        return {"state": "rejected", "reason": self.reason, "since": moment(self.since)}


def judged(
    status: BaseStatus | None,
    settings: Settings,
    *,
    waits_for: str | None,
    rejection: Rejection | None,
    labels: Mapping[str, object] | None,
    state_problem: str | None,
) -> Readiness:
    """Return what the probe says.

    Args:
        status: Where everything stands; None: nothing runs.
        settings: Those that are in force.
        waits_for: Why nothing runs yet; None: nobody keeps it from running.
        rejection: A bad configuration that is not in force; None: there is none.
        labels: What is said of the node's labels; None: they are off.
        state_problem: Why nothing can be saved; None: it can.
    """
    if status is None:
        return Readiness(False, {"reason": waits_for or "the plugins are starting or stopping"})
    empty = [f"{name} has no devices" for name, held in status.parts.items() if not held.devices]
    if not status.parts and not status.absent:  # the class names its resources by its devices
        empty = ["there are no devices"]
    missing = None
    if settings.when_no_devices == "not-ready" and (status.absent or empty):
        missing = "; ".join((*status.absent, *empty))
    kind = "resources" if settings.mode == "device-plugin" else "drivers"
    return Readiness(
        status.is_ready and missing is None,
        {
            **({} if missing is None else {"reason": missing}),
            kind: {
                name: {
                    "state": held.state,
                    "reason": held.reason,
                    "devices": held.devices,
                    "healthy": held.healthy,
                    **_faults(held.faults),
                    **held.details,
                }
                for name, held in status.parts.items()
            },
            "backends": [{"class": label, "reason": problem} for label, problem in status.backends],
            **({"absent": list(status.absent)} if status.absent else {}),
            **({} if rejection is None else {"configuration": rejection.as_json()}),
            **({} if labels is None else {"labels": labels}),
            **({} if state_problem is None else {"state_dir": state_problem}),
        },
    )


def _faults(faults: Mapping[str, DeviceHealth]) -> dict[str, object]:
    """Return what the probe says of devices that are not simply healthy: the first of them, since when and why."""
    from ..supervision.service import MAX_LISTED  # late: it loads gRPC

    began = time.time() - time.monotonic()
    listed = {
        device_id: {
            "state": health.state.value,
            "since": moment(began + health.since),
            "reason": health.reason,
            "kinds": list(health.kinds),
        }
        for device_id, health in itertools.islice(faults.items(), MAX_LISTED)
    }
    return {"faults": listed} if listed else {}
