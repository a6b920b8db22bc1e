"""Which boot of the node this is: what was set up in hardware before another one is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .host import Host

if TYPE_CHECKING:
    from .directory import NodeFiles


def boot_id_of(host: NodeFiles) -> str:
    """Return which boot of the node this is; "": it does not say."""
    path = "/proc/sys/kernel/random/boot_id"
    # A container that sees the node's files elsewhere has the kernel's word at its own place.
    for files in (host, Host()):
        try:
            return files.read_bytes(path).decode(errors="replace").strip()
        except OSError:
            continue
    return ""
