"""What a kernel with SELinux lets a device plugin write, and what `kdp doctor` says of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import RunTestsInGuest
from .guests.selinux import SELINUX
from .vm import Missing
from .vm.tools import BIN, program

POLICY = Path(__file__).with_name("device_plugin.cil")


def test_what_a_device_plugin_may_write(run_tests_in_guest: RunTestsInGuest, tmp_path: Path) -> None:
    try:
        compiler = program("secilc", "secilc/usr/bin", "secilc")
    except Missing as missing:
        pytest.skip(str(missing))
    libraries = ":".join(str(BIN / "secilc" / each / "x86_64-linux-gnu") for each in ("usr/lib", "lib"))
    compiled = tmp_path / "policy"
    command: list[str | Path] = [compiler, "-M", "true", "-c", "33", "-o", compiled, "-f", os.devnull, POLICY]
    subprocess.run(command, check=True, env={**os.environ, "LD_LIBRARY_PATH": libraries})
    run_tests_in_guest(SELINUX, "test_selinux.py", environment={"KDP_SELINUX_POLICY": str(compiled)})
