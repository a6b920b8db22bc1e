"""A ResourceSlice that a server takes."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def good(name: str = "good") -> Object:
    """Return a slice with one device that has a bit of everything."""
    device = {
        "name": "gpu-0",
        "attributes": {"model": {"string": "A"}, "example.com/index": {"int": 0}, "driver": {"version": "1.2.3"}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    pool = {"name": "node0", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "pool": pool, "nodeName": "node0", "devices": [device]},
    }
