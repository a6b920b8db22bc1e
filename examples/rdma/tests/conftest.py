from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from typing_extensions import override

import kdp
import kdp.hardware
from kdp.testing import SysfsTree
from kdp_rdma import Rdma

RECORDED: Final = Path(__file__).parents[3] / "tests/data/hardware"
"""Trees of soft-RoCE on real kernels; how they were made is told beside them."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class Watched(Rdma):
    """The backend without polling, which tells when its watch listens: that asks for a discovery of its own then."""

    def __init__(self, host: kdp.hardware.Host, **options: Any) -> None:
        super().__init__(host, **options)
        self.poll_interval = 3600
        self.health_policy = kdp.HealthPolicy(successes=2, recheck=0.05)
        self._discoveries = 0
        self._listening = threading.Event()

    @override
    def discover(self) -> list[kdp.Device]:
        found = super().discover()
        self._discoveries += 1
        if self._discoveries > 1:
            self._listening.set()
        return found

    async def listens(self) -> None:
        assert await anyio.to_thread.run_sync(self._listening.wait, 10)


class Node:
    """A node with Mellanox-like adapters, made by hand: what sysfs of a real one has, and soft-RoCE has not.

    Its parts are made one by one; each method may be called again for another.
    """

    def __init__(self, tree: SysfsTree) -> None:
        self.tree = tree
        self.host = tree.host
        self._minors = {"uverbs": 192, "umad": 0, "issm": 64}
        self._numbers = {kind: len(tree.host.glob(f"/sys/class/infiniband_*/{kind}*")) for kind in self._minors}
        tree.write("/sys/module/ib_core/parameters/netns_mode", "Y")
        self._class_entry("/sys/devices/virtual/misc/rdma_cm", "misc", "rdma_cm", (10, 260))

    def _class_entry(self, path: str, of_class: str, name: str, number: tuple[int, int]) -> None:
        self.tree.write(f"{path}/dev", f"{number[0]}:{number[1]}")
        self.tree.write(f"{path}/uevent", f"MAJOR={number[0]}\nMINOR={number[1]}\nDEVNAME=infiniband/{name}")
        self.tree.link(f"{path}/subsystem", f"/sys/class/{of_class}")
        self.tree.link(f"/sys/class/{of_class}/{name}", path)
        self.tree.stand_in(f"/dev/infiniband/{name}", major=number[0], minor=number[1], mode=0o666)

    def net(self, directory: str, name: str, *, state: str = "up", link_type: int = 1) -> None:
        path = f"{directory}/net/{name}"
        files: dict[str, str | int] = {
            "operstate": state,
            "type": link_type,
            "ifindex": 3,
            "address": "0c:42:a1:00:00:01",
        }
        for attribute, value in files.items():
            self.tree.write(f"{path}/{attribute}", value)
        self.tree.link(f"{path}/device", directory)
        self.tree.link(f"/sys/class/net/{name}", path)

    def pci(self, address: str, *, numa: int, device: int = 0x101B, driver: str = "mlx5_core", **more: Any) -> str:
        return self.tree.pci_function(
            address, vendor=0x15B3, device=device, class_code=0x020000, numa_node=numa, driver=driver, **more
        )

    def vf(self, parent: str, number: int, address: str, **more: Any) -> str:
        directory = self.pci(address, device=0x101C, **more)
        self.tree.link(f"{directory}/physfn", f"/sys/bus/pci/devices/{parent}")
        physical = self.host.resolve(f"/sys/bus/pci/devices/{parent}")
        self.tree.link(f"{physical}/virtfn{number}", f"/sys/bus/pci/devices/{address}")
        return directory

    def sf(self, parent: str, index: int, number: int) -> str:
        """A subfunction of a PCI function, as mlx5 makes it, with its network interface."""
        above = self.host.resolve(f"/sys/bus/pci/devices/{parent}")
        name = f"mlx5_core.sf.{index}"
        directory = f"{above}/{name}"
        self.tree.write(f"{directory}/sfnum", number)
        self.tree.link(f"{directory}/subsystem", "/sys/bus/auxiliary")
        self.tree.link(f"{directory}/driver", "/sys/bus/auxiliary/drivers/mlx5_core.sf")
        self.tree.link(f"/sys/bus/auxiliary/devices/{name}", directory)
        self.net(directory, f"sf{number}")
        return directory

    def vdpa(self, function: str, name: str, *, driver: str, minor: int) -> str:
        """The vDPA device of a function; the node of one for programs is numbered on its own."""
        directory = f"{self.host.resolve(f'/sys/bus/pci/devices/{function}')}/{name}"
        self.tree.link(f"{directory}/subsystem", "/sys/bus/vdpa")
        self.tree.link(f"{directory}/driver", f"/sys/bus/vdpa/drivers/{driver}")
        self.tree.link(f"/sys/bus/vdpa/devices/{name}", directory)
        if driver == "vhost_vdpa":
            node = f"vhost-vdpa-{minor}"
            self.tree.write(f"{directory}/{node}/dev", f"510:{minor}")
            self.tree.write(f"{directory}/{node}/uevent", f"MAJOR=510\nMINOR={minor}\nDEVNAME={node}")
            self.tree.stand_in(f"/dev/{node}", major=510, minor=minor)
        return directory

    def hca(
        self,
        name: str,
        directory: str,
        *,
        guid: str,
        ports: list[dict[str, str]],
    ) -> str:
        """An adapter below its PCI function, with a uverbs node, and a umad and an issm node for each port."""
        path = f"{directory}/infiniband/{name}"
        facts = {
            "node_type": "1: CA",
            "node_guid": guid,
            "sys_image_guid": guid,
            "fw_ver": "20.35.1012",
            "hca_type": "MT4123",
            "board_id": "MT_0000000222",
            "hw_rev": "0",
            "node_desc": f"node {name}",
            "uevent": f"NAME={name}",
        }
        for attribute, value in facts.items():
            self.tree.write(f"{path}/{attribute}", value)
        self.tree.link(f"{path}/device", directory)
        self.tree.link(f"{path}/subsystem", "/sys/class/infiniband")
        self.tree.link(f"/sys/class/infiniband/{name}", path)
        for number, port in enumerate(ports, start=1):
            standard = {
                "state": "4: ACTIVE",
                "phys_state": "5: LinkUp",
                "link_layer": "InfiniBand",
                "rate": "100 Gb/sec (4X EDR)",
                "lid": f"0x{number:x}",
                "lid_mask_count": "0",
                "sm_lid": "0x1",
                "sm_sl": "0",
                "cap_mask": "0x2651e848",
                "pkeys/0": "0xffff",
                "pkeys/1": "0x8001",
                "gids/0": "fe80:0000:0000:0000:0c42:a103:0000:0001",
            }
            for attribute, value in {**standard, **port}.items():
                self.tree.write(f"{path}/ports/{number}/{attribute}", value)
        self._char(directory, "infiniband_verbs", "uverbs", name)
        for number in range(1, len(ports) + 1):
            self._char(directory, "infiniband_mad", "umad", name, port=number)
            self._char(directory, "infiniband_mad", "issm", name, port=number)
        return path

    def _char(self, directory: str, of_class: str, kind: str, ibdev: str, *, port: int | None = None) -> None:
        number = self._numbers[kind]
        self._numbers[kind] += 1
        path = f"{directory}/{of_class}/{kind}{number}"
        self.tree.write(f"{path}/ibdev", ibdev)
        if port is not None:
            self.tree.write(f"{path}/port", port)
        self._class_entry(path, of_class, f"{kind}{number}", (231, self._minors[kind] + number))


DOWN = {"state": "1: DOWN", "phys_state": "2: Polling"}
GUID = "0c42:a103:0000:00{:02x}".format


def mellanox(tree: SysfsTree) -> Node:
    """Two InfiniBand adapters on two NUMA nodes, the first with two ports; a RoCE adapter with three VFs.

    Of the functions the first has its RDMA adapter and interface, the second is bound to vfio-pci, the third is in a
    container: its interface is not visible.
    """
    node = Node(tree)
    first = node.pci("0000:3b:00.0", numa=0)
    node.hca("mlx5_0", first, guid=GUID(1), ports=[{}, DOWN])
    node.net(first, "ib0", link_type=32)
    second = node.pci("0000:af:00.0", numa=1)
    node.hca("mlx5_1", second, guid=GUID(2), ports=[{}])
    node.net(second, "ib1", link_type=32)
    third = node.pci("0000:d8:00.0", numa=1, attributes={"sriov_totalvfs": 8, "sriov_numvfs": 3})
    ethernet = {"link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"}
    node.hca("mlx5_2", third, guid=GUID(3), ports=[{**ethernet, "gid_attrs/ndevs/0": "eth0"}])
    node.net(third, "eth0")
    own = node.vf("0000:d8:00.0", 0, "0000:d8:00.2", numa=1)
    node.hca("mlx5_3", own, guid="0000:0000:0000:0000", ports=[{**ethernet, **DOWN, "gid_attrs/ndevs/0": "eth0v0"}])
    node.net(own, "eth0v0", state="down")
    node.vf("0000:d8:00.0", 1, "0000:d8:00.3", numa=1, driver="vfio-pci", iommu_group=77)
    tree.stand_in("/dev/vfio/vfio", major=10, minor=196, mode=0o666)
    tree.stand_in("/dev/vfio/77", major=240, minor=0)
    away = node.vf("0000:d8:00.0", 2, "0000:d8:00.4", numa=1)
    node.hca("mlx5_4", away, guid="0000:0000:0000:0000", ports=[{**ethernet, **DOWN}])
    return node


@pytest.fixture(scope="session")
def mellanox_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of `mellanox`, which is made once."""
    directory = tmp_path_factory.mktemp("mellanox")
    mellanox(SysfsTree(directory / "node")).tree.save(directory / "node.tar.gz")
    return directory / "node.tar.gz"


@pytest.fixture
def node(mellanox_file: Path, tmp_path: Path) -> SysfsTree:
    """The node of `mellanox`."""
    return SysfsTree(tmp_path / "node", snapshot=mellanox_file)


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[Any], Path]:
    """Write a configuration file, as JSON or as the text that it is."""

    def write(held: Any) -> Path:
        path = tmp_path / "config.json"
        new = tmp_path / "config.new"
        new.write_text(held if isinstance(held, str) else json.dumps(held))
        new.replace(path)
        return path

    return write


def found(backend: Rdma) -> dict[str, kdp.Device]:
    return {device.id: device for device in backend.discover()}


def nodes_of(device: kdp.Device) -> list[str]:
    return [node.host_path.removeprefix("/dev/") for node in device.edits.device_nodes]


def recorded(name: str) -> kdp.hardware.Host:
    return kdp.hardware.Host.of_snapshot(RECORDED / f"{name}.tar.gz")
