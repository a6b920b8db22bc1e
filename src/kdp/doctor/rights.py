"""Whether this process may make files in a directory, and the command that lets it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path


AS_ROOT: Final = "run this as root: sudo kdp doctor"


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
        return f"{first}make it for the plugin's user, as root: install -d -m 0700 -o {user} {path}"
    mode = f"chmod u+rwx {path}"
    if found.st_uid == user:
        return f"its owner lacks the right: {mode}"
    return f"{first}give it to the plugin's user: chown {user} {path}" + (
        "" if found.st_mode & stat.S_IRWXU == stat.S_IRWXU else f" && {mode}"
    )
