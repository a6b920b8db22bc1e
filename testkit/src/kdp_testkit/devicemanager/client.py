"""`Client`: what the kubelet has of one registration; where its socket is, and what a failed one is answered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio

from ..protocol.wire import CallError, DialError
from .assignments import AlreadyConnected, Endpoint

if TYPE_CHECKING:
    from pathlib import Path

    from ..protocol.wire import PluginConnection, PluginStream


class Client:
    """One registration's connection: dialed once, one ListAndWatch, all unary calls."""

    def __init__(self, resource: str, connection: PluginConnection) -> None:
        self.resource = resource
        self.socket_path = socket_path = connection.socket_path
        self.connection = connection
        self.is_leaked = False
        self.endpoint = Endpoint(resource, socket_path)
        self.stream: PluginStream | None = None
        self.lists = 0
        self.may_read = anyio.Event()
        self.may_read.set()

    def end_stream(self) -> None:
        """Cancel ListAndWatch; its reader sees the end, also one that was told not to read."""
        if self.stream is not None:
            self.stream.cancel()
            self.may_read.set()


def joined_path(directory: Path, endpoint: str) -> str:
    """Join as Go's filepath.Join does: ``..`` is resolved in the text, and nothing escapes by being absolute."""
    return os.path.normpath(f"{directory}/{endpoint}")


def register_text(error: DialError | CallError | AlreadyConnected) -> str:
    """Return what Register answers (contract section 2.2)."""
    if isinstance(error, DialError):
        return f"failed to dial device plugin: {error}"
    if isinstance(error, CallError):
        return f"failed to get device plugin options: {error}"
    return str(error)
