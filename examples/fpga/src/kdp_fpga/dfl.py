"""Intel's boards as the kernel shows them: DFL of the kernel itself, and the older OPAE drivers with other names.

Sources: the kernel's Documentation/fpga/dfl.rst and Documentation/ABI/testing/sysfs-platform-dfl-fme, -dfl-port and
sysfs-class-fpga-region. A board has one management engine (FME) and some ports, each with an accelerator. The numbers
in ``region0``, ``dfl-fme.0`` and ``dfl-port.0`` are given in the order of coming, and shift when a board is unplugged:
a port is known by its PCI function's address and its own ``id``. With SR-IOV a port may be moved to a virtual function;
the engine stays with the physical one, also when the virtual one is given to a guest, which sees a port without an
engine.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, final

import attrs

import kdp.hardware

from .known import Known
from .names import is_blank, is_id

if TYPE_CHECKING:
    from collections.abc import Iterable


@final
@attrs.frozen
class Port:
    """A port with its accelerator.

    Attributes:
        address: The PCI function that it is reached by.
        number: Its own number on the board; None: it never said.
        accelerator: The id of the function that is programmed, as 32 hexadecimal digits.
        directory: Its attributes.
        node: Its device node; None: the kernel names none.
    """

    address: str
    number: int | None
    accelerator: Known
    directory: kdp.hardware.Directory
    node: str | None

    @property
    def id(self) -> str:
        """What it is called among all devices."""
        return f"{self.address}-port{self.number}"


@final
@attrs.frozen
class Board:
    """A board.

    Attributes:
        address: Its physical PCI function.
        interface: The id of the interface that its regions are programmed for. Neither value nor problem: it has no
            such region, or not yet, for its driver makes the ports a moment before.
        engine: The attributes of its management engine; None: the engine is gone, or not there yet, or elsewhere.
        ports: Its ports, by address and number.
        is_virtual: Whether it is a virtual function without its physical one, as in a guest: a port, and never an
            engine.
    """

    address: str
    interface: Known
    engine: kdp.hardware.Directory | None
    ports: tuple[Port, ...]
    is_virtual: bool = False


@final
@attrs.frozen
class _Driver:
    """The names that a driver uses, as patterns.

    Attributes:
        boards: The entries of a class that are boards, and perhaps regions of boards that can be programmed.
        engine: The management engine below a board.
        port: A port below a board.
        interface: The attribute with the interface's id: its path below the engine, or its name in such a region.
    """

    boards: str
    engine: str
    port: str
    interface: str


_VIRTUAL = {hex(device) for device in (0xBCBF, 0xBCC1, 0x09C5, 0x0B2C, 0xBCCF)}
"""The device ids of virtual functions, of all that the kernel's driver knows (drivers/fpga/dfl-pci.c)."""

_DRIVERS = (
    _Driver(
        boards="/sys/class/fpga_region/region*",
        engine="dfl-fme.*",
        port="dfl-port.*",
        interface="compat_id",
    ),
    _Driver(
        boards="/sys/class/fpga/intel-fpga-dev.*",
        engine="intel-fpga-fme.*",
        port="intel-fpga-port.*",
        interface="pr/interface_id",
    ),
)


def scan(host: kdp.hardware.Host, last: kdp.hardware.LastKnown) -> list[Board]:
    """Return the boards that are there, by address."""
    engines: dict[str, tuple[kdp.hardware.Directory, _Driver]] = {}
    regions: list[kdp.hardware.Directory] = []
    functions: dict[str, kdp.hardware.PciFunction] = {}
    ports: dict[str, list[Port]] = {}
    for driver in _DRIVERS:
        for entry in host.directories(driver.boards):
            # Regions that can be programmed are of the same class, lie below an engine, and have neither engine nor
            # ports.
            if fnmatch.fnmatchcase(entry.path, f"*/{driver.engine}/*"):
                regions.append(entry)
                continue
            if (function := entry.pci) is None:
                continue
            # A virtual function that is being removed loses the link first, and its engine is where it was.
            physical = last.recall(f"{function.path}/physfn", function.link("physfn"))
            board = physical or function.address
            if physical is None:
                functions[board] = function
            for engine in entry.children(driver.engine):
                engines.setdefault(board, (engine, driver))
            for directory in entry.children(driver.port):
                ports.setdefault(board, []).append(_port(function.address, directory, last))
    boards: list[Board] = []
    for address in sorted(engines.keys() | ports.keys()):
        of_board = tuple(sorted(ports.get(address, []), key=lambda port: (port.address, port.number or 0)))
        if address in engines:
            interface = _interface(address, *engines[address], regions, last)
            boards.append(Board(address, interface, engines[address][0], of_board))
        elif address in functions and _is_virtual(functions[address], last):
            boards.append(Board(address, Known(None), None, of_board, is_virtual=True))
        else:
            gone = Known(None, f"the management engine of {address} is gone")
            boards.append(Board(address, _remembered(f"{address}/interface", gone, last), None, of_board))
    return boards


def _is_virtual(function: kdp.hardware.PciFunction, last: kdp.hardware.LastKnown) -> bool:
    device = function.device
    said = None if device is None or device > 0xFFFF else hex(device)
    return last.recall(f"{function.path}/device", said) in _VIRTUAL


def _port(address: str, directory: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> Port:
    number = directory.integer("id")
    known = last.recall(number.path, None if number.value is None else str(number.value))
    accelerator = directory.text("afu_id")
    return Port(
        address,
        None if known is None else int(known),
        _remembered(accelerator.path, _id(accelerator), last),
        directory,
        directory.node,
    )


def _interface(
    board: str,
    engine: kdp.hardware.Directory,
    driver: _Driver,
    regions: Iterable[kdp.hardware.Directory],
    last: kdp.hardware.LastKnown,
) -> Known:
    above, _, name = driver.interface.rpartition("/")
    mine = (region for region in regions if region.path.startswith(f"{engine.path}/"))
    there: list[Known] = []
    for directory in engine.children(above) if above else mine:
        reading = directory.text(name)
        if not reading.is_absent:
            there.append(_id(reading))
            if there[-1].problem is None:
                break  # all regions of a board have one interface: what one of them says is true of the others
    if there and there[-1].problem is None:
        found = there[-1]
    elif there:
        found = there[0]
    else:
        found = Known(None, f"{engine.path} names no interface" + ("" if engine.driver else ": it has no driver"))
    # By the board and not by the engine: a port keeps its name when the engine goes first.
    known = _remembered(f"{board}/interface", found, last)
    return Known(None) if known.value is None and not there and engine.driver else known


def _remembered(path: str, found: Known, last: kdp.hardware.LastKnown) -> Known:
    """Return an id as it reads now, the last known one with its problem, or a blank one that has a name."""
    value = last.recall(path, found.value if found.problem is None else None)
    return Known(value, found.problem) if value is not None else found


def _id(reading: kdp.hardware.Reading[str]) -> Known:
    """Return an id; a blank one has a value and a problem."""
    if reading.value is None:
        return Known(None, reading.problem)
    text = reading.value.lower()
    if not is_id(text):
        return Known(None, f"{reading.path} says {text[:40]!r}; expected 32 hexadecimal digits")
    if is_blank(text):
        what = "its firmware does not answer" if text[0] == "f" else "nothing is programmed"
        return Known(text, f"{reading.path.rpartition('/')[2]} is {text}: {what}")
    return Known(text)
