"""Which connection belongs to which registration: the kubelet's client records (contract section 2.5).

No I/O. This small table is where the worst behaviours of real kubelets come from, so it is modelled as it is:

* up to 1.36 it has one slot for each resource name. The end of *any* stream of a resource closes whichever client
  is in the slot, hence the takeover bug; a registration that fails empties the slot of a client that lives.
* 1.37 keeps a list for each name and finds clients by name and socket path. Dropping a path drops *every* record
  with it, hence the poisoned path: the end of a client without a record goes unnoticed.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class _Client(Protocol):
    @property
    def resource(self) -> str: ...
    @property
    def socket_path(self) -> str: ...


_C = TypeVar("_C", bound=_Client)


class ClientTable(Generic[_C]):
    """The client records of one life of a kubelet.

    Args:
        one_per_resource: One slot for each resource name (up to 1.36) instead of a list keyed by path.
    """

    def __init__(self, *, one_per_resource: bool) -> None:
        self._one_per_resource = one_per_resource
        self._clients: dict[str, list[_C]] = {}

    def add(self, client: _C) -> None:
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

    def find(self, resource: str, socket_path: str) -> _C | None:
        """Return the client on record: that of the slot, or the first with this path."""
        for client in self._clients.get(resource, []):
            if self._matches(client, socket_path):
                return client
        return None

    def all(self) -> list[_C]:
        """Return every client on record."""
        return [client for clients in self._clients.values() for client in clients]

    def _matches(self, client: _C, socket_path: str) -> bool:
        return self._one_per_resource or client.socket_path == socket_path
