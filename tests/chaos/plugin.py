"""The vendor's plugin under chaos: toys that are files, and hooks that misbehave on command.

``python -m tests.chaos.plugin HARDWARE JOURNAL KUBELET STATE PORT``: the directory of the toys, the descriptor to which
it says what its hooks did, the kubelet's directory, that of kdp's own files, and the port of its probes.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from typing_extensions import override

import kdp
from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocations, tracker
from kdp.kubelet.podresources import PodResources

RESOURCE = "example.com/toy"
COMMAND = ".command"
CLOCK = ".clock"
SICK = "sick"

QUICK = Pace(
    gap=0.3,
    look=0.2,
    settled=1.0,
    settling=2.0,
    between=0.02,
    absent=0.5,
    after_connect=0.2,
    period=1.0,
    again=0.3,
    lasting=0.5,
)
"""The pauses of tracking, shortened, so that an hour holds many lives of allocations."""


class Toys(kdp.DeviceBackend):
    """Toys are files whose text is how they are."""

    resource = RESOURCE
    poll_interval = 0.1
    health_policy = kdp.HealthPolicy(hold_down=0.3, hold_down_max=0.6)  # quarantine, too, must end within a peace

    def __init__(self, hardware: Path, journal: int) -> None:
        self._hardware = hardware
        self._journal = journal
        self._is_awake = False

    @override
    def discover(self) -> Iterator[kdp.Device]:
        if not self._is_awake:
            self._is_awake = True
            self.say({"hook": "discover"})
        self.obey("discover")
        for file in sorted(self._hardware.iterdir()):
            if not file.name.startswith("."):
                is_sick = file.read_text() == SICK
                yield kdp.Device(
                    id=file.name, health=kdp.Health.unhealthy("it is sick") if is_sick else kdp.Health.healthy()
                )

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.obey("allocate")
        number = uuid4().hex
        devices.state["number"] = number
        self.say({"hook": "allocate", "number": number, "ids": [*devices.ids]})
        return kdp.ContainerEdits(env={"TOYS": ",".join(sorted(devices.ids)), "TOY_NUMBER": number})

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.obey("released")
        self.say({"hook": "released", "number": str(devices.state.get("number")), "ids": [*devices.ids]})

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

    Only kdp's: gRPC reads the time both here and in C, and a stepped clock is the same in both. A file's time is what
    the clock said when it was made, so what kdp knows of the kubelet's socket is wrong by as much.
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
        is_ours = caller is not None and str(caller.f_globals.get("__name__")).startswith("kdp.")
        return true() + (error_at(true()) if is_ours else 0.0)

    def wrong(pods: PodResources) -> float | None:
        moment = made_at(pods)
        return None if moment is None else moment + error_at(moment)

    time.time = clock
    setattr(PodResources, "made_at", wrong)  # noqa: B010 - types know no change of a class


def main() -> None:
    """Run it until it is asked to stop."""
    hardware, journal, kubelet, state, port = sys.argv[1:]
    let_clock_be_stepped(Path(hardware))
    for module, name, value in ((allocations, "FIRST_LOOK", 0.02), (tracker, "Pace", lambda: QUICK)):
        setattr(module, name, value)
    kdp.run(
        Toys(Path(hardware), int(journal)),
        kubelet_root=kubelet,
        device_plugin_dir=f"{kubelet}/device-plugins",
        state_dir=state,
        http=f"127.0.0.1:{port}",
    )


if __name__ == "__main__":
    main()
