"""`Facts`: what the status document has besides a service's status, taken in the event loop that owns it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import attrs

from ..model.backend import WrappedBackend

if TYPE_CHECKING:
    from ..allocation import Topology  # noqa: TC004 - attrs reads no annotation
    from ..concurrency.history import Event, History  # noqa: TC004 - attrs reads no annotation
    from ..model.measurements import Measurement  # noqa: TC004 - attrs reads no annotation
    from ..supervision.measuring import Measured  # noqa: TC004 - attrs reads no annotation
    from ..supervision.service import Service


@final
@attrs.frozen(kw_only=True)
class BackendFacts:
    """What is known of one backend besides its devices' health; nobody changes it.

    Attributes:
        declared: What it measures; None: nothing, or nobody wants to know.
        measured: What was measured last, by device id.
        is_shared: Whether its devices are replicas, of which the devices themselves are measured.
        topology: How its units are linked; None: nobody has asked.
    """

    declared: tuple[Measurement, ...] | None = None
    measured: Mapping[str, Measured] = attrs.field(factory=dict[str, "Measured"])
    is_shared: bool = False
    topology: Topology | None = None


@final
@attrs.frozen(kw_only=True)
class Facts:
    """What the document has besides a service's status; nobody changes it.

    Attributes:
        backends: Of each backend, in the order of the status.
        events: What has happened; None: nobody wanted to know.
    """

    backends: tuple[BackendFacts, ...] = ()
    events: tuple[Event, ...] | None = None


def facts_of(service: Service | None, history: History | None) -> Facts:
    """Return what the document has besides the status. Called in the event loop that owns it; it copies little."""
    supervisors = () if service is None else service.supervisors
    return Facts(
        backends=tuple(
            BackendFacts(
                declared=None if each.measuring is None else each.measuring.declared,
                measured={} if each.measuring is None else each.measuring.values,
                is_shared=isinstance(each.backend, WrappedBackend),
                topology=None if each.preferences is None else each.preferences.topology,
            )
            for each in supervisors
        ),
        events=None if history is None else history.events,
    )
