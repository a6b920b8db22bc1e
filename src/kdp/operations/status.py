"""Makes the status document of a running process, with each resource and each device.

``kdp status`` asks for it on the plugin's unix socket. So a command shows the state of the process, and does not open
the hardware a second time.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from .._version import __version__
from ..supervision.conditions import VANISHED, is_withheld, labels_of
from .status_document import (
    NOT_TOLD,
    BackendStatus,
    ClaimStatus,
    KubeletList,
    KubeletStatus,
    LabelStatus,
    ListedDevice,
    MeasurementDeclaration,
    RecordedEvent,
    RejectedConfiguration,
    ServedResource,
    SliceStatus,
    StatusDocument,
    UnitLink,
    read,
)
from .status_facts import BackendFacts, Facts, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..concurrency.history import Event
    from ..deviceplugin.tracking.drift import ResourceView
    from ..model.devices import Device
    from ..supervision.health import DeviceHealth
    from ..supervision.service import BaseStatus, ServicePart
    from .status_facts import ProcessFacts

    _Measured = Callable[[str], Mapping[str, float] | None]

MOST_DEVICES: Final = 20_000
"""Devices of one resource that the document lists. A list for the kubelet has room for 71,000 at most."""

MOST_DIFFERENT: Final = 20
"""Devices that the document names where the kubelet's list differs."""

MOST_LINKS: Final = 4096
"""Links of one backend that the document lists: of 64 units that are all linked there are 2,016."""


def document(
    facts: ProcessFacts,
    status: BaseStatus | None,
    *,
    is_ready: bool,
    notes: Mapping[str, Any],
    more: Facts | None = None,
) -> StatusDocument:
    """Return the document. It may take 0.1 s for 10,000 devices: call it outside the event loop.

    Args:
        facts: What does not change.
        status: The state of the service. `None` if nothing is served at the moment.
        is_ready: What the readiness probe says.
        notes: The probe's details, JSON-like. The document has some of them, too: why nothing is served, the time of an
            old state, the rejected configuration, backends without hardware, labels, and the state directory's fault.
        more: Facts besides the status. `None` if there are none.
    """
    more = more or Facts()
    judged = () if status is None else status.backends
    began = time.time() - time.monotonic()
    parts: Mapping[str, ServicePart] = {} if status is None else status.parts
    measured = _measured(more.backends)
    configuration, labels, absent = notes.get("configuration"), notes.get("labels"), notes.get("absent")
    return StatusDocument(
        version=__version__,
        pid=os.getpid(),
        mode=facts.mode,
        node=facts.node,
        started=moment(facts.started),
        directories=dict(facts.directories),
        settings=_settings(facts.settings),
        is_ready=is_ready,
        reason=notes.get("reason"),
        as_of=notes.get("as_of"),
        configuration=None if configuration is None else read(RejectedConfiguration, configuration),
        absent=None if absent is None else tuple(absent),
        labels=None if labels is None else read(LabelStatus, labels),
        state_dir=notes.get("state_dir"),
        kubelet=None if status is None else _kubelet(status),
        backends=tuple(
            _backend(*each) for each in zip(judged, more.backends or (BackendFacts(),) * len(judged), strict=True)
        ),
        resources=tuple(_resource(name, part, began, measured) for name, part in parts.items()),
        events=None if more.events is None else tuple(_event(each) for each in more.events),
    )


def _settings(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings without tokens and passwords."""
    if not settings:
        return {}
    from ..hardware.snapshot import tokens  # late: few processes have settings of their own

    return cast("Mapping[str, str]", tokens.without_values(settings))


def _kubelet(status: BaseStatus) -> KubeletStatus | None:
    seen = status.kubelet
    if seen is None:
        return None
    since = None if seen.made_at is None else moment(seen.made_at)
    return KubeletStatus(state=seen.state.value, since=since, restarts=status.kubelet_restarts)


def _backend(judged: tuple[str, str | None], seen: BackendFacts) -> BackendStatus:
    label, problem = judged
    declared = seen.declared
    links: Mapping[tuple[str, str], float] = {} if seen.topology is None else seen.topology.links
    return BackendStatus(
        class_name=label,
        reason=problem,
        measures=None
        if declared is None
        else tuple(MeasurementDeclaration(name=each.name, unit=each.unit, help=each.help) for each in declared),
        links=tuple(UnitLink(units=pair, weight=weight) for pair, weight in islice(links.items(), MOST_LINKS)),
    )


def _event(event: Event) -> RecordedEvent:
    return RecordedEvent(
        at=moment(event.at),
        kind=event.kind,
        subject=event.subject,
        text=event.text,
        devices=event.devices,
        more=event.more,
        count=event.count,
    )


def _resource(name: str, part: ServicePart, began: float, measured: _Measured) -> ServedResource:
    claims, holders, faults = part.claims, part.holders, part.faults
    details = cast("dict[str, Any]", dict(part.details))
    if (slices := details.pop("slices", None)) is not None:
        details["slices"] = read(SliceStatus, slices)
    view: ResourceView | None = getattr(part, "view", None)
    return ServedResource(
        name=name,
        state=part.state,
        since=None if part.since is None else moment(began + part.since),
        reason=part.reason,
        devices=part.devices,
        healthy=part.healthy,
        **details,
        kubelet_list=None if view is None else _kubelet_list(view, began),
        claims=None if claims is None else tuple(ClaimStatus(**attrs.asdict(each, recurse=False)) for each in claims),
        listed=tuple(
            _device(
                device,
                faults.get(device.id),
                began,
                held_by=NOT_TOLD if holders is None else holders.get(device.id),
                measured=measured(device.id),
            )
            for device in islice(part.listed.values(), MOST_DEVICES)
        ),
    )


def _kubelet_list(view: ResourceView, began: float) -> KubeletList:
    """Return how the kubelet saw the devices of a device plugin when it was asked last, and since when it differs."""
    return KubeletList(
        at=moment(began + view.compared_at),
        since=None if view.since is None else moment(began + view.since),
        missing=tuple(sorted(view.missing)[:MOST_DIFFERENT]),
        phantom=tuple(sorted(view.phantom)[:MOST_DIFFERENT]),
    )


def _device(
    device: Device,
    health: DeviceHealth | None,
    began: float,
    *,
    held_by: str | None,
    measured: Mapping[str, float] | None,
) -> ListedDevice:
    return ListedDevice(
        id=device.id,
        health="Healthy" if device.health.is_healthy else "Unhealthy",
        state=_state(device, health),
        reason=device.health.reason if health is None else health.reason,
        kinds=tuple(_kinds(device, health)),
        since=None if (since := _since(device, health)) is None else moment(began + since),
        numa_nodes=tuple(device.numa_nodes),
        unit=device.unit,
        nodes=tuple(node.host_path for node in device.edits.device_nodes),
        held_by=held_by,
        measured=measured,
    )


def _measured(backends: Sequence[BackendFacts]) -> _Measured:
    """Return what returns what was measured of a device; None: nothing was."""
    found = {name: each.values for backend in backends for name, each in backend.measured.items()}
    if not any(backend.is_shared for backend in backends):
        return found.get
    from ..allocation.sharing import base_id  # late: few devices are shared

    return lambda name: found.get(name) or found.get(base_id(name))


def _state(device: Device, health: DeviceHealth | None) -> str:
    """Return the name of a device's state: from its conditions if they decide, or else from its health."""
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
    return labels_of(device.health.conditions) or (() if health is None else health.kinds)
