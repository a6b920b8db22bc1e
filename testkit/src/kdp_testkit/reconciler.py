"""What the plugin watcher does next: the sockets that are there against the plugins that are registered.

No I/O and no clock of its own (contract section 3). Once a period the kubelet compares both and starts what is
missing: first the farewells, then the registrations, never two operations for one path at a time, and none before
the path's backoff is over. Consequences that plugins feel:

* a socket that is created again has a new identity, so it is unregistered and registered, on two looks;
* the backoff belongs to the path, so a new instance under an old name inherits it;
* up to 1.35 a plugin whose registration failed counts as registered, and nobody tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from .protocol.validation import DEVICE_PLUGIN_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_BACKOFF: Final = 0.5
MAX_BACKOFF: Final = 122.0
"""Seconds: doubled with each failure up to 2 min 2 s (contract section 0.1)."""


@attrs.frozen
class KnownPlugin:
    """A plugin that the watcher holds for registered.

    Attributes:
        socket_path: The socket in the watcher's directory.
        identity: Which appearance of that socket it was.
        resource: The resource name, or the driver's.
        endpoint: The service's socket.
        type: What kind of plugin it is.
    """

    socket_path: str
    identity: int
    resource: str
    endpoint: str
    type: str = DEVICE_PLUGIN_TYPE


@attrs.define
class _Backoff:
    seconds: float
    failed_at: float


class Reconciler:
    """The two worlds, and which operations are under way."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}
        self._registered: dict[str, KnownPlugin] = {}
        self._busy: set[str] = set()
        self._backoff: dict[str, _Backoff] = {}
        self._identities = 0

    def seen(self, socket_path: str) -> None:
        """A socket appeared, or appeared again."""
        self._identities += 1
        self._wanted[socket_path] = self._identities

    def gone(self, socket_path: str) -> None:
        """A file was removed."""
        self._wanted.pop(socket_path, None)

    def due(self, now: float) -> Iterator[KnownPlugin | tuple[str, int]]:
        """Start what is due and yield it: a plugin to unregister, or path and identity of a socket to register.

        Each one must be ended by `finished`.
        """
        for plugin in list(self._registered.values()):
            stale = self._wanted.get(plugin.socket_path) != plugin.identity
            if stale and self._may_start(plugin.socket_path, now):
                yield plugin
        for socket_path, identity in list(self._wanted.items()):
            known = self._registered.get(socket_path)
            if (known is None or known.identity != identity) and self._may_start(socket_path, now):
                yield socket_path, identity

    def _may_start(self, socket_path: str, now: float) -> bool:
        backoff = self._backoff.get(socket_path)
        if socket_path in self._busy or (backoff is not None and now - backoff.failed_at <= backoff.seconds):
            return False
        self._busy.add(socket_path)
        return True

    def finished(self, socket_path: str, *, failed: bool, now: float, seconds: float | None = None) -> None:
        """Note the end of an operation; a failure doubles the path's backoff (or sets it), a success ends it."""
        self._busy.discard(socket_path)
        before = self._backoff.pop(socket_path, None)
        if failed:
            if seconds is None:
                seconds = FIRST_BACKOFF if before is None else min(before.seconds * 2, MAX_BACKOFF)
            self._backoff[socket_path] = _Backoff(seconds, now)

    def registered(self, plugin: KnownPlugin) -> None:
        """Hold this plugin for registered; the kubelet does so before it has registered it."""
        self._registered[plugin.socket_path] = plugin

    def forgotten(self, socket_path: str) -> None:
        """Do not hold it for registered any more."""
        self._registered.pop(socket_path, None)
