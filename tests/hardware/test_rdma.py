"""examples/rdma on the kernel's own soft-RoCE, in guests."""

from __future__ import annotations

import attrs
import pytest
from tests.node.nodekit import Missing
from tests.node.nodekit.tools import BIN, program, tool

from .conftest import RunTestsInGuest
from .guests.rxe import RXE

NODE = {"containerd": "containerd-2/usr/bin", "runc": "runtime/usr/sbin", "busybox": "runtime/bin"}
"""What a whole kubelet needs besides itself, where `make node-tools` puts it."""

WITH_PODS = attrs.evolve(
    RXE,
    memory=3072,
    modules=(*RXE.modules, "veth"),
    needs=(*RXE.needs, ("ibv_rc_pingpong", "verbs/usr/bin", "ibverbs-utils")),
)


def test_the_backend_on_real_drivers(run_tests_in_guest: RunTestsInGuest) -> None:
    run_tests_in_guest(RXE, "test_rdma.py", limit=800)


def test_two_pods_speak_rdma(run_tests_in_guest: RunTestsInGuest) -> None:
    try:
        tool("kubelet")
        for name, place in NODE.items():
            program(name, BIN / place)
    except Missing as missing:
        pytest.skip(str(missing))
    # Images are unpacked in memory of their own: the guest's files are an overlay, on which there can be no other.
    run_tests_in_guest(WITH_PODS, "test_rdma_pods.py", limit=800, environment={"TMPDIR": "/dev/shm"})
