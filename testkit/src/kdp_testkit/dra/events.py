"""What the simulated kubelet saw and did for DRA, beside the plugin watcher's events in `kdp.testing.events`."""

from __future__ import annotations

import attrs

from ..events import Event


@attrs.frozen(kw_only=True)
class _InstanceEvent(Event):
    """Something between the kubelet and one instance of a driver."""

    driver: str
    endpoint: str


@attrs.frozen(kw_only=True)
class _ClaimsRequest(_InstanceEvent):
    """A call of the kubelet about these UIDs of claims."""

    claims: tuple[str, ...]


@attrs.frozen(kw_only=True)
class DriverRegistered(_InstanceEvent):
    """An instance of a driver was taken: with which of its services it is called, and asked for health ("": not)."""

    service: str
    health_service: str


@attrs.frozen(kw_only=True)
class DriverGone(_InstanceEvent):
    """An instance was unregistered: its registration socket is gone."""


@attrs.frozen(kw_only=True)
class ConnectionChanged(_InstanceEvent):
    """The connection to an instance's service socket came up or went down."""

    connected: bool


@attrs.frozen(kw_only=True)
class SlicesWiped(Event):
    """The kubelet deleted a driver's slices ("": all); ``error`` says why it failed and will retry."""

    driver: str
    error: str | None


@attrs.frozen(kw_only=True)
class PrepareRequested(_ClaimsRequest):
    """The kubelet called NodePrepareResources, with these UIDs of claims."""


@attrs.frozen(kw_only=True)
class PrepareAnswered(_InstanceEvent):
    """NodePrepareResources was answered.

    Attributes:
        devices: By the claim's UID pool, device and CDI ids of each device.
        errors: By the claim's UID its error.
        error: Of the whole call.
    """

    devices: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]]
    errors: dict[str, str]
    error: str | None
    seconds: float


@attrs.frozen(kw_only=True)
class UnprepareRequested(_ClaimsRequest):
    """The kubelet called NodeUnprepareResources, with these UIDs of claims."""


@attrs.frozen(kw_only=True)
class UnprepareAnswered(_InstanceEvent):
    """NodeUnprepareResources was answered; ``errors`` by the claim's UID, ``error`` of the whole call."""

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
class HealthStreamOpened(_InstanceEvent):
    """The kubelet called NodeWatchResources."""

    service: str


@attrs.frozen(kw_only=True)
class HealthReceived(_InstanceEvent):
    """A report of health came, with so many devices.

    Attributes:
        messages: What is said of devices, by name, as it came; without those of which nothing is said.
    """

    healthy: int
    unhealthy: int
    unknown: int
    messages: dict[str, str] = attrs.field(factory=dict[str, str])


@attrs.frozen(kw_only=True)
class HealthStreamEnded(_InstanceEvent):
    """NodeWatchResources ended: ``code`` is the gRPC name of the status, ``OK`` for a clean end."""

    code: str
    detail: str


@attrs.frozen(kw_only=True)
class PodsConcernedByHealth(Event):
    """A report changed the health of devices that these pods use: their status is written again."""

    driver: str
    uids: tuple[str, ...]
