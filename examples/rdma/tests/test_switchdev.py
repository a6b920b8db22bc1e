"""Switchdev mode: a physical function has ports and interfaces that do not lead out of the node.

The trees are made by hand, after the kernel's drivers/infiniband/hw/mlx5/ib_rep.c and eswitch.c.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from kdp.testing import SimulatedKubelet, SysfsTree
from kdp_rdma import Rdma, backend
from kdp_rdma.functions import read_functions

from .conftest import DOWN, GUID, Node, Watched, found

ETHERNET = {"link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"}
FIRST, SECOND = "0000:3b:00.0", "0000:3b:00.1"
OF_FIRST, OF_SECOND = "0000:3b:00.2", "0000:3b:01.2"
ADAPTER = "0c42a10300000001-0"


def _interface(node: Node, directory: str, name: str, port: str, *, state: str = "up", switch: str = "") -> None:
    node.net(directory, name, state=state)
    node.tree.write(f"{directory}/net/{name}/phys_port_name", port)
    if switch:
        node.tree.write(f"{directory}/net/{name}/phys_switch_id", switch)
    else:
        node.tree.fail(f"{directory}/net/{name}/phys_switch_id", errno.EOPNOTSUPP)


def _state(tree: SysfsTree, name: str, state: str) -> None:
    tree.write(f"/sys/class/net/{name}/operstate", state)


@pytest.fixture
def without_gids(sysfs_tree: SysfsTree) -> SysfsTree:
    """A function in switchdev mode with two VFs. The uplink's port is the last; the function has no port."""
    node = Node(sysfs_tree)
    directory = node.pci(FIRST, numa=0)
    node.hca("mlx5_0", directory, guid=GUID(1), ports=[{**ETHERNET, **DOWN}, *([ETHERNET] * 3)])
    for number in range(1, 5):
        sysfs_tree.fail(f"/sys/class/infiniband/mlx5_0/ports/{number}/gid_attrs/ndevs/0", errno.EINVAL)
    _interface(node, directory, "eth0", "p0", switch="e41d")
    for number in range(2):
        _interface(node, directory, f"eth0_{number}", f"pf0vf{number}", switch="e41d")
        function = node.vf(FIRST, number, f"0000:3b:00.{number + 2}", numa=0)
        node.hca(f"mlx5_{number + 1}", function, guid=GUID(0), ports=[ETHERNET])
    return sysfs_tree


def _bond(tree: SysfsTree, *, switches: tuple[str, str] = ("", ""), marked: bool = False, virtual: int = 2) -> Node:
    """Two functions of one card below one bond, each with a representor and, if there are enough, its VF."""
    node = Node(tree)
    bond = "/sys/devices/virtual/net/bond0"
    tree.link("/sys/class/net/bond0", bond)
    tree.write(f"{bond}/operstate", "up")
    tree.write(f"{bond}/ifindex", "9")
    if marked:
        tree.write(f"{bond}/bonding/mode", "802.3ad 4")
    for number, (parent, address, switch) in enumerate(
        zip((FIRST, SECOND), (OF_FIRST, OF_SECOND), switches, strict=True)
    ):
        directory = node.pci(parent, numa=0)
        _interface(node, directory, f"ens{number}", f"p{number}", switch=switch)
        _interface(node, directory, f"pf{number}rep0", f"pf{number}vf0", switch=switch)
        tree.link(f"{directory}/net/ens{number}/master", bond)
        tree.link(f"{bond}/lower_ens{number}", f"{directory}/net/ens{number}")
        if number < virtual:
            function = node.vf(parent, 0, address, numa=0)
            node.hca(f"mlx5_{number + 2}", function, guid=GUID(0), ports=[ETHERNET])
    return node


@pytest.fixture
def card_bond(sysfs_tree: SysfsTree) -> SysfsTree:
    """A bond made by the card: the first function's adapter has the bond and the second's representor as ports."""
    node = _bond(sysfs_tree)
    ports = [{**ETHERNET, "gid_attrs/ndevs/0": "bond0"}, {**ETHERNET, "gid_attrs/ndevs/0": "pf1rep0"}]
    node.hca("mlx5_bond_0", sysfs_tree.host.resolve(f"/sys/bus/pci/devices/{FIRST}"), guid=GUID(1), ports=ports)
    return sysfs_tree


def _port_down(tree: SysfsTree) -> None:
    for name, value in DOWN.items():
        tree.write(f"/sys/class/infiniband/mlx5_bond_0/ports/1/{name}", value)


def _reasons(backend: Rdma) -> dict[str, str | None]:
    return {id_: device.health.reason for id_, device in found(backend).items()}


# -- ports -------------------------------------------------------------------------------------------------------------


