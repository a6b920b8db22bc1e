"""Where the plugins of a node have their own sockets: in the state directory, and in the pods of `kdp manifests`.

A pod has its socket in a volume in memory, which the node sees below the kubelet's directory. So commands on the node,
and in a pod that has the node's files, ask the plugin that a DaemonSet runs. All functions block for the disk.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POD_VOLUME: Final = "run"
"""The name of the volume, an ``emptyDir``, in what `kdp manifests` writes."""

POD_SOCKET: Final = "plugin.sock"


def found_sockets(state_dir: Path, kubelet_root: Path) -> list[Path]:
    """Return the sockets of this node's plugins; a plugin that was killed leaves one."""
    return [*filter(_is_socket, sorted(state_dir.glob("[!.]*.sock"))), *_of_pods(kubelet_root / "pods")]


def _of_pods(pods: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for uid in sorted(os.listdir(pods)):
            path = pods / uid / "volumes/kubernetes.io~empty-dir" / POD_VOLUME / POD_SOCKET
            if _is_socket(path):
                yield path


def _is_socket(path: Path) -> bool:
    """Return whether a socket is there. No link is followed: what is in a volume is a pod's."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
