"""Where the plugins of a node have their own sockets, and why a state directory has none, for commands.

A plugin has its socket in the state directory. A pod of `kdp manifests` has it in a volume in memory, which the node
sees below the kubelet's directory. So commands on the node, and in a pod that has the node's files, ask the plugin that
a DaemonSet runs. A plugin may run without a socket; its locks show that.

Any pod can have a volume and a socket of these names. So a socket in a pod's volume counts only while a process listens
there that has the state directory mounted from the node, as a plugin has and no tenant can have.

All functions block for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs

from ..kubelet.sockets import PREFIX, answered_by_others, greet
from ..storage import reading
from ..storage.addresses import address
from ..storage.files import why_no_file
from ..storage.mounts import has_mounted, how_to_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..kubelet.paths import KubeletPaths

POD_VOLUME: Final = "run"
"""The name of the volume, an ``emptyDir``, in what `kdp manifests` writes."""

POD_SOCKET: Final = "plugin.sock"

POD_NAMESPACE: Final = "POD_NAMESPACE"
"""The variable for a pod's namespace in the manifests of `kdp manifests`. Remedies name the pod."""

_MOST_TOLD: Final = 2


def found_sockets(state_dir: Path, kubelet_root: Path) -> list[Path]:
    """Return the sockets of this node's plugins; a plugin that was killed leaves one in the state directory."""
    own = (state_dir / name for name in _names(state_dir) if name.endswith(".sock") and not name.startswith("."))
    pods = kubelet_root / "pods"
    of_pods = (pods / uid / "volumes/kubernetes.io~empty-dir" / POD_VOLUME / POD_SOCKET for uid in _names(pods))
    trusted = (path for path in of_pods if _is_socket(path) and has_mounted(listener_of(path), state_dir))
    return [*filter(_is_socket, own), *trusted]


def listener_of(path: Path) -> int:
    """Return the process that listens at a socket, as it is numbered here; 0: nobody does, or it is not known."""
    try:
        with address(path) as short:  # below a pod's directory, the path may be longer than an address
            return greet(short, 0.0).pid
    except OSError:
        return 0


def _names(directory: Path) -> list[str]:
    """Return what is in a directory; none: it is empty, missing, or closed to this user."""
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


@final
@attrs.frozen
class Absence:
    """What was seen instead of a socket.

    Attributes:
        seen: What was seen, as a sentence.
        remedy: What helps.
        is_running: Whether a plugin runs all the same.
        is_closed: Whether this user may not look into the directory, so that a socket may be there.
    """

    seen: str
    remedy: str
    is_running: bool = False
    is_closed: bool = False


def why_no_socket(directory: Path, paths: KubeletPaths, *, locks: Path = Path("/proc/locks")) -> Absence:
    """Return what is wrong where no plugin has a socket.

    Args:
        directory: The state directory.
        paths: The kubelet's directories, where a plugin has another socket.
        locks: The kernel's list of locks.
    """
    # The kernel may list a lock twice if others come and go meanwhile.
    traces = list(dict.fromkeys([*_locks(directory, locks), *_sockets(paths.device_plugin_dir)]))
    more = f" and {len(traces) - _MOST_TOLD} more" if len(traces) > _MOST_TOLD else ""
    running = f", although {', '.join(traces[:_MOST_TOLD])}{more}" if traces else ""
    is_closed, seen = False, f"the state directory {directory}"
    try:
        os.listdir(directory)
    except FileNotFoundError:
        seen += f" does not exist{running}"
        remedy = "give the directory of the plugin, or start a plugin with this one: --state-dir DIR"
    except NotADirectoryError:
        seen += f" is no directory{running}"
        remedy = f"remove it, or give another one: --state-dir DIR; ls -l {shlex.quote(str(directory))}"
    except OSError as error:
        is_closed = isinstance(error, PermissionError)
        seen += f" cannot be read ({error.strerror}){running}"
        remedy = "run this as root, or as the user whose process the plugin is"
    else:
        seen = f"no plugin has a socket in {directory}{running}"
        remedy = "is it running, with this state directory? If it has another socket, give --socket PATH"
        if traces and (obstacle := why_no_file(directory)) is not None:
            seen, remedy = f"{seen}; none can be made there: {obstacle}", _mend(directory, obstacle)
        elif traces:
            remedy = (
                "a plugin makes a removed socket again within 10 s, so ask again; if it has another state directory, "
                "give it with --state-dir DIR; its log says why it has no socket"
            )
    return Absence(seen, remedy, is_running=bool(traces), is_closed=is_closed)


def _mend(directory: Path, obstacle: str) -> str:
    after, place = "then the plugin makes its socket within 10 s", shlex.quote(str(directory))
    if obstacle == os.strerror(errno.ENOSPC):
        return f"make room on that file system, {after}: df -h {place}; df -i {place}"
    if obstacle == os.strerror(errno.EROFS):
        return f"{how_to_write(directory)}; {after}"
    return f"let the plugin's user write there, {after}: ls -ld {place}"


def _locks(directory: Path, locks: Path) -> Iterator[str]:
    """Return which processes hold a lock file of a mode (`kdp.daemon.mode_lock`)."""
    files: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):
            if name.endswith((".device-plugin.lock", ".dra.lock")):
                with contextlib.suppress(OSError):
                    files[str(os.lstat(directory / name).st_ino)] = name
    held = b""
    if files:
        with contextlib.suppress(OSError):
            held = reading.read(locks)
    for line in held.decode(errors="replace").splitlines():
        # "1: FLOCK  ADVISORY  READ 4711 08:01:131 0 EOF". The device of an overlay is another than that of its file.
        words = line.split()
        locked = files.get(words[5].rpartition(":")[2]) if len(words) > 5 and words[1] == "FLOCK" else None
        if locked is not None:
            holder = f"process {words[4]}" if words[4].isdigit() and words[4] != "0" else "a process"
            yield f"{holder} holds the lock {locked}"


def _sockets(directory: Path) -> Iterator[str]:
    """Return which processes answer the kubelet on sockets of kdp."""
    found = answered_by_others(directory, lambda name: name.startswith(PREFIX) and name.endswith(".sock"))
    for name, pid in sorted(found.items()):
        yield f"{f'process {pid}' if pid else 'a process'} answers the kubelet on {name}"