def test_representors_whose_ports_have_no_gids_kept_an_adapter_healthy(without_gids: SysfsTree) -> None:
    adapter, functions = Rdma(without_gids.host, mode="hca", if_names=["eth0"]), Rdma(without_gids.host, mode="vf")
    device = found(adapter)[ADAPTER]
    assert device.health.is_healthy  # though a port is DOWN: which is the uplink's nobody says
    assert {name: device.attributes[name] for name in ("interfaces", "ports", "activePorts", "linkLayer", "speed")} == {
        "interfaces": "eth0",
        "ports": 1,
        "activePorts": 1,
        "linkLayer": "Ethernet",
        "speed": 100,
    }
    assert {*_reasons(functions).values()} == {None}
    _state(without_gids, "eth0", "down")
    assert _reasons(adapter) == {ADAPTER: "mlx5_0 uplink eth0 is down"}
    assert {*_reasons(functions).values()} == {"its uplink: mlx5_0 uplink eth0 is down"}


def test_a_representor_that_is_alone_is_no_uplink(without_gids: SysfsTree) -> None:
    """Somebody has taken the uplink into a container."""
    for name in ("eth0", "eth0_1"):
        without_gids.remove(f"/sys/devices/pci0000:3b/{FIRST}/net/{name}")
    assert _reasons(Rdma(without_gids.host, mode="hca"))[ADAPTER] == "mlx5_0 uplink is not visible"


def test_a_representor_below_the_other_function_of_a_bond_kept_the_adapter_healthy(card_bond: SysfsTree) -> None:
    backend = Rdma(card_bond.host, mode="hca", if_names=["bond0"])
    device = found(backend)[ADAPTER]
    assert (device.attributes["interfaces"], device.attributes["ports"]) == ("ens0,bond0", 1)
    _port_down(card_bond)
    (reason,) = _reasons(backend).values()
    assert (reason or "").startswith("mlx5_bond_0 port 1 is DOWN (Polling")


_PORTS = [f"/sys/class/infiniband/mlx5_bond_0/ports/{number}/gid_attrs/ndevs/0" for number in (1, 2)]
_INTERFACES = [
    f"/sys/class/net/{name}/{attribute}"
    for name in ("ens0", "ens1", "pf0rep0", "pf1rep0")
    for attribute in ("phys_port_name", "operstate")
]


@pytest.mark.parametrize("how", ["absent", "EINVAL"])
@pytest.mark.parametrize("is_down", [False, True])
def test_an_attribute_that_fails_later_changes_no_verdict(card_bond: SysfsTree, is_down: bool, how: str) -> None:
    if is_down:
        _port_down(card_bond)
        for name in ("bond0", "ens0", "ens1"):
            _state(card_bond, name, "down")
    backends = [Rdma(card_bond.host, mode="hca", ports="all", if_names=["ens0"]), Rdma(card_bond.host, mode="vf")]
    before = [_reasons(backend) for backend in backends]
    assert {reason is None for reasons in before for reason in reasons.values()} == {not is_down}
    for attribute in (*_PORTS, *_INTERFACES, "/sys/class/net/bond0/operstate"):
        kept = card_bond.path(card_bond.host.resolve(attribute)).read_bytes()
        if how == "EINVAL":
            card_bond.fail(attribute, errno.EINVAL)
        elif how == "empty":
            card_bond.write(attribute, "")
        else:
            card_bond.remove(card_bond.host.resolve(attribute))
        assert [_reasons(backend) for backend in backends for _ in range(2)] == [before[0]] * 2 + [before[1]] * 2
        if how == "EINVAL":
            card_bond.heal(attribute)
        else:
            card_bond.write(attribute, kept.decode())


# -- bonds -------------------------------------------------------------------------------------------------------------


def test_a_leg_of_the_cards_bond_took_its_functions_out(card_bond: SysfsTree) -> None:
    """Failover is what the bond is for."""
    backend = Rdma(card_bond.host, mode="vf")
    _state(card_bond, "ens1", "down")
    assert _reasons(backend) == {OF_FIRST: None, OF_SECOND: None}
    card_bond.remove(f"/sys/devices/pci0000:3b/{SECOND}/net/ens1/master")  # what is below the bond says the same
    assert _reasons(backend) == {OF_FIRST: None, OF_SECOND: None}
    _state(card_bond, "ens0", "down")
    _state(card_bond, "bond0", "down")
    _port_down(card_bond)
    reasons = _reasons(backend)
    assert (reasons[OF_FIRST] or "").startswith("its uplink: mlx5_bond_0 port 1 is DOWN")
    assert reasons[OF_SECOND] == "its uplink: bond0 is down"
    _state(card_bond, "bond0", "up")
    assert _reasons(backend)[OF_SECOND] == (
        "its uplink: bond0 has nothing below it that is up: ens0 is down, ens1 is down"
    )
    _state(card_bond, "ens0", "up")
    assert (_reasons(backend)[OF_SECOND] or "").startswith("its uplink: bond0: mlx5_bond_0 port 1 is DOWN")


