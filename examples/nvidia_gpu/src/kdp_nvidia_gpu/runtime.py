"""What the node must have for the strategies of NVIDIA's container runtime, as far as a plugin can see.

Without it a container starts all the same, with no GPU in it and no word about it. So it is told before anything is
listed.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import kdp.hardware

RUNTIME_PLACES = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/bin/nvidia-container-runtime",
    "/usr/local/bin/nvidia-container-runtime",
    "/usr/local/nvidia/toolkit/nvidia-container-runtime",
    "/opt/nvidia-container/nvidia-container-runtime",
)
"""Where the NVIDIA Container Toolkit (package or GPU operator) puts its runtime or its configuration."""

CONTAINERD = ("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml")

_DEFAULT = re.compile(r'^\s*default_runtime_name\s*=\s*["\']nvidia', re.MULTILINE)


def runtime_evidence(host: kdp.hardware.Host, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why we think that the node has NVIDIA's container runtime; None: nothing says so."""
    for path in RUNTIME_PLACES:
        if host.exists(path):
            return f"{path} is there"
    if environment.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("", "void") and host.exists("/dev/nvidiactl"):
        return "it has put the driver into this plugin's own container"
    return None


def is_default(host: kdp.hardware.Host) -> bool:
    """Return whether containerd's configuration makes it the runtime of pods that name no RuntimeClass."""
    files = [path for pattern in CONTAINERD for path in _listed(host, pattern)]
    return any(_DEFAULT.search(host.reading(path).or_else("")) for path in files)


def _listed(host: kdp.hardware.Host, pattern: str) -> list[str]:
    """Return what matches a pattern. What may not be read is as if it were not there, as a file's text is."""
    try:
        return host.glob(pattern)
    except PermissionError:
        return []
