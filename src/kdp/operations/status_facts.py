"""Facts that a running process keeps for its status document.

Each start loads this module. The first question for the status loads the modules that make the document.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NewType, final

import attrs

from ..startup import shown

if TYPE_CHECKING:
    from ..allocation import Topology  # noqa: TC004 - attrs reads no annotation
    from ..concurrency.history import Event, History  # noqa: TC004 - attrs reads no annotation
    from ..model.measurements import Measurement  # noqa: TC004 - attrs reads no annotation
    from ..supervision.measuring import Measured  # noqa: TC004 - attrs reads no annotation
    from ..supervision.service import Service

LOOP_BLOCKED: Final = "the event loop has not run"
"""Beginning of the reason that a process gives while a hook blocks its event loop."""

Moment = NewType("Moment", str)
"""A time in ISO 8601 with its offset from UTC, for example ``2026-03-04T11:00:00+00:00``."""


@final
@attrs.frozen(kw_only=True)
class ProcessFacts:
    """What does not change while a process serves.

    Attributes:
        mode: The setting ``mode``.
        node: The node's name, if a setting says it.
        directories: Its directories by purpose. A directory is `None` if the process does not use it.
        settings: The settings that differ from their defaults, by their keys in a configuration file.
        started: When the process began to serve, in seconds since the epoch.
    """

    __repr__ = shown

    mode: str
    node: str | None = None
    directories: Mapping[str, str | None] = attrs.field(factory=dict[str, "str | None"])
    settings: Mapping[str, str] = attrs.field(factory=dict[str, str])
    started: float = attrs.field(factory=time.time)


@final
@attrs.frozen(kw_only=True)
class BackendFacts:
    """Facts of one backend besides its devices' health. They are immutable.

    Attributes:
        declared: Its measurements. `None` if it has none, or metrics are off.
        measured: The last values, by device id.
        is_shared: Whether its devices are replicas. A replica has the values of its device.
        topology: The links of its units. `None` if no policy has asked for them.
    """

    declared: tuple[Measurement, ...] | None = None
    measured: Mapping[str, Measured] = attrs.field(factory=dict[str, "Measured"])
    is_shared: bool = False
    topology: Topology | None = None


@final
@attrs.frozen(kw_only=True)
class Facts:
    """Facts besides a service's status. They are immutable.

    Attributes:
        backends: The backends, in the order of the status.
        events: The events. `None` if the process keeps none.
    """

    backends: tuple[BackendFacts, ...] = ()
    events: tuple[Event, ...] | None = None


def facts_of(service: Service | None, history: History | None) -> Facts:
    """Return the facts besides the status. Called in the event loop that owns them; it copies little."""
    from ..model.backend import WrappedBackend  # late: a command that asks a plugin does not need it

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


def moment(seconds: float) -> Moment:
    """Return a time in seconds since the epoch as the document has it."""
    from datetime import UTC, datetime  # late: a start does not need it

    return Moment(datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds"))
