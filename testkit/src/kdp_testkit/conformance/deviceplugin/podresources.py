"""Checks 70 to 73: what a plugin makes of what the kubelet says of pods and devices.

They need a plugin that can be made to ask often and that says which devices were given back: a class of a vendor under
kdp. What a program does about it no kubelet sees.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ... import events
from ...protocol.pods import Pod
from ..checks import KUBELET_SOCK, Checks
from ..scene import ids, plural
from .subject import Staging

if TYPE_CHECKING:
    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()

_RULE = "section 10: List names which pod holds which device; an id is free only if two lists 30 s apart do not name it"

LISTS = 8
"""Lists within which a wrong conclusion would have been drawn; a right one takes two."""


def _asked(scene: PluginScene, *, refused: bool = False) -> list[float]:
    """Return when Lists were answered, or when calls were refused."""
    calls_seen = scene.kubelet.events.of(events.PodResourcesAsked)
    return [e.time for e in calls_seen if (e.error is not None if refused else e.method == "List" and e.error is None)]


async def _lists(scene: PluginScene, more: int = LISTS) -> None:
    """Wait until so many more Lists were answered."""
    wanted = len(_asked(scene)) + more
    await scene.until(
        lambda: len(_asked(scene)) >= wanted,
        scene.case.limit(4.0),
        "the plugin stopped asking which pod holds which device",
    )


async def _returned(scene: PluginScene) -> None:
    await scene.until(scene.instance.returned, scene.case.limit(2.0), "no release was reported for a pod that is gone")


def _held(scene: PluginScene, when: str) -> None:
    returned = scene.instance.returned()
    scene.require(not returned, f"{when} the devices of a running pod were treated as free: {returned}")


@CHECKS.add(
    70,
    "a failing pod-resources API does no harm",
    expected=(
        "throttled, absent, or a reply of 8 MiB: no crash, no device is treated as free, and the pauses grow; then "
        "all works again"
    ),
    rule=_RULE,
    cure="after any error ask again later, raise the receive limit to 16 MiB, and ask at most once a second",
    lasts=5.0,
)
async def _unavailable(case: Case) -> str:
    """Refuse it, hide it, fill it, and look what becomes of a pod that runs."""
    async with case.connected(Staging(asks_often=True)) as scene:
        scene.some(1)
        pod = await scene.kubelet.admit(Pod.asking({scene.resource: 1}))
        await _lists(scene, 3)
        scene.kubelet.faults.pod_resources_exhausted(times=3)
        await scene.until(
            lambda: len(_asked(scene, refused=True)) >= 3, case.limit(6.0), "the plugin did not ask again"
        )
        await _lists(scene, 2)
        _held(scene, "when the kubelet refused calls")
        refusals = _asked(scene, refused=True)
        pauses = [later - earlier for earlier, later in pairwise(refusals) if later - earlier > _AT_ONCE]
        scene.require(pauses and min(pauses) >= _PAUSE, f"it asked again after {_seconds(pauses)} s")
        scene.kubelet.faults.list_too_much(times=3)
        await _lists(scene)
        _held(scene, "with an answer of 8 MiB")
        path = scene.kubelet.paths.pod_resources_socket
        path.rename(hidden := path.with_name("hidden.sock"))
        await scene.elapse(case.span(1.0))
        _held(scene, "without the API's socket")
        hidden.rename(path)
        await _lists(scene)
        _held(scene, "when the API's socket was back")
        await scene.kubelet.delete(pod.pod)
        await _returned(scene)
    return f"asked again after {_seconds(pauses)} s, no device was treated as free, and the pod's end was reported"


_AT_ONCE = 0.05
"""Refusals of one round of questions are so close, in seconds."""

_PAUSE = 0.2
"""The shortest pause after a refusal, in seconds: four times that between two questions that are answered."""


def _seconds(pauses: list[float]) -> str:
    return ", ".join(f"{pause:.1f}" for pause in pauses) or "no"


@CHECKS.add(
    71,
    "a device that a pod gave back is released once",
    expected="the pod is in the list, then missing from two: the backend is called once",
    rule=_RULE,
    cure="compare two lists 30 s apart, and remember which releases were reported",
)
async def _released(case: Case) -> str:
    case.require_devices()
    async with case.connected(Staging(asks_often=True)) as scene:
        scene.some(2)
        first = await scene.kubelet.admit(Pod.asking({scene.resource: 1}))
        await scene.kubelet.admit(Pod.asking({scene.resource: 1}))  # keeps it asking
        await _lists(scene)
        _held(scene, "with both pods in the list")
        await scene.kubelet.delete(first.pod)
        await _returned(scene)
        await _lists(scene)
        returned, wanted = scene.instance.returned(), first.devices(scene.resource)
        scene.require(returned == [wanted], f"a pod with {ids(wanted)} ended, released were: {returned}")
    return f"{ids(wanted)} was released once, and not again in {plural(LISTS, 'further list')}"


@CHECKS.add(
    72,
    "a device that is listed twice counts once",
    expected="a device with two NUMA nodes appears in two entries: counted once",
    rule="section 10: there is one entry for each device and NUMA node: merge by id",
    cure="merge the entries by device id",
)
async def _twice(case: Case) -> str:
    # A pod with one device: a plugin may refuse two.
    async with case.connected(Staging(asks_often=True, devices=2, numa=((0, 1),))) as scene:
        pod = await scene.kubelet.admit(Pod.asking({scene.resource: 1}))
        await _lists(scene)
        _held(scene, "with two entries for each device")
        await scene.kubelet.delete(pod.pod)
        await _returned(scene)
        returned, wanted = scene.instance.returned(), sorted(pod.devices(scene.resource))
        released = sorted(device for devices in returned for device in devices)
        scene.require(released == wanted, f"a pod with {ids(wanted)} ended, released were: {returned}")
    return f"{ids(wanted)}, on two nodes, was released once"


@CHECKS.add(
    73,
    "a kubelet that lost the devices gets a new registration",
    expected="GetAllocatableResources lacks healthy ids for 30 s while the stream is open: a new registration",
    rule="section 10: it is the only way to see what the kubelet believes; section 2.5: up to 1.36 it forgets the "
    "devices of a stream that lives when a second instance has registered and left",
    cure="compare once a minute, and begin a new generation when the kubelet's view lacks your devices",
    routes=KUBELET_SOCK,
)
async def _disbelieved(case: Case) -> str:
    """Let a second instance come and go on a kubelet that forgets the first one by that."""
    profile = case.profile if case.profile in ("k132", "k134", "k136") else "k136"
    async with case.connected(Staging(asks_often=True), profile=profile) as scene:
        scene.some(1)
        known = len(scene.lists)
        second = await scene.start()
        await scene.connected(lists=known)
        before, known = len(scene.registers), len(scene.lists)
        await scene.stop(second)
        took = await scene.until(
            lambda: len(scene.registers) > before,
            case.limit(2.0),
            "no new Register came although the kubelet treats all devices as unhealthy",
        )
        await scene.connected(lists=known)
    return f"a new Register {took:.1f} s after the kubelet had forgotten the devices (kubelet {profile})"
