"""Which memory node a device is near to: from its number to its place in sysfs, and up to who knows.

A node's number (major:minor) leads to its directory below ``/sys/devices``; the nearest parent with a ``numa_node`` is
the card that it belongs to. Devices without a bus (``/dev/fuse``) and drivers outside sysfs have none.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import kdp.hardware

__all__ = ["numa_node"]


def _sysfs(host: kdp.hardware.Host, path: str) -> str | None:
    kind = host.device_type(path)
    if kind is None:
        return None
    number = os.stat(host.path(host.resolve(path))).st_rdev
    link = f"/sys/dev/{kind}/{os.major(number)}:{os.minor(number)}"
    return host.resolve(link) if host.exists(link) else None


def numa_node(host: kdp.hardware.Host, path: str, sysfs: str | None = None) -> int | None:
    """Return the memory node that a device node is near to; None: unknown.

    Args:
        host: The node's files.
        path: The device node.
        sysfs: Its directory in sysfs, if that is known already.
    """
    try:
        place = PurePosixPath(sysfs or _sysfs(host, path) or "/")
        for directory in (place, *place.parents):
            file = host.path(directory / "numa_node")
            # A card may say -1 (unknown) where its bridge knows better, so the way goes on.
            if file.is_file() and (node := int(file.read_text())) >= 0:
                return node
    except (OSError, ValueError):  # unplugged while we look
        return None
    return None
