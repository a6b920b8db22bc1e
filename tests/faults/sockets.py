"""Faults 13 to 15 and 18 to 20: what else can lie at kubelet.sock, and how it is replaced."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from typing_extensions import override

from kdp_testkit.faults import Faults
from kdp_testkit.protocol.listener import Listener

if TYPE_CHECKING:
    from kdp_testkit.armed_faults import ArmedFaults
    from kdp_testkit.devicemanager.kubelet_core import CurrentProcess, KubeletCore


class OddSocketFaults(Faults):
    """More faults of kubelet.sock."""

    def __init__(self, kubelet: KubeletCore, process: CurrentProcess, armed: ArmedFaults) -> None:
        super().__init__(kubelet, process, armed)
        self._held: list[socket.socket] = []

    @override
    def release(self) -> None:
        super().release()
        while self._held:
            self._held.pop().close()

    def socket_not_listening(self) -> None:
        """Fault 13: kubelet.sock is bound by a process that does not listen; connecting is refused.

        On a node: the moment between bind(2) and listen(2), or a kubelet that hangs there. For a delay of a kubelet
        that then starts, use ``start(listen_delay=...)``.

        A good plugin tries again in less than a millisecond after the file appeared, and more slowly later.
        """
        path = self.clean_socket_path("a socket that does not listen")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(os.fspath(path))
        self._held.append(bound)

    def socket_is_directory(self) -> None:
        """Fault 14: a directory lies at kubelet.sock; the kubelet itself could not start over it either.

        On a node: a hostPath volume of the socket file, made before there was a kubelet.

        A good plugin says what lies there and waits.
        """
        self.clean_socket_path("a directory").mkdir()

    def socket_is_file(self) -> None:
        """Fault 14: a regular file lies at kubelet.sock.

        On a node: a backup that was restored, a wrong mount.

        A good plugin says what lies there and waits.
        """
        self.clean_socket_path("a regular file").touch()

    def socket_mode(self, mode: int = 0) -> None:
        """Fault 15: kubelet.sock has this mode; 0 refuses everybody but root with EACCES.

        On a node: the plugin does not run as root, or SELinux stands between (B24).

        A good plugin says that it is not permitted, and goes on trying.
        """
        self._kubelet.paths.kubelet_socket.chmod(mode)

    def recreate_socket(self) -> None:
        """Fault 18: kubelet.sock is made again as a new socket with an inode of its own; the same kubelet listens.

        On a node: a kubelet whose registry server started anew, or an event that came late for the one in use (B8).

        A good plugin whose stream lives ignores it.
        """
        path = self.living_socket()
        process = self._process.living("it cannot make a new socket")
        listener = Listener(path.with_name(".kubelet.sock.new"), process._inner)
        process._listeners.append(listener)
        listener.listen()
        os.rename(listener.path, path)
        listener.path = path
        process._running_tasks.start_soon(listener.serve)

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
        path = self.living_socket()
        real = path.parent.with_name("kubelet-real.sock")
        os.rename(path, real)
        path.symlink_to(real)
