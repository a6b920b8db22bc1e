"""Kills a driver at each of its steps, and looks whether the next one makes it good. Run by test_crashes.py.

The process is forked for each life, before it has a thread, and the life is ended by SIGKILL at its nth step: before
and after each call of the backend, each fsync, rename and unlink. Hardware is a folder that outlives the lives: a file
for each request that was given and not taken back.

usage: python -m tests.unit.dra.claims.crashes FOLDER; prints one line of JSON for each life that was killed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
from tests.killer import Killer
from typing_extensions import override

import kdp
from kdp.dra.claims import releases
from kdp_testkit.patience import PATIENCE

from .claim_objects import claim, result
from .claims_world import Widgets, running

KINDS = ("hooks", "plain", "metadata")
"""A driver whose hooks take part in Prepare, one without, and one that also describes the devices to containers."""

STEPS = ("fsync", "rename", "unlink")


class Plain(Widgets):
    """No hook has a part in a Prepare."""

    unused_hooks = frozenset({"allocate", "released"})


class Hardware(Widgets):
    """What is given is a file."""

    def __init__(self, folder: Path, killer: Killer) -> None:
        super().__init__()
        self._folder = folder
        self._killer = killer

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self._killer.step("before allocate")
        (self._folder / devices.request).touch()
        self._killer.step("after allocate")
        return super().allocate(devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self._killer.step("before released")
        (self._folder / devices.request).unlink(missing_ok=True)
        self._killer.step("after released")


def described(folder: Path) -> list[str]:
    """Return the requests that containers are told of; a file that is not whole is an error."""
    return [json.loads(file.read_text().splitlines()[0])["requests"][0]["name"] for file in folder.glob("[!.]*")]


async def live(folder: Path, killer: Killer, kind: str, *calls: str) -> list[dict[str, Any]]:
    """Live one life of the driver; returns for each call what was answered, and what is there then."""
    seen: list[dict[str, Any]] = []
    (folder / "hardware").mkdir(exist_ok=True)
    backend = Plain() if kind == "plain" else Hardware(folder / "hardware", killer)
    async with running(folder, backend) as world:
        world.metadata = kind == "metadata"
        world.start()
        world.api.put(claim(), [result("w0", "a"), result("w1", "b")])
        await world.preparer.recover()
        while world.supervisor.discovery.value.devices is None:
            await world.supervisor.discovery.after(world.supervisor.discovery.version)
        for call in calls:
            killer.is_armed = True
            [outcome] = (await getattr(world.preparer, call)([claim()])).values()
            killer.is_armed = False
            spec = world.spec(claim())
            record = world.preparer.store.read(claim().uid)
            seen.append(
                {
                    "error": outcome.error,
                    "devices": [[device.base, device.name, list(device.cdi_ids)] for device in outcome.devices],
                    "names": [] if spec is None else [f"{spec.kind}={device.name}" for device in spec.devices],
                    "is_complete": record is not None and record.is_complete,
                    "files": [name for name in world.files if not name.endswith(".draft")],
                    "hardware": sorted(os.listdir(folder / "hardware")),
                    "metadata": sorted(described(world.data / "metadata" / claim().uid)),
                }
            )
    return seen


def forked(folder: Path, at: int, kind: str, *calls: str) -> tuple[str, list[dict[str, Any]]]:
    """Live a life in a process of its own; returns the step at which it was killed, and what it found if it was not."""
    said_by, says = os.pipe()
    found_by, finds = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(says, 2)
        killer = Killer(at, tells=2)
        for name in STEPS:
            setattr(os, name, killer.around(name, getattr(os, name)))
        found = anyio.run(lambda: live(folder, killer, kind, *calls))
        os.write(finds, json.dumps(found).encode())
        os._exit(0)
    os.close(says)
    os.close(finds)
    with open(said_by) as said, open(found_by) as found_:
        told, text = said.read(), found_.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return told.partition("killed ")[2].strip(), []
    if status or not text:
        raise SystemExit(f"a life ended with {status}: {told}")
    return "", json.loads(text)


def main() -> None:
    folder = Path(sys.argv[1])
    releases.UNPREPARE_SECONDS = PATIENCE  # type: ignore[misc] # what is killed is a release that Unprepare waits for
    lives: tuple[tuple[str, tuple[str, ...]], ...] = (("prepare", ()), ("unprepare", ("prepare",)))
    for kind, (crashed, before) in itertools.product(KINDS, lives):
        for at in range(1000):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if before:
                forked(folder, -1, kind, *before)
            step, _ = forked(folder, at, kind, crashed)
            if not step:
                break
            _, (again, prepared, undone) = forked(folder, -1, kind, crashed, "prepare", "unprepare")
            found = {"kind": kind, "crashed": crashed, "step": step}
            print(json.dumps({**found, "again": again, "prepared": prepared, "undone": undone}), flush=True)


if __name__ == "__main__":
    main()
