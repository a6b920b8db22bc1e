"""A backend's devices as ResourceSlices: what is published, in which slices, and when.

It knows neither claims nor the kubelet's calls.
"""

from __future__ import annotations
