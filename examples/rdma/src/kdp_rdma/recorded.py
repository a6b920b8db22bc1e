"""``python -m kdp_rdma.recorded``: print where a recorded node with two soft-RoCE adapters is, for ``--snapshot``."""

from __future__ import annotations

from pathlib import Path

NODE = Path(__file__).with_name("recorded_node.tar.gz")
"""A snapshot of the node, which each command of kdp reads in place of this machine."""

if __name__ == "__main__":
    print(NODE)  # noqa: T201 - a program for people
