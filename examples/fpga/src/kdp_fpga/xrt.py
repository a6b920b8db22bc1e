"""AMD's (Xilinx') cards as the drivers of XRT show them: xocl on the user function, xclmgmt on the management function.

Source of the names: the device plugin in Xilinx/FPGA_as_a_Service. A function is told by the files that its driver
makes, ``user_pf`` or ``mgmt_pf``, not by its number, which older drivers had the other way round. A guest may have the
user function only. Some cards have two user functions with one serial number: they are given out together or one by
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

import kdp.hardware

from .known import Known

if TYPE_CHECKING:
    from collections.abc import Mapping

_VENDORS = {0x10EE, 0x13FE, 0x1D0F, 0x3475}
"""Xilinx, and who sells its cards as their own: Advantech, AWS, Arista."""


@final
@attrs.frozen
class Function:
    """A user function: what a workload opens.

    Attributes:
        address: Its PCI address.
        shell: The name of the shell that it runs.
        timestamp: When the shell was built.
        serial: The card's serial number; a cloud's cards may have none.
        render_node: Its device node for XRT; None: its driver names none.
        dma_node: Its device node for queue DMA; None: it has no such engine.
        management_node: The device node of the management function beside it; None: there is none here.
        is_offline: Whether the driver has taken it off for a while, as during a reset.
        directory: Its attributes.
    """

    address: str
    shell: Known
    timestamp: Known
    serial: Known
    render_node: str | None
    dma_node: str | None
    management_node: str | None
    is_offline: bool
    directory: kdp.hardware.PciFunction


def scan(host: kdp.hardware.Host, last: kdp.hardware.LastKnown, others: set[str]) -> tuple[list[Function], list[str]]:
    """Return the user functions that are there, by address, and a sentence for each card that has none.

    Args:
        host: The node's files.
        last: What attributes said.
        others: Functions of other vendors, from the last time; a server has hundreds, and they stay what they are.
    """
    entries = host.glob("/sys/bus/pci/devices/*")
    others.intersection_update(entries)
    functions: list[kdp.hardware.PciFunction] = []
    for entry in entries:
        function = None if entry in others else host.pci_function(entry.rpartition("/")[2])
        vendor = None if function is None else function.vendor
        if function is not None and vendor in _VENDORS:
            functions.append(function)
        elif vendor is not None:
            others.add(entry)
    managers = {_slot(function): function for function in functions if host.exists(f"{function.path}/mgmt_pf")}
    users = [function for function in functions if host.exists(f"{function.path}/user_pf")]
    left_out = [
        (
            f"card {function.address}: its management function is there and no user function: is xocl loaded and bound "
            "to it?"
        )
        for slot, function in managers.items()
        if slot not in {_slot(user) for user in users}
    ]
    return [_function(function, managers, last) for function in users], left_out


def _function(
    function: kdp.hardware.PciFunction,
    managers: Mapping[str, kdp.hardware.PciFunction],
    last: kdp.hardware.LastKnown,
) -> Function:
    manager = managers.get(_slot(function))
    instance = manager.integer("instance").value if manager is not None else None
    render = next((entry for entry in function.children("drm/renderD*")), None)
    return Function(
        address=function.address,
        shell=_reading(function, "rom*", "VBNV", last),
        timestamp=_reading(function, "rom*", "timestamp", last),
        serial=_serial(function, last),
        render_node=None if render is None else f"/dev/dri/{render.name}",
        dma_node=f"/dev/xfpga/dma.qdma.u{_number(function)}.0" if function.children("dma.qdma.u*") else None,
        management_node=None if instance is None else f"/dev/xclmgmt{instance}",
        is_offline=function.flag("dev_offline").value is True,
        directory=function,
    )


def _serial(function: kdp.hardware.PciFunction, last: kdp.hardware.LastKnown) -> Known:
    newer = _reading(function, "hwmon_sdm.u.*", "serial_num", last)
    return newer if newer.value is not None else _reading(function, "xmc.u.*", "serial_num", last)


def _reading(function: kdp.hardware.PciFunction, folder: str, name: str, last: kdp.hardware.LastKnown) -> Known:
    """Return what an attribute of the first folder that matches says; its number may differ after each reset.

    xocl prints the bytes of the card's ROM as they are (VBNV_show in its feature_rom.c), so a card that fails may say
    anything.
    """
    reading = next((place.text(name) for place in function.children(folder)), function.child(folder).text(name))
    value, problem = reading.value or None, reading.problem
    if value is None:
        problem = problem or f"{reading.path} is empty"
    elif not (value.isascii() and value.isprintable()):
        problem = f"{reading.path} says {value[:40]!r}; expected printable ASCII"
        value = None
    return Known(last.recall(f"{function.path}/{folder}/{name}", value), problem or None)


def _slot(function: kdp.hardware.PciFunction) -> str:
    return function.address.rpartition(".")[0]


def _number(function: kdp.hardware.PciFunction) -> int:
    """Return the number that the drivers make of an address: domain, bus, device and function in one."""
    domain, bus, rest = function.address.split(":")
    device, _, number = rest.partition(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(number)
