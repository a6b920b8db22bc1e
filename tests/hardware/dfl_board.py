"""`DflBoard`: makes an FPGA board out of a PCI function whose BAR 0 is plain memory, inside a guest.

A Device Feature List (Documentation/fpga/dfl.rst of the kernel) is written into the memory, and the function is handed
to the kernel's own dfl-pci: it finds a management engine with temperature, power and error registers, and ports with
their accelerators, and makes of them what an Intel card has in sysfs and /dev. The registers stay ours to change.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from pathlib import Path
from typing import Final

__all__ = ["DflBoard"]

_ACCELERATOR, _PRIVATE, _UNIT = 1, 3, 4
"""Types of a feature's header."""

_ENGINE: Final = uuid.UUID("bfaf2ae9-4a52-46e3-82fe-38f0f9e17764")
_PORT: Final = uuid.UUID("3ab49893-138d-42eb-9642-b06c6b355b87")
"""What the kernel knows the two kinds of units by."""

_DRIVER: Final = Path("/sys/bus/pci/drivers/dfl-pci")
_USED: Final = 0x100000
_FIRST_PORT, _NEXT_PORT, _ACCELERATOR_AT = 0x40000, 0x20000, 0x8000

_TEMPERATURE, _ENGINE_ERRORS, _PORT_ERRORS = 0x1010, 0x3010, 0x1010
"""Registers: of the engine, the engine, and from the beginning of each port."""


class DflBoard:
    """A board at a PCI address.

    Args:
        address: The function, as ``0000:41:00.0``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._function = Path("/sys/bus/pci/devices", address)

    @staticmethod
    def candidates() -> list[str]:
        """Return the addresses of the functions that can be boards: QEMU's bochs-display."""
        functions = sorted(Path("/sys/bus/pci/devices").iterdir())
        return [function.name for function in functions if (function / "device").read_text().strip() == "0x1111"]

    def make(self, *, accelerator: str, interface: str, ports: int = 1) -> None:
        """Write the list of features and bind the function to dfl-pci.

        Args:
            accelerator: The id of what is programmed into each port.
            interface: The id of the interface that the regions are programmed for.
            ports: How many ports there are.
        """
        (self._function / "enable").write_text("1")
        values: dict[int, int] = {}

        def put(offset: int, *registers: int) -> None:
            values.update({offset + 8 * number: value for number, value in enumerate(registers)})

        put(0x0, _header(_UNIT, 0, 0x1000), *_halves(_ENGINE), 0)
        put(0x30, 0x10 | 1 << 12 | ports << 17 | 48 << 24 | 64 << 32 | 4 << 44)
        put(0x38, *(1 << 60 | (_FIRST_PORT + number * _NEXT_PORT) for number in range(ports)))
        put(0x60, 0x23000110010310, 0x20251120)
        put(0x1000, _header(_PRIVATE, 0x1, 0x1000), 90 | 95 << 8 | 100 << 24, 45, 0, 0)
        put(0x2000, _header(_PRIVATE, 0x2, 0x1000), 37, 0, 0)
        put(0x3000, _header(_PRIVATE, 0x4, 0x1000))
        put(0x4000, _header(_PRIVATE, 0x5, 0))
        put(0x40A8, *_halves(uuid.UUID(interface)))
        for number in range(ports):
            port = _FIRST_PORT + number * _NEXT_PORT
            put(port, _header(_UNIT, 1, 0x1000), *_halves(_PORT), _ACCELERATOR_AT)
            put(port + 0x30, number | 16 << 8)
            put(port + 0x38, 1 | 1 << 4)  # in reset, and it has been acknowledged
            put(port + 0x1000, _header(_PRIVATE, 0x10, 0))
            put(port + _ACCELERATOR_AT, _header(_ACCELERATOR, 0, 0), *_halves(uuid.UUID(accelerator)))
        self._write(values, clean=True)
        (self._function / "driver_override").write_text("dfl-pci")
        self.bind()

    def bind(self) -> None:
        """Let the kernel's driver take it, as it stands."""
        (_DRIVER / "bind").write_text(self.address)

    def unbind(self) -> None:
        """Take it from its driver: its nodes and its numbers are gone, what is written in it stays."""
        (_DRIVER / "unbind").write_text(self.address)

    @staticmethod
    def take_driver(part: str) -> None:
        """Take the driver from a part of a board, as ``dfl-fme.0``: one of the steps in which a board is taken away."""
        Path("/sys/bus/platform/drivers", part.partition(".")[0], "unbind").write_text(part)

    @staticmethod
    def give_driver(part: str) -> None:
        """Give a part its driver back."""
        Path("/sys/bus/platform/drivers", part.partition(".")[0], "bind").write_text(part)

    @staticmethod
    def rescan() -> None:
        """Let the kernel find again what was removed; its memory keeps what was written, its driver is forgotten."""
        Path("/sys/bus/pci/rescan").write_text("1")

    def remove(self) -> None:
        """Unplug it, as far as the kernel can tell. Nobody may hold a port open: the kernel 6.1 would stumble."""
        (self._function / "remove").write_text("1")

    def engine_errors(self, value: int) -> None:
        """Set the engine's error register."""
        self._write({_ENGINE_ERRORS: value})

    def port_errors(self, port: int, value: int) -> None:
        """Set a port's error register."""
        self._write({_FIRST_PORT + port * _NEXT_PORT + _PORT_ERRORS: value})

    def temperature(self, celsius: int) -> None:
        """Set its temperature."""
        self._write({_TEMPERATURE: celsius})

    def accelerator(self, port: int, identity: int) -> None:
        """Set the id of a port's accelerator, 128 bits."""
        at = _FIRST_PORT + port * _NEXT_PORT + _ACCELERATOR_AT
        self._write({at + 8: identity & (1 << 64) - 1, at + 16: identity >> 64})

    def _write(self, values: dict[int, int], *, clean: bool = False) -> None:
        bar = os.open(self._function / "resource0", os.O_RDWR | os.O_SYNC)
        try:
            with mmap.mmap(bar, _USED) as memory:
                if clean:
                    memory[:] = bytes(_USED)
                for offset, value in values.items():
                    memory[offset : offset + 8] = struct.pack("<Q", value)
        finally:
            os.close(bar)


def _header(kind: int, identity: int, following: int) -> int:
    """Return the header of a feature: its type, its id, and how far it is to the next; 0: it is the last."""
    return kind << 60 | (0 if following else 1) << 40 | following << 16 | identity


def _halves(identity: uuid.UUID) -> tuple[int, int]:
    return identity.int & (1 << 64) - 1, identity.int >> 64
