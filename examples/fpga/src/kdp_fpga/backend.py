"""`Fpga`: the backend that joins the parts: devices of what was scanned, their health, and word when to look again.

What changes without an event of the kernel (error registers, temperatures, ids) is seen at the next poll; boards that
come and go are told by the kernel at once.
"""

from __future__ import annotations

import difflib
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from typing_extensions import override

import kdp
import kdp.hardware

from . import dfl, faults, names, xrt
from .labels import labels_of
from .measuring import MEASUREMENTS, measured
from .programming import FpgaConfig, told
from .temperature import Thermometer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .known import Known

logger = logging.getLogger(__name__)

Mode = Literal["af", "region", "regiondevel"]
CardUnit = Literal["card", "function"]
ShellNames = Literal["common", "exact"]

_SUBSYSTEMS = ("fpga_region", "fpga", "platform", "pci", "drm")
"""Whose events say that boards, ports or cards come or go. A port of DFL is a platform device."""

_ACCELERATOR, _VENDORS = 0x1200, (0x8086, 0x10EE)
"""The PCI class of boards that are programmed, and who makes those that this backend serves."""

_SETTLED = 2.0
"""Seconds after which a board without an interface has none: its driver needs a tenth of a second."""

_NODE_LABELS = tuple(
    f"feature.node.kubernetes.io/pci-{name}.present=true" for name in ("1200_8086", "1200_10ee", "10ee")
)
"""Node Feature Discovery's labels of a processing accelerator by Intel, or of a card by AMD (Xilinx)."""

_TWO = 2

_TWINS, _COMMON = "xilinx_u30", "ama_u30"
"""The card with two user functions, by its shell; and the name that both of its shells share."""


class _Unnamed(Exception):
    """What cannot be a device, because nothing says what to call it; the text says why."""


