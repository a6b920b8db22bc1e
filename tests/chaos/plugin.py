"""The vendor's plugin under chaos: toys that are files, and hooks that misbehave on command.

``python -m tests.chaos.plugin HARDWARE JOURNAL CHANNEL OPTIONS PORT``: the directory of the toys, the descriptor to
which it says what its hooks did, the socket on which it answers questions, the options of `kdp.run` as JSON, and the
port of its probes.

A toy's file has its health, the number of the card that it is, and its resource: ``fine 7 example.com/toy``. The card
keeps its number and its node, whatever the toy is called.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

from typing_extensions import override

import kdp
from kdp.allocation.sharing import base_id
from kdp.deviceplugin import manager, servicer
from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocations, tracker
from kdp.kubelet.podresources import PodResources
from kdp.supervision import supervisor
from kdp.supervision.supervisor import Deadlines

from .account import answer_questions, saved_in
from .disk import DISK, FaultyDisk

RESOURCE = "example.com/toy"
OTHER_RESOURCE = "example.com/doll"
COMMAND = ".command"
CLOCK = ".clock"
SICK = "sick"

QUICK = Pace(
    gap=0.3,
    look=0.2,
    settled=1.0,
    settling=2.0,
    between=0.02,
    retry=0.05,
    absent=0.5,
    after_connect=0.2,
    period=1.0,
    again=0.3,
    lasting=0.5,
)
"""The pauses of tracking, shortened, so that an hour holds many lives of allocations."""

START_SECONDS = 2.0
"""For the start of a container that waits for a scrub; the real 25 s outlast a peace."""


def node_of(card: int) -> str:
    """Return the device node of a card."""
    return f"/dev/toy{card}"


class Toys(kdp.DeviceBackend):
    """Toys are files whose text is how they are.

    Args:
        hardware: The directory of the toys.
        journal: The descriptor to which the hooks speak.
        state: Where a device plugin saves allocations.
    """

    resource = RESOURCE
    poll_interval = 0.1
    health_policy = kdp.HealthPolicy(hold_down=0.3, hold_down_max=0.6)  # quarantine, too, must end within a peace

    def __init__(self, hardware: Path, journal: int, state: Path | None = None) -> None:
        self._hardware = hardware
        self._journal = journal
        self._state = state
        self._is_awake = False

    @override
    def discover(self) -> Iterator[kdp.Device]:
        if not self._is_awake:
            self._is_awake = True
            self.say({"hook": "discover"})
        self.obey("discover")
        for file in sorted(self._hardware.iterdir()):
            if not file.name.startswith("."):
                health, card, resource = file.read_text().split()
                yield kdp.Device(
                    id=file.name,
                    resource=resource,
                    health=kdp.Health.unhealthy("it is sick") if health == SICK else kdp.Health.healthy(),
                    identity=f"card {card}",
                    edits=kdp.ContainerEdits.of_node(node_of(int(card))),
                )

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        is_intended = self._is_intended({*devices.ids})
        self.obey("allocate")
        number = uuid4().hex
        devices.state["number"] = number
        devices.state["calls"] = 0
        self.say({**self._about("allocate", devices), "is_intended": is_intended})
        merged = kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)
        return merged.adding(env={"TOYS": ",".join(sorted(devices.ids)), "TOY_NUMBER": number})

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self._count("prepare_container", devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self._count("released", devices)

    def _count(self, hook: str, devices: kdp.Allocation) -> None:
        """Count a call in the state, obey, and say so, also if the hook is told to raise."""
        if "number" in devices.state:
            devices.state["calls"] += 1
        try:
            self._obey_for(hook, devices)
        except (RuntimeError, OSError):  # it was told to, or there are no descriptors
            self.say({**self._about(hook, devices), "has_failed": True})
            raise
        self.say({**self._about(hook, devices), "has_failed": False})

    def _obey_for(self, hook: str, devices: kdp.Allocation) -> None:
        del devices
        self.obey(hook)

    def _is_intended(self, ids: set[str]) -> bool:
        """Return whether a file has an Allocate of these devices without a state."""
        for _ in range(3):
            with contextlib.suppress(OSError, ValueError):  # it is being written
                intents = {} if self._state is None else saved_in(self._state).intents
                return any({base_id(device) for device in intent} == ids for intent in intents.values())
        return False

    def _about(self, hook: str, devices: kdp.Allocation) -> dict[str, object]:
        nodes = [node.host_path for device in devices for node in device.edits.device_nodes]
        state = {name: devices.state.get(name) for name in ("number", "calls")}
        return {"hook": hook, **state, "ids": [*devices.ids], "nodes": nodes}

    def obey(self, hook: str) -> None:
        """Do what the world commands: ``hook=raise``, ``hook=hang`` until another command, or ``hook=SECONDS``."""
        while (what := self._commanded(hook)) == "hang":
            time.sleep(0.01)
        if what == "raise":
            raise RuntimeError(f"{hook} was told to raise")
        if what is not None:
            time.sleep(float(what))

    def _commanded(self, hook: str) -> str | None:
        try:
            text = (self._hardware / COMMAND).read_text()
        except FileNotFoundError:
            return None
        name, _, what = text.partition("=")
        return what if name == hook else None

    def say(self, said: dict[str, object]) -> None:
        os.write(self._journal, json.dumps(said).encode() + b"\n")


def let_clock_be_stepped(hardware: Path) -> None:
    """Let kdp's wall clock be wrong, as a file says: by how many seconds since when, a line for each step.

    Only kdp's: gRPC reads the time both here and in C, and a stepped clock is the same in both. Its compiled code has
    no frame, so the module that asks it for the time left counts as gRPC's. A file's time is what the clock said when
    it was made, so what kdp knows of the kubelet's socket is wrong by as much.
    """
    true, made_at = time.time, PodResources.made_at

    def error_at(moment: float) -> float:
        with contextlib.suppress(OSError):
            steps = [line.split() for line in (hardware / CLOCK).read_text().splitlines()]
            return next((float(error) for since, error in reversed(steps) if float(since) <= moment), 0.0)
        return 0.0

    def clock() -> float:
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        name = "" if caller is None else str(caller.f_globals.get("__name__"))
        is_ours = name.startswith("kdp.") and name != servicer.__name__
        return true() + (error_at(true()) if is_ours else 0.0)

    def wrong(pods: PodResources) -> float | None:
        moment = made_at(pods)
        return None if moment is None else moment + error_at(moment)

    time.time = clock
    setattr(PodResources, "made_at", wrong)  # noqa: B010 - types know no change of a class


def main() -> None:
    """Run it until it is asked to stop."""
    hardware, journal, channel, options, port = sys.argv[1:]
    settings = json.loads(options)
    FaultyDisk(Path(hardware) / DISK, [settings["state_dir"]]).install()
    answer_questions(int(channel))
    let_clock_be_stepped(Path(hardware))
    for module, name, value in (
        (allocations, "FIRST_LOOK", 0.02),
        (allocations, "LOOK_AGAIN", 0.1),
        (tracker, "Pace", lambda: QUICK),
        (manager, "LOOK_PAUSE", 0.2),
        (manager, "QUIET_PAUSE", 0.2),
        (supervisor, "Deadlines", partial(Deadlines, prepare_container=START_SECONDS)),
    ):
        setattr(module, name, value)
    toys = Toys(Path(hardware), int(journal), Path(settings["state_dir"]))
    kdp.run(toys, http=f"127.0.0.1:{port}", **settings)


if __name__ == "__main__":
    main()
