"""A guest whose kernel has RDMA: soft-RoCE (rdma_rxe) on its network interface and on dummy ones.

Its adapters are made with ``rdma link add``; verbs, MAD and the connection manager are those of any adapter.
"""

from __future__ import annotations

from typing import Final

from ..vm import Kind

__all__ = ["RXE"]

RXE: Final = Kind(
    name="rxe",
    # rdma_rxe asks for this checksum by name when it starts, so nothing in the module says so.
    modules=("crc32_generic", "rdma_rxe", "ib_uverbs", "ib_umad", "rdma_ucm", "dummy"),
    needs=(("ip", "iproute2/sbin", "iproute2"), ("rdma", "iproute2/bin", "iproute2")),
)
