"""Faults 11 to 20: what lies at kubelet.sock, and how it is replaced."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from typing_extensions import override

from ..protocol.pods import ScenarioError
from .base import FaultGroup, remove

if TYPE_CHECKING:
    from pathlib import Path

    from ..armed_faults import ArmedFaults
    from ..devicemanager.current_process import CurrentProcess
    from ..devicemanager.kubelet_core import KubeletCore


class SocketFaults(FaultGroup):
    """Faults of kubelet.sock."""

    def __init__(self, kubelet: KubeletCore, process: CurrentProcess, armed: ArmedFaults) -> None:
        super().__init__(kubelet, process, armed)
        self._held: list[socket.socket] = []

    @override
    def release(self) -> None:
        super().release()
        while self._held:
            self._held.pop().close()

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
        path = self._clean_socket_path("a dead socket file")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(os.fspath(path))

    def socket_not_listening(self) -> None:
        """Fault 13: kubelet.sock is bound by a process that does not listen; connecting is refused.

        On a node: the moment between bind(2) and listen(2), or a kubelet that hangs there. For a delay of a kubelet
        that then starts, use ``start(listen_delay=...)``.

        A good plugin tries again in less than a millisecond after the file appeared, and more slowly later.
        """
        path = self._clean_socket_path("a socket that does not listen")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(os.fspath(path))
        self._held.append(bound)

    def socket_is_directory(self) -> None:
        """Fault 14: a directory lies at kubelet.sock; the kubelet itself could not start over it either.

        On a node: a hostPath volume of the socket file, made before there was a kubelet.

        A good plugin says what lies there and waits.
        """
        self._clean_socket_path("a directory").mkdir()

    def socket_is_file(self) -> None:
        """Fault 14: a regular file lies at kubelet.sock.

        On a node: a backup that was restored, a wrong mount.

        A good plugin says what lies there and waits.
        """
        self._clean_socket_path("a regular file").touch()

    def socket_mode(self, mode: int = 0) -> None:
        """Fault 15: kubelet.sock has this mode; 0 refuses everybody but root with EACCES.

        On a node: the plugin does not run as root, or SELinux stands between (B24).

        A good plugin says that it is not permitted, and goes on trying.
        """
        self._kubelet.paths.kubelet_socket.chmod(mode)

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
        path = self._living_socket()
        twin = path.with_name(".kubelet.sock.twin")
        os.link(path, twin)
        path.unlink()
        os.rename(twin, path)

    def recreate_socket(self) -> None:
        """Fault 18: kubelet.sock is made again as a new socket with an inode of its own; the same kubelet listens.

        On a node: a kubelet whose registry server started anew, or an event that came late for the one in use (B8).

        A good plugin whose stream lives ignores it.
        """
        self._living_socket()
        self._process.living("it cannot make a new socket").new_listener()

    def recreate_socket_twice(self) -> None:
        """Fault 19: kubelet.sock is replaced by a new socket twice within 5 ms.

        On a node: a kubelet that is killed and started again at once; the first new socket is gone when it is looked
        at.

        A good plugin ends up with the last one, with a single registration.
        """
        self.recreate_socket()
        self.recreate_socket()

    def socket_is_link(self) -> None:
        """Fault 20: kubelet.sock is a symbolic link to the kubelet's socket, which lies one directory higher.

        On a node: distributions that moved the kubelet's directory.

        A good plugin registers through the link.
        """
        path = self._living_socket()
        real = path.parent.with_name("kubelet-real.sock")
        os.rename(path, real)
        path.symlink_to(real)

    def _living_socket(self) -> Path:
        path = self._kubelet.paths.kubelet_socket
        if not self._kubelet.is_running:
            raise ScenarioError("the kubelet is not running: there is no socket whose file could be replaced")
        if not path.is_socket():
            raise ScenarioError(f"{path} is gone, so it cannot be replaced")
        return path

    def _clean_socket_path(self, what: str) -> Path:
        self._must_be_stopped(f"kubelet.sock cannot be {what}")
        path = self._kubelet.paths.kubelet_socket
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        remove(path)
        return path
