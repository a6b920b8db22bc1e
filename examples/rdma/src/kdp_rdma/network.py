"""What a DRA claim is told of its adapter's or function's network interface: name, hardware address, IP addresses."""

from __future__ import annotations

import kdp
import kdp.hardware

_MOST_IPS = 16
"""What a claim's status takes."""


def network_data(host: kdp.hardware.Host, device: kdp.Device) -> kdp.NetworkData | None:
    """Return what is known of a device's interface as it is now; None: it has none that is to be seen here.

    A function that is bound to vfio-pci has none, nor has one whose interface another container has.
    """
    name = device.attributes.get("netdev")
    interface = host.net_interface(name) if isinstance(name, str) else None
    if interface is None:
        return None
    return kdp.NetworkData(
        interface_name=interface.name, ips=interface.ips[:_MOST_IPS], hardware_address=interface.address
    )
