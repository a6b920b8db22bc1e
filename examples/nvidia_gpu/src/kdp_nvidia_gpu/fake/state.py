"""What the fake library answers, as values; `NvmlState.text` is what it reads. See nvml.c for the format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

_FIELDS = {
    3: (12, 3),
    4: (1, 3),
    5: (340, 3),
    6: (2, 3),
    29: (3, 1),
    30: (4, 1),
    31: (0, 1),
    82: (55, 1),
    83: (9_876_543_210, 3),
    94: (6, 1),
    138: (5_000_000_000, 3),
    139: (4_000_000_000, 3),
    142: (8, 3),
    143: (9, 3),
    197: (70_000_000_000, 3),
    198: (60_000_000_000, 3),
}

FIELDS: Mapping[int, tuple[int, int]] = MappingProxyType(_FIELDS)
"""What `nvmlDeviceGetFieldValues` answers: value and NVML_VALUE_TYPE_*, by NVML_FI_DEV_*."""


@attrs.frozen(kw_only=True)
class MigState:
    """A MIG instance.

    Attributes:
        index: Its number within the GPU.
        uuid: Its UUID; empty: one that follows from GPU, instance and memory.
        gi: The id of its GPU instance.
        ci: The id of the compute instance in it.
        slices: Compute slices.
        gi_slices: Slices of the GPU instance; None: as many.
        memory_mib: Its memory in MiB.
    """

    index: int
    uuid: str = ""
    gi: int = 1
    ci: int = 0
    slices: int = 1
    gi_slices: int | None = None
    memory_mib: int = 16384


@attrs.frozen(kw_only=True)
class GpuState:
    """A GPU.

    Attributes:
        name: As NVML tells it.
        minor: The number of its device node; None: its index.
        memory_mib: Its memory in MiB.
        compute: Its compute capability.
        numa_node: The memory node near it.
        is_mig: Whether it is in MIG mode.
        instances: Its MIG instances.
        is_lost: Whether it has fallen off the bus.
        nvlinks: Where its NVLinks lead: the index of a GPU, or None: to a switch.
        remap_pending: Whether broken rows wait for a reset.
        remap_failed: Whether they cannot be replaced.
        recovery_action: What the driver wants, NVML_GPU_RECOVERY_ACTION_*.
        fabric: NVML_GPU_FABRIC_STATE_*, an error, and the health mask of the NVSwitch fabric.
        pids: Who computes on it.
        uuid: Its UUID; None: one that follows from its index.
        fields: What it answers to `nvmlDeviceGetFieldValues`, as `FIELDS`.
        license: The state of a virtual GPU's license, NVML_GRID_LICENSE_STATE_*; None: it is no virtual GPU.
    """

    name: str = "NVIDIA H200"
    minor: int | None = None
    memory_mib: int = 143771
    compute: str = "9.0"
    numa_node: int = 0
    is_mig: bool = False
    instances: tuple[MigState, ...] = ()
    is_lost: bool = False
    nvlinks: tuple[int | None, ...] = ()
    remap_pending: bool = False
    remap_failed: bool = False
    recovery_action: int = 0
    fabric: tuple[int, int, int] = (0, 0, 0)
    pids: tuple[int, ...] = ()
    uuid: str | None = None
    fields: Mapping[int, tuple[int, int]] = FIELDS
    license: int | None = None


_PROFILES: dict[str, str] = {
    "1g.18gb": "id=19 slices=1 size=1 mem=16384 sm=16 ce=1 dec=1 jpeg=1 places=0,1,2,3,4,5,6",
    "1g.18gb+me": "id=20 slices=1 size=1 mem=16384 sm=16 ce=1 dec=1 jpeg=1 ofa=1 places=0,1,2,3,4,5,6",
    "1g.35gb": "id=15 slices=1 size=2 mem=33280 sm=26 ce=1 dec=1 jpeg=1 places=0,2,4,6",
    "2g.35gb": "id=14 slices=2 size=2 mem=33280 sm=32 ce=2 dec=2 jpeg=2 places=0,2,4",
    "3g.71gb": "id=9 slices=3 size=4 mem=71424 sm=60 ce=3 dec=3 jpeg=3 places=0,4",
    "4g.71gb": "id=5 slices=4 size=4 mem=71424 sm=64 ce=4 dec=4 jpeg=4 places=0",
    "7g.141gb": "id=0 slices=7 size=8 mem=143771 sm=132 ce=8 dec=7 jpeg=7 ofa=1 places=0",
}
"""Those of an H200, by name."""


@attrs.frozen(kw_only=True)
class NvmlState:
    """All that the library knows.

    Attributes:
        gpus: The GPUs; None: there is none with this index (any more).
        driver: The driver's version.
        init: What nvmlInit answers; 9: the driver is not loaded.
        profiles: The MIG profiles that GPUs can have; of those of an H200 instances can be made.
        topology: The level between two GPUs, NVML_TOPOLOGY_*; 50 where nothing is said.
        excluded: The PCI addresses of GPUs that the administrator has excluded from the driver.
        failing: Calls that fail: name, error, and of which GPU (-1: all).
    """

    gpus: tuple[GpuState, ...] = (GpuState(), GpuState())
    driver: str = "580.159.03"
    init: int = 0
    profiles: tuple[str, ...] = ("1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb")
    topology: tuple[tuple[int, int, int], ...] = ()
    excluded: tuple[str, ...] = ()
    failing: tuple[tuple[str, int, int], ...] = ()

    @staticmethod
    def uuid(index: int) -> str:
        """Return the UUID of a GPU."""
        return f"GPU-00000000-fa4e-0000-0000-{index:012x}"

    def mig_uuid(self, gpu: int, index: int) -> str:
        """Return the UUID of a MIG instance."""
        instance = next(held for held in self.gpus[gpu].instances if held.index == index)
        return instance.uuid or f"MIG-00000000-fa4e-{gpu:04x}-{instance.gi:04x}-{instance.ci:012x}"

    @staticmethod
    def bus(index: int) -> str:
        """Return the PCI address of a GPU as sysfs writes it."""
        return f"0000:{0x3B + index:02x}:00.0"

    @property
    def text(self) -> str:
        """What the library reads."""
        lines = [f"driver {self.driver}", "cuda 13000", f"init {self.init}"]
        lines += [f"profile {name} {_PROFILES.get(name, '')}" for name in self.profiles]
        for index, gpu in enumerate(self.gpus):
            minor = index if gpu.minor is None else gpu.minor
            lines.append(
                f"gpu {index} uuid={self.uuid(index) if gpu.uuid is None else gpu.uuid} "
                f"name={gpu.name.replace(' ', '_')} minor={minor} bus=0000{self.bus(index).upper()} "
                f"mem={gpu.memory_mib} cc={gpu.compute} numa={gpu.numa_node} mig={int(gpu.is_mig)} "
                f"lost={int(gpu.is_lost)} nvlinks={len(gpu.nvlinks)} pending={int(gpu.remap_pending)} "
                f"failure={int(gpu.remap_failed)} action={gpu.recovery_action} "
                f"license={-1 if gpu.license is None else gpu.license}" + f" fabric={','.join(map(str, gpu.fabric))}"
            )
            lines += [f"field {index} {number} {value} {kind}" for number, (value, kind) in gpu.fields.items()]
            for mig in gpu.instances:
                lines.append(
                    f"mig {index} {mig.index} uuid={self.mig_uuid(index, mig.index)} gi={mig.gi} ci={mig.ci} "
                    f"slices={mig.slices} gislices={mig.gi_slices or mig.slices} mem={mig.memory_mib} "
                    f"sm={16 * mig.slices}"
                )
            for number, remote in enumerate(gpu.nvlinks):
                told = "bus=00000000:C1:00.0 type=2" if remote is None else f"bus=0000{self.bus(remote)} type=0"
                lines.append(f"link {index} {number} {told}")
            lines += [f"proc {index} {pid}" for pid in gpu.pids]
        lines += [f"excluded {bus}" for bus in self.excluded]
        lines += [f"topo {one} {other} {level}" for one, other, level in self.topology]
        lines += [f"fail {name} {error} {index}" for name, error, index in self.failing]
        return "".join(f"{line}\n" for line in lines)
