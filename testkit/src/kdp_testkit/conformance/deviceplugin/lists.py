"""Checks 5 to 13, 25, 54 to 56: what the device lists say, when they are sent, and how large they may be."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from ... import events
from ..checks import Checks, NotApplicable
from ..instance import Usage
from ..scene import ids, plural
from .subject import Staging

if TYPE_CHECKING:
    from ...protocol.wire import ListedDevice, PluginStream
    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()

_MIB = 1024 * 1024


def _strangers(scene: PluginScene, device: str, changed: set[str], others: set[str]) -> set[str]:
    """Return those of the devices that changed with one of them although they are not of its unit.

    Of a program nobody knows which devices are of one unit: only if all others change with it are they strangers.
    """
    mates = scene.instance.mates(device)
    if mates is not None:
        return changed - mates
    return changed if changed == others else set()


async def _units(scene: PluginScene, most: int) -> list[str]:
    """Return healthy devices of which none fails with another; so many or fewer, and at least one.

    Raises:
        NotApplicable: There is none.
    """
    chosen: list[str] = []
    covered: set[str] = set()
    for device in scene.at_most(len(scene.healthy)):
        if device in covered:
            continue
        chosen.append(device)
        if len(chosen) == most:
            break
        mates = scene.instance.mates(device)
        covered |= await _failing_with(scene, device) if mates is None else mates
    return chosen


async def _failing_with(scene: PluginScene, device: str) -> set[str]:
    """Make a device fail and heal it, and return those that became Unhealthy with it."""
    before = set(scene.healthy)
    await scene.instance.fail(device)
    await scene.until_not_healthy(device, f"{device} did not become Unhealthy")
    failing = before - set(scene.healthy)
    await scene.instance.heal(device)
    limit = scene.case.limit(1.0)
    await scene.until(lambda: before <= set(scene.healthy), limit, f"{device} did not become Healthy again")
    return failing


@CHECKS.add(
    5,
    "nothing is sent while nothing changes",
    expected="5 minutes without a change: no list, no end of the stream, no Register",
    rule="section 5: the kubelet rebuilds its table and writes its checkpoint to disk for every list; section 11: no "
    "instance may repeat its list periodically",
    cure="send a list only if it differs from the previous one",
    waits=300.0,
)
async def _idle(case: Case) -> str:
    span = case.span(300.0)
    async with case.connected() as scene:
        await scene.quiet(span, events.ListReceived, events.StreamEnded, events.RegisterReceived)
    return f"nothing for {span:.0f} s"


@CHECKS.add(
    6,
    "a device that fails is listed Unhealthy",
    expected="one full list with that device Unhealthy, and others only if they are of its unit",
    rule="section 5: the next full list carries health; section 9: a pod's status shows a fault only through it",
    cure="watch the hardware, and send the whole list with the failed device's health 'Unhealthy'",
    levers=("fail", "heal"),
)
async def _device_fails(case: Case) -> str:
    async with case.with_device() as (scene, device):
        before, known = scene.listed, len(scene.lists)
        began = time.monotonic()
        await scene.instance.fail(device)
        await scene.until_listed(device, "Unhealthy", f"{device} did not become Unhealthy")
        took = scene.lists[-1].time - began
        others = before.keys() - {device}
        scene.require(before.keys() == scene.listed.keys(), f"devices came or went with the fault of {device}")
        changed = {name for name in others if scene.listed[name] != before[name]}
        strangers = _strangers(scene, device, changed, others)
        scene.require(not strangers, f"with {device} other devices changed too: {ids(strangers)}")
        scene.require(scene.streams_opened == 1, "the stream was opened anew")
        sent = len(scene.lists) - known
        scene.require(sent == 1, f"{plural(sent, 'list')} came for one change")
    rest = f"{plural(len(others - changed), 'other device')} unchanged"
    together = f", with it {ids(changed)}" if changed else ""
    return f"{device} Unhealthy in one list after {took * 1000:.1f} ms{together}, {rest}"


@CHECKS.add(
    7,
    "a device that recovers is listed Healthy",
    expected="a full list with that device Healthy again",
    rule="section 5: only the exact text 'Healthy' makes a device allocatable again",
    cure="notice the recovery, and send the whole list with the health 'Healthy'",
    levers=("fail", "heal"),
)
async def _device_recovers(case: Case) -> str:
    async with case.with_device() as (scene, device):
        before = scene.listed
        await scene.instance.fail(device)
        await scene.until_not_healthy(device, f"{device} did not become Unhealthy")
        began = time.monotonic()
        await scene.instance.heal(device)
        await scene.until_listed(device, "Healthy", f"{device} did not become Healthy again")
        took = scene.lists[-1].time - began
        scene.require(scene.listed == before, "the list differs from the one before the fault")
    return f"{device} Healthy again after {took * 1000:.1f} ms"


@CHECKS.add(
    8,
    "a burst of changes becomes few lists",
    expected="1000 changes a second: lists come while they go on, at most 20 in a second, and the last one is correct",
    rule=(
        "section 5: send the first change at once, combine later changes into lists 50 ms or more apart, and drop "
        "outdated lists"
    ),
    cure="if no list came, do not wait until the changes end; if too many came, combine changes: after a list, wait "
    "50 ms and send only the newest state",
    levers=("fail", "heal"),
    alone=True,
)
async def _burst(case: Case) -> str:
    async with case.connected() as scene:
        devices = await _units(scene, 4)
        saw = ""
        for _ in range(_BURSTS):
            # Measured again for each burst: the machine may have become busy.
            looking = await _time_of_a_change(scene, devices[0])
            seconds = max(1.0, _LOOKS * looking)
            flips, within, first = await _flips(scene, devices, seconds)
            most = int(_LISTS_A_SECOND * seconds)
            scene.require(len(within) <= most, f"{flips} changes became {len(within)} lists within {seconds:.0f} s")
            if within:
                return f"{flips} changes became {plural(len(within), 'list')}, the first after {first * 1000:.1f} ms"
            alone = f"one change was listed after {looking:.2f} s"
            saw = f"{flips} changes, and no list within {seconds:.1f} s, though {alone}"
        raise scene.failed(saw)


_BURSTS = 3
"""Bursts without a list after which the plugin is at fault: a busy machine may hold one list back, not three."""

_LOOKS = 4
"""A burst lasts for so many looks of a plugin that polls its hardware."""

_LISTS_A_SECOND = 20


async def _time_of_a_change(scene: PluginScene, device: str) -> float:
    """Make a device fail and heal it; return the longer one of the times until these changes were listed, in seconds.

    A plugin that polls lists a fault within any share of its pause, and the recovery after a whole pause.
    """
    await scene.instance.fail(device)
    failed = await scene.until_not_healthy(device, f"{device} did not become Unhealthy")
    await scene.instance.heal(device)
    return max(failed, await scene.until_listed(device, "Healthy", f"{device} did not become Healthy again"))


async def _flips(
    scene: PluginScene, devices: list[str], seconds: float
) -> tuple[int, list[events.ListReceived], float]:
    """Make devices fail and heal by turns.

    Returns the number of changes, the lists that came meanwhile, and the seconds until the first of them. At the end
    all devices are healthy, and the last list is required to say so.
    """
    known, began = len(scene.lists), time.monotonic()
    flips, failed = 0, set[str]()
    while flips < 1000 * seconds and time.monotonic() < began + seconds:
        device = devices[(flips * 7 + flips // 3) % len(devices)]
        await (scene.instance.heal if device in failed else scene.instance.fail)(device)
        failed ^= {device}
        flips += 1
        if flips % 25 == 0:
            await anyio.sleep(max(0.0, began + flips / 1000 - time.monotonic()))
    await scene.elapse(began + seconds - time.monotonic())
    within = [e for e in scene.lists[known:] if e.time <= began + seconds]
    truth = {device: "Unhealthy" if device in failed else "Healthy" for device in devices}
    limit = scene.case.limit(1.0)
    otherwise = f"after {flips} changes the last list was wrong"
    await scene.until(lambda: all(scene.health_of(device) == truth[device] for device in devices), limit, otherwise)
    for device in failed:
        await scene.instance.heal(device)
    await scene.until(lambda: all(scene.health_of(device) == "Healthy" for device in devices), limit, otherwise)
    return flips, within, within[0].time - began if within else 0.0


@CHECKS.add(
    9,
    "a device that vanishes is no longer offered",
    expected="a list without the id, or with it Unhealthy",
    rule="section 5 and 9: an id that leaves the list leaves the capacity; one that stays must not be Healthy",
    cure="send a list without the device, or keep it as Unhealthy for a while",
    levers=("vanish",),
)
async def _device_vanishes(case: Case) -> str:
    async with case.with_device() as (scene, device):
        others = scene.listed.keys() - {device}
        await scene.instance.vanish(device)
        await scene.until_not_healthy(device, f"{device} is still listed Healthy")
        strangers = _strangers(scene, device, others - scene.listed.keys(), others)
        scene.require(not strangers, f"with {device} others vanished: {ids(strangers)}")
        how = "is no longer listed" if scene.health_of(device) is None else "is listed Unhealthy"
    return f"{device} {how}"


@CHECKS.add(
    10,
    "a device that vanishes from a running pod stays listed, Unhealthy",
    expected="the id stays in the list with the health Unhealthy",
    rule="section 9: the kubelet shows a vanished id as Healthy in the status of the pod that holds it",
    cure="keep the ids of lost devices as Unhealthy while a pod may hold them",
    levers=("vanish",),
)
async def _held_device_vanishes(case: Case) -> str:
    from ...protocol.pods import Pod

    async with case.connected() as scene:
        scene.some(1)
        pod = await scene.kubelet.admit(Pod.asking({scene.resource: 1}))
        [device] = pod.devices(scene.resource)
        await scene.instance.vanish(device)
        await scene.until_not_healthy(device, f"{device} is still listed Healthy")
        scene.require(scene.health_of(device) == "Unhealthy", f"{device} left the list although a pod holds it")
        await scene.elapse(case.span(1.0))
        scene.require(scene.health_of(device) == "Unhealthy", f"{device} left the list although a pod holds it")
    return f"{device}, held by a pod, is listed Unhealthy"


@CHECKS.add(
    11,
    "a new device appears without a new registration",
    expected="a list with one more device, on the same stream",
    rule="section 5: every message replaces the whole list, so devices can come and go on an open stream; section 12 "
    "(B5): registering again leaks a connection in the kubelet",
    cure="look for new devices while you run, and send the whole new list on the open stream",
    levers=("add",),
)
async def _device_appears(case: Case) -> str:
    async with case.connected() as scene:
        before = set(scene.listed)
        began = time.monotonic()
        await scene.instance.add()
        await scene.until(lambda: set(scene.listed) - before, case.limit(1.0), "no new device was listed")
        took = scene.lists[-1].time - began
        new = set(scene.listed) - before
        scene.require(before <= set(scene.listed), f"other devices vanished: {ids(before - set(scene.listed))}")
        await scene.elapse(case.span(0.5))  # who lists it first may register right after
        scene.require(scene.streams_opened == 1, "the plugin registered anew")
    return f"{ids(new)} was listed after {took * 1000:.1f} ms on the same stream"


@CHECKS.add(
    12,
    "every stream gets every change",
    expected="two ListAndWatch streams on one socket: both get the full list and the change",
    rule="section 2.5: several streams on one server are legal; a queue that they share loses updates",
    cure="give each ListAndWatch call its own place in the history, not a shared queue",
    levers=("fail", "heal"),
)
async def _two_streams(case: Case) -> str:
    async with case.with_device() as (scene, device):
        stream = scene.client.watch()
        try:
            limit = case.limit(1.0)
            first = await _next(scene, stream, limit, "the second stream got no list")
            scene.require({d.id for d in first} == set(scene.listed), "the second stream's first list is not complete")
            await scene.instance.fail(device)
            await scene.until_listed(device, "Unhealthy", f"the first stream did not report {device}")
            news = await _next(scene, stream, limit, f"the second stream did not report {device}")
            scene.require(
                {d.id: d.health for d in news}.get(device) == "Unhealthy",
                f"the second stream's list does not say that {device} is Unhealthy",
            )
        finally:
            stream.cancel()
    return f"both streams reported {plural(len(first), 'device')}, and the fault of {device}"


async def _next(scene: PluginScene, stream: PluginStream, limit: float, otherwise: str) -> list[ListedDevice]:
    try:
        found = await stream.next(limit)
    except TimeoutError:
        raise scene.failed(f"{otherwise} within {limit:g} s") from None
    if found is None:
        raise scene.failed(f"{otherwise}: it ended")
    return found


@CHECKS.add(
    13,
    "a kubelet that stops reading costs no memory",
    expected=(
        "the kubelet does not read during 10 000 changes: memory stays bounded, outdated lists are dropped, and the "
        "newest one arrives afterwards"
    ),
    rule="section 5: only the newest state counts; under flow control a queue of lists would grow without an end",
    cure="keep one pending list for each stream and replace it, instead of queueing every one",
    levers=("fail", "heal"),
    alone=True,
)
async def _slow_reader(case: Case) -> str:
    async with case.with_device() as (scene, device):
        known, before = len(scene.lists), scene.instance.usage()
        scene.kubelet.pause_reading(scene.resource)
        wanted = max(200, int(10_000 * case.scale))
        began, changes = time.monotonic(), 0
        while changes < wanted and time.monotonic() < began + 20:
            await scene.instance.fail(device)
            await scene.instance.heal(device)
            changes += 2
            if changes % 50 == 0:
                await anyio.lowlevel.checkpoint()
        await scene.instance.fail(device)
        grown = scene.instance.usage().rss - before.rss
        scene.kubelet.resume_reading(scene.resource)
        await scene.until(
            lambda: scene.health_of(device) == "Unhealthy" and len(scene.lists) > known,
            case.limit(1.0),
            "the newest state did not arrive after the kubelet read again",
        )
        queued = -1
        until = time.monotonic() + 10
        while queued != len(scene.lists) and time.monotonic() < until:  # what else lies behind it
            queued = len(scene.lists)
            await scene.elapse(1.0)
        came = len(scene.lists) - known
        scene.require(
            came <= max(50, changes // 4),
            f"{came} lists came for {changes} changes that nobody had read: they were queued",
        )
        scene.require(grown < 64 * _MIB, f"memory grew by {grown / _MIB:.0f} MiB during {changes} changes")
    return f"{changes} changes, then {plural(came, 'list')}; memory grew by {max(0, grown) / _MIB:.1f} MiB"


@CHECKS.add(
    25,
    "noise in the plugin directory is ignored",
    expected="the kubelet writes its checkpoint 100 times a second: no list, no Register, hardly any processor time",
    rule="section 4.4: the kubelet writes this file after every list, so a plugin that answers every event with "
    "a list or a Register never stops",
    cure="filter the events of the directory by name: only kubelet.sock matters",
    alone=True,
)
async def _noise(case: Case) -> str:
    span = max(1.0, case.span(3.0))  # of a shorter one a single pause of the garbage collector is most
    async with case.connected() as scene:
        await _settle_lists(scene)
        own = await (_share_of(scene, span) if case.subject.has_process else _share_of_the_kit(scene))
        async with scene.kubelet.checkpoint_noise(100):
            used = await _share_of(scene, span) - own
        scene.require(used < 0.5, f"the plugin used {used:.0%} of a processor because of the noise")
    return f"{span:.0f} s of noise, no list, no Register, {max(0.0, used):.0%} of a processor"


async def _share_of(scene: PluginScene, span: float) -> float:
    """Return the plugin's share of a processor while it has nothing to send."""
    before, began = scene.instance.usage(), time.monotonic()
    await scene.quiet(span, events.ListReceived, events.RegisterReceived, events.StreamEnded)
    return scene.instance.usage().share_since(before, time.monotonic() - began)


