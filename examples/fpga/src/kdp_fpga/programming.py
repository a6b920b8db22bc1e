"""`FpgaConfig`: the function that a DRA claim wants its boards to have, and how the program that loads it is told.

The claim names the function, and the container runtime's hook programs the boards with it before the container starts:
it is Intel's ``intel-fpga-crihook`` (the option ``programmer``), which reads ``FPGA_REGION_n`` and ``FPGA_AFU_n`` in
the container's environment. With a device plugin Intel's webhook writes these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

import kdp

if TYPE_CHECKING:
    from collections.abc import Sequence

_ID = re.compile(r"[0-9a-f]{32}")


def _function(value: str) -> str:
    plain = value.replace("-", "").lower()
    if not _ID.fullmatch(plain):
        raise ValueError(f"function {value!r}: must be the id of an accelerator, 32 digits from 0 to f")
    return plain


@attrs.frozen(kw_only=True)
class FpgaConfig:
    """The parameters of a claim, as ``{apiVersion: fpga.example.com/v1, kind: FpgaConfig, function: d8424dc4...}``.

    Attributes:
        function: The accelerator's id, 32 hexadecimal digits, with or without dashes.
    """

    function: str = attrs.field(converter=_function)


def told(
    devices: Sequence[kdp.Device], function: str, *, is_programmed: bool, may_have_programmer: bool
) -> dict[str, str]:
    """Return the variables that tell the hook what to program; none, if there is no hook.

    The hook is always told: the last discovery cannot know what an earlier container has had programmed since.

    Args:
        devices: Whole regions.
        function: The accelerator's id.
        is_programmed: Whether there is a hook that programs.
        may_have_programmer: Whether the plugin's mode takes the option ``programmer``.

    Raises:
        kdp.AllocationError: A board has another function, and nobody programs it, or nobody can: it is a card of AMD.
    """
    if not is_programmed:
        others = [device for device in devices if device.attributes.get("accelerator") != function]
        if not others:
            return {}
        has = others[0].attributes.get("accelerator", "several functions, or none that it reports")
        options = "programmer=PATH" if may_have_programmer else "mode=region and programmer=PATH"
        raise kdp.AllocationError(
            f"function {function}: {others[0].id} has {has}, and this node's plugin has no programmer; select a board "
            f"that has the function, or run the plugin with {options}"
        )
    variables: dict[str, str] = {}
    for number, device in enumerate(devices, start=1):
        if "interface" not in device.attributes:
            raise kdp.AllocationError(
                f"function {function}: {device.id} has no region that could be programmed; select boards that have the "
                "attribute interface"
            )
        variables[f"FPGA_REGION_{number}"] = str(device.attributes["interface"])
        variables[f"FPGA_AFU_{number}"] = function
    return variables
