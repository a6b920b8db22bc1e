"""Checks 70 to 73: reconciling with what the kubelet says of pods and devices.

The simulated kubelet serves the pod-resources API, but not one that fails on command (70 and 73 need that), and what
a backend is told of pods that are gone never reaches a kubelet (71 and 72). So none of them is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model import NotApplicable, check

if TYPE_CHECKING:
    from .scene import Case

__all__: list[str] = []

_NO_FAULTS = "the kit's pod-resources API does not fail on command yet"
_UNSEEN = "what a backend is told of pods that are gone is not seen by a kubelet"

_RULE = "section 10: List names who holds what; an id is free only when two lists 30 s apart do not name it"


@check(
    70,
    "pod-resources that cannot be had are borne",
    expected="absent, throttled, or a reply of 8 MiB: no crash, no device taken for free, growing pauses",
    rule=_RULE,
    cure="treat every error as 'later', raise the receive limit to 16 MiB, ask at most once a second",
)
async def unavailable(case: Case) -> str:
    """Cannot be played."""
    raise NotApplicable(_NO_FAULTS)


@check(
    71,
    "a device that a pod gave back is released once",
    expected="the pod is in the list, then missing from two: the backend is told once",
    rule=_RULE,
    cure="compare two lists 30 s apart, and remember what was told",
)
async def released(case: Case) -> str:
    """Cannot be played."""
    raise NotApplicable(_UNSEEN)


@check(
    72,
    "a device that is listed twice counts once",
    expected="a device with two NUMA nodes appears in two entries: counted once",
    rule="section 10: there is one entry for each device and NUMA node: merge by id",
    cure="merge the entries by device id",
)
async def twice(case: Case) -> str:
    """Cannot be played."""
    raise NotApplicable(_UNSEEN)


@check(
    73,
    "a kubelet that does not know the devices is told again",
    expected="GetAllocatableResources lacks healthy ids for 30 s while the stream is open: a new registration",
    rule="section 10: it is the only way to see what the kubelet believes",
    cure="compare once a minute, and begin a new generation when the kubelet's view lacks your devices",
)
async def disbelieved(case: Case) -> str:
    """Cannot be played."""
    raise NotApplicable(_NO_FAULTS)
