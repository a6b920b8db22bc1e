"""Resources and device ids as CDI names, and back.

CDI allows less than the kubelet: a class must start with a letter, a device must start and end with a letter or digit
and holds only letters, digits and ``_ - . :``. What is allowed stays as it is; the rest is escaped, reversibly.

=================================== ===================================
kdp                                 CDI
=================================== ===================================
resource ``example.com/widget``     kind ``kdp.example.com/widget``
resource ``example.com/mig-1g.5gb`` kind ``kdp.example.com/mig-1g_5gb``
device ``0000:3b:00.0``             device ``0000:3b:00.0``
device ``mlx5_0/3``                 device ``x_mlx5_5f0_2f3``
=================================== ===================================
"""

from __future__ import annotations

import re

from ..errors import InvalidNameError
from ..names import check_cdi_device_name, check_cdi_kind

__all__ = ["cdi_device_name", "cdi_kind", "device_id_of"]

_PLAIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?\Z")
_ESCAPED = "x_"
_ESCAPE = re.compile(r"_([0-9a-f]{2})")


def cdi_kind(resource: str) -> str:
    """Return the CDI kind under which the devices of a resource are found.

    The vendor part is the resource's domain behind ``kdp.``, so that it is not taken for a spec of the vendor's own
    tools (two specs of one kind with one name hide each other). Dots of the name become ``_``: with a dot in its class
    a spec needs version 0.6.0, which podman 4 refuses.
    """
    domain, _, name = resource.partition("/")
    name = name.replace(".", "_")
    return check_cdi_kind(f"kdp.{domain}/{name if name[:1].isalpha() else f'x{name}'}")


def cdi_device_name(device_id: str) -> str:
    """Return a device id as the device part of a CDI name: itself where that is allowed, else escaped."""
    if _PLAIN.match(device_id) and not device_id.startswith(_ESCAPED):
        return device_id
    return _ESCAPED + "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"_{byte:02x}" for byte in device_id.encode()
    )


def device_id_of(name: str) -> str:
    """Return the device id of which `cdi_device_name` made this name.

    Raises:
        InvalidNameError: It made no such name.
    """
    if name.startswith(_ESCAPED):
        raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name[len(_ESCAPED) :])
        try:
            found = raw.encode("latin-1").decode()
        except UnicodeError:
            found = ""
    else:
        found = name
    if not found or cdi_device_name(found) != name:
        raise InvalidNameError(f"CDI device {name!r}: is not a name that kdp makes of a device id")
    return found


def qualified(kind: str, device: str) -> str:
    """Return ``vendor/class=device``, checked.

    Raises:
        InvalidNameError: A part breaks CDI's rules.
    """
    return check_cdi_device_name(f"{kind}={device}")
