"""Resources and device ids as CDI names.

CDI allows less than the kubelet: a class must start with a letter, a device must start and end with a letter or digit
and holds only letters, digits and ``_ - . :``. What is allowed stays as it is; the rest is escaped. Two
resources never share a kind, nor two ids a name.

=================================== ===================================
kdp                                 CDI
=================================== ===================================
resource ``example.com/widget``     kind ``kdp.example.com/widget``
resource ``example.com/mig-1g.5gb`` kind ``kdp.example.com/mig-1g_5gb``
resource ``example.com/w_x``        kind ``kdp.example.com/w_x-5b4ce595``
device ``0000:3b:00.0``             device ``0000:3b:00.0``
device ``mlx5_0/3``                 device ``x_mlx5_5f0_2f3``
=================================== ===================================
"""

from __future__ import annotations

import hashlib
import re

from ..model.names import check_cdi_device_name, check_resource_name

_PLAIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?\Z")
_ESCAPED = "x_"
_DIGEST_LENGTH = 8
_DIGESTED = re.compile(rf"-[0-9a-f]{{{_DIGEST_LENGTH}}}\Z")


def cdi_kind(resource: str) -> str:
    """Return the CDI kind under which the devices of a resource are found. No other resource has it.

    The vendor part is the resource's domain behind ``kdp.``, so that it is not taken for a spec of the vendor's own
    tools (two specs of one kind with one name hide each other). Dots of the name become ``_``: with a dot in its class
    a spec needs version 0.6.0, which podman 4 refuses. A digit at the front gets an ``x``.

    A name that this does not lead back to has a digest of itself at the end: ``w_x``, since ``w.x`` becomes that, and
    ``x4k``, since ``4k`` does. So has one that was changed and looks as if it had a digest already.

    Raises:
        InvalidNameError: It is no name of a resource.
    """
    domain, _, name = check_resource_name(resource).partition("/")
    found = name.replace(".", "_")
    if found[0].isdigit():
        found = f"x{found}"
    if _name_of(found) != name or (found != name and _DIGESTED.search(found)):
        found += f"-{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]}"
    return f"kdp.{domain}/{found}"


def _name_of(class_: str) -> str:
    """Return the name of the resource that has this class without a digest."""
    name = class_.replace("_", ".")
    return name[1:] if name[0] == "x" and name[1:2].isdigit() else name


def cdi_device_name(device_id: str) -> str:
    """Return a device id as the device part of a CDI name: itself where that is allowed, else escaped."""
    if _PLAIN.match(device_id) and not device_id.startswith(_ESCAPED):
        return device_id
    return _ESCAPED + "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"_{byte:02x}" for byte in device_id.encode()
    )


def qualified(kind: str, device: str) -> str:
    """Return ``vendor/class=device``, checked by `check_cdi_device_name`."""
    return check_cdi_device_name(f"{kind}={device}")
