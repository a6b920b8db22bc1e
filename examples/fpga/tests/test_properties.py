"""Nodes that are drawn by lot, with attributes that break: what must hold on each of them.

A node has the two boards that were recorded, some of their attributes changed, and some cards made by hand. Then one
attribute of one board or card is broken in one way. The invariants are the tests' names.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final, Literal

from hypothesis import given
from hypothesis import strategies as st
from tests.drawn_nodes import SHAPES, attributes_of, break_attribute, judged
from tests.unit.strategies import effort

import kdp
from kdp.testing import SysfsTree
from kdp_fpga import Fpga
from kdp_fpga.recorded import NODE

Mode = Literal["af", "region", "regiondevel"]
MODES: Final = st.sampled_from(("af", "region", "regiondevel"))
BOARDS: Final = (
    "/sys/devices/pci0000:40/0000:40:00.0/0000:41:00.0",
    "/sys/devices/pci0000:80/0000:80:00.0/0000:81:00.0",
)
SLOTS: Final = ("0000:3b:00", "0000:3c:00", "10000:e1:00")

VALUES: Final = (
    *(
        b"",
        b"\n",
        b"garbage\n",
        b"-1\n",
        b"0\n",
        b"0x1\n",
        b"3f\n",
        b"64\n",
        b"\xff\xfe\n",
        b"a\0b\n",
        b"/\n",
        b"1:3\n",
        b"-5000\n",
    ),
    *(
        b"9" * 400 + b"\n",
        b"9" * 5000 + b"\n",
        b"A" * 70_000,
        b"\xc2\xb2\n",
        b"f" * 32 + b"\n",
        b"0" * 32 + b"\n",
        b"F" * 31 + b"\n",
    ),
    *(b"MAJOR=1\nMINOR=3\nDEVNAME=nu\0ll\n", b"DEVNAME=../x\n", b"DEVNAME=\n"),
)
BREAKS: Final = st.tuples(st.integers(0, 10_000), st.sampled_from((*VALUES, *SHAPES)))
CARDS: Final = st.lists(
    st.tuples(
        st.sampled_from(("xilinx_u200_gen3x16_xdma_base_2", "xilinx_u30_gen3x4_base_2", "x" * 80, "")),
        st.sampled_from(("S1", "S2", "", None)),
        st.booleans(),
        st.booleans(),
    ),
    max_size=3,
)


def _build(directory: str, cards: list[tuple[str, str | None, bool, bool]]) -> SysfsTree:
    tree = SysfsTree(Path(directory) / "node", snapshot=NODE)
    for number, (shell, serial, has_manager, has_render) in enumerate(cards):
        user = tree.pci_function(f"{SLOTS[number]}.1", vendor=0x10EE, device=0x5001, numa_node=number - 1)
        files = {"user_pf": "", "rom.u.0/VBNV": shell, "rom.u.0/timestamp": "1", "xmc.u.0/xmc_fpga_temp": "40"}
        if serial is not None:
            files["xmc.u.0/serial_num"] = serial
        if has_render:
            files[f"drm/renderD{128 + number}/dev"] = f"226:{128 + number}"
            tree.stand_in(f"/dev/dri/renderD{128 + number}", major=226, minor=128 + number)
        for name, value in files.items():
            tree.write(f"{user}/{name}", value)
        if has_manager:
            manager = tree.pci_function(f"{SLOTS[number]}.0", vendor=0x10EE, device=0x5000)
            tree.write(f"{manager}/mgmt_pf", "")
            tree.write(f"{manager}/instance", number)
    return tree


def _judged(backend: Fpga) -> dict[str, kdp.Device]:
    """Return what is found, after what must be true of every list."""
    ids = judged(backend.discover(), backend.host, "fpga.example.com")
    nodes: dict[str, str] = {}
    for device in ids.values():
        for node in device.edits.device_nodes:
            assert nodes.setdefault(node.host_path, device.id) == device.id, "two devices give one node"
    return ids


def _backend(tree: SysfsTree, mode: Mode) -> Fpga:
    return Fpga(tree.host, mode=mode, management=True, max_temperature=90)


@effort(50)
@given(CARDS, MODES, BREAKS)
def test_one_broken_attribute_raises_nothing_and_changes_no_other_board(
    cards: list[tuple[str, str | None, bool, bool]], mode: Mode, broken: tuple[int, bytes | str]
) -> None:
    which, how = broken
    with tempfile.TemporaryDirectory() as directory:
        tree = _build(directory, cards)
        running = _backend(tree, mode)
        before = _judged(running)
        tops = [*BOARDS, *(f"/sys/devices/pci{slot[:-3]}/{slot}.1" for slot in SLOTS[: len(cards)])]
        top = tops[which % len(tops)]
        attributes = attributes_of(tree, [top])
        path = attributes[which % len(attributes)]
        break_attribute(tree, path, how)
        address = top.rpartition("/")[2]
        for backend in (running, _backend(tree, mode)):
            now = _judged(backend)
            # Cards with one serial number are one device, so what is said by one of them may be of the other.
            changed = [
                id_ for id_ in before if before[id_] != now.get(id_) and address not in id_ and "card" not in id_
            ]
            assert [id_ for id_ in changed if not (before[id_].unit.startswith("card") and top not in BOARDS)] == [], (
                path
            )


@effort(50)
@given(MODES, st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_a_board_that_goes_part_by_part_changes_no_other_and_is_not_healthy_without_its_engine(
    mode: Mode, order: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tree = _build(directory, [])
        running = _backend(tree, mode)
        before = _judged(running)
        other = {id_: device for id_, device in before.items() if BOARDS[1].rpartition("/")[2] in id_}
        parts = sorted(
            path for path in tree.host.glob(f"{BOARDS[0]}/fpga_region/region*/dfl-*") if tree.path(path).is_dir()
        )
        for number in order:
            if parts:
                tree.vanish(parts.pop(number % len(parts)))
                for backend in (running, _backend(tree, mode)):
                    now = _judged(backend)
                    assert {id_: now.get(id_) for id_ in other} == other
                    engine_is_there = bool(tree.host.glob(f"{BOARDS[0]}/fpga_region/region*/dfl-fme.*"))
                    assert engine_is_there or not [
                        id_ for id_, device in now.items() if device.health.is_healthy and id_ not in other
                    ]
        tree.vanish(BOARDS[0])
        assert _judged(running) == other
