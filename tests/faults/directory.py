"""Faults 25, 26, 28 and 29: the plugin directory's file system and the kernel's watch of it.

Mounts are made in a mount namespace of the plugin's own and never in that of the machine: start the plugin under
``unshare --mount`` and give its process id.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from kdp.kubelet.paths import KubeletPaths
from kdp.testing import ScenarioError
from kdp_testkit.faults.base import FaultGroup
from kdp_testkit.protocol.validation import MAX_SOCKET_PATH_BYTES

if TYPE_CHECKING:
    from kdp_testkit.armed_faults import ArmedFaults
    from kdp_testkit.devicemanager.kubelet_core import CurrentProcess, KubeletCore

_FILLER = ".filler-"
_MOST_BYTES = 64 * 1024 * 1024
_MOST_EVENTS = 1_000_000


class DiskFaults(FaultGroup):
    """Faults of what the plugin directory lies on."""

    def __init__(self, kubelet: KubeletCore, process: CurrentProcess, armed: ArmedFaults) -> None:
        super().__init__(kubelet, process, armed)
        self._fillers: list[Path] = []

    @override
    def release(self) -> None:
        super().release()
        self.free_disk()

    def read_only(self, pid: int, *, writable: bool = False) -> None:
        """Fault 25: the plugin directory becomes read-only for the process ``pid``; ``writable``: it is writable again.

        On a node: a mount with ``readOnly``, or a disk whose file system was remounted after an error.

        A good plugin says so, is not ready, and makes its socket as soon as it can.

        Args:
            pid: A process in a mount namespace of its own.
            writable: End the fault.

        Raises:
            ScenarioError: The process shares this one's mounts, or nsenter(1) or root is missing.
        """
        directory = str(self._kubelet.paths.device_plugin_dir)
        self._own_mounts(pid)
        if not writable:
            self._mount_for(pid, "--bind", directory, directory)
        self._mount_for(pid, "-o", f"remount,bind,{'rw' if writable else 'ro'}", directory)

    def fill_disk(self) -> int:
        """Fault 26: the plugin directory's file system has no room for one more file; return how many were made.

        On a node: logs filled the disk. Nothing can be bound, and the kubelet cannot write its checkpoint.

        A good plugin says so, is not ready, and makes its socket as soon as there is room.

        Raises:
            ScenarioError: The file system is not one of at most 64 MiB, which it takes a tmpfs for: a real disk must
                not be filled by a test.
        """
        directory = self._kubelet.paths.device_plugin_dir
        size = os.statvfs(directory)
        if size.f_blocks * size.f_frsize > _MOST_BYTES and not 0 < size.f_files < 100_000:
            raise ScenarioError(
                f"the file system of {directory} is too large to be filled by a test; mount a small tmpfs there"
            )
        while True:
            filler = directory / f"{_FILLER}{len(self._fillers)}"
            try:
                with filler.open("wb", buffering=0) as file:
                    self._fillers.append(filler)
                    if 0 < size.f_blocks * size.f_frsize <= _MOST_BYTES:
                        while file.write(bytes(64 * 1024)):
                            pass
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not filler.exists():
                    return len(self._fillers)

    def free_disk(self) -> None:
        """Take back what `fill_disk` has put there."""
        while self._fillers:
            self._fillers.pop().unlink(missing_ok=True)

    def overflow_inotify(self, pid: int | None = None) -> int:
        """Fault 28: more happens in the directory than the kernel's queue holds; return how many events were made.

        On a node: a plugin that was starved for a while on a busy directory. Events are lost, and only one says so.

        A good plugin takes an overflow for "look at everything", and looks more often from then on.

        Args:
            pid: The plugin's process, which is stopped meanwhile; None: it runs in this very thread, which makes the
                events in one go.

        Raises:
            ScenarioError: The kernel's queue is so long that filling it is no test any more.
        """
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        if limit > _MOST_EVENTS:
            raise ScenarioError(f"the kernel queues {limit} events; a test can make {_MOST_EVENTS}")
        directory = os.open(self._kubelet.paths.device_plugin_dir, os.O_RDONLY)
        try:
            if pid is not None:
                os.kill(pid, signal.SIGSTOP)
            rounds = limit // 2 + 2
            for number in range(rounds):  # names that change, because equal events are merged
                os.mkdir(f".flood-{number % 7}", dir_fd=directory)
                os.rmdir(f".flood-{number % 7}", dir_fd=directory)
        finally:
            if pid is not None:
                os.kill(pid, signal.SIGCONT)
            os.close(directory)
        return 2 * rounds

    def without_inotify(self, command: Sequence[str]) -> list[str]:
        """Fault 28: return a command that runs this one where the kernel gives no inotify at all.

        On a node: the user's limit of instances is used up by others.

        A good plugin says so and looks every second instead.

        Raises:
            ScenarioError: unshare(1) cannot make a user namespace here.
        """
        wrapper = ["unshare", "--user", "--map-root-user"]
        if not _works([*wrapper, "true"]):
            raise ScenarioError("inotify cannot be refused here: unshare(1) cannot make a user namespace")
        script = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
        return [*wrapper, "sh", "-c", script, "sh", *command]

    def long_path(self) -> KubeletPaths:
        """Fault 29: return directories of this kubelet under a name that leaves no room for a socket's.

        On a node: a kubelet root deep in the tree; a socket's path has 107 bytes.

        A good plugin says at its start how long its directory's path may be, and exits.
        """
        directory = self._kubelet.paths.device_plugin_dir
        room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(directory.parent)) - 1
        link = directory.with_name("d" * max(1, room - len("/kubelet.sock")))
        if not link.is_symlink():
            link.symlink_to(directory.name)
        return attrs.evolve(self._kubelet.paths, device_plugin_dir=link)

    def _own_mounts(self, pid: int) -> None:
        try:
            shared = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
        except OSError as error:
            raise ScenarioError(f"the mounts of process {pid} cannot be seen: {error.strerror}") from None
        if shared:
            raise ScenarioError(f"process {pid} has this machine's mounts; start it under unshare --mount")

    def _mount_for(self, pid: int, *arguments: str) -> None:
        command = ["nsenter", "--mount", f"--target={pid}", "mount", *arguments]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError as error:
            raise ScenarioError(f"nsenter(1) cannot be run: {error.strerror}") from None
        if done.returncode:
            raise ScenarioError(f"{' '.join(command)} failed: {done.stderr.strip()}")


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False
