"""A device plugin for NVIDIA GPUs: whole ones, MIG instances, MPS, with health that recovers.

The data's way: ``nvml`` (the library, and how its calls fail) -> ``gpus`` and ``mig`` (what is there) -> ``strategies``
with ``nodes``, ``runtime`` and ``mps`` (what a container needs) -> ``listing`` (the devices) -> ``backend``, which
joins them. Between two discoveries ``watching`` has the word: ``events`` waits for an error, ``xids`` says what it
means, ``recovery`` decides when it is over. ``links`` tells who has NVLink to whom, ``options`` checks what the admin
wants. ``power`` does what a DRA claim asks for. ``fake`` is a library for machines without a GPU.
"""

from __future__ import annotations

from .backend import NvidiaGpu
from .power import GpuConfig

__all__ = ["GpuConfig", "NvidiaGpu"]
