"""Checks of what survives: a killed process, a reboot, another version, lost claims, a damaged state."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from ...protocol.wire import CallError
from ..checks import Checks, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ...dra.claims import ClaimEntry, PreparedDevice
    from ...dra.drivers import DriverConnection
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

_PARTS = 0.0, 0.4, 0.8
"""Of a Prepare's time, when the driver is killed in it."""


def _left(scene: DraScene, devices: tuple[PreparedDevice, ...]) -> set[str]:
    return {each for device in devices for each in device.cdi_ids} & scene.specs()


async def _ended(scene: DraScene, claim: ClaimEntry, devices: tuple[PreparedDevice, ...]) -> None:
    """Unprepare a claim; nothing of it may be left."""
    await scene.unprepared(claim)
    left = _left(scene, devices)
    scene.require(not left, f"after Unprepare there is still {', '.join(sorted(left))}")


@CHECKS.add(
    26,
    "a driver that is killed in a Prepare can do it again",
    expected="wherever it is killed, its successor prepares the claim, unprepares it, and nothing is left",
    rule="the kubelet asks again until it has an answer",
    cure="save that a claim is begun before you touch hardware, and that it is complete at the end; do everything "
    "again for a claim that is only begun",
)
async def _killed(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    began = anyio.current_time()
    first = await scene.prepared(claim)
    took = anyio.current_time() - began
    await scene.unprepared(claim)

    async def ask(connection: DriverConnection) -> None:
        with suppress(CallError):
            await connection.prepare([claim], 5.0)

    pauses = [(0.0, took * part) for part in _PARTS]
    for delay, pause in (*pauses, (0.3, 0.15)):
        # Who is killed must be registered when it is asked: a kubelet may be about to take it back.
        async with scene.connection() as connection, anyio.create_task_group() as tasks:
            scene.server.faults.slow(delay)
            tasks.start_soon(ask, connection)
            await anyio.sleep(pause)
            await scene.kill()
        scene.server.faults.slow(0.0)
        await scene.start_again()
        answered = await scene.prepared(claim)
        scene.require(first == answered, f"killed after {pause * 1000:.0f} ms: the answer was {first}, then {answered}")
        scene.require_resolved(answered)
        await _ended(scene, claim, answered)
        await scene.require_free(device)
    return f"killed {len(pauses) + 1} times in a Prepare of {took * 1000:.0f} ms"


@CHECKS.add(
    28,
    "hardware is prepared again after a reboot",
    expected=(
        "a restarted driver touches no hardware for a prepared claim; after a reboot it does, and answers the same"
    ),
    rule="a reboot loses what was set up in hardware and /var/run, but not the driver's files",
    cure="keep the boot id (/proc/sys/kernel/random/boot_id) with each claim, and trust no claim of another boot",
)
async def _rebooted(scene: DraScene) -> str:
    if not scene.subject.can_reboot:
        raise NotApplicable("a program reads the kernel's boot id, which a test cannot change")
    _, claim = await scene.claimed()
    first = await scene.prepared(claim)
    if scene.instance.preparations() is None:
        raise NotApplicable("the driver has no hook that touches hardware")
    await scene.kill()
    await scene.start_again()
    await scene.prepared(claim)
    scene.require(scene.instance.preparations() == 0, "a restart of the driver alone prepared the hardware again")
    await scene.reboot()
    second = await scene.prepared(claim)
    scene.require(first == second, f"the answer was {first}, after the reboot {second}")
    scene.require(scene.instance.preparations(), "after a reboot the hardware was treated as prepared")
    scene.require_resolved(second)
    await _ended(scene, claim, second)
    return "prepared again, with the same answer"


@CHECKS.add(
    35,
    "a driver can unprepare claims of its previous version, and the reverse",
    expected="each version unprepares what the other one has prepared",
    rule="a driver is updated, and rolled back, under running pods",
    cure="give your state a version; read the previous version; keep unknown fields",
)
async def _versions(scene: DraScene) -> str:
    previous = scene.subject.previous
    if previous is None:
        raise NotApplicable("no previous version was given (--previous)")
    [device] = await scene.some()
    for older, newer in ((previous, scene.subject), (scene.subject, previous)):
        await scene.leave()
        await scene.start_again(subject=older)
        claim = await scene.claim(scene.result(device))
        devices = await scene.prepared(claim)
        await scene.leave()
        await scene.start_again(subject=newer)
        again = await scene.prepared(claim)
        scene.require(devices == again, f"one version answered {devices}, the other one {again}")
        await scene.drop(claim)
        await _ended(scene, claim, devices)
        await scene.require_free(device)
    return "forth and back"


@CHECKS.add(
    36,
    "a claim that is never unprepared is undone when it is deleted",
    expected=(
        "the spec of a deleted claim is removed after a while; an existing claim stays prepared, also when the API "
        "fails"
    ),
    rule="a kubelet that has lost its checkpoint never unprepares",
    cure=(
        "compare your state with the API regularly, and undo a claim that is gone (404, or another UID) for some "
        "minutes"
    ),
    waits=1200.0,
)
async def _forgotten(scene: DraScene) -> str:
    devices = await scene.some(2)
    kept, lost = [await scene.claim(scene.result(each)) for each in devices]
    stays, goes = await scene.prepared(kept), await scene.prepared(lost)
    if not any(each.cdi_ids for each in goes):
        raise NotApplicable("the driver answers without CDI ids, so that what it forgets is not seen")
    is_told = scene.subject.takes_grace  # a program has a time of its own
    scene.server.faults.internal_error(method="GET", times=None)
    await scene.elapse(2.5 * (scene.node.grace if is_told else 1.0))
    scene.server.faults.clear()
    scene.require_resolved((*stays, *goes))
    await scene.drop(lost)
    within = scene.limit(3 * scene.node.grace) if is_told else 1200.0
    took = await scene.until(lambda: not _left(scene, goes), within, "a deleted claim is still prepared")
    following = await scene.claim(scene.result(devices[1]))

    async def is_free() -> bool:
        _, error = (await scene.prepare(following))[following.uid]
        return not error

    # The spec goes before the record; a kubelet asks again, too.
    await scene.until(is_free, scene.limit(5.0), "the device of a claim that was undone is refused to the next claim")
    await scene.unprepared(following)
    scene.require_resolved(stays)
    scene.require(await scene.prepared(kept) == stays, "the answer of the existing claim has changed")
    await scene.unprepared(kept)
    return f"undone after {took:.1f} s"


# -- damaged state -----------------------------------------------------------------------------------------------------

_DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: b"\xef\xbb\xbf" + b"\0" * 512,
}


