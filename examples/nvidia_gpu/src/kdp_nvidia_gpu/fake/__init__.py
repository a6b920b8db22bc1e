"""A node with GPUs that are not there: `nvml.c` as its library, device nodes that nobody can open, and /sys and /proc.

For tests, and for who wants to see the plugin without a GPU: ``python -m kdp_nvidia_gpu.fake DIRECTORY`` makes one,
and ``--host-root DIRECTORY`` uses it. nvidia-ml-py is unmodified; it loads this library as it would load NVIDIA's.
"""

from __future__ import annotations

from .node import FakeNode, compile_library
from .state import GpuState, MigState, NvmlState

__all__ = ["FakeNode", "GpuState", "MigState", "NvmlState", "compile_library"]
