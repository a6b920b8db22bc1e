"""What an administrator applies: DaemonSet, kustomize base, or systemd unit, made of a backend's needs.

It does no I/O, and never asks a backend.

`deployment_of` decides what the plugin's process must be given, once, and says why. The renderers put that into the
words of Kubernetes and of systemd. The command reads the files and asks the backend.
"""

from __future__ import annotations

from .cluster import Cluster
from .deployment import CONFIG_DIR, Deployment, Folder, deployment_of, on_one_line
from .kubernetes import Placement, daemon_set, kustomization, workload_file
from .systemd import unit

__all__ = [
    "CONFIG_DIR",
    "Cluster",
    "Deployment",
    "Folder",
    "Placement",
    "daemon_set",
    "deployment_of",
    "kustomization",
    "on_one_line",
    "unit",
    "workload_file",
]
