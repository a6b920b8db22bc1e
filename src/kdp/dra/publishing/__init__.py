"""A backend's devices as ResourceSlices: what is published, in which slices, and when."""

from __future__ import annotations
