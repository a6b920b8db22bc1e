"""From what a backend needs to what an admin applies: a DaemonSet, a kustomize base, a systemd unit.

No I/O: `deployment_of` decides what the plugin's process must be given, once, and says why; the renderers put that
into the words of Kubernetes and of systemd. Reading files and asking the backend is the command's business.
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
