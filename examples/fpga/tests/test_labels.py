from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kdp.model.labels import check_node_label
from kdp.testing import SysfsTree
from kdp_fpga import Fpga
from kdp_fpga.recorded import NODE

from .test_amd import SHELL, card


def _labels(backend: Fpga) -> dict[str, str]:
    found = backend.labels(backend.discover())
    for name, value in found.items():
        check_node_label(name, value)
    return found


def test_intels_boards_are_counted_with_their_resources(node_from: Callable[[Path], SysfsTree]) -> None:
    found = _labels(Fpga(node_from(NODE).host))
    assert found["fpga.intel.com/board.count"] == "2"
    assert found["fpga.intel.com/board.interface"] == "9926ab6d6c925a68aabca7d84c545738"
    counts = {name: value for name, value in found.items() if "/af-" in name}
    assert sorted(counts.values()) == ["1", "2"]


def test_amds_cards_are_counted_with_their_shell(sysfs_tree: SysfsTree) -> None:
    card(sysfs_tree, "0000:3b:00", SHELL, "213304001A")
    card(sysfs_tree, "0000:5e:00", SHELL, "213304001B")
    found = _labels(Fpga(sysfs_tree.host))
    assert (found["amd.com/card.count"], found["amd.com/card.product"]) == ("2", SHELL)
    assert found[f"amd.com/{SHELL}-1601910525.count"] == "2"
    assert "fpga.intel.com/board.count" not in found
