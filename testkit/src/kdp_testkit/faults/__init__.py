"""How the simulated kubelet misbehaves on command, by the numbers of the contract's section 14.

Here are the faults that the conformance checks use, and those that a vendor's own test can act on; kdp's own tests have
the others. Each fault is a method whose docstring begins with its number and says what happens on a node and what a
good plugin does about it. Faults of the kubelet's doings (Register, dialing, the plugin watcher, the pod-resources API)
are armed first and meet what comes next, mostly a number of ``times``; `Faults.clear` disarms them. Faults of files and
of the kubelet's life happen at once. What would need a kubelet that is stopped, or one that runs, is refused with a
sentence.

A handful are methods of the kubelet itself, because they need no word "fault": `SimulatedKubelet.drop_stream` (30),
`sever` (32), `pause_reading` (33), `checkpoint_noise` (27). Those of the pod-resources API are in `podresources`, those
of the plugin watcher in `watcher`; what waits for something to meet is in `armed_faults`.
"""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING

from ..armed_faults import ArmedFaults, RegisterFault
from ..devicemanager.checkpoint import CHECKPOINT_NAME
from ..protocol.pods import ScenarioError
from .base import remove
from .podresources import PodResourcesFaults
from .watcher import WatcherFaults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..profiles import Profile

__all__ = ["Faults", "RegisterFault"]


