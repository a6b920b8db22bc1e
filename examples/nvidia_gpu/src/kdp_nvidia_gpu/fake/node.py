"""`FakeNode`: a directory that looks like a node with GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from kdp.testing import SysfsTree

from ..mig import MigMinors
from .state import GpuState, NvmlState

if TYPE_CHECKING:
    import kdp.hardware

SOURCE = Path(__file__).with_name("nvml.c")
WHOLE = SOURCE.with_name("fabric.c")  # which includes it
LIBRARY = "libnvidia-ml.so.1"
PLACE = "/usr/lib/x86_64-linux-gnu"

MAJOR, CAPS_MAJOR = 195, 235

_TOOL = """#!/bin/sh
# compute-policy -i UUID --set-timeslice=N, as the nvidia-smi of the driver has it; it records what was asked for.
case "$1 $2 $4" in
  "compute-policy -i --set-timeslice="[0-3]) ;;
  *) echo "ERROR: Option $* is not recognized. Please run 'nvidia-smi -h'." >&2; exit 2 ;;
esac
case "$LD_PRELOAD" in */libnvidia-ml.so.1) ;; *) echo "Failed to initialize NVML: no library" >&2; exit 12 ;; esac
if [ -e "$0.broken" ]; then echo "Failed to set timeslice for GPU $3: Insufficient Permissions"; exit 4; fi
echo "$3 ${4#--set-timeslice=}" >> "$0.log"
"""


def compile_library(directory: Path, *, old: bool = False) -> Path:
    """Compile the fake library and return its path.

    Args:
        directory: Where to.
        old: Leave out what came with later drivers.

    Raises:
        FileNotFoundError: There is no C compiler.
    """
    compiler = next((found for name in ("gcc", "cc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError("a C compiler (gcc) is needed to make the fake libnvidia-ml")
    target = directory / LIBRARY
    command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}", "-o", str(target), str(WHOLE)]
    subprocess.run([*command, "-lpthread", "-ldl", *(["-DOLD"] if old else [])], check=True)  # noqa: S603
    return target


class FakeNode:
    """A node with GPUs. What `set` changes, the library notices at once, as the real one does when hardware changes.

    Args:
        root: An empty directory.
        library: What `compile_library` made; None: a node without the driver, until `install`.

    Attributes:
        state: What the GPUs are like.
        tree: The node's files.
    """

    def __init__(self, root: Path, *, library: Path | None, state: NvmlState | None = None) -> None:
        self.tree = SysfsTree(root)
        self.tree.stand_in("/dev/null", major=1, minor=3)  # as every node has it, for the strategy volume-mounts
        self.state = state or NvmlState()
        self.file = self.tree.path(f"{PLACE}/libnvidia-ml.state")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.set(self.state)
        if library is not None:
            self.install(library)

    @property
    def host(self) -> kdp.hardware.Host:
        """The node's files."""
        return self.tree.host

    @property
    def root(self) -> Path:
        """Where they are."""
        return self.tree.host.root

    def install(self, library: Path) -> None:
        """Install the driver: its library and its device nodes."""
        place = self.file.with_name(LIBRARY)
        draft = place.with_name(f".{LIBRARY}")
        shutil.copy(library, draft)
        draft.rename(place)  # a process that has loaded the one before must not lose its pages
        for number, name in ((255, "nvidiactl"), (254, "nvidia-modeset"), (0, "nvidia-uvm"), (1, "nvidia-uvm-tools")):
            self.tree.stand_in(f"/dev/{name}", major=MAJOR, minor=number)
        tool = self.tree.path("/usr/bin/nvidia-smi")
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(_TOOL)
        tool.chmod(0o755)
        self.set(self.state)

    def set(self, state: NvmlState) -> None:
        """Make the hardware so, with the files that belong to it."""
        self.state = state
        new = self.file.with_name("new")
        new.write_text(state.text, errors="surrogateescape")
        if (self.file.parent / LIBRARY).exists():
            self._files()
        os.replace(new, self.file)

    def change(self, index: int, **changes: Any) -> None:
        """Change one GPU; see `GpuState`."""
        gpus = list(self.state.gpus)
        gpus[index] = attrs.evolve(gpus[index], **changes)
        self.set(attrs.evolve(self.state, gpus=tuple(gpus)))

    def reboot(self) -> None:
        """Lose what a reboot loses: MIG instances that somebody has made, and lengths of time slices."""
        for file in (Path(f"{self.file}.made"), self.tree.path("/usr/bin/nvidia-smi.log")):
            file.unlink(missing_ok=True)

    @property
    def time_slices(self) -> list[str]:
        """What the driver's tool was asked for, in order: ``GPU-... 2``."""
        file = self.tree.path("/usr/bin/nvidia-smi.log")
        return file.read_text().splitlines() if file.exists() else []

    def event(self, line: str) -> None:
        """Let an event happen: ``xid GPU CODE [GI CI]`` or ``mig GPU``."""
        with Path(f"{self.file}.events").open("a") as events:
            events.write(f"{line}\n")

    def _files(self) -> None:
        minors: list[str] = []
        for index, gpu in enumerate(self.state.gpus):
            bus, minor = self.state.bus(index), _minor(index, gpu)
            if not self.host.exists(f"/sys/bus/pci/devices/{bus}"):
                self.tree.pci_function(bus, vendor=0x10DE, device=0x2335, class_code=0x030200, numa_node=gpu.numa_node)
            if not self.host.exists(f"/dev/nvidia{minor}"):
                self.tree.stand_in(f"/dev/nvidia{minor}", major=MAJOR, minor=minor)
            could_be = (
                [(gi, 0) for gi in range(1, 15)] if gpu.is_mig else []
            )  # the driver names all that there could be
            for gi, ci in dict.fromkeys([*((mig.gi, mig.ci) for mig in gpu.instances), *could_be]):
                first = 9 + 128 * minor + 9 * gi
                lines = {
                    f"gpu{minor}/gi{gi}/access": first,
                    f"gpu{minor}/gi{gi}/ci{ci}/access": first + 1 + ci,
                }
                minors += [f"{name} {number}" for name, number in lines.items()]
                for number in lines.values():
                    if not self.host.exists(f"/dev/nvidia-caps/nvidia-cap{number}"):
                        self.tree.stand_in(f"/dev/nvidia-caps/nvidia-cap{number}", major=CAPS_MAJOR, minor=number)
        if minors:
            self.tree.write(MigMinors.PATH, "\n".join(["config 1", "monitor 2", *dict.fromkeys(minors)]))


def _minor(index: int, gpu: GpuState) -> int:
    return index if gpu.minor is None else gpu.minor
