"""What a kubelet does with the sockets in its device-plugin directory (contract sections 2.2 and 4.3)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def joined(directory: Path, endpoint: str) -> str:
    """Return the socket that a Register names: as Go's filepath.Join, which joins an absolute endpoint, too."""
    return os.path.normpath(f"{directory}/{endpoint}")


def wipe(directory: Path) -> None:
    """Remove the sockets, as a kubelet does that starts."""
    for path in directory.iterdir():
        with suppress(OSError):
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
