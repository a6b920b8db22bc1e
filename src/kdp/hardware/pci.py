"""PCI addresses and links: how they are written, and where sysfs has PCI functions.

Source of the names: the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from typing import final

import attrs

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
DEVICES = "/sys/bus/pci/devices"


def normal_address(text: str) -> str | None:
    """Return a PCI address as sysfs writes it, of ``00000000:3B:00.0`` ``0000:3b:00.0``; None: this is none."""
    text = text.strip().lower()
    match = _ADDRESS.fullmatch(f"0000:{text}" if text.count(":") == 1 else text)
    if match is None:
        return None
    domain = int(match[1], 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}"


@final
@attrs.frozen
class PciLink:
    """How a PCI function is connected, or could be.

    Attributes:
        speed: Of each lane, in GT/s (10^9 transfers a second); None: unknown.
        width: The number of lanes; None: unknown.
    """

    speed: float | None
    width: int | None


def is_of_class(code: int | None, wanted: int) -> bool:
    """Return whether a class is this one; one byte (0x03) means the class, two (0x0302) class and subclass."""
    if code is None:
        return False
    return wanted in (code, code >> 8, code >> 16)


def function_path(path: str) -> str | None:
    """Return the path of the nearest PCI function that a path below ``/sys/devices`` is, or is part of; None: none."""
    if path.startswith("/sys/devices/"):
        parts = path.split("/")
        for end in range(len(parts), 3, -1):  # the nearest is at the end
            if normal_address(parts[end - 1]) == parts[end - 1]:
                return "/".join(parts[:end])
    return None
