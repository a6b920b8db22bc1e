"""Nodes that are drawn by lot, with attributes that break: what must hold on each of them.

A node has adapters of some drivers with ports of some kinds, virtual functions and subfunctions; then one attribute of
one adapter is broken in one way. The invariants are the tests' names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn_nodes import SHAPES, attributes_of, break_attribute, judged
from tests.unit.strategies import effort

import kdp
from kdp.testing import SysfsTree
from kdp_rdma import Rdma

from .conftest import Node

Mode = Literal["hca", "vf", "pool"]
MODES: Final[tuple[Mode, ...]] = ("hca", "vf", "pool")

STATES: Final = ("4: ACTIVE", "1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", "0: NOP", "garbage", "")
PORTS: Final = st.fixed_dictionaries(
    {
        "state": st.sampled_from(STATES),
        "phys_state": st.sampled_from(("5: LinkUp", "2: Polling", "3: Disabled", "LinkUp", "")),
        "link_layer": st.sampled_from(("InfiniBand", "Ethernet", "Unspecified", "")),
        "rate": st.sampled_from(
            ("100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)", "0.25 Gb/sec", "800 Gb/sec (8X NDR)", "Unknown")
        ),
    }
)


@attrs.frozen
class Card:
    """A physical function with what is on it."""

    name: str
    driver: str
    has_guid: bool
    numa: int
    ports: list[dict[str, str]]
    functions: list[str]
    subfunctions: int


CARDS: Final = st.lists(
    st.builds(
        Card,
        st.sampled_from(
            ("mlx5_{}", "mlx5_bond_{}", "rocep{}s0", "ibp{}s0", "irdma{}", "bnxt_re{}", "efa_{}", "hfi1_{}", "mana_{}")
        ),
        st.sampled_from(("mlx5_core", "ice", "bnxt_en", "efa", "hfi1")),
        st.booleans(),
        st.sampled_from((-1, 0, 1)),
        st.lists(PORTS, max_size=3),
        st.lists(st.sampled_from(("own", "vfio-pci", "mlx5_vfio_pci", "away", "unbound", "without link")), max_size=3),
        st.integers(0, 2),
    ),
    min_size=2,
    max_size=3,
)

VALUES: Final = (
    *(b"", b"\n", b"garbage\n", b"-1\n", b"0\n", b"64\n", b"4\n", b"\xff\xfe\n", b"a\0b\n", b"/\n", b"..\n", b"1:3\n"),
    *(
        b"9" * 400 + b" Gb/sec\n",
        b"9" * 5000 + b"\n",
        b"A" * 70_000,
        b"\xc2\xb2\n",
        b"a\nb\n",
        b"0000:0000:0000:0000\n",
    ),
    *(
        b"MAJOR=1\nMINOR=3\nDEVNAME=nu\0ll\n",
        b"MAJOR=231\nMINOR=0\nDEVNAME=../x\n",
        b"MAJOR=" + b"9" * 5000 + b"\nMINOR=1\n",
    ),
)
UNREAD: Final = frozenset(
    (
        "node_type",
        "sys_image_guid",
        "hw_rev",
        "node_desc",
        "lid",
        "lid_mask_count",
        "sm_lid",
        "sm_sl",
        "cap_mask",
        "enable",
        "port",
        "1",
    )
)
"""What no backend reads cannot matter."""

MEANT: Final = (
    *(("/ndevs/0", b"eth\0\n"), ("/ndevs/0", b"../..\n"), ("/ndevs/0", b"\xff\n"), ("/node_guid", b"(null)\n")),
    *(("/rate", b"9" * 400 + b" Gb/sec (4X)\n"), ("/rate", b"9" * 30 + b" Gb/sec\n"), ("/numa_node", b"255\n")),
    *(("/uevent", b"MAJOR=231\nMINOR=0\nDEVNAME=nu\0ll\n"), ("/uevent", "MAJOR=\u00b2\nMINOR=1\n".encode())),
    ("/uevent", b"MAJOR=" + b"9" * 5000 + b"\nMINOR=1\n"),
)
"""Nonsense for those attributes that are understood, by how their paths end."""

Break = bytes | str | tuple[str, bytes]
BREAKS: Final[st.SearchStrategy[tuple[int, Break]]] = st.tuples(
    st.integers(0, 10_000), st.sampled_from((*VALUES, *SHAPES)) | st.sampled_from(MEANT)
)


def _address(index: int, function: int = 0) -> str:
    return f"{0x10000 if index == 2 else 0:04x}:{0x3B + index:02x}:00.{function}"


def _build(tree: SysfsTree, cards: list[Card]) -> None:
    node = Node(tree)
    tree.stand_in("/dev/vfio/vfio", major=10, minor=196)
    for index, card in enumerate(cards):
        ports = [{**port, "gid_attrs/ndevs/0": f"eth{index}"} for port in card.ports]
        address = _address(index)
        physical = node.pci(address, numa=card.numa, driver=card.driver)
        guid = f"0c42:a103:0000:00{index:02x}" if card.has_guid else "0000:0000:0000:0000"
        node.hca(card.name.format(index), physical, guid=guid, ports=ports)
        node.net(physical, f"eth{index}")
        for number, kind in enumerate(card.functions):
            own = _address(index, number + 1)
            driver = kind if "vfio" in kind else None if kind == "unbound" else card.driver
            group = 10 * index + number
            vf = node.vf(address, number, own, numa=card.numa, driver=driver, iommu_group=group)
            if kind == "without link":  # as while sriov_numvfs is being written
                tree.remove(f"{physical}/virtfn{number}")
            if kind in ("own", "without link"):
                node.hca(f"{card.name.format(index)}v{number}", vf, guid="0000:0000:0000:0000", ports=card.ports)
                node.net(vf, f"eth{index}v{number}", state="down")
            if "vfio" in kind:
                tree.stand_in(f"/dev/vfio/{group}", major=240, minor=group)
        for number in range(card.subfunctions):
            subfunction = node.sf(address, 10 * index + number, 100 * index + number)
            node.hca(f"{card.name.format(index)}s{number}", subfunction, guid="0000:0000:0000:0000", ports=card.ports)


@contextmanager
def _node(cards: list[Card]) -> Iterator[SysfsTree]:
    with tempfile.TemporaryDirectory() as directory:
        tree = SysfsTree(Path(directory) / "node")
        _build(tree, cards)
        yield tree


def _backend(tree: SysfsTree, mode: Mode) -> Rdma:
    if mode != "vf":
        return Rdma(tree.host, mode=mode, rdma_hca_max=2 if mode == "pool" else None)
    path = tree.host.root.with_name("vf.json")
    functions = {"resourceName": "vf", "selectors": [{"isRdma": True}, {}]}
    subfunctions = {"resourceName": "sf", "deviceType": "auxNetDevice", "selectors": [{"auxTypes": ["sf"]}]}
    path.write_text(json.dumps({"resourceList": [functions, subfunctions]}))
    return Rdma(tree.host, mode=mode, config=path)


def _judged(backend: Rdma) -> dict[str, kdp.Device]:
    return judged(backend.discover(), backend.host, "rdma.example.com")


def _is_of(device: kdp.Device, index: int, name: str) -> bool:
    """Return whether a device is of a card: by its address, or by the adapters that it gives."""
    told = {str(device.attributes.get(key, "")) for key in ("pciAddress", "parent")} | {device.id}
    mine = [_address(index, number) for number in range(8)]
    return any(text.startswith(address) for text in told for address in mine) or str(
        device.attributes.get("name", "")
    ).startswith(name)


@pytest.mark.slow
@effort(50)
@given(CARDS, st.sampled_from(MODES), BREAKS)
def test_one_broken_attribute_raises_nothing_and_changes_no_other_card(
    cards: list[Card], mode: Mode, broken: tuple[int, Break]
) -> None:
    which, how = broken
    with _node(cards) as tree:
        running = _backend(tree, mode)
        before = _judged(running)
        # Numbers of nodes are of the whole card's: all below its physical function.
        index = which % len(cards)
        top = next(iter(tree.host.glob(f"/sys/devices/*/{_address(index)}")))
        tops = (top, *(f"{top[:-1]}{number}" for number in range(1, 4)))
        attributes = attributes_of(tree, tops, without=UNREAD)
        if isinstance(how, tuple):
            ending, how = how
            attributes = [path for path in attributes if path.endswith(ending)] or attributes
        path = attributes[which % len(attributes)]
        break_attribute(tree, path, how)
        for backend in (running, _backend(tree, mode)):
            now = _judged(backend)
            if mode != "pool":
                name = cards[index].name.format(index)
                changed = [
                    id_ for id_ in before if before[id_] != now.get(id_) and not _is_of(before[id_], index, name)
                ]
                assert changed == [], path


@effort(50)
@given(CARDS, st.sampled_from(MODES), st.lists(st.integers(0, 20), max_size=5))
def test_a_card_that_goes_part_by_part_changes_no_other(cards: list[Card], mode: Mode, order: list[int]) -> None:
    with _node(cards) as tree:
        running = _backend(tree, mode)
        before = _judged(running)
        top = next(iter(tree.host.glob(f"/sys/devices/*/{_address(0)}")))
        parts = sorted(
            tree.host.glob(f"{top}/infiniband*/*") + tree.host.glob(f"{top}/net/*") + tree.host.glob(f"{top}/virtfn*")
        )
        name = cards[0].name.format(0)
        others = {id_: device for id_, device in before.items() if not _is_of(device, 0, name)}
        for number in order:
            if parts:
                part = parts.pop(number % len(parts))
                tree.remove(part) if tree.path(part).is_symlink() else tree.vanish(part)
                for backend in (running, _backend(tree, mode)):
                    now = _judged(backend)
                    if mode != "pool":
                        assert {id_: now.get(id_) for id_ in others} == others, part
                        entry = f"/sys/class/infiniband/{name}"
                        verbs = tree.host.glob(f"{top}/infiniband_verbs/uverbs*")
                        mine = [held for held in now.values() if held.attributes.get("name") == name]
                        assert not (tree.host.exists(entry) and not verbs and any(d.health.is_healthy for d in mine))
        tree.vanish(top)
        assert {id_: device for id_, device in _judged(running).items() if id_ in others} == others or mode == "pool"
