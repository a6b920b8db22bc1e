"""What the node must have for a strategy to work, as far as a plugin can see: NVIDIA's container runtime, a CDI spec.

Without them a container starts all the same, with no GPU in it and no word about it. So what is missing is told before
anything is listed, or as the device's health.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kdp.cli.yaml_reading import parse_yaml

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
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")

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


class CdiNames:
    """The CDI devices that the node's specs describe. A spec is parsed again only when it has changed."""

    def __init__(self, host: kdp.hardware.Host) -> None:
        self._host = host
        self._parsed: dict[str, tuple[str, frozenset[str]]] = {}

    def read(self) -> frozenset[str]:
        """Return the qualified names of all devices; a file that is no spec has none."""
        found: frozenset[str] = frozenset()
        for directory in CDI_DIRECTORIES:
            for path in _listed(self._host, f"{directory}/*"):
                if path.endswith((".json", ".yaml")):
                    text = self._host.reading(path).or_else("")
                    if self._parsed.get(path, ("", None))[0] != text:
                        self._parsed[path] = (text, _names(text))
                    found |= self._parsed[path][1] if path in self._parsed else frozenset()
        return found


def _listed(host: kdp.hardware.Host, pattern: str) -> list[str]:
    """Return what matches a pattern. What may not be read is as if it were not there, as a file's text is."""
    try:
        return host.glob(pattern)
    except PermissionError:
        return []


def _names(text: str) -> frozenset[str]:
    try:
        spec = parse_yaml(text)  # of which JSON is a part
        names = [(spec["kind"], device["name"]) for device in spec["devices"]]
    except (ValueError, TypeError, KeyError):  # it is anybody's file
        return frozenset()
    return frozenset(f"{kind}={name}" for kind, name in names if isinstance(kind, str) and isinstance(name, str))
