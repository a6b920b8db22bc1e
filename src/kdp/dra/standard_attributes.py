"""The attributes that drivers of all vendors share, so that a claim can ask for devices that belong together.

``resource.kubernetes.io/pcieRoot``, ``pciBusID`` and ``numaNode`` are found in sysfs, by the first of these that knows:
the attribute ``pciBusID`` that the backend declares itself, an id or unit that is a PCI address, the device nodes. A
device on several functions has no bus id, and a root only if it is one for all. ``numaNode`` is what the backend says,
else what sysfs says; it is left out where it is unknown or more than one: the value -1 would match every other device
without a node.

Source of the names: ``k8s.io/dynamic-resource-allocation`` ``deviceattribute``, version 0.37.1.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..hardware import Host, PciFunction
    from ..model.devices import AttributeValue, Device

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
    return _found(device, _Answers(host))


@final
class StandardAttributes:
    """The standard attributes of all devices of a driver, time after time.

    A device that is as it was the last time keeps what was found then: whatever goes and comes again was unhealthy
    between.

    Args:
        host: The node's files.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, tuple[Device, Mapping[str, AttributeValue]]] = {}

    def of(self, devices: Iterable[Device]) -> dict[str, Mapping[str, AttributeValue]]:
        """Return those of each device, by its id. Blocks: it reads sysfs."""
        answers = _Answers(self._host)
        known, self._known = self._known, {}
        for device in devices:
            before = known.get(device.id)
            found = before[1] if before is not None and before[0] == device else _found(device, answers)
            self._known[device.id] = device, found
        return {device_id: found for device_id, (_, found) in self._known.items()}


@final
class _Answers:
    """What the node has answered already: many devices may be of one function, or stand behind one node."""

    def __init__(self, host: Host) -> None:
        self.function = functools.cache(host.pci_function)
        self.numa_nodes = functools.cache(host.numa_nodes)
        self.function_of_node = functools.cache(functools.partial(_function_of_node, host))


def _function_of_node(host: Host, path: str) -> PciFunction | None:
    directory = host.directory_of_node(path)
    return None if directory is None else directory.pci


def _found(device: Device, host: _Answers) -> Mapping[str, AttributeValue]:
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


def _functions(device: Device, host: _Answers) -> list[PciFunction]:
    declared = device.attributes.get(PCI_BUS_ID)
    for address in (declared, device.id, device.unit):
        function = host.function(address) if isinstance(address, str) else None
        if function is not None:
            return [function]
    found: dict[str, PciFunction] = {}
    for node in device.edits.device_nodes:
        function = host.function_of_node(node.host_path)
        if function is not None:
            found[function.path] = function
    return list(found.values())
