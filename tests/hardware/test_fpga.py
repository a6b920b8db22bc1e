"""examples/fpga on the kernel's own FPGA drivers, in a guest with two boards on two NUMA nodes."""

from __future__ import annotations

from .conftest import RunTestsInGuest
from .guests.fpga import FPGA


def test_the_backend_on_real_drivers(run_tests_in_guest: RunTestsInGuest) -> None:
    out = run_tests_in_guest(FPGA, "test_fpga.py", limit=800)

    assert (out / "port-errors.tar.gz").exists()