async def _settle_lists(scene: PluginScene) -> None:
    await scene.until(
        lambda: scene.kubelet.events.of(events.RegisterAnswered) or scene.case.facts.route == "watcher",
        scene.case.limit(1.0),
        "Register was not awaited",
    )


async def _share_of_the_kit(scene: PluginScene) -> float:
    """Return the CPU time of the noise alone, on a node without a plugin, if kit and plugin share a process."""
    async with scene.case.node() as other, other.kubelet.checkpoint_noise(100):
        before, began = scene.instance.usage(), time.monotonic()
        await other.elapse(1.0)
        return scene.instance.usage().share_since(before, time.monotonic() - began)


@CHECKS.add(
    54,
    "a list that is too long is not sent",
    expected="devices for more than 4 MiB: an error that names the limit; the previous list stays in force, and the "
    "stream stays open",
    rule=(
        "section 5: the kubelet receives 4 194 304 bytes; one byte more ends the stream and all devices turn unhealthy"
    ),
    cure="measure the list before sending it; keep the old one and say how many devices fit",
    alone=True,
)
async def _too_long(case: Case) -> str:
    count = 70_000
    async with case.connected() as scene:
        before, known = set(scene.listed), len(scene.lists)
        await scene.instance.grow(count)
        words = str(count)
        await scene.until(
            lambda: (
                words in scene.instance.output()
                or len(scene.lists) > known
                or not scene.kubelet.streams(scene.resource)
            ),
            case.limit(3.0),
            "the plugin said nothing about a list that is too long",
        )
        scene.require(scene.kubelet.streams(scene.resource), "the stream ended")
        scene.require(
            set(scene.listed) == before, f"the list changed from {len(before)} to {len(scene.listed)} devices"
        )
        said = [line for line in scene.instance.output().splitlines() if words in line]
        scene.require(said, "the plugin said nothing about a list that is too long")
    return f"{plural(len(before), 'device')} stay listed; the plugin said: {said[-1][:160]}"