def _files(scene: DraScene) -> dict[Path, bytes]:
    roots = scene.node.paths.plugins_dir / scene.driver, scene.node.state
    found = [path for root in roots for path in root.rglob("*") if path.is_file()]
    return {path: content for path in found if (content := path.read_bytes())}


@CHECKS.add(
    37,
    "a damaged state does not end the driver",
    expected="it serves, reports the damage, keeps the damaged file, and prepares and unprepares claims as before",
    rule="disks fill up and lose power; a driver that no longer starts takes the whole node out of service",
    cure="set an unreadable file aside, report it in the log and by an Event, and go on",
)
async def _damaged(scene: DraScene) -> str:
    [device] = await scene.some()
    for what, damage in _DAMAGES.items():
        untouched = _files(scene)
        claim = await scene.claim(scene.result(device))
        first = await scene.prepared(claim)
        await scene.leave()
        written = {path: each for path, each in _files(scene).items() if untouched.get(path) != each}
        harmed = {path: damage(content) for path, content in written.items()}
        if not harmed:
            raise NotApplicable("the driver keeps nothing in its data directory")
        for path, content in harmed.items():
            path.write_bytes(content)
        before = len(_warnings(scene))
        await scene.start_again()
        again = await scene.prepared(claim)
        scene.require(first == again, f"a state file was {what}: the answer was {first}, then {again}")
        await scene.until(
            lambda before=before, harmed=harmed: (
                len(_warnings(scene)) > before or any(path.stem in scene.instance.output() for path in harmed)
            ),
            scene.limit(3.0),
            f"a state file was {what}: neither an Event nor the log mentions it",
        )
        kept = [content for content in _files(scene).values() if content in harmed.values()]
        scene.require(what == "empty" or kept, f"a state file was {what}, and what was left of it is not kept")
        await _ended(scene, claim, first)
        await scene.require_free(device)
    return ", ".join(_DAMAGES)


def _warnings(scene: DraScene) -> list[Any]:
    return [
        change.item
        for change in scene.server.api.store.changes
        if change.kind.plural == "events" and change.item.get("type") == "Warning"
    ]
