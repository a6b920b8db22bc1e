"""The attributes that drivers of all vendors share, so that a claim can ask for devices that belong together.

``resource.kubernetes.io/pcieRoot``, ``pciBusID`` and ``numaNode`` are found in sysfs, by the first of these that knows: the
attribute ``pciBusID`` that the backend declares itself, an id or unit that is a PCI address, the device nodes. A device on
several functions has no bus id, and a root only if it is one for all. ``numaNode`` is what the backend says, else what sysfs
says; it is left out where it is unknown or more than one: the value -1 would match every other device without a node.

Source of the names: ``k8s.io/dynamic-resource-allocation`` ``deviceattribute``, version 0.37.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..devices import AttributeValue, Device
    from ..hardware import Host, PciFunction

__all__ = ["NUMA_NODE", "PCIE_ROOT", "PCI_BUS_ID", "standard_attributes"]

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
NUMA_NODE = "resource.kubernetes.io/numaNode"

_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
"""What the attribute may hold; the kernel also knows domains with more digits."""


def standard_attributes(device: Device, host: Host) -> Mapping[str, AttributeValue]:
    """Return the standard attributes that the backend has not declared itself. Blocks: it reads sysfs.

    Args:
        device: The device.
        host: The node's files.
    """
    functions = _functions(device, host)
    found: dict[str, AttributeValue] = {}
    addresses = {function.address for function in functions}
    if len(addresses) == 1 and _BUS_ID.match(next(iter(addresses))):
        found[PCI_BUS_ID] = next(iter(addresses))
    roots = {function.pcie_root for function in functions}
    root = next(iter(roots)) if len(roots) == 1 else None
    if root is not None:
        found[PCIE_ROOT] = root
    nodes = device.numa_nodes or host.numa_nodes(*(function.path for function in functions))
    if not nodes and not functions and device.edits.device_nodes:
        nodes = host.numa_nodes(*(node.host_path for node in device.edits.device_nodes))
    if len(nodes) == 1:
        found[NUMA_NODE] = nodes[0]
    return {name: value for name, value in found.items() if name not in device.attributes}


def _functions(device: Device, host: Host) -> list[PciFunction]:
    declared = device.attributes.get(PCI_BUS_ID)
    for address in (declared, device.id, device.unit):
        function = host.pci_function(address) if isinstance(address, str) else None
        if function is not None:
            return [function]
    found: dict[str, PciFunction] = {}
    for node in device.edits.device_nodes:
        directory = host.directory_of_node(node.host_path)
        function = None if directory is None else directory.pci
        if function is not None:
            found[function.path] = function
    return list(found.values())
