from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kdp_example_generic.topology import numa_node

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

CARD = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0"


@pytest.fixture
def gpu(tree: Tree) -> Tree:
    if not tree.real_nodes:
        pytest.skip("a node with a number of its own needs the right to make it (CAP_MKNOD)")
    tree.node("/dev/dri/renderD128", number=(226, 128))
    tree.directory(f"{CARD}/drm/renderD128")
    tree.link(
        "/sys/dev/char/226:128", f"../../..{CARD.removeprefix('/sys')}/drm/renderD128".replace("../../../", "../../")
    )
    return tree


def test_the_number_of_a_node_leads_to_its_card(gpu: Tree) -> None:
    gpu.file(f"{CARD}/numa_node", "1\n")

    assert numa_node(gpu.host, "/dev/dri/renderD128") == 1


def test_a_link_to_the_node_has_the_same_card(gpu: Tree) -> None:
    gpu.file(f"{CARD}/numa_node", "0\n")
    gpu.link("/dev/dri/by-path/pci-0000:41:00.0-render", "../renderD128")

    assert numa_node(gpu.host, "/dev/dri/by-path/pci-0000:41:00.0-render") == 0


def test_a_card_that_does_not_know_asks_its_bridge(gpu: Tree) -> None:
    gpu.file(f"{CARD}/numa_node", "-1\n")
    assert numa_node(gpu.host, "/dev/dri/renderD128") is None

    gpu.file("/sys/devices/pci0000:40/0000:40:01.0/numa_node", "2\n")
    assert numa_node(gpu.host, "/dev/dri/renderD128") == 2


def test_nonsense_is_unknown(gpu: Tree) -> None:
    gpu.file(f"{CARD}/numa_node", "many\n")

    assert numa_node(gpu.host, "/dev/dri/renderD128") is None


def test_a_node_outside_sysfs_and_one_that_is_gone_are_unknown(tree: Tree) -> None:
    tree.node("/dev/nvidia0", number=(195, 0))

    assert numa_node(tree.host, "/dev/nvidia0") is None
    assert numa_node(tree.host, "/dev/nothing") is None


def test_a_directory_that_is_known_needs_no_number(tree: Tree) -> None:
    tree.file(f"{CARD}/numa_node", "3\n")
    tree.directory(f"{CARD}/usb1/1-1")

    assert numa_node(tree.host, "/dev/bus/usb/001/002", f"{CARD}/usb1/1-1") == 3
