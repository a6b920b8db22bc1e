"""`KubeletWatch`: is there a kubelet that takes registrations, and is it still the same one?

One for all resources of a process. It looks at ``kubelet.sock`` and its directory at every event of the directory,
every 30 s as the floor, and every second where inotify is refused or has overflowed. What it finds is a `KubeletView`;
sessions decide what follows.

The rules that keep it honest (contract section 4.4):

* A file proves nothing: ``kubelet.sock`` stays behind dead. Only a connect(2) that succeeds does.
* The inode number is no identity, it is reused: device, inode and change time together are.
* Between bind and listen a connect is refused for a moment: after each event it is tried again each millisecond.
* Names that are not sockets of the kubelet or of kdp are ignored: the kubelet writes its checkpoint into this directory
  after every message.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import random
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs

from ..concurrency.observable import Observable
from ..errors import PluginDirectoryGoneError
from ..hardware import DirectoryWatch
from ..startup import shown
from .sockets import PREFIX, connect

if TYPE_CHECKING:
    from ..concurrency.history import History

logger = logging.getLogger(__name__)

FLOOR = 30.0
"""Seconds between two looks that no event asked for."""

FLOOR_WITHOUT_INOTIFY = 1.0

BURST_SECONDS = 1.0
"""How long a refused connect is repeated every `BURST_STEP` after an event."""

BURST_STEP = 0.001

ABSENT_STEP = 0.1
"""Seconds between two looks in the burst after an event, if it has left no file."""

SLOWEST_STEP = 5.0
"""Seconds between two tries to connect to a file that nobody has listened on for long."""

_RNG = random.Random()  # noqa: S311 - jitter, no secret


class KubeletState(enum.Enum):
    """What stands where the kubelet should take registrations."""

    LISTENING = "listening"
    ABSENT = "there is no kubelet.sock"
    DEAD = "no process listens on kubelet.sock"
    BOUND = "kubelet.sock is bound, but its process does not listen"
    DENIED = "connecting to kubelet.sock is not permitted"
    NO_SOCKET = "kubelet.sock is not a socket"
    NO_DIRECTORY = "the plugin directory does not exist"
    NOT_A_DIRECTORY = "the plugin directory is no directory"
    UNREADABLE = "kubelet.sock cannot be examined"
    NO_DESCRIPTOR = "no file descriptor is free to connect to kubelet.sock"


_STATES = {
    0: KubeletState.LISTENING,
    **dict.fromkeys((errno.EACCES, errno.EPERM), KubeletState.DENIED),
    **dict.fromkeys((errno.ENOTSOCK, errno.EPROTOTYPE), KubeletState.NO_SOCKET),
}
"""By the error of connect(2); any other means that nobody listens."""


@attrs.frozen
class KubeletView:
    """What one look found.

    Attributes:
        state: See `KubeletState`.
        identity: Device, inode and change time of ``kubelet.sock``; None where there is none.
    """

    __repr__ = shown

    state: KubeletState
    identity: tuple[int, int, int] | None = None

    @property
    def made_at(self) -> float | None:
        """When the kubelet made its socket, in Unix seconds; None: nobody listens there."""
        listens = self.state is KubeletState.LISTENING and self.identity is not None
        return self.identity[2] / 1e9 if listens and self.identity is not None else None


class KubeletWatch:
    """Watch for a kubelet. Run `run` in a task group; read ``view``.

    Args:
        directory: Where ``kubelet.sock`` and the plugins' sockets are. The plugin watcher's directory will do as well:
            there is never a ``kubelet.sock`` in it, the rest is the same.
        history: Takes each restart; None: nobody reads it.

    Attributes:
        view: The newest `KubeletView`. Its version also grows when something happened to a socket of kdp's.
        restarts: How often another kubelet was found to listen than the one before.
    """

    def __init__(self, directory: Path, history: History | None = None) -> None:
        self._directory = directory
        self._history = history
        self._socket = directory / "kubelet.sock"
        self.view = Observable(KubeletView(KubeletState.ABSENT))
        self.restarts = 0
        self._listened: object | None = None
        self._wake = anyio.Event()
        self._directory_id: tuple[int, int] | None = None
        self._own_socket_changed = False
        self._quick_until = 0.0
        self._step = BURST_STEP

    def look(self) -> None:
        """Ask for a look now: a stream or a registration has failed, and no file may tell why."""
        self._quick()
        self._wake.set()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            PluginDirectoryGoneError: The directory is unlinked while a mount pins it (contract section 4.4).
        """
        async with DirectoryWatch() as watch, anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, watch)
            is_refusal_logged = False
            while True:
                if self._check_directory():
                    watch.unwatch(self._directory)  # another directory has taken the name: the old watch is blind
                watching = watch.watch(self._directory)
                if watch.refused and not is_refusal_logged:
                    is_refusal_logged = True
                    logger.warning("%s: looking for the kubelet every second instead", watch.refused)
                self._look_now()
                blind = not watching or watch.overflowed
                with anyio.move_on_after(self._pause(FLOOR_WITHOUT_INOTIFY if blind else FLOOR)):
                    await self._wake.wait()
                self._wake = anyio.Event()

    async def _follow(self, watch: DirectoryWatch) -> None:
        while True:
            names = {name for _, name in await watch.changes()}
            if "" in names or self._socket.name in names:
                self._quick()
            own = any(name.startswith(PREFIX) for name in names)
            self._own_socket_changed |= own
            if own or "" in names or self._socket.name in names:
                self._wake.set()

    def _quick(self) -> None:
        self._quick_until = time.monotonic() + BURST_SECONDS
        self._step = BURST_STEP

    def _pause(self, floor: float) -> float:
        """Return how long to sleep: short while a listener may come any moment, growing while the file stays dead."""
        if self.view.value.state is KubeletState.LISTENING:
            return floor
        if self.view.value.state is KubeletState.ABSENT:
            # The directory may go right after its last file; where a mount pins it the kernel does not tell.
            return ABSENT_STEP if time.monotonic() < self._quick_until else floor
        if time.monotonic() >= self._quick_until:
            self._step = min(self._step * 1.5, SLOWEST_STEP) * _RNG.uniform(0.8, 1.0)
        return min(self._step, floor)

    def _look_now(self) -> None:
        view = look(self._socket)
        if view.state is KubeletState.DEAD and time.monotonic() >= self._quick_until and is_bound(self._socket):
            view = attrs.evolve(view, state=KubeletState.BOUND)
        if view.identity != self.view.value.identity:
            self._quick()
        if view.state is KubeletState.LISTENING and view.identity != self._listened:
            if self._listened is not None:
                self.restarts += 1
                if self._history is not None:
                    self._history.add("kubelet restarted")
            self._listened = view.identity
        if view != self.view.value or self._own_socket_changed:
            self._own_socket_changed = False
            self.view.set(view)

    def _check_directory(self) -> bool:
        """Return whether the name now means another directory than at the last look."""
        try:
            found = os.stat(self._directory)
        except OSError:
            return False
        if found.st_nlink == 0:
            raise PluginDirectoryGoneError(
                f"plugin directory {self._directory} was removed while this process has it mounted; only a new "
                "container gets the new directory"
            )
        identity = (found.st_dev, found.st_ino)
        changed = self._directory_id not in (None, identity)
        self._directory_id = identity
        return changed


def is_bound(path: Path) -> bool:
    """Return whether a process holds this socket; known only where it shares our network namespace."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.endswith(f" {path}") for line in lines)


def look(path: Path) -> KubeletView:
    """Examine a kubelet.sock: one lstat(2) and one connect(2), neither of which can block."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        absent = path.parent.is_dir()
        return KubeletView(KubeletState.ABSENT if absent else KubeletState.NO_DIRECTORY)
    except NotADirectoryError:
        return KubeletView(KubeletState.NOT_A_DIRECTORY)
    except OSError:
        return KubeletView(KubeletState.UNREADABLE)
    identity = (found.st_dev, found.st_ino, found.st_ctime_ns)
    if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
        return KubeletView(KubeletState.NO_SOCKET, identity)
    try:
        code = connect(path)
    except OSError as error:  # EMFILE, ENFILE: tried again as often as a dead file is
        if error.errno is None:
            raise  # the path is too long for any socket
        return KubeletView(KubeletState.NO_DESCRIPTOR, identity)
    return KubeletView(_STATES.get(code, KubeletState.DEAD), identity)
