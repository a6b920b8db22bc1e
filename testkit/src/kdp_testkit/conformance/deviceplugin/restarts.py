"""Checks 14 to 24: a stream ends or never comes; the kubelet goes and comes back, in every shape seen on nodes."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ... import events
from ...faults import RegisterFault
from ..checks import KUBELET_SOCK, Checks, NotApplicable
from ..scene import ids, plural
from .subject import Staging

if TYPE_CHECKING:
    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()


def _has_lists(scene: PluginScene, count: int) -> bool:
    return len(scene.lists) >= count and scene.kubelet.streams(scene.resource) > 0


@CHECKS.add(
    14,
    "a lost stream leads to a new registration",
    expected="the stream is cancelled, the socket stays: Register again within 1 s, with another socket on 1.37",
    rule=(
        "section 5: when ListAndWatch ends the kubelet never calls it again; all devices stay unhealthy until a "
        "new Register"
    ),
    cure="notice that the last stream has ended, and register again with a new socket, with growing pauses",
    routes=KUBELET_SOCK,
)
async def _lost_stream(case: Case) -> str:
    async with case.connected() as scene:
        known, before = len(scene.lists), len(scene.registers)
        scene.kubelet.drop_stream(scene.resource)
        took = await scene.until(lambda: len(scene.registers) > before, case.limit(1.0), "no new Register came")
        await scene.connected(lists=known)
    return f"Register {took * 1000:.0f} ms after the stream ended"


@CHECKS.add(
    15,
    "a stream that never comes leads to a new registration",
    expected="Register answered ok, ListAndWatch never called: a new Register after about 10 s",
    rule=(
        "section 2.1: a successful Register does not prove a connection, but an open ListAndWatch stream does; "
        "section 12 (B6)"
    ),
    cure="after Register wait some 10 s for the stream, then begin anew with a new socket",
    routes=KUBELET_SOCK,
    lasts=10.0,
)
async def _no_stream(case: Case) -> str:
    async with case.node() as scene:
        scene.kubelet.faults.register(RegisterFault(stream=False, resource=scene.resource))
        await scene.start()
        await scene.until(lambda: scene.registers, case.patience_for_connecting, "no Register came")
        took = await scene.until(
            lambda: len(scene.registers) > 1, case.limit(4.5), "no second Register came although no stream was opened"
        )
        first, second = scene.registers[:2]
        scene.require(
            first.endpoint != second.endpoint, f"the second Register named the same socket {first.endpoint!r}"
        )
        await scene.connected()
    return f"a new Register {took:.1f} s after the first"


@CHECKS.add(
    16,
    "pauses grow while streams end at once",
    expected="five times Register ok and the stream closed at once: five new registrations, further and further apart",
    rule="section 2.5: on kubelets up to 1.36 a stream that ends shortly after Register is normal; every registration "
    "costs the kubelet a connection, so pause longer each time",
    cure="register again with exponential pauses, and reset them only when a stream has lived for a while",
    routes=KUBELET_SOCK,
)
async def _flapping(case: Case) -> str:
    pauses: list[float] = []
    async with case.node() as scene:
        await scene.start()
        # On a busy machine all of the first pauses are long: more of them show whether they grow.
        while len(pauses) < 2 * _FLAPS and not _grow(pauses):
            pauses = await _flap(scene, len(pauses))
        listed = ", ".join(f"{pause * 1000:.0f}" for pause in pauses)
        scene.require(_grow(pauses) or min(pauses) >= 0.9, f"the pauses were {listed} ms: they do not grow")
    return f"{plural(len(pauses), 'new registration')} after {listed} ms"


_FLAPS = 5


def _grow(pauses: list[float]) -> bool:
    return sum(pauses[-2:]) > 1.5 * sum(pauses[:2])


async def _flap(scene: PluginScene, known: int) -> list[float]:
    """Drop five more streams; return the seconds from the end of each stream to the next Register."""
    limit = scene.case.limit(3.0)
    for number in range(known + 1, known + _FLAPS + 1):
        await scene.until(
            # A plugin may not notice a stream that ends before its first list.
            partial(_has_lists, scene, number),
            limit if number > 1 else scene.case.patience_for_connecting,
            f"stream {number} brought no list",
        )
        scene.kubelet.drop_stream(scene.resource)
    await scene.until(
        lambda: len(scene.lists) > known + _FLAPS and scene.kubelet.streams(scene.resource),
        limit,
        f"after {known + _FLAPS} lost streams there was no new one",
    )
    ends = scene.kubelet.events.of(events.StreamEnded, resource=scene.resource)
    return [
        min(register.time for register in scene.registers if register.time > end.time) - end.time
        for end in ends[: known + _FLAPS]
    ]


MOST_USED = 0.25
"""The share of a processor above which nobody waits quietly."""

_RULE_RESTART = (
    "section 4.4: the kubelet deletes all sockets and makes a new kubelet.sock; section 4.6: pods that are "
    "admitted before the plugin is back fail for good, so every millisecond counts"
)


async def _back(scene: PluginScene, known: int, target: float, *, since: float | None = None) -> float:
    """Wait for the registration after a restart and return the seconds from listening to Register."""
    log = scene.kubelet.events
    listening = log.of(events.KubeletStarted)[-1].time if since is None else since

    def again() -> list[events.RegisterReceived]:
        return [register for register in scene.registers if register.time >= listening]

    limit = scene.case.limit(target)
    await scene.until(again, limit, "no Register came after the restart")
    await scene.connected(lists=known)
    return again()[0].time - listening


@CHECKS.add(
    17,
    "a restarted kubelet has its devices back at once",
    expected=(
        "connections break, sockets are deleted, kubelet.sock is new: the plugin registers the same ids within 100 ms"
    ),
    rule=_RULE_RESTART,
    cure="watch the plugin directory for kubelet.sock, have the list ready, and register with a new socket at once",
    routes=KUBELET_SOCK,
)
async def _restart(case: Case) -> str:
    async with case.connected() as scene:
        before, known = set(scene.listed), len(scene.lists)
        await scene.kubelet.restart(down=case.span(0.1))
        took = await _back(scene, known, 0.1)
        lost = before - set(scene.listed)
        scene.require(not lost, f"after the restart these ids were missing: {ids(lost)}")
        # A name from before the restart may come again: it is this kubelet's first Register of it.
        listening = scene.kubelet.events.of(events.KubeletStarted)[-1].time
        names = [register.endpoint for register in scene.registers if register.time >= listening]
        if not scene.kubelet.profile.one_client_per_resource:
            scene.require(len(set(names)) == len(names), f"one kubelet got the same socket name twice: {ids(names)}")
    return f"Register {took * 1000:.1f} ms after the kubelet listened, {plural(len(before), 'id')} as before"


@CHECKS.add(
    18,
    "the plugin waits quietly for a kubelet that is away for a minute",
    expected="no kubelet.sock for 60 s: hardly any processor time; Register when it appears",
    rule="section 12 (B7): an absent kubelet is a normal state; section 4.4",
    cure="wait for the directory's events and look every few seconds at most; never spin, never exit",
    routes=KUBELET_SOCK,
    waits=60.0,
    alone=True,
)
async def _long_absence(case: Case) -> str:
    span = case.span(60.0)
    async with case.connected() as scene:
        known = len(scene.lists)
        await scene.kubelet.stop()
        used = await _processor(scene, span)
        if used >= MOST_USED:  # its start may still have been in it; a plugin that spins does so again
            used = min(used, await _processor(scene, span))
        scene.require(used < MOST_USED, f"without a kubelet the plugin used {used:.0%} of a processor")
        await scene.kubelet.start()
        took = await _back(scene, known, 0.1)
    return f"{used:.1%} of a processor for {span:.0f} s, then Register {took * 1000:.1f} ms after the kubelet listened"


async def _processor(scene: PluginScene, seconds: float) -> float:
    """Return the share of a processor that the plugin uses while nothing happens."""
    before, began = scene.instance.usage(), time.monotonic()
    await scene.quiet(seconds, events.RegisterReceived)
    return scene.instance.usage().share_since(before, time.monotonic() - began)


@CHECKS.add(
    19,
    "a new kubelet.sock with the old inode is a new kubelet",
    expected="kubelet.sock deleted and made anew with the same inode number: Register",
    rule="section 4.4: file systems hand out the inode of a deleted file again, so the number does not identify a "
    "socket",
    cure="compare device, inode and change time, or better: react to events and to the end of your stream",
    routes=KUBELET_SOCK,
)
async def _same_inode(case: Case) -> str:
    for place in (None, "/var/tmp", "/dev/shm", os.getcwd()):  # noqa: S108 - directories of our own are made in them
        if place is not None and not os.access(place, os.W_OK):
            continue
        with tempfile.TemporaryDirectory(prefix="kdp-", dir=place, ignore_cleanup_errors=True) as directory:
            if not _reuses_inodes(Path(directory)):
                continue
            async with case.node(root=Path(directory)) as scene:
                await scene.start()
                await scene.connected()
                for tries in range(1, 41):
                    known, before = len(scene.lists), _inode(scene)
                    await scene.kubelet.stop()
                    await scene.kubelet.start()
                    took = await _back(scene, known, 0.1)
                    if _inode(scene) == before:
                        return f"inode {before} again at restart {tries}; Register {took * 1000:.1f} ms after listening"
    raise NotApplicable("no file system here gave a new socket the inode of the previous one")


def _inode(scene: PluginScene) -> int:
    return scene.kubelet.paths.kubelet_socket.stat().st_ino


def _reuses_inodes(directory: Path) -> bool:
    seen: list[int] = []
    probe = directory / "probe"
    for _ in range(4):
        probe.touch()
        seen.append(probe.stat().st_ino)
        probe.unlink()
    return len(set(seen)) < len(seen)


@CHECKS.add(
    20,
    "the plugin waits for a kubelet that is bound but does not listen yet",
    expected="200 ms between bind and listen, connecting is refused: Register when it listens",
    rule="section 4.4: between bind and listen connecting is refused for a moment",
    cure="treat ECONNREFUSED as 'not yet', and try again within milliseconds",
    routes=KUBELET_SOCK,
)
async def _late_listen(case: Case) -> str:
    async with case.connected() as scene:
        known = len(scene.lists)
        await scene.kubelet.restart(listen_delay=0.2)
        took = await _back(scene, known, 0.1)
    return f"Register {took * 1000:.1f} ms after the kubelet listened"


async def _started_without(case: Case, what: str) -> str:
    span = case.span(1.5)
    async with case.node(autostart=False) as scene:
        scene.kubelet.paths.device_plugin_dir.mkdir(parents=True, exist_ok=True)
        if what == "dead":
            scene.kubelet.faults.socket_dead()
        instance = await scene.start()
        await scene.quiet(span, events.RegisterReceived)
        scene.require(instance.is_ready() is not True, "the plugin reports ready without a kubelet")
        await scene.kubelet.start()
        took = await scene.until(lambda: scene.registers, case.limit(1.0), "no Register came when the kubelet appeared")
        await scene.connected()
    return f"alive for {span:.1f} s without a kubelet, Register {took * 1000:.0f} ms after it came"


@CHECKS.add(
    21,
    "the plugin waits if kubelet.sock is dead",
    expected="kubelet.sock refuses connections when the plugin starts: it waits, is not ready, does not exit, and "
    "registers when a kubelet listens",
    rule="section 4.3: a kubelet that ends leaves its socket behind, so the file does not prove a kubelet; section "
    "12 (B7, B25)",
    cure="serve, wait for a kubelet.sock that accepts connections, and never exit because there is none",
    routes=KUBELET_SOCK,
)
async def _dead_socket(case: Case) -> str:
    return await _started_without(case, "dead")


@CHECKS.add(
    22,
    "the plugin waits if kubelet.sock is missing",
    expected="no kubelet.sock when the plugin starts: it waits, and registers when it is created",
    rule="section 4.1: kubelet.sock appears late in a kubelet's start; section 12 (B7, B25)",
    cure="watch the directory for kubelet.sock, and never exit because there is none",
    routes=KUBELET_SOCK,
)
async def _no_socket(case: Case) -> str:
    return await _started_without(case, "absent")


@CHECKS.add(
    23,
    "the plugin finds a kubelet without directory events",
    expected="directory events are refused or lost: the plugin finds the new kubelet by polling, within 2 s",
    rule="section 12 (B9): events get lost (queue overflow, limits of the user, odd file systems)",
    cure="poll kubelet.sock every second if watching is refused, and after an overflow",
    routes=KUBELET_SOCK,
    alone=True,
)
async def _without_events(case: Case) -> str:
    """Refuse inotify; of a program of its own, let its queue run over."""
    if not case.subject.has_process:
        async with case.connected(Staging(without_inotify=True)) as scene:
            known = len(scene.lists)
            await scene.kubelet.restart(down=case.span(1.5))
            took = await _back(scene, known, 2.0)
        return f"inotify refused; Register {took:.2f} s after the kubelet listened"
    async with case.connected() as scene:
        known = len(scene.lists)
        queue = _queue()
        if queue > 500_000:
            raise NotApplicable(f"the kernel queues {queue} events; letting that run over would take too long")
        scene.instance.pause()
        try:
            await scene.kubelet.stop()
            _flood(scene.kubelet.paths.device_plugin_dir, queue)
            await scene.kubelet.start()
        finally:
            scene.instance.resume()
        took = await _back(scene, known, 2.0, since=time.monotonic())
    return f"{queue} events and more lost; Register {took:.2f} s after the process ran again"


def _queue() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def _flood(directory: Path, queue: int) -> None:
    """Make more events than the kernel keeps for a reader that does not read."""
    for number in range(queue // 2 + 100):
        path = os.path.join(directory, f".flood-{number}")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.unlink(path)


@CHECKS.add(
    24,
    "the plugin registers in a replaced plugin directory, or exits",
    expected=(
        "the directory removed and made again: the plugin registers in the new one, or ends with an exit code of "
        "its own"
    ),
    rule="section 4.4: a mount keeps pointing at the deleted directory, where no event and no kubelet ever comes; "
    "only a new container helps",
    cure="compare the directory with the one that you watch; where its link count is 0, exit with a non-zero code",
    routes=KUBELET_SOCK,
)
async def _replaced_directory(case: Case) -> str:
    async with case.connected() as scene:
        known = len(scene.lists)
        instance = scene.instance
        await scene.kubelet.crash()
        scene.kubelet.faults.replace_directory()
        await scene.kubelet.start()
        scene.may_end(instance)
        took = await scene.until(
            lambda: instance.ending is not None or len(scene.lists) > known,
            case.limit(3.5),
            "the plugin neither registered in the new directory nor ended",
        )
        if instance.ending is None:
            return f"registered in the new directory after {took:.2f} s"
        code = instance.ending.code
        scene.require(code is None or code > 0, f"the plugin {instance.ending}: a supervisor sees a normal end")
    return f"ended with exit code {code} after {took:.2f} s"
