"""The reference backends on a large node, all in one process that is left alone: memory and processor time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from .largenode import BOARDS, GPUS, HCAS, LargeNode
from .processes import Process, memory
from .start import KDP
from .table import Row, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .setting import Setting

__all__ = ["rows"]

REPLICAS, SLOTS = 10, 64

COMMAND = (
    *(KDP, "run", "nvidia-gpu", "fpga", "rdma", "--set=strategies=device-nodes", "--set=rdma.mode=hca"),
    *(f"--set=slots={SLOTS}", f"--replicas-for=resource=nvidia.com/gpu={REPLICAS}"),
)

DEVICES = {"nvidia.com/gpu": GPUS * REPLICAS, "rdma/hca": HCAS * SLOTS}
"""What the kubelet must have, besides the boards' ports, before anything is measured."""


def rows(setting: Setting) -> Iterator[Row]:
    """Let one process serve it with the polling that the backends have by default; half of the time is for settling."""
    seconds = setting.rounds(60, 20)
    with setting.node() as (root, node):
        large = LargeNode(root / "node")
        variables = {
            "KDP_KUBELET_ROOT": str(root),
            "KDP_DEVICE_PLUGIN_DIR": str(root / "device-plugins"),
            "KDP_HOST_ROOT": str(large.root),
            "KDP_STATE_DIR": str(root / "state"),
        }
        with Process(COMMAND, environment=variables, log=root / "plugin.log") as plugin:
            for resource, count in {**DEVICES, large.accelerator: 2 * BOARDS}.items():
                node.event("list_received", resource=resource, healthy=count, unhealthy=0, timeout=60.0)
            time.sleep(seconds / 2)
            before, began = _processor_seconds(plugin.pid), time.monotonic()
            time.sleep(seconds)
            spent, took = _processor_seconds(plugin.pid), time.monotonic() - began
            named = _by_thread(before, spent, took)
            resident = memory(plugin.pid)
    note = f"{GPUS} GPUs x {REPLICAS}, {HCAS} HCAs x {SLOTS}, {BOARDS} boards; "
    yield at_most("backends: one process, RSS", resident, 70, "MB", note=note + f"after {1.5 * seconds:.0f} s")
    share = 100 * sum(spent[thread] - before.get(thread, 0.0) for thread in spent) / took
    yield at_most(
        "backends: idle with default polling", share, 0.3, "% of a core", digits=2, note=f"{took:.0f} s; {named}"
    )


def _processor_seconds(pid: int) -> dict[str, float]:
    """Return what each thread has had of a processor, by number and name; that of threads that have ended is lost."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        found[f"{task.name} {name}"] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def _by_thread(before: dict[str, float], after: dict[str, float], seconds: float) -> str:
    """Return the threads that had most, in per mille of a core."""
    had = {name: after[name] - before.get(name, 0.0) for name in after}
    most = sorted(had, key=lambda name: -had[name])[:6]
    return ", ".join(f"{name.partition(' ')[2]} {1000 * had[name] / seconds:.2f}" for name in most) + " per mille"