@CHECKS.add(
    55,
    "ten thousand devices are listed at once",
    expected="10 000 devices at the start: the first list within 1 s of the stream, memory bounded",
    rule="section 5: about 25 bytes for each device, far below 4 MiB; the node has no devices before the first list",
    cure="compute the list before you register, and encode it once",
    alone=True,
)
async def _ten_thousand(case: Case) -> str:
    async with case.node() as scene:
        before = _own_rss()
        instance = await scene.start(Staging(devices=10_000))
        await scene.connected()
        await scene.filled()
        opened = scene.kubelet.events.of(events.StreamOpened, resource=scene.resource)[0]
        took = scene.lists[0].time - opened.time
        scene.require(took <= case.limit(1.0), f"the first list came {took:.2f} s after the stream was opened")
        scene.require(len(scene.listed) == 10_000, f"{len(scene.listed)} devices are listed")
        grown = instance.usage().rss - (0 if case.subject.has_process else before)
        scene.require(grown < 200 * _MIB, f"memory is {grown / _MIB:.0f} MiB more")
        size = scene.lists[-1].size_bytes
    return (
        f"10000 devices in {size} bytes, {took * 1000:.0f} ms after the stream; {max(0, grown) / _MIB:.0f} MiB "
        "more memory"
    )


def _own_rss() -> int:
    return Usage.of_process(os.getpid()).rss


