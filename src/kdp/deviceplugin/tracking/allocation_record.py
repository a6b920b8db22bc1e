"""`AllocationRecord`: what is known of one container's allocation until it is released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import attrs

from ...model.quantities import Consumption
from ...startup import shown
from ...supervision.given import Given

Key = tuple[str, str]
"""A resource and a device id."""

Pod = tuple[str, str]
"""A pod's namespace and name."""


@final
@attrs.define(eq=False, kw_only=True)
class AllocationRecord:
    """One container's allocation, from Allocate until it is released.

    Attributes:
        uid: Its name in the saved state.
        ids: The devices, sorted.
        state: What the backend's hooks left, JSON-like.
        given: The parts of the reply to Allocate, by device id.
        consumes: What its devices take of the backend's counters, by device id.
        numa_nodes: The NUMA nodes that the kubelet has of its devices, by device id; no entry if there are none.
        at: The boot of the node, and the second of `time.CLOCK_BOOTTIME`, of the Allocate. ("", 0.0) in a file
            of an older version of kdp, which comes first.
        file: The file that it was read from, by another name for each process; "": this process made it.
        is_seen: Whether a list has named one of its devices, as it was saved.
        suspects: The pods that may hold it unnamed, from the file; `None` if the file has none.
        pod: The first pod that a list named with one of its devices; `None` if no list has named one.
        is_known: Whether a list of the kubelet that has the stream now has named that pod.
        is_superseded: Whether the last list named another pod with one of its devices: another process gave it.
        is_started: Whether its container may have started.
        is_back: Whether its devices have come back, and must be scrubbed. Only of a resource that is scrubbed.
        back_at: When the Allocate began that gave its devices away again, like ``at``; ("", 0.0) if a list said so.
        retry_at: Not to be released before.
        failures: How many releases have failed.
        is_handed_out: Whether its release is under way.
        is_said: Whether the log has its end.
    """

    __repr__ = shown

    uid: str
    resource: str
    ids: tuple[str, ...]
    state: Mapping[str, Any]
    given: Mapping[str, Given] = attrs.field(factory=dict[str, Given])
    consumes: Mapping[str, Consumption] = attrs.field(factory=dict[str, Any])
    numa_nodes: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict[str, "tuple[int, ...]"])
    at: tuple[str, float] = ("", 0.0)
    file: str = ""
    is_seen: bool = False
    suspects: frozenset[Pod] | None = None
    pod: Pod | None = None
    is_known: bool = False
    is_superseded: bool = False
    is_started: bool = True
    is_back: bool = False
    back_at: tuple[str, float] = ("", 0.0)
    retry_at: float = float("-inf")
    failures: int = 0
    is_handed_out: bool = False
    is_said: bool = False

    @property
    def keys(self) -> list[Key]:
        """Its devices."""
        return [(self.resource, device_id) for device_id in self.ids]

    def as_json(self) -> dict[str, object]:
        """Return it as the file of a resource has it; see `kdp.deviceplugin.tracking.store`."""
        pods = {} if self.suspects is None else {"pods": sorted(self.suspects)}
        given: dict[str, object] = {}
        if self.given:
            given["given"] = {device_id: each.as_json() for device_id, each in self.given.items()}
        scrubbed = {} if self.is_started else {"started": False}
        scrubbed |= {"back": True} if self.is_back else {}
        if self.consumes:
            from ...supervision.counters import consumption_as_json  # late: few devices take of counters

            given["consumes"] = {device_id: consumption_as_json(each) for device_id, each in self.consumes.items()}
        if self.numa_nodes:
            given["numa"] = {device_id: list(nodes) for device_id, nodes in self.numa_nodes.items()}
        times = {"at": self.at, "back_at": self.back_at}
        given |= {name: list(at) for name, at in times.items() if at != ("", 0.0)}
        pod = {"pod": list(self.pod)} if self.pod is not None else {}
        saved = {"uid": self.uid, "ids": list(self.ids), "state": self.state, "seen": self.is_seen}
        return {**saved, **pod, **scrubbed, **pods, **given}
