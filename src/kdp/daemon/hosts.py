"""By which names this process may be asked for a page that names pods.

Against DNS rebinding: a page of somebody else's site, open in an administrator's browser, asks its own name, whose
address meanwhile is ours. The browser takes both for one site and hands our answer over, but it says the name in
``Host``, and no script can change that. So a name that a stranger can own in the public DNS is refused.

Allowed is what no stranger owns: an address, ``localhost``, a name without a dot (of a pod, a service, or a host that a
search domain completes), a service's name in the cluster, and the names of this node.
"""

from __future__ import annotations

import os
import socket
from typing import Final

_ENDINGS: Final = (".localhost", ".svc", ".cluster.local")

REFUSED: Final = (
    "this page is for addresses and names of the cluster, and the request names another host: use kubectl "
    "port-forward and http://localhost, or let the proxy send 'Host: localhost'\n"
)


def is_familiar(host: str, node: str | None = None) -> bool:
    """Return whether a request's ``Host`` is an address or a name that no stranger owns.

    Args:
        host: The header's value, with or without a port; empty: it has none, as browsers do not do.
        node: The node's name, if it is known.
    """
    if host.startswith("["):
        literal, end, port = host[1:].partition("]")
        return bool(end) and _is_address(socket.AF_INET6, literal.partition("%")[0]) and _is_port(port)
    name, colon, port = host.partition(":")
    name = name.lower().removesuffix(".")
    if not _is_port(colon + port) or any(each in name for each in ", \t"):
        return False
    own = {os.uname().nodename.lower(), (node or "").lower()}
    return "." not in name or name.endswith(_ENDINGS) or name in own or _is_address(socket.AF_INET, name)


def _is_address(family: socket.AddressFamily, text: str) -> bool:
    try:
        return bool(socket.inet_pton(family, text))
    except (OSError, ValueError):  # no address; a zero byte
        return False


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and text[1:].isascii() and (text[1:].isdigit() or not text[1:]))
