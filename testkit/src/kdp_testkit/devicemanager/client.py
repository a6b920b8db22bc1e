"""`Client`: what the kubelet has of one registration, and `ClientTable`: which client is on record (section 2.5).

No I/O. This small table is where the worst behaviours of real kubelets come from, so it is modelled as it is:

* up to 1.36 it has one slot for each resource name. The end of *any* stream of a resource closes whichever client
  is in the slot, hence the takeover bug; a registration that fails empties the slot of a client that lives.
* 1.37 keeps a list for each name and finds clients by name and socket path. Dropping a path drops *every* record
  with it, hence the poisoned path: the end of a client without a record goes unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ..protocol.wire import CallError, DialError
from .assignments import AlreadyConnected, Endpoint

if TYPE_CHECKING:
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


class ClientTable:
    """The client records of one life of a kubelet.

    Args:
        one_per_resource: One slot for each resource name (up to 1.36) instead of a list keyed by path.
    """

    def __init__(self, *, one_per_resource: bool) -> None:
        self._one_per_resource = one_per_resource
        self._clients: dict[str, list[Client]] = {}

    def add(self, client: Client) -> None:
        """Record a client; this happens before it is dialed."""
        if self._one_per_resource:
            self._clients[client.resource] = [client]
        else:
            self._clients.setdefault(client.resource, []).append(client)

    def drop(self, resource: str, socket_path: str) -> None:
        """Drop the resource's slot, or every record with this path."""
        kept = [client for client in self._clients.get(resource, []) if not self._matches(client, socket_path)]
        if kept:
            self._clients[resource] = kept
        else:
            self._clients.pop(resource, None)

    def find(self, resource: str, socket_path: str) -> Client | None:
        """Return the client on record: that of the slot, or the first with this path."""
        for client in self._clients.get(resource, []):
            if self._matches(client, socket_path):
                return client
        return None

    def all(self) -> list[Client]:
        """Return every client on record."""
        return [client for clients in self._clients.values() for client in clients]

    def _matches(self, client: Client, socket_path: str) -> bool:
        return self._one_per_resource or client.socket_path == socket_path


def register_text(error: DialError | CallError | AlreadyConnected) -> str:
    """Return what Register answers (contract section 2.2)."""
    if isinstance(error, DialError):
        return f"failed to dial device plugin: {error}"
    if isinstance(error, CallError):
        return f"failed to get device plugin options: {error}"
    return str(error)
