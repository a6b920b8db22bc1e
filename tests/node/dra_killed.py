"""A DRA driver as a process of the node that kills itself by SIGKILL at a step of Prepare.

A step is whatever lasts: before each fsync, rename and unlink, before and after each call of the backend, and before
the answer is sent. What is given is a file in a folder, so that it outlives the process.

usage: python -m tests.node.dra_killed FOLDER HARDWARE STEP; STEP is a number, -1: it lives
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
from typing_extensions import override

import kdp
from kdp.cluster.client import KubeApi
from kdp.dra.claims.prepare import JobOutcome, Preparer
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.model.claims import Claim

from ..killer import Killer
from .dra_driver import Widgets

CALLS = ("fsync", "rename", "unlink")


def spread(killer: Killer) -> None:
    """Have steps before the calls of the kernel, and around a Prepare."""
    for name in CALLS:
        setattr(os, name, killer.before(name, getattr(os, name)))
    prepare = Preparer.prepare

    async def wrapped(preparer: Preparer, claims: Iterable[Claim]) -> dict[str, JobOutcome]:
        killer.is_armed = True
        outcomes = await prepare(preparer, claims)
        killer.step("before the answer")
        killer.is_armed = False
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
    killer = Killer(int(step), tells=1)
    spread(killer)
    async with (
        KubeApi() as api,
        DraDriver([Mortal(Path(folder), Path(hardware), killer)], DriverOptions(api=api, node="node0")),
    ):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
