"""A DRA driver as a process of the node that kills itself by SIGKILL at a step of Prepare.

A step is whatever lasts: before each fsync, rename and unlink, before and after each call of the backend, and before the
answer is sent. What is given is a file in a folder, so that it outlives the process.

usage: python -m tests.node.dra_killed FOLDER HARDWARE STEP; STEP is a number, -1: it lives
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from typing_extensions import override

import kdp
from kdp.claims import Claim
from kdp.dra.driver import DraDriver
from kdp.dra.kube import KubeApi
from kdp.dra.prepare import Outcome, Preparer

from .dra_driver import Widgets

CALLS = ("fsync", "rename", "unlink")


class Killer:
    """Counts the steps, and ends the process at one of them."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.is_armed = False

    def step(self, name: str) -> None:
        if not self.is_armed:
            return
        if self._left == 0:
            os.write(1, f"killed {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def spread(self) -> None:
        """Have steps before the calls of the kernel, and around a Prepare."""

        def before(name: str) -> Any:
            call = getattr(os, name)

            def wrapped(*args: Any, **more: Any) -> Any:
                self.step(f"before {name}")
                return call(*args, **more)

            return wrapped

        for name in CALLS:
            setattr(os, name, before(name))
        prepare = Preparer.prepare

        async def wrapped(preparer: Preparer, claims: Iterable[Claim]) -> dict[str, Outcome]:
            self.is_armed = True
            outcomes = await prepare(preparer, claims)
            self.step("before the answer")
            self.is_armed = False
            return outcomes

        Preparer.prepare = wrapped  # type: ignore[assignment,method-assign]


class Mortal(Widgets):
    """What is given is a file."""

    def __init__(self, folder: Path, hardware: Path, killer: Killer) -> None:
        super().__init__(folder)
        self._hardware = hardware
        self._killer = killer

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self._killer.step("before allocate")
        (self._hardware / devices.request).touch()
        self._killer.step("after allocate")
        return super().allocate(devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        (self._hardware / devices.request).unlink(missing_ok=True)
        super().released(devices)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    folder, hardware, step = sys.argv[1:]
    killer = Killer(int(step))
    killer.spread()
    async with KubeApi() as api, DraDriver([Mortal(Path(folder), Path(hardware), killer)], api=api, node="node0"):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
