"""`greet`: whether the process behind a socket of gRPC does anything, asked without gRPC and without a call.

A connect(2) succeeds as soon as somebody listens, also if that process is stopped or stuck. Every server of gRPC sends
its SETTINGS frame to each new client (RFC 9113, section 3.4). So those nine bytes prove that the process runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from pathlib import Path

_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""A client's preface with its empty SETTINGS frame."""

_FRAME_HEAD: Final = 9
_SETTINGS: Final = 4


@final
@attrs.frozen(kw_only=True)
class Greeting:
    """What a socket answered.

    Attributes:
        error: The error's number of the connect(2); 0: somebody listens.
        answered: Whether a server of HTTP/2 answered; None: nobody did within the deadline.
        pid: The listening process; 0: it is in another PID namespace, or nobody listens.
    """

    error: int = 0
    answered: bool | None = None
    pid: int = 0


def greet(path: Path, deadline: float) -> Greeting:
    """Connect to a socket and wait up to ``deadline`` seconds for the server's first frame. It blocks.

    Raises:
        OSError: No file descriptor is free, or, without a number, the path is too long.
    """
    until = time.monotonic() + deadline
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        if error := asking.connect_ex(os.fspath(path)):
            return Greeting(error=error)
        pid, _, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        answer = b""
        with contextlib.suppress(OSError):
            asking.sendall(_HELLO)
            while len(answer) < _FRAME_HEAD and (left := until - time.monotonic()) > 0:
                asking.settimeout(left)
                if not (received := asking.recv(_FRAME_HEAD - len(answer))):
                    return Greeting(answered=False, pid=pid)
                answer += received
    if not answer:
        return Greeting(pid=pid)
    return Greeting(answered=len(answer) == _FRAME_HEAD and answer[3] == _SETTINGS, pid=pid)
