from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kdp.hardware
from kdp_rdma import Rdma


def test_the_package_brings_a_node_that_each_command_can_read() -> None:
    """`pip install` alone had no node to try the backend on."""
    said = subprocess.run([sys.executable, "-m", "kdp_rdma.recorded"], capture_output=True, text=True, check=True)
    devices = Rdma(kdp.hardware.Host.of_snapshot(Path(said.stdout.strip())), mode="hca").discover()
    assert len(devices) == 2
    assert all(device.health.is_healthy for device in devices)
