"""Backends with what a DRA driver can have besides plain devices, so that every check has something to look at."""

from __future__ import annotations

from collections.abc import Mapping

from tests.unit.dra.claims.claims_world import Widgets
from typing_extensions import override

import kdp
from kdp_testkit.conformance.dra.backend import DraBackendSubject

_EDITS = kdp.ContainerEdits(env={"PART": "1"})


class Rich(Widgets):
    """Widgets, and one that several claims share."""

    def __init__(self) -> None:
        super().__init__()
        self.devices.append(kdp.Device(id="shared", shareable=True, capacity={"memory": 80}, edits=_EDITS))


class Parts(Widgets):
    """Widgets, and two partitions of a card."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("part0", "part1"):
            self.devices.append(kdp.Device(id=name, edits=_EDITS, consumes={"card": {"memory": 40}}))

    @override
    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {"card": {"memory": 80}}


def kdp_itself() -> DraBackendSubject:
    """Return kdp's own driver, with all that can be switched on; there is no version before it yet but itself."""
    return DraBackendSubject(Rich, previous=DraBackendSubject(Rich), device_status=True, device_metadata=True)
