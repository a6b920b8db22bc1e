"""Breaks the connections that somebody has made to another process, from outside and at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket

PIDFD_GETFD = 438
"""The number of the system call on every architecture; Python has no function for it."""

_libc = ctypes.CDLL(None, use_errno=True)


def sever(pid: int) -> int:
    """Break the connections that others have made to a process's unix sockets, and return how many there were."""
    broken = 0
    with contextlib.suppress(OSError):  # it has ended
        process = os.pidfd_open(pid)
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError), _borrowed(process, int(name)) as theirs:
                    is_listening = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if theirs.family == socket.AF_UNIX and theirs.getsockname() and not is_listening:
                        theirs.shutdown(socket.SHUT_RDWR)
                        broken += 1
        finally:
            os.close(process)
    return broken


def _borrowed(process: int, name: int) -> socket.socket:
    """Return another process's socket.

    Raises:
        OSError: It is none, or is not ours to have.
    """
    found = _libc.syscall(PIDFD_GETFD, process, name, 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        return socket.socket(fileno=found)
    except OSError:
        os.close(found)
        raise
