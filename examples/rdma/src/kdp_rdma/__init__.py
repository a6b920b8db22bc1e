"""InfiniBand, RoCE and iWARP adapters for containers: shared pools, single adapters, and SR-IOV virtual functions.

The data's way: ``document`` (JSON with places) -> ``config`` (what the admin wants, checked; kdp follows the
file), and ``hca`` and ``functions`` (what is there) -> ``selectors`` (what is meant) -> ``pools`` and ``vfs`` (what kdp
is told). ``backend`` joins them.

Nothing here opens a device node: an open verbs descriptor would keep a removed adapter half alive.
"""

from __future__ import annotations

from .backend import Rdma

__all__ = ["Rdma"]
