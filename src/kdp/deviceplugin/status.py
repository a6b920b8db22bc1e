"""`ResourceStatus`: where one resource stands, for probes and for people."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..supervision.health import DeviceHealth
from .session import State


@attrs.frozen(kw_only=True)
class ResourceStatus:
    """Where one resource stands.

    Attributes:
        resource: Its name.
        state: The session's state, as ``connected``.
        reason: Why it is not connected; None: it is, or nothing is wrong yet.
        devices: How many devices are listed.
        healthy: How many of them are healthy.
        faults: How those are that are not simply healthy, by id; since when on `time.monotonic`'s clock. Those that
            have vanished are not among them.
        holders: Which pod holds a device, as ``namespace/pod (container)`` by device id, as of the last time that the
            kubelet was asked; None: it was not, because nothing depended on it, or it does not say.
    """

    resource: str
    state: str
    reason: str | None
    devices: int
    healthy: int
    faults: Mapping[str, DeviceHealth] = attrs.field(factory=dict[str, DeviceHealth])
    holders: Mapping[str, str] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the kubelet holds a stream of this resource."""
        return self.state == State.CONNECTED.value

    @property
    def details(self) -> Mapping[str, object]:
        """Nothing: this protocol has no facts of its own for the readiness probe."""
        return {}
