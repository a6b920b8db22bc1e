"""``python -m kdp_nvidia_gpu.fake DIRECTORY``: make a node with GPUs that are not there."""

from __future__ import annotations

import argparse
from pathlib import Path

from .node import FakeNode, compile_library
from .state import GpuState, MigState, NvmlState


def main() -> None:
    """Make the node."""
    parser = argparse.ArgumentParser(prog="python -m kdp_nvidia_gpu.fake", description=__doc__)
    parser.add_argument("directory", type=Path, help="where; must be empty or not exist")
    parser.add_argument("--gpus", type=int, default=2, help="how many GPUs (default 2)")
    parser.add_argument("--mig", action="store_true", help="the last GPU is divided: one 3g.71gb and two 1g.18gb")
    parser.add_argument("--nvswitch", action="store_true", help="all GPUs are connected by NVSwitch")
    parser.add_argument("--without-driver", action="store_true", help="the driver is not installed")
    asked = parser.parse_args()
    links = (None,) * 18 if asked.nvswitch else ()
    gpus = [GpuState(numa_node=2 * i // asked.gpus, nvlinks=links) for i in range(asked.gpus)]
    if asked.mig:
        divided = (
            MigState(index=0, gi=2, slices=3, memory_mib=71424),
            MigState(index=1, gi=7),
            MigState(index=2, gi=8),
        )
        gpus[-1] = GpuState(numa_node=1, is_mig=True, instances=divided)
    asked.directory.mkdir(parents=True, exist_ok=True)
    library = None if asked.without_driver else compile_library(asked.directory)
    FakeNode(asked.directory, library=library, state=NvmlState(gpus=tuple(gpus)))
    if library is not None:
        library.unlink()


if __name__ == "__main__":
    main()
