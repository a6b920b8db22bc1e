"""How the simulated kubelet misbehaves on command.

Each method is one fault of the contract's section 14, with its number. Faults of Register are queued: each one
meets the next Register calls, ``times`` of them (None: all that follow), and `clear` ends them. Faults of the
plugin directory happen at once. What would need a kubelet that is stopped, or one that runs, is refused with a
sentence.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
from typing import TYPE_CHECKING, Protocol

import attrs

from .checkpoint import CHECKPOINT_NAME
from .pods import ScenarioError

if TYPE_CHECKING:
    from pathlib import Path

    from kdp.kubelet.paths import KubeletPaths

__all__ = ["Faults", "RegisterFault"]


@attrs.frozen(kw_only=True)
class RegisterFault:
    """What happens to one Register call.

    Attributes:
        delay: Seconds that the reply comes late, after everything else was done.
        code: The status to answer with at once, without looking at the request; None to treat it properly.
        text: The status's text.
        hang: Never answer, never dial.
        drop: Break the connection instead of answering.
        dial: Whether the plugin is dialed; without it Register is answered ok all the same.
        stream: Whether ListAndWatch is called after dialing.
        connections: How many connections, each with its own stream, are made.
        dial_delay: Seconds until the plugin is dialed.
    """

    delay: float = 0.0
    code: str | None = None
    text: str = ""
    hang: bool = False
    drop: bool = False
    dial: bool = True
    stream: bool = True
    connections: int = 1
    dial_delay: float = 0.0


class _Kubelet(Protocol):
    @property
    def paths(self) -> KubeletPaths: ...
    @property
    def is_running(self) -> bool: ...


class Faults:
    """The faults of one simulated kubelet; reached as ``kubelet.faults``."""

    def __init__(self, kubelet: _Kubelet) -> None:
        self._kubelet = kubelet
        self._queue: list[tuple[RegisterFault, float]] = []
        self._held: list[socket.socket] = []

    def next_register(self) -> RegisterFault:
        """Take the fault that meets the Register call that just came."""
        if not self._queue:
            return RegisterFault()
        fault, left = self._queue[0]
        if left <= 1:
            self._queue.pop(0)
        else:
            self._queue[0] = (fault, left - 1)
        return fault

    def clear(self) -> None:
        """Treat the following Register calls properly."""
        self._queue.clear()

    def register(self, fault: RegisterFault, *, times: int | None = 1) -> None:
        """Queue any combination of faults for the next Register calls."""
        if times is not None and times < 1:
            raise ScenarioError(f"a fault cannot meet {times} calls")
        self._queue.append((fault, math.inf if times is None else times))

    # Register (contract section 14, 1-10) --------------------------------------------------------------------------

    def delay_register(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 1: Register is answered ``seconds`` late, after the plugin was dialed and asked for its options."""
        self.register(RegisterFault(delay=seconds), times=times)

    def refuse_register(self, text: str, *, code: str = "UNKNOWN", times: int | None = 1) -> None:
        """Fault 2: Register is answered with this status, whatever it says; the kubelet's own code is UNKNOWN."""
        self.register(RegisterFault(code=code, text=text), times=times)

    def hang_register(self, *, times: int | None = 1) -> None:
        """Fault 3: Register is never answered; it ends at the plugin's deadline."""
        self.register(RegisterFault(hang=True), times=times)

    def drop_register(self, *, times: int | None = 1) -> None:
        """Fault 4: the connection breaks after the request came."""
        self.register(RegisterFault(drop=True), times=times)

    def accept_without_dialing(self, *, times: int | None = 1) -> None:
        """Fault 5: Register is answered ok, and the plugin is never dialed."""
        self.register(RegisterFault(dial=False), times=times)

    def dial_without_stream(self, *, times: int | None = 1) -> None:
        """Fault 7: the plugin is dialed and asked for its options; ListAndWatch is never called."""
        self.register(RegisterFault(stream=False), times=times)

    def dial_twice(self, *, times: int | None = 1) -> None:
        """Fault 8: two connections with a stream each, both feeding the device table."""
        self.register(RegisterFault(connections=2), times=times)

    def dial_late(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 9: the plugin is dialed ``seconds`` after Register came."""
        self.register(RegisterFault(dial_delay=seconds), times=times)

    # kubelet.sock (11-16) ------------------------------------------------------------------------------------------

    def socket_absent(self) -> None:
        """Fault 11: there is no kubelet.sock; with a running kubelet: fault 16, unlinked while it serves."""
        _remove(self._kubelet.paths.kubelet_socket)

    def socket_dead(self) -> None:
        """Fault 12: kubelet.sock is a socket file that nobody has open; connecting is refused."""
        path = self._clean_socket_path("a dead socket file")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(os.fspath(path))

    def socket_not_listening(self) -> None:
        """Fault 13: kubelet.sock is bound by a process that does not listen; connecting is refused.

        For a delay between bind and listen of a kubelet that then starts, use ``start(listen_delay=...)``.
        """
        path = self._clean_socket_path("a socket that does not listen")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(os.fspath(path))
        self._held.append(bound)

    def socket_is_directory(self) -> None:
        """Fault 14: a directory lies at kubelet.sock; the kubelet itself could not start over it either."""
        self._clean_socket_path("a directory").mkdir()

    def socket_is_file(self) -> None:
        """Fault 14: a regular file lies at kubelet.sock."""
        self._clean_socket_path("a regular file").touch()

    def socket_mode(self, mode: int = 0) -> None:
        """Fault 15: kubelet.sock has this mode; 0 refuses everybody but root with EACCES."""
        self._kubelet.paths.kubelet_socket.chmod(mode)

    def recreate_socket_file(self) -> None:
        """Fault 17 without a restart: kubelet.sock is made again, as another name of the same inode.

        A plugin that watches the file sees a new file; the kubelet behind it is the one that it knows
        (scenario 26).
        """
        if not self._kubelet.is_running:
            raise ScenarioError("the kubelet does not run, so there is no living socket to make a new file of")
        path = self._kubelet.paths.kubelet_socket
        twin = path.with_name(".kubelet.sock.twin")
        os.link(path, twin)
        path.unlink()
        os.rename(twin, path)

    # The directory (21-24) -----------------------------------------------------------------------------------------

    def wipe_sockets(self) -> None:
        """Fault 21: every socket of the plugin directory but kubelet.sock is deleted."""
        self._wipe(lambda path: path.is_socket())

    def wipe_files(self) -> None:
        """Fault 22: everything in the plugin directory but kubelet.sock, directories and the checkpoint is deleted."""
        self._wipe(lambda path: not path.is_dir())

    def delete_socket(self, name: str) -> None:
        """Fault 23: one plugin's socket is deleted while it serves."""
        (self._kubelet.paths.device_plugin_dir / name).unlink()

    def replace_directory(self) -> None:
        """Fault 24: the plugin directory is removed and made again, empty; the kubelet must be stopped."""
        self._must_be_stopped("its directory cannot be replaced under it")
        directory = self._kubelet.paths.device_plugin_dir
        shutil.rmtree(directory)
        directory.mkdir(mode=0o750, parents=True)

    # Small helpers -------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Close the sockets that faults hold open."""
        while self._held:
            self._held.pop().close()

    def _must_be_stopped(self, why: str) -> None:
        if self._kubelet.is_running:
            raise ScenarioError(f"the kubelet is running: {why}; stop or crash it first")

    def _clean_socket_path(self, what: str) -> Path:
        self._must_be_stopped(f"kubelet.sock cannot be {what}")
        path = self._kubelet.paths.kubelet_socket
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove(path)
        return path

    def _wipe(self, is_victim: _Victim) -> None:
        keep = {self._kubelet.paths.kubelet_socket.name, CHECKPOINT_NAME}
        for path in self._kubelet.paths.device_plugin_dir.iterdir():
            if path.name not in keep and is_victim(path):
                path.unlink()


class _Victim(Protocol):
    def __call__(self, path: Path, /) -> bool: ...


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
