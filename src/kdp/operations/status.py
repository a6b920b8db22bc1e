"""The status document: what a running process says of itself, with each of its devices.

``kdp status`` asks for it on the plugin's unix socket. So a command shows what the process serves, and does not look at
the hardware with other eyes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, final

import attrs

from .._version import __version__
from ..startup import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..allocation import Topology  # noqa: TC004 - attrs reads no annotation
    from ..concurrency.history import Event, History  # noqa: TC004 - attrs reads no annotation
    from ..deviceplugin.tracking.drift import ResourceView
    from ..model.devices import Device
    from ..model.measurements import Measurement  # noqa: TC004 - attrs reads no annotation
    from ..supervision.health import DeviceHealth
    from ..supervision.measuring import Measured  # noqa: TC004 - attrs reads no annotation
    from ..supervision.service import BaseStatus, Service, ServicePart

    _Measured = Callable[[str], Mapping[str, float] | None]

MOST_DEVICES: Final = 20_000
"""Devices of one resource that the document lists. A list for the kubelet has room for 71,000 at most."""

MOST_DIFFERENT: Final = 20
"""Devices that the document names where the kubelet's list differs."""

MOST_LINKS: Final = 4096
"""Links of one backend that the document lists: of 64 units that are all linked there are 2,016."""

NOTES: Final = ("reason", "as_of", "configuration", "absent", "labels", "state_dir")
"""Why nothing is served or nothing counts as ready; of when the document is, if not of now; the configuration that was
refused; backends without hardware; the node's labels, if they are on; why nothing is kept in the state directory."""

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


