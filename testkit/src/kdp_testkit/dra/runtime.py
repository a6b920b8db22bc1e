"""What a container runtime finds of the CDI devices that a driver has described."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def cdi_devices(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the container edits of each CDI device by its qualified name; a file that is no spec has none."""
    found: dict[str, dict[str, Any]] = {}
    for path in directory.glob("[!.]*.json") if directory.is_dir() else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            spec = json.loads(path.read_text())
            found |= {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}
    return found
