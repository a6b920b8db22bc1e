"""A device plugin for FPGAs: Intel boards by their kernel drivers (DFL, older OPAE), AMD/Xilinx cards by theirs (XRT).

The data's way: ``dfl`` and ``xrt`` (what is there) -> ``faults`` and ``temperature`` (what is wrong with it) ->
``backend`` (what kdp is told); ``names`` has the rules for resource names, ``memory`` what attributes said before they
failed. Everything is read from sysfs: no board is ever opened, reset, programmed or taken from its driver.
"""

from __future__ import annotations

from .backend import Fpga

__all__ = ["Fpga"]
