"""Where the plugins of a node have their own sockets: in the state directory, and in the pods of `kdp manifests`.

A pod has its socket in a volume in memory, which the node sees below the kubelet's directory. So commands on the node,
and in a pod that has the node's files, ask the plugin that a DaemonSet runs. All functions block for the disk.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

POD_VOLUME: Final = "run"
"""The name of the volume, an ``emptyDir``, in what `kdp manifests` writes."""

POD_SOCKET: Final = "plugin.sock"


def found_sockets(state_dir: Path, kubelet_root: Path) -> list[Path]:
    """Return the sockets of this node's plugins; a plugin that was killed leaves one."""
    pods = kubelet_root / "pods"
    of_pods = (pods / uid / "volumes/kubernetes.io~empty-dir" / POD_VOLUME / POD_SOCKET for uid in _names(pods))
    return [*sockets_in(state_dir), *filter(_is_socket, of_pods)]


def sockets_in(state_dir: Path) -> list[Path]:
    """Return the sockets in a state directory; none: it is empty, missing, or closed to this user."""
    names = [name for name in _names(state_dir) if name.endswith(".sock") and not name.startswith(".")]
    return [path for name in names if _is_socket(path := state_dir / name)]


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _is_socket(path: Path) -> bool:
    """Return whether a socket is there. No link is followed: what is in a volume is a pod's."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
