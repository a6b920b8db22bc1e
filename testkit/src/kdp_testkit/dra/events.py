"""What the simulated kubelet saw and did for DRA, beside the plugin watcher's events in `kdp.testing.events`."""

from __future__ import annotations

import attrs

from ..events import Event


@attrs.frozen(kw_only=True)
class DriverRegistered(Event):
    """An instance of a driver was taken: with which of its services it is called, and asked for health ("": not)."""

    driver: str
    endpoint: str
    service: str
    health_service: str


@attrs.frozen(kw_only=True)
class DriverGone(Event):
    """An instance was unregistered: its registration socket is gone."""

    driver: str
    endpoint: str


@attrs.frozen(kw_only=True)
class ConnectionChanged(Event):
    """The connection to an instance's service socket came up or went down."""

    driver: str
    endpoint: str
    connected: bool


@attrs.frozen(kw_only=True)
class SlicesWiped(Event):
    """The kubelet deleted a driver's slices ("": all); ``error`` says why it failed and will retry."""

    driver: str
    error: str | None


@attrs.frozen(kw_only=True)
class PrepareRequested(Event):
    """The kubelet called NodePrepareResources, with these UIDs of claims."""

    driver: str
    endpoint: str
    claims: tuple[str, ...]


@attrs.frozen(kw_only=True)
class PrepareAnswered(Event):
    """NodePrepareResources was answered.

    Attributes:
        devices: By the claim's UID pool, device and CDI ids of each device.
        errors: By the claim's UID its error.
        error: Of the whole call.
    """

    driver: str
    endpoint: str
    devices: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]]
    errors: dict[str, str]
    error: str | None
    seconds: float


@attrs.frozen(kw_only=True)
class UnprepareRequested(Event):
    """The kubelet called NodeUnprepareResources, with these UIDs of claims."""

    driver: str
    endpoint: str
    claims: tuple[str, ...]


@attrs.frozen(kw_only=True)
class UnprepareAnswered(Event):
    """NodeUnprepareResources was answered; ``errors`` by the claim's UID, ``error`` of the whole call."""

    driver: str
    endpoint: str
    errors: dict[str, str]
    error: str | None
    seconds: float


@attrs.frozen(kw_only=True)
class PodStarted(Event):
    """A pod's sandbox can be made: the CDI ids of each container."""

    pod: str
    cdi_ids: dict[str, tuple[str, ...]]


@attrs.frozen(kw_only=True)
class PodNotStarted(Event):
    """A pod's sandbox cannot be made: the text of the event FailedPrepareDynamicResources."""

    pod: str
    message: str


@attrs.frozen(kw_only=True)
class HealthStreamOpened(Event):
    """The kubelet called NodeWatchResources."""

    driver: str
    endpoint: str
    service: str


@attrs.frozen(kw_only=True)
class HealthReceived(Event):
    """A report of health came, with so many devices.

    Attributes:
        messages: What is said of devices, by name, as it came; without those of which nothing is said.
    """

    driver: str
    endpoint: str
    healthy: int
    unhealthy: int
    unknown: int
    messages: dict[str, str] = attrs.field(factory=dict[str, str])


@attrs.frozen(kw_only=True)
class HealthStreamEnded(Event):
    """NodeWatchResources ended: ``code`` is the gRPC name of the status, ``OK`` for a clean end."""

    driver: str
    endpoint: str
    code: str
    detail: str


@attrs.frozen(kw_only=True)
class PodsConcernedByHealth(Event):
    """A report changed the health of devices that these pods use: their status is written again."""

    driver: str
    uids: tuple[str, ...]
