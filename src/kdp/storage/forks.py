"""What a forked child must let go of: the locks of its parent, its listening sockets, and the connections to them.

And a child that a vendor's code has forked must end: see `end_child`.

A child that is forked shares the open files of its parent. It would keep the locks of a parent that was killed, and its
sockets listening, and a kubelet that is connected would never see its end. gRPC 1.85 closes its own in a child, 1.75
does not. A program that is started has none of them.

No function blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_MANY: Final = 64
"""Descriptors from which on closed ones are looked for: others than us close sockets."""

_kept: Final[dict[int, tuple[int, int]]] = {}
"""The descriptors that no child may have, and which files those are."""

_served: Final[dict[object, str]] = {}
"""The addresses at which no child may listen or be connected, by their servers."""


def keep(descriptor: int) -> None:
    """Have a forked child let go of an open file or a socket at once. It ends when the descriptor is closed."""
    if len(_kept) >= _MANY:
        for closed in [each for each, identity in list(_kept.items()) if _identity(each) != identity]:
            _kept.pop(closed, None)
    identity = _identity(descriptor)
    if identity is not None:
        _kept[descriptor] = identity


def forget(descriptor: int) -> None:
    """Let children have a descriptor again, since it is about to be closed."""
    _kept.pop(descriptor, None)


def keep_served(server: object, address: str) -> None:
    """Have a forked child let go of the sockets that were bound to a path at once, and of the connections they took.

    For a server whose descriptors are not known. It ends with `forget_served`.
    """
    _served[server] = address


def forget_served(server: object) -> None:
    """Let children have the sockets of a server again, since they are closed."""
    _served.pop(server, None)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _serving() -> Iterator[int]:
    addresses = set(_served.values())
    for descriptor in map(int, os.listdir("/proc/self/fd") if addresses else ()):
        with contextlib.suppress(OSError):  # it is no socket, or was closed
            each = socket.socket(fileno=descriptor)
            try:
                is_served = each.getsockname() in addresses
            finally:
                each.detach()
            if is_served:
                yield descriptor


def _let_go() -> None:
    """In a child that was forked: drop what the parent keeps. The numbers stay taken, since their users close them."""
    with contextlib.suppress(OSError):
        open_still = [each for each, identity in _kept.items() if _identity(each) == identity]
        found = [*open_still, *_serving()]  # before the next line: one free descriptor is enough for both
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in found:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
    _kept.clear()
    _served.clear()


os.register_at_fork(after_in_child=_let_go)


def end_child(what: str, process: int) -> None:
    """End this process if a vendor's code was called in another one and returns here: it would be a second plugin.

    A child that ends itself keeps its exit code.

    Args:
        what: The forking code in words.
        process: The process in which it was called.
    """
    if os.getpid() == process:
        return
    error = sys.exc_info()[1]
    if not isinstance(error, SystemExit):
        logger.error(
            "%s forked and returned in the child %d; the child ends: start programs with subprocess, and switch off "
            "the daemon mode of libraries",
            *(what, os.getpid()),
        )
    code = error.code if isinstance(error, SystemExit) else 1
    # A regular exit would run the handlers of the plugin.
    os._exit(code if isinstance(code, int) else int(code is not None))
