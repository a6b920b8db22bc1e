"""examples/rdma on the kernel's own soft-RoCE, in a guest."""

from __future__ import annotations

from .conftest import RunTestsInGuest
from .guests.rxe import RXE


def test_the_backend_on_real_drivers(run_tests_in_guest: RunTestsInGuest) -> None:
    run_tests_in_guest(RXE, "test_rdma.py", limit=400)
