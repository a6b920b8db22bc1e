"""Asks a living plugin over its unix socket; knows nothing but the standard library.

A container's exec probe is ``kdp probe``. The kubelet runs it every few seconds, within the plugin's limit of memory.
So `quick` answers before click or anything else is loaded.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from typing import Final

VARIABLE: Final = "KDP_SOCKET"

PATHS: Final = {"ready": "/readyz", "live": "/livez"}

DEADLINE: Final = 4.0
"""Seconds; the manifests' probes wait 5."""


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


def ask(path: str, route: str) -> tuple[int, str]:
    """Ask the process that listens at a unix socket; return 0 if it says yes, else 1, and its words or the reason."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(DEADLINE)
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                return 1, f"{path}: is no socket; expected the socket of a running plugin\n"
            asking.connect(path)
            _, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user not in (0, os.geteuid()):
                return 1, f"{path}: user {user} answers there; expected root or user {os.geteuid()}\n"
            asking.sendall(f"GET {route} HTTP/1.1\r\nHost: kdp\r\n\r\n".encode())
            answer = b""
            while received := asking.recv(1 << 16):
                answer += received
    except OSError as error:
        reason = f"no answer within {DEADLINE:g} s" if isinstance(error, TimeoutError) else error.strerror or error
        return 1, f"{path}: {reason}; is the plugin running, and is this its socket?\n"
    head, _, body = answer.partition(b"\r\n\r\n")
    return (0 if head.split(b" ")[1:2] == [b"200"] else 1), "".join(map(_shown, body.decode(errors="replace")))
