"""`address`: a unix socket's path as connect(2) takes it, which is shorter than paths may be.

Below the directory of a kubelet that is not in the usual place, the socket of a pod has a longer path than an address
has room for. It imports the standard library only: ``kdp probe`` loads nothing else.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` of Linux is 108 bytes with its final NUL (unix(7), contract section 0.1)."""


@contextmanager
def address(path: str | os.PathLike[str]) -> Generator[str]:
    """Give the address of a socket that is there; it is good within the context only.

    Raises:
        OSError: The path is too long, and its directory cannot be opened.
    """
    text = os.fspath(path)
    if len(os.fsencode(text)) <= MAX_SOCKET_PATH_BYTES:
        yield text
        return
    directory = os.open(os.path.dirname(text), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(text)}"
    finally:
        os.close(directory)
