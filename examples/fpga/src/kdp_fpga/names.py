"""How resources are called: as Intel's and AMD's own plugins call them, so that pods need not change."""

from __future__ import annotations

import base64
import hashlib
import re

_INTEL = "fpga.intel.com"
_AMD = "amd.com"
_LONGEST = 63
"""Characters of a resource's name behind the slash (Kubernetes' qualified names)."""


def is_id(text: str) -> bool:
    """Return whether this is the id of an accelerator or an interface: a UUID as 32 hexadecimal digits."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def is_blank(identity: str) -> bool:
    """Return whether an id is all ones (the firmware does not answer) or all zeros (nothing is programmed)."""
    return set(identity) in ({"f"}, {"0"})


def accelerator_resource(interface: str | None, accelerator: str) -> str:
    """Return the resource of a function that is programmed already, by the ids of its region's interface and its own.

    Both ids do not fit into 63 characters as digits, so Intel's plugin writes their 32 bytes in base64; the first three
    digits of each are for people. A board without a region that could be programmed has no interface.
    """
    if interface is None:
        return f"{_INTEL}/af-{accelerator}"
    both = base64.urlsafe_b64encode(bytes.fromhex(interface + accelerator)).decode().rstrip("=")
    return f"{_INTEL}/af-{interface[:3]}.{accelerator[:3]}.{both}"


def region_resource(interface: str) -> str:
    """Return the resource of regions that can be programmed with what was compiled for this interface."""
    return f"{_INTEL}/region-{interface}"


def shell_resource(shell: str, timestamp: str | None) -> str:
    """Return the resource of cards that run a shell; one that makes too long a name, or none, is cut or changed.

    Args:
        shell: Its name, as ``xilinx_u200_gen3x16_xdma_base_2``.
        timestamp: When it was built; None: the name alone will do.
    """
    return f"{_AMD}/{_fitting(shell if timestamp is None else f'{shell}-{timestamp}')}"


def card_id(serial: str) -> str:
    """Return the id of a card with this serial number."""
    return _fitting(f"card-{serial}")


def _fitting(text: str) -> str:
    """Return a text as a name; one that is too long or has other signs is cut and changed, and ends with its digest."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    if len(name) <= _LONGEST and re.fullmatch(r"[A-Za-z0-9](.*[A-Za-z0-9])?", name) and name == text:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name.strip('._-')[: _LONGEST - 9]}-{digest}".lstrip("-")