class Fpga(kdp.DeviceBackend):
    """FPGAs of this node: Intel's by DFL or OPAE, AMD's (Xilinx') by XRT; see the README for resources and options."""

    config: type | tuple[type, ...] | None = FpgaConfig
    measurements = MEASUREMENTS
    poll_interval: float | None = 15.0  # for registers and temperatures; the kernel tells of boards that come and go

    def __init__(
        self,
        host: kdp.hardware.Host,
        mode: Mode = "af",
        max_temperature: float | None = None,
        clear_temperature: float | None = None,
        ignored_errors: tuple[str, ...] = (),
        programmer: str | None = None,
        card_unit: CardUnit = "card",
        shell_names: ShellNames = "common",
        management: bool = False,
        annotation: bool = True,
    ) -> None:
        """Take the options.

        Args:
            host: The node's files.
            mode: What a container gets of an Intel board: `af`: one port with the accelerator that is programmed;
                `region`: all ports of a board, to be programmed; `regiondevel`: those and the management engine, which
                programs.
            max_temperature: Degrees Celsius from which on a board is unhealthy; none: its own critical temperature,
                where it has one.
            clear_temperature: Degrees Celsius from which on it is healthy again, below `max_temperature`; none: 5
                below.
            ignored_errors: Error registers that do not make a board unhealthy, of fme_errors, pcie0_errors,
                pcie1_errors, nonfatal_errors, catfatal_errors, gbs_errors, bbs_errors, port_errors.
            programmer: In mode `region`: path on the node of the program that the container runtime calls to program
                the board before a container starts (Intel's `intel-fpga-crihook`). Needs CDI, as `--cdi beside`.
            card_unit: What one device of an AMD card with two user functions (Alveo U30) is: the whole `card`, both
                functions with one serial number, or one `function`.
            shell_names: How that card's resource is called: `common`: amd.com/ama_u30; `exact`: by shell and timestamp
                as others.
            management: Whether a container also gets the management function's node of an AMD card, with which it can
                load another shell and reset the card.
            annotation: In mode `region`: whether containers get the annotation that Intel's hook is found by in CRI-O.
                False for a DRA driver, which has no annotations; there it is found by `programmer`.

        Raises:
            kdp.ConfigurationError: An option is unknown, or two contradict each other.
        """
        self.host = host
        self._mode = _one_of("mode", mode, get_args(Mode))
        if self._mode == "af":  # a single function is given out as it is, so a claim has nothing to say about it
            self.config = None
            self.unused_hooks = ("allocate",)
        self._card_unit = _one_of("card_unit", card_unit, get_args(CardUnit))
        self._shell_names = _one_of("shell_names", shell_names, get_args(ShellNames))
        self._management = management
        self._ignored = frozenset(_registers(ignored_errors))
        self._thermometer = Thermometer(max_temperature, clear_temperature)
        if programmer is not None and self._mode != "region":
            raise kdp.ConfigurationError(
                f"programmer={programmer!r} with mode={self._mode}: boards are programmed for a container in "
                "mode=region only"
            )
        hooks = [] if programmer is None else [_hook(programmer)]
        # The annotation says to Intel's hook, in runtimes that find it by annotations, that it is meant.
        annotations = {"com.intel.fpga.mode": "fpga.intel.com/region"} if self._mode == "region" and annotation else {}
        self._region_edits = kdp.ContainerEdits(annotations=annotations, hooks=hooks)
        self._last = kdp.hardware.LastKnown()
        self._others: set[str] = set()
        self._twins: dict[str, set[str]] = {}
        self._places: dict[str, tuple[int, ...]] = {}
        self._told: set[str] = set()
        self._members: dict[str, list[xrt.Function]] = {}
        self._sensed: dict[str, list[kdp.hardware.Directory]] = {}
        self._since: dict[str, float] | None = None
        self._is_unsettled = False

    @override
    def discover(self) -> list[kdp.Device]:
        with self._last.scan():
            boards = dfl.scan(self.host, self._last)
            functions, left_out = xrt.scan(self.host, self._last, self._others)
        self._thermometer.keep({board.address for board in boards} | {function.address for function in functions})
        self._settle(boards)
        if len(self._places) > 2 * sum(len(board.ports) for board in boards):
            self._places.clear()  # most are of boards that are gone
        found: dict[str, kdp.Device] = {}
        for make in (*self._of_boards(boards), *self._of_cards(functions, left_out)):
            try:
                device = make()
                if found.setdefault(device.id, device) is not device:
                    left_out.append(f"a second device is called {device.id}, and is left out")
            except (_Unnamed, kdp.KdpError) as error:  # whatever a board says, it is its own affair
                left_out.append(str(error))
        self._tell(left_out)
        if not found and not left_out:
            self._expect_drivers()
        engines = {board.address: [board.engine] for board in boards if board.engine is not None}
        cards: dict[str, list[kdp.hardware.Directory]] = {
            name: [member.directory for member in members] for name, members in self._members.items()
        }
        self._sensed = {each.id: cards.get(each.id) or engines.get(each.unit, []) for each in found.values()}
        return [*found.values()]

    def _expect_drivers(self) -> None:
        """Refuse to be ready while boards are on the PCI bus and no driver has any of them."""
        boards = [each for each in self.host.pci_functions(class_code=_ACCELERATOR) if each.vendor in _VENDORS]
        if boards and all(board.driver is None for board in boards):
            board = boards[0]
            raise kdp.NotReady(
                f"no driver is bound to {board.address} ({board.vendor:04x}:{board.device:04x}); load dfl-pci for "
                "Intel's boards, or install XRT for AMD's cards"
            )

    @override
    def measure(self) -> dict[str, dict[str, float]]:
        return measured(self._sensed)

    # -- Intel ---------------------------------------------------------------------------------------------------------

    def _of_boards(self, boards: Sequence[dfl.Board]) -> Iterator[Callable[[], kdp.Device]]:
        managers = self.host.class_devices("fpga_manager") if boards else []
        for board in boards:
            wrong = faults.of_board(board, self._ignored, managers)
            hot = self._thermometer.fault(board.address, board.engine) if board.engine is not None else None
            wrong += [hot] if hot else []
            told = _of_engine(board)
            if self._mode == "af":
                yield from (partial(self._of_port, board, port, wrong, told) for port in board.ports)
            elif board.ports:
                yield partial(self._of_region, board, wrong, told)

    def _settle(self, boards: Iterable[dfl.Board]) -> None:
        """Note since when each board is there; those of the first scan may have been for ever."""
        now, before = time.monotonic(), self._since
        self._since = {
            board.address: -math.inf if before is None else before.get(board.address, now) for board in boards
        }
        self._is_unsettled = False

    def _near(self, directory: kdp.hardware.Directory) -> tuple[int, ...]:
        """Return the NUMA nodes of a port. Its path contains its slot's address, so a known answer stays true."""
        if directory.path not in self._places and (found := directory.numa_nodes):
            self._places[directory.path] = found
        return self._places.get(directory.path, ())

    def _is_settled(self, board: dfl.Board) -> bool:
        return time.monotonic() - (self._since or {})[board.address] >= _SETTLED

    def _of_port(self, board: dfl.Board, port: dfl.Port, wrong: list[str], told: dict[str, str]) -> kdp.Device:
        accelerator, interface = port.accelerator.value, board.interface
        if port.number is None:
            raise _Unnamed(f"{port.directory.path}: {port.directory.integer('id').problem}")
        if accelerator is None or (interface.value is None and interface.problem is not None):
            raise _Unnamed(f"port {port.id}: {port.accelerator.problem or interface.problem}")
        if interface.value is None and not board.is_virtual and not self._is_settled(board):
            self._is_unsettled = True
            raise _Unnamed(f"port {port.id}: its board was just added, and may still name an interface")
        return kdp.Device(
            id=port.id,
            resource=names.accelerator_resource(interface.value, accelerator),
            unit=board.address,
            health=_health([*wrong, *_problem(interface), *faults.of_port(port, self._ignored)]),
            numa_nodes=self._near(port.directory),
            edits=_edits([port.node]),
            attributes=kdp.hardware.attributes_of({"accelerator": accelerator, **told}),
            identity=self.host.identity(port.directory.path),
            handle=port.directory.path,
        )

    def _of_region(self, board: dfl.Board, wrong: list[str], told: dict[str, str]) -> kdp.Device:
        interface = board.interface.value
        if interface is None:
            why = "it has no region that could be programmed"
            if board.is_virtual:
                why = "it is a virtual function, which cannot be programmed; mode=af gives its port"
            raise _Unnamed(f"board {board.address}: {board.interface.problem or why}")
        of_ports = [
            f"port {port.id}: {fault}"
            for port in board.ports
            for fault in faults.of_port(port, self._ignored)
            # What is programmed now does not matter to whom programs it anew.
            if fault != port.accelerator.problem
        ]
        nodes = [port.node for port in board.ports]
        nodes += [board.engine.node] if self._mode == "regiondevel" and board.engine is not None else []
        places = [self._near(port.directory) for port in board.ports]
        return kdp.Device(
            id=board.address,
            resource=names.region_resource(interface),
            health=_health([*wrong, *_problem(board.interface), *of_ports]),
            numa_nodes=sorted({node for place in places for node in place}) if all(places) else (),
            edits=kdp.ContainerEdits.merge([(board.address, _edits(nodes)), (board.address, self._region_edits)]),
            attributes=kdp.hardware.attributes_of({"ports": len(board.ports), **_function_of(board), **told}),
            identity=self.host.identity(f"/sys/bus/pci/devices/{board.address}"),
        )

    # -- AMD -----------------------------------------------------------------------------------------------------------

    def _of_cards(self, functions: Iterable[xrt.Function], left_out: list[str]) -> Iterator[Callable[[], kdp.Device]]:
        cards: dict[str, list[xrt.Function]] = {}
        twins: dict[str, set[str]] = {}
        for function in functions:
            is_whole = self._card_unit == "card" and _TWINS in (function.shell.value or "")
            serial = function.serial.value if is_whole else None
            cards.setdefault(function.address if serial is None else names.card_id(serial), []).append(function)
            if is_whole and serial is not None:
                twins.setdefault(names.card_id(serial), set()).add(function.address)
        for name, addresses in twins.items():
            self._twins[name] = addresses | self._twins.get(name, set())
            if len(self._twins[name]) == 1:
                left_out.append(f"the second function of {name}: only {cards[name][0].address} is there")
        self._twins = {name: addresses for name, addresses in self._twins.items() if name in twins}
        self._members = cards
        return (partial(self._of_card, name, members) for name, members in cards.items())

    def _of_card(self, name: str, members: list[xrt.Function]) -> kdp.Device:
        first = members[0]
        shell = first.shell.value
        if shell is None:
            raise _Unnamed(f"card {first.address}: {first.shell.problem}")
        is_twin = _TWINS in shell
        exact = self._shell_names == "exact" or not is_twin
        timestamp = first.timestamp.value if exact else None
        if exact and timestamp is None:
            raise _Unnamed(f"card {first.address}: {first.timestamp.problem}")
        nodes: list[str | None] = []
        wrong: list[str] = []
        for function in members:
            nodes += [function.render_node, function.dma_node, function.management_node if self._management else None]
            wrong += [f"{function.address}: {fault}" for fault in self._faults(function)]
        seen = self._twins.get(name, set()) if len(members) < _TWO else set[str]()
        wrong += [
            f"{address}: is gone, and the card has two functions"
            for address in sorted(seen - {function.address for function in members})
        ]
        if len(members) > _TWO:
            wrong.append(
                f"{len(members)} functions say the serial number {first.serial.value}, and a card has {_TWO}: kdp "
                "cannot tell which functions are one card"
            )
        if is_twin and self._card_unit == "card" and first.serial.value is None:
            wrong.append(f"{first.serial.problem}: kdp cannot tell which functions are one card")
        places = [function.directory.numa_nodes for function in members]
        return kdp.Device(
            id=name,
            resource=names.shell_resource(shell if exact else _COMMON, timestamp),
            unit=name if first.serial.value is None else names.card_id(first.serial.value),
            health=_health(wrong),
            numa_nodes=sorted({node for place in places for node in place}) if all(places) else (),
            edits=_edits(nodes),
            attributes=kdp.hardware.attributes_of({"shell": shell, "serial": first.serial.value}),
            # What is called after its serial number stays one card wherever it is, also while one function is reset.
            identity=first.directory.path if name == first.address else name,
        )

    def _faults(self, function: xrt.Function) -> Iterator[str]:
        if function.is_offline:
            yield "its driver has taken it offline, as during a reset"
        if function.render_node is None:
            yield "its driver names no render node"
        for known in (function.shell, function.timestamp):
            if known.problem is not None:
                yield known.problem
        if (hot := self._thermometer.fault(function.address, function.directory)) is not None:
            yield hot

    # -- both ----------------------------------------------------------------------------------------------------------

    def _tell(self, left_out: list[str]) -> None:
        """Say once what is there and no device, and why."""
        for sentence in sorted(set(left_out) - self._told):
            logger.warning("left out: %s", sentence)
        self._told = set(left_out)

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        edits = devices.edits()
        asked: FpgaConfig | None = devices.config
        if asked is None or devices.admin_access:
            return edits
        variables = told(
            devices,
            asked.function,
            is_programmed=bool(self._region_edits.hooks),
            may_have_programmer=self._mode == "region",
        )
        return edits.adding(env=variables)

    @override
    def labels(self, devices: Sequence[kdp.Device]) -> dict[str, str]:
        return labels_of(devices, kdp.default_labels(devices, self.resource))

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        async with kdp.hardware.UeventWatch(self.host, subsystems=_SUBSYSTEMS) as events:
            if events.refused is not None:
                logger.warning("%s; boards that come and go are seen every %s s", events.refused, self.poll_interval)
            report.rescan()  # what came before the watch
            while True:
                await events.events(at_most=_SETTLED if self._is_unsettled else None)
                report.rescan()

    @override
    def needs(self) -> kdp.Needs:
        return kdp.Needs(host_paths=("/dev", "/sys"), node_labels=_NODE_LABELS)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise kdp.ConfigurationError(
            f"{name}={value!r}: must be one of {', '.join(allowed)}; for example {name}={allowed[0]}"
        )
    return value


