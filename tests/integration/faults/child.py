"""A plugin's process for the tests: ``python child.py '{"backends": ["Plain"], "options": {...}}'``."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from typing import NoReturn

from typing_extensions import override

import kdp

RESOURCE = "example.com/widget"


def hang() -> NoReturn:
    """Block in a read that never returns, as a driver's ioctl can; say so before."""
    logging.getLogger("child").info("%s hangs", sys._getframe(1).f_code.co_qualname)
    read_end, _write_end = os.pipe()
    while True:
        os.read(read_end, 1)


class Plain(kdp.DeviceBackend):
    """Two devices, never polled."""

    resource = RESOURCE
    poll_interval = 3600.0

    @override
    def discover(self) -> list[kdp.Device]:
        return kdp.Device.counted("w", 2)


class OpenHangs(Plain):
    resource = "example.com/open"

    @override
    def open(self) -> None:
        hang()


class DiscoverHangs(Plain):
    resource = "example.com/discover"

    @override
    def discover(self) -> list[kdp.Device]:
        hang()


class AllocateHangs(Plain):
    resource = "example.com/allocate"

    @override
    def discover(self) -> list[kdp.Device]:
        return kdp.Device.counted("a", 2)

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        hang()


class WatchHangs(Plain):
    @override
    def watch(self, report: kdp.Reporter) -> None:
        hang()


class CloseHangs(Plain):
    @override
    def close(self) -> None:
        hang()


class LoopHangs(Plain):
    """Breaks the rule: an ``async def`` hook that blocks, and the event loop with it."""

    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        hang()


class NotReady(Plain):
    @override
    def open(self) -> None:
        raise kdp.NotReady("the widget driver is not loaded")


class Slow(Plain):
    """An Allocate that takes half a second."""

    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        import anyio

        logging.getLogger("child").info("Slow.allocate waits")
        await anyio.sleep(0.5)
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})


def stay_lost() -> None:
    """Make the server's end hang, so that a state lasts that is over at once otherwise."""
    import anyio

    from kdp.kubelet.server import SocketServer

    async def never(*_: object) -> None:
        await anyio.sleep_forever()

    SocketServer.stop = never  # type: ignore[assignment, method-assign]


def main() -> None:
    spec = json.loads(sys.argv[1])
    for name, value in spec.get("patch", {}).items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    if spec.get("stays_lost"):
        stay_lost()
    if spec.get("wait"):
        sys.stdin.readline()
    kdp.run(*(globals()[name]() for name in spec["backends"]), **spec["options"])


if __name__ == "__main__":
    main()