@final
@attrs.frozen(kw_only=True)
class ProcessFacts:
    """What does not change while a process serves.

    Attributes:
        mode: The setting ``mode``.
        node: The node's name, if a setting says it.
        directories: The directories that it uses, by what they are for; None: it uses none for that.
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


def document(
    facts: ProcessFacts,
    status: BaseStatus | None,
    *,
    is_ready: bool,
    notes: Mapping[str, object],
    more: Facts | None = None,
) -> Mapping[str, object]:
    """Return the document, JSON-like. It may take 0.1 s for 10,000 devices: call it outside the event loop.

    Args:
        facts: What does not change.
        status: Where everything stands; None: nothing is served at the moment.
        is_ready: What the readiness probe says.
        notes: The probe's details. Those of `NOTES` are in the document, too.
        more: What was seen besides the status; None: nothing was.
    """
    more = more or Facts()
    judged = () if status is None else status.backends
    began = time.time() - time.monotonic()
    process = {"kdp": __version__, "pid": os.getpid(), "mode": facts.mode, "node": facts.node}
    parts: Mapping[str, ServicePart] = {} if status is None else status.parts
    measured = _measured(more.backends)
    return {
        **process,
        "started": moment(facts.started),
        "directories": dict(facts.directories),
        "settings": _settings(facts.settings),
        "ready": is_ready,
        **{name: notes.get(name) for name in NOTES},
        "kubelet": None if status is None else _kubelet(status),
        "backends": [
            _backend(*each) for each in zip(judged, more.backends or (BackendFacts(),) * len(judged), strict=True)
        ],
        "resources": [_resource(name, part, began, measured) for name, part in parts.items()],
        "events": None if more.events is None else [_event(each) for each in more.events],
    }


def _settings(settings: Mapping[str, str]) -> Mapping[str, object]:
    """Return the settings without tokens and passwords."""
    if not settings:
        return {}
    from ..hardware.snapshot import tokens  # late: a start does not need it

    return tokens.without_values(settings)


def _kubelet(status: BaseStatus) -> Mapping[str, object] | None:
    seen = status.kubelet
    if seen is None:
        return None
    since = None if seen.made_at is None else moment(seen.made_at)
    return {"state": seen.state.value, "since": since, "restarts": status.kubelet_restarts}


def _backend(judged: tuple[str, str | None], seen: BackendFacts) -> Mapping[str, object]:
    label, problem = judged
    declared = seen.declared
    links: Mapping[tuple[str, str], float] = {} if seen.topology is None else seen.topology.links
    return {
        "class": label,
        "reason": problem,
        "measures": declared and [{"name": each.name, "unit": each.unit, "help": each.help} for each in declared],
        "links": [{"units": list(pair), "weight": weight} for pair, weight in islice(links.items(), MOST_LINKS)],
    }


def _event(event: Event) -> Mapping[str, object]:
    return {
        "at": moment(event.at),
        "kind": event.kind,
        "subject": event.subject,
        "text": event.text,
        "devices": list(event.devices),
        "more": event.more,
        "count": event.count,
    }


def _resource(name: str, part: ServicePart, began: float, measured: _Measured) -> Mapping[str, object]:
    listed = list(part.listed.values())
    claims, holders, faults = part.claims, part.holders, part.faults
    return {
        "name": name,
        "state": part.state,
        "since": None if part.since is None else moment(began + part.since),
        "reason": part.reason,
        "devices": part.devices,
        "healthy": part.healthy,
        **part.details,
        **({} if (view := getattr(part, "view", None)) is None else {"kubelet_list": _kubelet_list(view, began)}),
        **({} if claims is None else {"claims": [attrs.asdict(each) for each in claims]}),
        "listed": [
            {
                **_device(device, faults.get(device.id), began),
                **({} if holders is None else {"held_by": holders.get(device.id)}),
                **({} if (values := measured(device.id)) is None else {"measured": values}),
            }
            for device in listed[:MOST_DEVICES]
        ],
    }


def _kubelet_list(view: ResourceView, began: float) -> Mapping[str, object]:
    """Return how the kubelet saw the devices of a device plugin when it was asked last, and since when it differs."""
    return {
        "at": moment(began + view.compared_at),
        "since": None if view.since is None else moment(began + view.since),
        "missing": sorted(view.missing)[:MOST_DIFFERENT],
        "phantom": sorted(view.phantom)[:MOST_DIFFERENT],
    }


def _device(device: Device, health: DeviceHealth | None, began: float) -> Mapping[str, object]:
    return {
        "id": device.id,
        "health": "Healthy" if device.health.is_healthy else "Unhealthy",
        "state": _state(device, health),
        "reason": device.health.reason if health is None else health.reason,
        "kinds": list(_kinds(device, health)),
        "since": None if (since := _since(device, health)) is None else moment(began + since),
        "numa_nodes": list(device.numa_nodes),
        "unit": device.unit,
        "nodes": [node.host_path for node in device.edits.device_nodes],
    }


def _measured(backends: Sequence[BackendFacts]) -> _Measured:
    """Return what returns what was measured of a device; None: nothing was."""
    found = {name: each.values for backend in backends for name, each in backend.measured.items()}
    if not any(backend.is_shared for backend in backends):
        return found.get
    from ..allocation.sharing import base_id  # late: few devices are shared

    return lambda name: found.get(name) or found.get(base_id(name))


def _state(device: Device, health: DeviceHealth | None) -> str:
    """Return the name of a device's state: from its conditions if they decide, or else from its health."""
    from ..supervision.conditions import VANISHED, is_withheld  # late: a start does not need it

    if is_withheld(device.health.conditions):
        return "withheld"
    if VANISHED.is_in(device.health.conditions):
        return "gone"
    if health is not None:
        return health.state.value
    return "healthy" if device.health.is_healthy else "unhealthy"


def _since(device: Device, health: DeviceHealth | None) -> float | None:
    """Return when the state of a device began; `None` if it is healthy and always was."""
    if health is not None:
        return health.since
    return min((each.since for each in device.health.conditions), default=None)


def _kinds(device: Device, health: DeviceHealth | None) -> Sequence[str]:
    """Return the kinds of a device's conditions, also of those that leave it listed Healthy."""
    from ..supervision.conditions import labels_of  # late: a start does not need it

    return labels_of(device.health.conditions) or (() if health is None else health.kinds)


def moment(seconds: float) -> str:
    """Return a time in seconds since the epoch as people read it."""
    from datetime import UTC, datetime  # late: a start does not need it

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
