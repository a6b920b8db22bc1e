"""Socket files of device plugins: their names, their length, and the remains of dead processes.

A name is never used twice, by no later generation and no other process: it holds a random token of the process and the
generation's number (contract section 2.5, B3). A socket is bound in a private directory and renamed when it answers. So
a visible name of ours that refuses connections is always a dead one (`kdp.kubelet.sockets`).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ..kubelet.sockets import check_length
from ..kubelet.watch import PREFIX
from ..model.names import MAX_SOCKET_PATH_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_SLUG = 40
_TAIL = len(f"-{'0' * 8}-{'9' * 6}.sock") + 1  # token, generation, suffix, and one to spare


class SocketNames:
    """The names of one resource's sockets in one process.

    Raises:
        InvalidNameError: The directory's path leaves no room for a name.
    """

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory = directory
        room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(directory)) - 1 - len(PREFIX) - _TAIL
        slug = re.sub(r"[^A-Za-z0-9.-]", "_", resource)
        longest = max(8, min(_LONGEST_SLUG, room))
        if len(slug) > longest:
            import hashlib  # a rare need, and not cheap to load

            digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
            slug = digest if longest < 10 else f"{slug[: longest - 9]}.{digest}"
        self.prefix = f"{PREFIX}{slug}-"
        self._token = os.urandom(4).hex()
        check_length(self.path(999_999))

    def path(self, generation: int) -> Path:
        """Return the path of a generation's socket."""
        return self._directory / f"{self.prefix}{self._token}-{generation}.sock"

    def has_made(self, name: str) -> bool:
        """Return whether this is the name of a socket of this resource, of this process or another."""
        return name.startswith(self.prefix) and name.endswith(".sock")
