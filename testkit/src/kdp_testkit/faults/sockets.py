"""Faults 11, 12, 16 and 17: what lies at kubelet.sock."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ..protocol.pods import ScenarioError
from .base import FaultGroup, remove

if TYPE_CHECKING:
    from pathlib import Path


class SocketFaults(FaultGroup):
    """Faults of kubelet.sock."""

    def socket_absent(self) -> None:
        """Fault 11: there is no kubelet.sock.

        On a node: the kubelet has not reached its device manager yet, long after its process started (section 4.1).

        A good plugin waits, is not ready, does not exit, and registers when the socket appears.
        """
        remove(self._kubelet.paths.kubelet_socket)

    def socket_dead(self) -> None:
        """Fault 12: kubelet.sock is a socket file that nobody has open; connecting is refused.

        On a node: what a kubelet that ended leaves behind (section 4.3).

        A good plugin waits until somebody listens; a file is no kubelet.
        """
        path = self.clean_socket_path("a dead socket file")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(os.fspath(path))

    def unlink_socket(self) -> None:
        """Fault 16: kubelet.sock is unlinked while the kubelet serves.

        On a node: somebody tidied up. Streams that are open live on; nobody can register any more.

        A good plugin keeps its stream, and does not register while it lives.
        """
        self._process.living("there is no living socket to unlink")
        self._kubelet.paths.kubelet_socket.unlink()

    def recreate_socket_file(self) -> None:
        """Fault 17: kubelet.sock is made again, as another name of the same inode; the kubelet stays the same.

        On a node: file systems reuse inode numbers, so a new socket can have the old one's (section 4.4).

        A good plugin takes the open stream for the truth and does not register; after a restart it is not deceived by
        an inode number that it knows.
        """
        path = self.living_socket()
        twin = path.with_name(".kubelet.sock.twin")
        os.link(path, twin)
        path.unlink()
        os.rename(twin, path)

    def living_socket(self) -> Path:
        """Return the path of kubelet.sock, where a kubelet that runs must listen."""
        path = self._kubelet.paths.kubelet_socket
        if not self._kubelet.is_running:
            raise ScenarioError("the kubelet is not running: there is no socket whose file could be replaced")
        if not path.is_socket():
            raise ScenarioError(f"{path} is gone, so it cannot be replaced")
        return path

    def clean_socket_path(self, what: str) -> Path:
        """Return the path of kubelet.sock, where nothing lies any more; the kubelet must be stopped."""
        self._must_be_stopped(f"kubelet.sock cannot be {what}")
        path = self._kubelet.paths.kubelet_socket
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        remove(path)
        return path
