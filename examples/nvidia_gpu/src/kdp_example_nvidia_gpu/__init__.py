"""A device plugin for NVIDIA GPUs: whole ones, MIG instances, MPS, with health that recovers.

The data's way: ``nvml`` (the library, and how its calls fail) -> ``gpus`` and ``mig`` (what is there) -> ``strategies``
with ``nodes``, ``runtime`` and ``mps`` (what a container needs) -> ``backend``, which joins them. ``xids`` says what an
error means, ``events`` waits for one, ``recovery`` decides when a GPU is well again. ``links`` tells who has NVLink to
whom, ``options`` checks what the admin wants. ``fake`` is a library for machines without a GPU.
"""

from __future__ import annotations

from .backend import NvidiaGpu

__all__ = ["NvidiaGpu"]
