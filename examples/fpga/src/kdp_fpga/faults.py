"""What is wrong with an Intel board or port, by its error registers: each register a reason of its own.

The kernel sends no event when a register changes, so they are polled. Reading one changes nothing. The
person who repairs the board clears it by writing the register's value to the same file; this module never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import kdp.hardware

    from .dfl import Board, Port

_ENGINE: Final = {
    "fme_errors": ("fme_errors", "fme-errors/errors"),
    "pcie0_errors": ("pcie0_errors",),
    "pcie1_errors": ("pcie1_errors",),
    "nonfatal_errors": ("nonfatal_errors",),
    "catfatal_errors": ("catfatal_errors",),
    "gbs_errors": ("gbs_errors",),
    "bbs_errors": ("bbs_errors",),
}
"""By name the attributes below the management engine's ``errors``: as in DFL, then as in OPAE where that differs."""

_PORT: Final = {"port_errors": ("errors",)}

REGISTERS: Final = (*_ENGINE, *_PORT)
"""The names of all registers, for the option that leaves some out."""


def of_board(board: Board, ignored: Collection[str], managers: Sequence[kdp.hardware.Directory]) -> list[str]:
    """Return what is wrong with a board as a whole, and so with all of its ports.

    Args:
        board: The board.
        ignored: Registers that say nothing.
        managers: What programs boards, of all of them: the entries of the class ``fpga_manager``.
    """
    if board.engine is None:
        return [] if board.is_virtual else [f"the management engine of {board.address} is gone"]
    faults = _set(board.engine, _ENGINE, ignored)
    for manager in managers:
        if manager.path.startswith(f"{board.engine.path}/"):
            state = manager.text("state").or_else("")
            if state.endswith("error"):
                faults.append(f"its last programming failed ({state})")
    return faults


def of_port(port: Port, ignored: Collection[str]) -> list[str]:
    """Return what is wrong with a port."""
    faults = [] if port.accelerator.problem is None else [port.accelerator.problem]
    if port.node is None:
        faults.append(f"the kernel names no device node for {port.directory.name}")
    return faults + _set(port.directory, _PORT, ignored)


def _set(
    directory: kdp.hardware.Directory, registers: Mapping[str, tuple[str, ...]], ignored: Collection[str]
) -> list[str]:
    faults: list[str] = []
    errors = directory.child("errors")
    for name, attributes in registers.items():
        if name in ignored:
            continue
        for attribute in attributes:
            reading = errors.hexadecimal(attribute)
            if reading.is_absent:
                continue
            if reading.value is None:
                faults.append(reading.problem or name)
            elif reading.value:
                faults.append(f"{name} is {reading.value:#x}")
    return faults
