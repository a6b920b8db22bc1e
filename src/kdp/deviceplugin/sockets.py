"""Socket files of device plugins: their names, their length, and the remains of dead processes.

A name is never used twice, by no later generation and no other process: it holds a random token of the process and the
generation's number (contract section 2.5, B3). A socket is bound in a private directory and renamed when it answers. So
a visible name of ours that refuses connections is always a dead one (`kdp.kubelet.sockets`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..kubelet.sockets import check_length, is_plugin_socket, plugin_prefix

if TYPE_CHECKING:
    from pathlib import Path


class SocketNames:
    """The names of one resource's sockets in one process.

    Raises:
        InvalidNameError: The directory's path leaves no room for a name.
    """

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory = directory
        self.prefix = plugin_prefix(directory, resource)
        self._token = os.urandom(4).hex()
        check_length(self.path(999_999))

    def path(self, generation: int) -> Path:
        """Return the path of a generation's socket."""
        return self._directory / f"{self.prefix}{self._token}-{generation}.sock"

    def has_made(self, name: str) -> bool:
        """Return whether this is the name of a socket of this resource, of this process or another."""
        return is_plugin_socket(self.prefix, name)