class Faults(PodResourcesFaults, WatcherFaults[ArmedFaults]):
    """The faults of one simulated kubelet; reached as ``kubelet.faults``.

    Faults of Register and of the plugin watcher are queued: each meets the next calls or sockets, ``times`` of them
    (None: all that follow).
    """

    # -- Register ------------------------------------------------------------------------------------------------------

    def delay_register(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 1: Register is answered ``seconds`` late, after the plugin was dialed and asked for its options.

        On a node: a busy kubelet. The stream may be open long before the reply comes.

        A good plugin serves the stream meanwhile, waits at least 15 s for the reply, and does not register twice.
        """
        self.register(RegisterFault(delay=seconds), times=times)

    def refuse_register(self, text: str, *, code: str = "UNKNOWN", times: int | None = 1) -> None:
        """Fault 2: Register is answered with this status, whatever it says; the kubelet's own code is UNKNOWN.

        On a node: a version or a name that this kubelet does not accept, or it could not reach the plugin (section
        2.2).

        A good plugin tells the lasting refusals from the passing ones by their text, says why once, and tries again.
        """
        self.register(RegisterFault(code=code, text=text), times=times)

    def hang_register(self, *, times: int | None = 1) -> None:
        """Fault 3: Register is never answered; it ends at the plugin's deadline.

        On a node: the kubelet's disk or its locks are stuck.

        A good plugin has a deadline of its own, of 15 s or more, and then tries again under a new socket name.
        """
        self.register(RegisterFault(hang=True), times=times)

    def drop_register(self, *, times: int | None = 1) -> None:
        """Fault 4: the connection breaks after the request came.

        On a node: the kubelet is killed while it registers the plugin.

        A good plugin takes it for a failure and registers with the next kubelet that listens.
        """
        self.register(RegisterFault(drop=True), times=times)

    def accept_without_dialing(self, *, times: int | None = 1) -> None:
        """Fault 5: Register is answered ok, and the plugin is never dialed.

        On a node: the kubelet ended in between, or took the call for a repetition.

        A good plugin believes only in an open stream: without one after 10 s it registers anew.
        """
        self.register(RegisterFault(dial=False), times=times)

    def dial_without_stream(self, *, times: int | None = 1) -> None:
        """Fault 7: the plugin is dialed and asked for its options; ListAndWatch is never called.

        On a node: the kubelet ended between its answer and the stream (B6).

        A good plugin registers anew when no stream has come after 10 s.
        """
        self.register(RegisterFault(stream=False), times=times)

    # -- kubelet.sock --------------------------------------------------------------------------------------------------

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

    # -- the plugin directory ------------------------------------------------------------------------------------------

    def wipe_sockets(self) -> None:
        """Fault 21: every socket of the plugin directory but kubelet.sock is deleted.

        On a node: every kubelet's start (section 4.3); here without one.

        A good plugin keeps a stream that lives, and registers under a new name when it ends.
        """
        self._wipe(lambda path: path.is_socket())

    def wipe_files(self) -> None:
        """Fault 22: everything in the plugin directory but kubelet.sock, directories and the checkpoint is deleted.

        On a node: the start of kubelets up to 1.30 and of 1.31.1 to 1.32 (section 4.3).

        A good plugin keeps no state there.
        """
        self._wipe(lambda path: not path.is_dir())

    def delete_socket(self, name: str) -> None:
        """Fault 23: one plugin's socket is deleted while it serves.

        On a node: another instance's end, which unlinks by path (section 11).

        A good plugin keeps a stream that lives, and notices the loss when it needs the name.
        """
        (self._kubelet.paths.device_plugin_dir / name).unlink()

    def replace_directory(self) -> None:
        """Fault 24: the plugin directory is removed and made again, empty; the kubelet must be stopped.

        On a node: a reinstalled kubelet. A pod that mounts the old one sees nothing ever after (section 4.4).

        A good plugin watches the new directory, or exits with a code of its own where a mount pins the old one.
        """
        self._must_be_stopped("its directory cannot be replaced under it")
        directory = self._kubelet.paths.device_plugin_dir
        shutil.rmtree(directory)
        directory.mkdir(mode=0o750, parents=True)

    def _wipe(self, is_victim: Callable[[Path], bool]) -> None:
        keep = {self._kubelet.paths.kubelet_socket.name, CHECKPOINT_NAME}
        for path in self._kubelet.paths.device_plugin_dir.iterdir():
            if path.name not in keep and is_victim(path):
                path.unlink()

    # -- the kubelet's life --------------------------------------------------------------------------------------------

    async def clean_restart(self) -> None:
        """Fault 53: the kubelet closes its connections, removes kubelet.sock, ends, and starts again.

        On a node: the device manager's own end, which hardly any kubelet reaches.

        A good plugin registers within 100 ms of the new socket's listening, under a new name.
        """
        await self._kubelet.stop()
        await self._kubelet.start()

    async def crash_restart(self) -> None:
        """Fault 54: the kubelet is killed and restarts; connections break, kubelet.sock stays until its cleanup.

        On a node: ``systemctl restart kubelet`` and every upgrade look like that (section 4.3).

        A good plugin registers within 100 ms of the new socket's listening, under a new name.
        """
        await self._kubelet.restart()

    async def stay_down(self, seconds: float = 600.0) -> None:
        """Fault 57: the kubelet is down for ten minutes, or as long as it is told, and then starts again.

        On a node: a failed upgrade. The resource is dropped five minutes after the *next* kubelet's start if nobody
        serves it (section 4.5).

        A good plugin waits without a busy loop, and registers as quickly as after a short break.
        """
        await self._kubelet.restart(down=seconds)

    async def restart_storm(self, times: int, *, down: float = 0.0) -> None:
        """Fault 59: the kubelet is killed and started ``times`` times, as quickly as it comes up.

        On a node: a kubelet that fails soon after its start.

        A good plugin is registered with the last one, once, and has lost nothing on the way.
        """
        for _ in range(times):
            await self._kubelet.restart(down=down)

    async def switch_profile(self, profile: str | Profile) -> None:
        """Fault 60: the kubelet is replaced by another version on the same directory and checkpoint.

        On a node: an upgrade or a downgrade under a plugin that stays.

        A good plugin has no notion of the kubelet's version, and registers as after any restart.
        """
        await self._kubelet.restart(profile=profile)

    # -- the plugin watcher --------------------------------------------------------------------------------------------

    async def walk_again(self) -> None:
        """Fault 69: the kubelet restarts and walks the watcher's directory, in which the sockets have stayed.

        On a node: every restart; nothing is deleted there (section 3).

        A good plugin is found again without doing anything, or under a new socket when its stream has ended.
        """
        await self._kubelet.restart()

    def path_like_authority(self) -> None:
        """Fault 72: connections made from now on name the socket's path, percent-encoded, as their authority.

        On a node: the plugin watcher's dial, and kubelets up to 1.25 (section 2.4, B22).

        A good plugin takes any authority.
        """
        self.armed.authority = None
