"""Count the files of ``src/kdp`` that are entered from a stimulus to its answer: a health change, and an Allocate.

A file counts if one of its functions is called, in any thread, between the moment at which the backend reports a
fault, or the kubelet calls, and the moment at which the kubelet has the list, or the reply. What the simulated kubelet
itself calls of kdp does not count.
"""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from typing_extensions import override

import kdp
import kdp_testkit
from kdp.testing import Pod, SimulatedKubelet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

RESOURCE = "example.com/widget"
KDP = str(Path(kdp.__file__).parent)
KIT = str(Path(kdp_testkit.__file__).parent)


class Entered:
    """Notes the files that are entered while it is switched on."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take an event of the profiler."""
        if self._files is None or event != "call":
            return
        name, caller = frame.f_code.co_filename, frame.f_back
        is_ours = name.startswith(KDP) and frame.f_code.co_name != "<module>"
        if is_ours and (caller is None or not caller.f_code.co_filename.startswith(KIT)):
            self._files.add(name.removeprefix(f"{KDP}/"))

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Note what is entered inside."""
        self._files = found = set[str]()
        try:
            yield found
        finally:
            self._files = None


class Widgets(kdp.DeviceBackend):
    """Two devices, one of which fails when it is told to."""

    resource = RESOURCE
    poll_interval = None

    def __init__(self) -> None:
        self.is_ill = threading.Event()

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id=f"w{number}", edits=kdp.ContainerEdits(env={"N": str(number)})) for number in range(2)]

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self.is_ill.wait()
        report.fault("w0", "ordered")
        report.stopping.wait()

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return devices.edits()


async def measured(entered: Entered) -> dict[str, set[str]]:
    """Return the files of each way."""
    found: dict[str, set[str]] = {}
    backend = Widgets()
    async with SimulatedKubelet() as kubelet, kubelet.serving(backend):
        await kubelet.until(allocatable={RESOURCE: 2})
        for number in range(2):  # the first one loads modules
            with entered.noting() as found["Allocate"]:
                admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}, name=f"pod-{number}"))
            await kubelet.delete(admitted.pod)
            await anyio.sleep(0.5)
        with entered.noting() as found["health change"]:
            backend.is_ill.set()
            await kubelet.until(allocatable={RESOURCE: 1})
    return found


def main() -> int:
    """Print the numbers, and with ``--files`` the names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="name the files")
    arguments = parser.parse_args()
    entered = Entered()
    threading.setprofile(entered)
    sys.setprofile(entered)
    for what, names in anyio.run(measured, entered).items():
        print(f"{what}: {len(names)} files")
        if arguments.files:
            print(*(f"  {name}" for name in sorted(names)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