@CHECKS.add(
    56,
    "NUMA nodes are listed as the kubelet needs them",
    expected="node 0 is explicit, -1 is never sent, and either all devices of a resource have nodes or none",
    rule="section 8: devices without a node never count for a NUMA mask, so a mixed list makes requests unsatisfiable "
    "under strict policies; -1 in sysfs means unknown",
    cure=(
        "send NUMANode{ID: 0} for node 0, and no topology for -1; if one device has no node, send none for the "
        "whole resource"
    ),
)
async def _topology(case: Case) -> str:
    if case.subject.can_be_staged:
        async with case.connected(Staging(devices=4, numa=((0,), (1,), (0, 1), (1,)))) as scene:
            nodes = {device.id: device.numa_nodes for device in scene.listed.values()}
            wanted = sorted([(0,), (1,), (0, 1), (1,)])
            scene.require(
                sorted(held or () for held in nodes.values()) == wanted, f"nodes 0, 1, 0 and 1, 1 became {nodes}"
            )
        async with case.connected(Staging(devices=3, numa=((0,), (1,), (-1,)))) as scene:
            _judge_nodes(scene)
    else:
        async with case.connected() as scene:
            _judge_nodes(scene)
            with_nodes = sum(1 for device in scene.listed.values() if device.numa_nodes)
            if not with_nodes:
                raise NotApplicable(
                    "the plugin lists no NUMA node on this machine, and the kit cannot choose its devices"
                )
        return f"all {plural(with_nodes, 'device')} with nodes, none negative"
    return "node 0 explicit, several nodes kept, -1 not sent and no topology beside it"


def _judge_nodes(scene: PluginScene) -> None:
    devices = scene.listed.values()
    negative = [device.id for device in devices if any(node < 0 for node in device.numa_nodes or ())]
    scene.require(not negative, f"a negative NUMA node was sent for {ids(negative)}")
    without = [device.id for device in devices if not device.numa_nodes and device.health == "Healthy"]
    mixed = without and any(device.numa_nodes for device in devices)
    scene.require(not mixed, f"{ids(without)} without NUMA nodes among devices with nodes")
