"""The length of time slices, for claims whose processes share a GPU.

NVML has no call for it: NVIDIA's own DRA driver runs ``nvidia-smi compute-policy``, and so do we. The tool is the
driver's, found below the driver's root, and gets the library of that root. What is undone is set to the default, which
is known also after a crash.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import kdp
import kdp.hardware

from .nvml import find_library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .gpus import Gpu

Interval = Literal["Default", "Short", "Medium", "Long"]

_NUMBERS: Final = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}

_DIRECTORIES: Final = ("usr/bin", "usr/sbin", "bin", "sbin")
TOOL_PLACES: Final = {"/usr/bin", "/usr/sbin"}
"""Where the tool is on a node whose driver has no root of its own."""

_SECONDS: Final = 10.0
"""For one call; the hook that asks for it has 20 s."""


def require_whole(device: kdp.Device, setting: str, property: str) -> None:
    """Refuse a setting that only a whole GPU has, on a part of one or on one that is lost.

    Args:
        device: The device.
        setting: The setting and its value.
        property: What a whole GPU has.

    Raises:
        kdp.AllocationError: It is no whole GPU, or it is lost.
    """
    gpu: Gpu = device.handle
    if device.id != device.unit:
        raise kdp.AllocationError(f"{setting}: {device.id} is a part of a GPU; only a whole one has {property}")
    if gpu.handle is None:
        raise kdp.AllocationError(f"{setting}: {device.id} is lost")


class TimeSlices:
    """Sets the length of time slices of whole GPUs.

    Args:
        host: The node's files.
        library: ``libnvidia-ml.so.1`` itself; None: the one below the driver's root.
        driver_root: Where the driver's files are on the node.
    """

    def __init__(self, host: kdp.hardware.Host, *, library: Path | None, driver_root: str) -> None:
        self._host = host
        self._library = library
        self._driver_root = driver_root.rstrip("/")

    def set(self, devices: Sequence[kdp.Device], interval: Interval) -> None:
        """Set the length on each GPU; all of them, or none.

        Args:
            devices: Whole GPUs.
            interval: How long.

        Raises:
            kdp.AllocationError: One is not a whole GPU, or the tool refuses.
        """
        for device in devices:
            require_whole(device, f"timeSlicing {interval}", "time slices")
        try:
            self._run([device.id for device in devices], interval)
        except kdp.AllocationError:
            with suppress(kdp.AllocationError):
                self.restore(devices)
            raise

    def restore(self, devices: Sequence[kdp.Device]) -> None:
        """Give each GPU slices of the default length. One that is lost or gone has none.

        Raises:
            kdp.AllocationError: The tool refuses.
        """
        there = [device.id for device in devices if device.handle is not None and device.handle.handle is not None]
        if there:
            self._run(there, "Default")

    def _run(self, uuids: Sequence[str], interval: Interval) -> None:
        tool = self._tool()
        environment = dict(os.environ)
        library = self._library or find_library(self._host, self._driver_root or "/")
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        for uuid in uuids:
            command = [str(tool), "compute-policy", "-i", uuid, f"--set-timeslice={_NUMBERS[interval]}"]
            try:
                done = subprocess.run(  # noqa: S603 - the driver's own tool
                    command,
                    env=environment,
                    capture_output=True,
                    check=False,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise kdp.AllocationError(f"timeSlicing {interval}: {uuid}: nvidia-smi: {error}") from None
            if done.returncode != 0:
                said = (done.stderr.strip() or done.stdout.strip()).splitlines()
                raise kdp.AllocationError(
                    f"timeSlicing {interval}: {uuid}: nvidia-smi ended with exit code {done.returncode}: "
                    f"{said[-1] if said else 'it says nothing'}"
                )

    def _tool(self) -> Path:
        for directory in _DIRECTORIES:
            path = f"{self._driver_root}/{directory}/nvidia-smi"
            if self._host.exists(path):
                return self._host.path(self._host.resolve(path))
        raise kdp.AllocationError(
            f"time slices are set by nvidia-smi, which is not in {self._driver_root or '/'} of the node; looked in "
            f"{', '.join(_DIRECTORIES)}"
        )
