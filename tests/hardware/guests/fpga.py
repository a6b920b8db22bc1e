"""A guest with two PCI functions that the kernel's own FPGA drivers take for boards, one on each of two NUMA nodes.

QEMU has no FPGA, but its bochs-display has 16 MiB of plain memory behind BAR 0 and no driver in the guest. What
`tests.hardware.dfl_board` writes there is a Device Feature List, and dfl-pci enumerates it as that of an Intel card.
"""

from __future__ import annotations

from typing import Final

from ..vm import Kind

__all__ = ["FPGA"]


def _processor(node: int) -> tuple[str, ...]:
    return (
        *("-object", f"memory-backend-ram,id=m{node},size=512M"),
        *("-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"),
    )


def _board(node: int) -> tuple[str, ...]:
    return (
        *("-device", f"pxb-pcie,id=x{node},bus=pcie.0,bus_nr={64 * node + 64},numa_node={node}"),
        *("-device", f"pcie-root-port,id=p{node},bus=x{node},chassis={node},slot={node}"),
        *("-device", f"bochs-display,bus=p{node},id=fpga{node}"),
    )


FPGA: Final = Kind(
    name="fpga",
    modules=("dfl-fme-mgr", "dfl-fme-br", "dfl-fme-region", "dfl-fme", "dfl-afu", "dfl-pci"),
    compiled="dfl",
    machine=("-machine", "q35", "-smp", "2,sockets=2,cores=1", *_processor(0), *_processor(1)),
    devices=(*_board(0), *_board(1)),
    # A register of a board that a driver has taken can be written then: that is how faults are made.
    kernel_arguments=("iomem=relaxed",),
)
"""Boards at 0000:41:00.0 (node 0) and 0000:81:00.0 (node 1), not yet made."""
