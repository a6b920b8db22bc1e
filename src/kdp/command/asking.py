"""Asks a living plugin over its unix socket; it imports little more than the standard library.

A container's exec probe is ``kdp probe``. The kubelet runs it every few seconds, within the plugin's limit of memory.
So `quick` answers before click or anything else is loaded.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import time
from typing import Final

from ..storage.addresses import address

VARIABLE: Final = "KDP_SOCKET"

PATHS: Final = {"ready": "/readyz", "live": "/livez"}

DEADLINE: Final = 4.0
"""Seconds; the manifests' probes wait 5."""

MOST_BYTES: Final = 64 << 20
"""Bytes of an answer. A status document of 20,000 devices has some 5 MiB."""


def quick(arguments: list[str]) -> int | None:
    """Return the exit code of ``kdp probe ready|live`` with the socket in the environment; None: it is another call."""
    path = os.environ.get(VARIABLE, "")
    if len(arguments) != 1 or arguments[0] not in PATHS or not path or path == "none":
        return None
    code, text = ask(path, PATHS[arguments[0]])
    sys.stdout.write(text)
    return code


def _shown(char: str) -> str:
    """Return what a terminal shows as it is; kdp's own answers have nothing else (`kdp.errors.printable`)."""
    return char if char.isprintable() or char == "\n" else ascii(char)[1:-1]


def ask(path: str, route: str, *, deadline: float | None = None, most: int = MOST_BYTES) -> tuple[int, str]:
    """Ask the process that listens at a unix socket; return 0 if it says yes, else 1, and its words or the reason.

    Args:
        path: The socket.
        route: What to ask for.
        deadline: Seconds for the whole answer; None: `DEADLINE`.
        most: Bytes of the answer.
    """
    deadline = DEADLINE if deadline is None else deadline
    until = time.monotonic() + deadline
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(deadline)
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                return 1, f"{path}: is no socket; expected the socket of a running plugin\n"
            with address(path) as short:
                asking.connect(short)
            _, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user not in (0, os.geteuid()):
                return 1, f"{path}: user {user} answers there; expected root or user {os.geteuid()}\n"
            asking.sendall(f"GET {route} HTTP/1.1\r\nHost: kdp\r\n\r\n".encode())
            answer = bytearray()
            while received := asking.recv(1 << 16):
                answer += received
                if len(answer) > most:
                    return 1, f"{path}: its answer has more than {most >> 20} MiB; is this the socket of a plugin?\n"
                asking.settimeout(max(until - time.monotonic(), 0.001))
    except OSError as error:
        reason = f"no answer within {deadline:g} s" if isinstance(error, TimeoutError) else error.strerror or error
        return 1, f"{path}: {reason}; is the plugin running, and is this its socket?\n"
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"\r\nKdp-Protocol: 1" not in head:
        return 1, f"{path}: another program answers there; is this the socket of a plugin?\n"
    text = body.decode(errors="replace")
    if not text.replace("\n", "").isprintable():
        text = "".join(map(_shown, text))
    return (0 if head.split(b" ")[1:2] == [b"200"] else 1), text