def _registers(given: tuple[str, ...]) -> Iterator[str]:
    for name in given:
        if name not in faults.REGISTERS:
            near = difflib.get_close_matches(name, faults.REGISTERS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(faults.REGISTERS)}"
            raise kdp.ConfigurationError(f"ignored_errors: {name!r} is not an error register; {hint}")
        yield name


def _hook(path: str) -> kdp.CdiHook:
    return kdp.CdiHook(name="createRuntime", path=path, args=[path.rpartition("/")[2]])


def _problem(known: Known) -> list[str]:
    return [] if known.problem is None else [known.problem]


def _health(wrong: Iterable[str]) -> kdp.Health:
    reasons = [*dict.fromkeys(wrong)]
    return kdp.Health.unhealthy("; ".join(reasons)) if reasons else kdp.Health.healthy()


def _edits(nodes: Iterable[str | None]) -> kdp.ContainerEdits:
    return kdp.ContainerEdits(device_nodes=[kdp.DeviceNode(host_path=node) for node in nodes if node is not None])


def _function_of(board: dfl.Board) -> dict[str, str]:
    """Return what all ports of a board are programmed with; nothing, if they differ or one does not say."""
    found = {port.accelerator.value for port in board.ports}
    function = found.pop() if len(found) == 1 else None
    return {} if function is None else {"accelerator": function}


def _of_engine(board: dfl.Board) -> dict[str, str]:
    """Return the attributes that all devices of a board have."""
    bitstream = None if board.engine is None else board.engine.text("bitstream_id").value
    found = {"interface": board.interface.value, "bitstream": bitstream}
    return {name: text for name, text in found.items() if text}
