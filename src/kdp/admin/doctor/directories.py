"""What this process may do in a directory, and the question about the state directory.

Is the state directory there, is it the plugin's, and is there room in it?
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from ...storage.files import why_no_file
from ...storage.mounts import how_to_write
from .answers import Answer, Verdict, failed, ok, question, quoted, warning

if TYPE_CHECKING:
    from pathlib import Path

    from .node import Node

AS_ROOT: Final = "run this as root: sudo kdp doctor"

LEAST_FREE: Final = 16 << 20
"""Bytes below which a file system counts as almost full."""


def is_denied(path: Path) -> bool:
    """Return whether this process may not see if a path is there: a directory above it is closed."""
    try:
        os.lstat(path)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def is_read_only(path: Path) -> bool:
    """Return whether a path is on a file system that is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def may_write(path: Path) -> bool:
    """Return whether this process may make files in a directory."""
    return os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def let_write(path: Path) -> str:
    """Return the command that lets this process's user make files in a directory, or make the missing directory."""
    user = os.geteuid()
    # Root's directories are not to be given away because somebody looks at them without being root.
    first = "" if user == 0 else f"run this as root, or if the plugin itself runs as user {user}, "
    try:
        found = os.stat(path)
    except OSError:
        return f"{first}make it for the plugin's user, as root: install -d -m 0700 -o {user} {quoted(path)}"
    mode = f"chmod u+rwx {quoted(path)}"
    if found.st_uid == user:
        return f"its owner lacks the right: {mode}"
    return f"{first}give it to the plugin's user: chown {user} {quoted(path)}" + (
        "" if found.st_mode & stat.S_IRWXU == stat.S_IRWXU else f" && {mode}"
    )


@question("state-directory", "Without its state a plugin that was killed forgets which pod holds a device.")
def state(node: Node) -> Answer:
    """Can a plugin keep its state?"""
    answer = _state(node)
    is_served = answer.verdict is Verdict.FAILED and any(plugin.status.is_ready for plugin in node.answering())
    return warning(answer.seen, answer.remedy) if is_served else answer


def _state(node: Node) -> Answer:
    path = node.state_dir
    if path is None:
        return warning("there is no state directory", "give the plugin one: KDP_STATE_DIR=/var/lib/kdp")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if node.is_pod:
            return failed(f"{path} does not exist", f"mount a directory of the node there: hostPath: {quoted(path)}")
        if (obstacle := why_no_file(path)) is not None:
            return warning(
                f"{path} does not exist, and user {os.geteuid()} cannot make it: {obstacle}", let_write(path)
            )
        return ok(f"{path} does not exist; a plugin makes it at its first start")
    except OSError as error:
        return failed(f"{path} cannot be examined: {error.strerror}", AS_ROOT)
    if stat.S_ISLNK(found.st_mode):
        found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        return failed(f"{path} is no directory", f"remove it: rm {quoted(path)}")
    if is_read_only(path):
        return failed(f"{path} is on a read-only file system", how_to_write(path))
    if not may_write(path):
        seen = f"user {os.geteuid()} may not write to {path}, which is user {found.st_uid}'s"
        return failed(seen, let_write(path))
    if found.st_uid != os.geteuid() != 0:
        seen = f"{path} is user {found.st_uid}'s, and this process is user {os.geteuid()}"
        return warning(seen, f"give it to the plugin's user, if that is this one: chown {os.geteuid()} {quoted(path)}")
    return _room(path)


def _room(path: Path) -> Answer:
    free, inodes = free_of(path)
    remedy = f"make room on that file system: df -h {quoted(path)}; df -i {quoted(path)}"
    if free == 0 or inodes == 0:
        return failed(f"{path} has no room left", remedy)
    if free < LEAST_FREE:
        return warning(f"{path} has only {free >> 20} MiB left", remedy)
    return ok(f"{path} is writable, and has {free >> 20} MiB left")


def free_of(path: Path) -> tuple[int, int | None]:
    """Return free bytes, and free inodes if the file system counts them."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


QUESTIONS: Final = (state,)
