"""One process, one `Host`: the backends and kdp must look at the same node.

kdp looks at device nodes and mounts through a `Host`, and a backend that reads hardware was made with one. Were they
two, the backend would list what kdp does not find. The command hands the same one to both; where a program makes its
backends itself, the backend's is taken, and two that differ are an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..errors import ConfigurationError
from .host import Host

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEPTH = 3
"""A backend may be wrapped (shared, recorded, tested), and a wrapper wrapped."""


def agreed(backends: Iterable[object], given: Host | None = None) -> Host:
    """Return the one `Host` of these backends.

    Args:
        backends: The vendors' objects; each attribute of one that is a `Host` counts, also of one that it wraps.
        given: What kdp was told; None: nothing.

    Raises:
        ConfigurationError: There are two that differ.
    """
    chosen, owner = given, "host_root"
    for backend in backends:
        for host in _hosts_of(backend, _DEPTH):
            name = type(backend).__name__
            if chosen is None:
                chosen, owner = host, name
            elif host.root != chosen.root:
                raise ConfigurationError(
                    f"{name} reads the node's files at {host.root}, but {owner} says {chosen.root}; give both the same "
                    f"kdp.hardware.Host, or start it with the command kdp, which does"
                )
    return chosen or Host()


def _hosts_of(thing: object, depth: int) -> list[Host]:
    found: list[Host] = []
    for value in cast("dict[str, object]", getattr(thing, "__dict__", {})).values():
        if isinstance(value, Host):
            found.append(value)
        elif depth and hasattr(type(value), "discover"):
            found += _hosts_of(value, depth - 1)
    return found
