from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kdp.hardware
from kdp_fpga import Fpga


def test_the_package_brings_a_node_that_each_command_can_read() -> None:
    """`pip install` alone had no node to try the backend on."""
    said = subprocess.run([sys.executable, "-m", "kdp_fpga.recorded"], capture_output=True, text=True, check=True)
    devices = Fpga(kdp.hardware.Host.of_snapshot(Path(said.stdout.strip()))).discover()
    assert len(devices) == 3
    assert all(device.health.is_healthy for device in devices)
