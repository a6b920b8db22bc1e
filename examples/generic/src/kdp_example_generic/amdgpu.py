"""Which card an AMD GPU's partition belongs to: the driver's platform devices do not tell.

The first partition of a card is its PCI function; the others are platform devices, ``amdgpu_xcp_N``, numbered over all
cards. The driver makes seven of them for each card that can be divided, whatever the mode is, so only those count that
KFD's topology names. There, a partition has the render node's minor and the card's PCI address as a number; the bits
below the device and the four highest tell the partition.

Sources: drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c and drivers/gpu/drm/amd/amdkfd/kfd_topology.c of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from kdp.hardware import PciFunction

if TYPE_CHECKING:
    from kdp.hardware import Host

_RENDER = re.compile(r".*/renderD(\d+)")
_PLATFORM = "/sys/devices/platform/amdgpu_xcp_"


@attrs.frozen(kw_only=True)
class Partitions:
    """The partitions of the node's cards; empty where no card can be divided.

    Attributes:
        cards: The card of each partition, and of each card that can be divided, by the minor of its render node.
        idle: Render nodes in sysfs that are no partition in the mode that the card has.
    """

    cards: Mapping[int, PciFunction]
    idle: frozenset[str]

    def card_of(self, node: str) -> PciFunction | None:
        """Return the card that a render node is of; None: it is none, or no card can be divided."""
        match = _RENDER.fullmatch(node)
        return None if match is None else self.cards.get(int(match[1]))


def read_partitions(host: Host) -> Partitions:
    """Return the partitions as they are now."""
    nodes = {_minor(path): path for path in host.glob(f"{_PLATFORM}*/drm/renderD*")}
    if not nodes:
        return Partitions(cards={}, idle=frozenset())
    functions = host.pci_functions(driver="amdgpu")
    by_slot = {function.address.rpartition(".")[0]: function for function in functions}
    known: dict[int, PciFunction] = {}
    topology = host.directories("/sys/class/kfd/kfd/topology/nodes/*")
    for entry in topology:
        lines = entry.text("properties").or_else("").splitlines()
        facts = dict(line.split(maxsplit=1) for line in lines if " " in line)
        try:
            minor, location, domain = (int(facts[name]) for name in ("drm_render_minor", "location_id", "domain"))
        except (KeyError, ValueError):  # a processor has no render node, and an older kernel no domain
            continue
        if (card := by_slot.get(f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}")) is not None:
            known[minor] = card
    if not topology and len(functions) == 1:  # there is only one that they can be of
        own = (_minor(each.path) for each in functions[0].children("drm/renderD*"))
        known = dict.fromkeys((*nodes, *own), functions[0])
    return Partitions(
        cards=known, idle=frozenset(path for minor, path in nodes.items() if topology and minor not in known)
    )


def _minor(path: str) -> int:
    return int(path.rpartition("renderD")[2])
