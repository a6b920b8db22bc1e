"""USB devices as sysfs tells them: which stick is at which node.

A device's node (``/dev/bus/usb/001/005``) has another number after each plugging in, so its label, and with it the
device id, is the port (``usb-1-1.2``); a configuration may use the serial number instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .pattern import Found, Pattern, by_number

if TYPE_CHECKING:
    import kdp.hardware

NODES = Pattern.shell("/dev/bus/usb/*/*")
"""Where the nodes come and go: sysfs itself has no inotify."""


@attrs.frozen(kw_only=True)
class UsbDevice:
    """A USB device that is plugged in.

    Attributes:
        vendor: The vendor's number, four hexadecimal digits.
        product: The product's number, four hexadecimal digits.
        serial: The serial number; empty: it has none.
        port: Where it is plugged in, as ``1-1.2``.
        node: Its node, as ``/dev/bus/usb/001/005``.
        sysfs: Its directory in sysfs, links resolved.
    """

    vendor: str
    product: str
    serial: str
    port: str
    node: str
    sysfs: str

    @property
    def found(self) -> Found:
        """The device as a member of a group is told."""
        captures = {"vendor": self.vendor, "product": self.product, "serial": self.serial, "port": self.port}
        return Found(path=self.node, label=f"usb-{self.port}", captures=captures, sysfs=self.sysfs)


def scan(host: kdp.hardware.Host) -> list[UsbDevice]:
    """Return what is plugged in, by port; what is pulled out while we read is left out."""
    found: list[UsbDevice] = []
    for path in sorted(host.glob("/sys/bus/usb/devices/*"), key=by_number):
        try:
            sysfs = host.resolve(path)
            bus, number = int(_read(host, sysfs, "busnum")), int(_read(host, sysfs, "devnum"))
            vendor, product = _read(host, sysfs, "idVendor").lower(), _read(host, sysfs, "idProduct").lower()
        except (OSError, ValueError):  # an interface (1-1:1.0) has none of these files
            continue
        try:
            serial = _read(host, sysfs, "serial")
        except OSError:  # many have none
            serial = ""
        node, port = f"/dev/bus/usb/{bus:03}/{number:03}", path.rpartition("/")[2]
        found.append(UsbDevice(vendor=vendor, product=product, serial=serial, port=port, node=node, sysfs=sysfs))
    return found


def _read(host: kdp.hardware.Host, sysfs: str, name: str) -> str:
    return host.read_bytes(f"{sysfs}/{name}").decode(errors="replace").strip()