@pytest.mark.parametrize(
    ("switches", "marked", "is_of_card"),
    [
        (("e41d", "e41d"), True, True),
        (("e41d", "e41d"), False, False),  # a bridge, as of Open vSwitch
        (("e41d", "f00d"), True, False),
        (("", ""), True, False),
    ],
)
def test_a_bond_is_the_cards_if_both_functions_are_of_one_switch(
    sysfs_tree: SysfsTree, switches: tuple[str, str], marked: bool, is_of_card: bool
) -> None:
    node = _bond(sysfs_tree, switches=switches, marked=marked)
    functions = Rdma(sysfs_tree.host, mode="vf", is_rdma=False)
    _state(sysfs_tree, "ens1", "down")
    assert _reasons(functions) == {OF_FIRST: None, OF_SECOND: None if is_of_card else "its uplink: ens1 is down"}
    directory = sysfs_tree.host.resolve(f"/sys/bus/pci/devices/{FIRST}")
    node.hca("mlx5_bond_0", directory, guid=GUID(1), ports=[{**ETHERNET, **DOWN}, ETHERNET, ETHERNET])
    adapter = Rdma(sysfs_tree.host, mode="hca", if_names=["ens0"])
    assert found(adapter)[ADAPTER].attributes["interfaces"] == ("ens0,bond0" if is_of_card else "ens0")
    _state(sysfs_tree, "ens0", "down")
    _state(sysfs_tree, "ens1", "up")
    assert _reasons(adapter) == {ADAPTER: None if is_of_card else "mlx5_bond_0 uplink ens0 is down"}


@pytest.mark.anyio
@pytest.mark.parametrize(("changes", "has_adapter"), [("bond0", False), ("ens1", True)])
async def test_the_cards_bond_and_its_other_leg_went_unheard(
    sysfs_tree: SysfsTree, kubelet: SimulatedKubelet, changes: str, has_adapter: bool
) -> None:
    """Virtual functions stayed as they were until the next poll."""
    node = _bond(sysfs_tree, switches=("e41d", "e41d"), marked=True, virtual=1)
    if has_adapter:
        directory = sysfs_tree.host.resolve(f"/sys/bus/pci/devices/{FIRST}")
        node.hca("mlx5_bond_0", directory, guid=GUID(1), ports=[ETHERNET] * 3)
    _state(sysfs_tree, "ens0", "down" if changes == "ens1" else "up")
    async with kubelet.serving(watched := Watched(sysfs_tree.host, mode="vf"), host=sysfs_tree.host):
        await kubelet.until(allocatable={"rdma/vf": 1})
        await watched.listens()
        for state, count in (("down", 0), ("up", 1)):
            _state(sysfs_tree, changes, state)
            sysfs_tree.link_event(changes, state=state)
            await kubelet.until(allocatable={"rdma/vf": count})


def test_an_event_in_the_middle_of_a_discovery_went_unheard(
    sysfs_tree: SysfsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interfaces whose events count were gathered anew in place, and incomplete meanwhile."""
    _bond(sysfs_tree, switches=("e41d", "e41d"), marked=True, virtual=1)
    adapter = Rdma(sysfs_tree.host, mode="vf")
    adapter.discover()
    known = adapter._interfaces
    assert "bond0" in known
    seen: list[set[str]] = []

    def read(*args: Any, **options: Any) -> Any:
        seen.append({*adapter._interfaces})
        return read_functions(*args, **options)

    monkeypatch.setattr(backend, "read_functions", read)
    adapter.discover()
    assert seen == [known]


def test_all_ports_of_the_uplink_were_not_asked_for_in_the_mode_vf(sysfs_tree: SysfsTree) -> None:
    """The option said nothing."""
    node = Node(sysfs_tree)
    node.hca("mlx4_0", node.pci(FIRST, numa=0), guid=GUID(1), ports=[{}, DOWN])
    node.hca("mlx4_1", node.vf(FIRST, 0, OF_FIRST, numa=0), guid=GUID(2), ports=[{}, {}])
    assert _reasons(Rdma(sysfs_tree.host, mode="vf")) == {OF_FIRST: None}
    (reason,) = _reasons(Rdma(sysfs_tree.host, mode="vf", ports="all")).values()
    assert (reason or "").startswith("its uplink: mlx4_0 port 2 is DOWN")
