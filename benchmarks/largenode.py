"""`LargeNode`: a directory that looks like a node with many GPUs, RDMA adapters, and FPGAs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdp.hardware.fake_nodes import NODES, UNREADABLE, parse_nodes
from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState, compile_library

if TYPE_CHECKING:
    from kdp.testing import SysfsTree

__all__ = ["BOARDS", "GPUS", "HCAS", "LargeNode"]

GPUS: Final = 8
HCAS: Final = 16
BOARDS: Final = 4
"""With two ports each."""

_INTERFACE, _ACCELERATOR = "9926ab6d6c925a68aabca7d84c545738", "d8424dc4a4a3c413f89e433683f9040b"


class LargeNode:
    """The node.

    Args:
        root: An empty directory, or one that does not exist yet.

    Attributes:
        root: Where it is.
        accelerator: The resource of the boards' ports.
    """

    accelerator = "fpga.intel.com/af-992.d84.mSarbWySWmiqvKfYTFRXONhCTcSko8QT-J5DNoP5BAs"

    def __init__(self, root: Path) -> None:
        self.root = root
        links = (None,) * 18
        state = NvmlState(gpus=tuple(GpuState(nvlinks=links, numa_node=2 * n // GPUS) for n in range(GPUS)))
        with tempfile.TemporaryDirectory(prefix="kdp-") as folder:
            self._tree: SysfsTree = FakeNode(root, library=compile_library(Path(folder)), state=state).tree
        for number in range(HCAS):
            self._adapter(number)
        self._tree.write("/sys/module/ib_core/parameters/netns_mode", "Y")
        self._class_device("/sys/devices/virtual/misc/rdma_cm", "misc", "rdma_cm", 10, 260, "infiniband/rdma_cm")
        for number in range(BOARDS):
            self._board(number)
        for folder, names, files in os.walk(root / "sys"):
            for place in (Path(folder, name) for name in (*names, *files)):
                if place.is_symlink() and (target := os.readlink(place)).startswith("/"):
                    self._tree.link(
                        str(place)[len(str(root)) :], os.path.relpath(f"{root}{target}", folder)
                    )  # as in sysfs
        if os.geteuid() == 0:
            self._make_real()

    def _make_real(self) -> None:
        """Have device nodes in place of what stands in for them, which costs a look at a list each time."""
        for path, node in parse_nodes((self.root / NODES).read_text()).items():
            self._tree.remove(path)
            self._tree.char_device(path, major=node.major, minor=node.minor)
        for name in (NODES, UNREADABLE):
            (self.root / name).unlink()

    def _class_device(self, path: str, of_class: str, name: str, major: int, minor: int, node: str) -> None:
        self._attributes(path, dev=f"{major}:{minor}", uevent=f"MAJOR={major}\nMINOR={minor}\nDEVNAME={node}")
        self._tree.link(f"{path}/subsystem", f"/sys/class/{of_class}")
        self._tree.link(f"/sys/class/{of_class}/{name}", path)
        self._tree.stand_in(f"/dev/{node}", major=major, minor=minor)

    def _attributes(self, path: str, **files: str | int) -> None:
        for name, text in files.items():
            self._tree.write(f"{path}/{name}", text)

    def _adapter(self, number: int) -> None:
        """Make a ConnectX with one port that has a link."""
        function = self._tree.pci_function(
            f"0000:{0x40 + number:02x}:00.0",
            vendor=0x15B3,
            device=0x1021,
            class_code=0x020700,
            numa_node=2 * number // HCAS,
            driver="mlx5_core",
        )
        name = f"mlx5_{number}"
        guid = f"0c42:a103:0000:{number + 1:04x}"
        adapter = f"{function}/infiniband/{name}"
        self._attributes(adapter, node_type="1: CA", node_guid=guid, sys_image_guid=guid, node_desc=name)
        self._attributes(adapter, fw_ver="28.39.2048", hca_type="MT4129", board_id="MT_0000000838", hw_rev="0")
        port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand", "lid": f"{number + 1:#x}"}
        for attribute, text in {**port, "rate": "400 Gb/sec (4X NDR)", "pkeys/0": "0xffff"}.items():
            self._tree.write(f"{adapter}/ports/1/{attribute}", text)
        self._tree.link(f"{adapter}/device", function)
        self._tree.link(f"{adapter}/subsystem", "/sys/class/infiniband")
        self._tree.link(f"/sys/class/infiniband/{name}", adapter)
        interface = f"{function}/net/ib{number}"
        self._attributes(interface, operstate="up", type=32, ifindex=number + 3)
        self._tree.link(f"{interface}/device", function)
        self._tree.link(f"/sys/class/net/ib{number}", interface)
        for kind, of_class, first in (("uverbs", "verbs", 192), ("umad", "mad", 0), ("issm", "mad", 64)):
            path, entry = f"{function}/infiniband_{of_class}/{kind}{number}", f"{kind}{number}"
            self._class_device(path, f"infiniband_{of_class}", entry, 231, first + number, f"infiniband/{entry}")
            self._attributes(path, ibdev=name)
            if kind != "uverbs":
                self._attributes(path, port=1)

    def _board(self, number: int) -> None:
        """Make a board with two ports, whose engine has a region, error registers and sensors."""
        function = self._tree.pci_function(
            f"0000:{0x80 + number:02x}:00.0",
            vendor=0x8086,
            device=0x09C4,
            numa_node=2 * number // BOARDS,
            driver="dfl-pci",
        )
        base = 3 * number
        board = f"{function}/fpga_region/region{base}"
        self._tree.link(f"{board}/device", function)
        self._tree.link(f"/sys/class/fpga_region/region{base}", board)
        engine = f"{board}/dfl-fme.{number}"
        self._attributes(engine, bitstream_id="0x23000110010310", ports_num=2)
        self._platform(engine, "dfl-fme", 246, number)
        registers = ("fme_errors", "pcie0_errors", "pcie1_errors", "nonfatal_errors", "catfatal_errors")
        for register in registers:
            self._tree.write(f"{engine}/errors/{register}", "0x0")
        sensor = f"{engine}/hwmon/hwmon{2 * number}"
        self._attributes(sensor, name="dfl_fme_thermal", temp1_input=45000, temp1_max=90000, temp1_crit=95000)
        self._attributes(sensor, temp1_crit_alarm=0, temp1_max_alarm=0)
        self._attributes(f"{engine}/hwmon/hwmon{2 * number + 1}", name="dfl_fme_power", power1_input=37000000)
        manager = f"{engine}/dfl-fme-mgr.{number}/fpga_manager/fpga{number}"
        self._attributes(manager, state="unknown", status="")
        self._tree.link(f"/sys/class/fpga_manager/fpga{number}", manager)
        for port in range(2):
            region = f"{engine}/dfl-fme-region.{2 * number + port}/fpga_region/region{base + 1 + port}"
            self._attributes(region, compat_id=_INTERFACE)
            self._tree.link(f"/sys/class/fpga_region/region{base + 1 + port}", region)
            held = f"{board}/dfl-port.{2 * number + port}"
            self._attributes(held, id=port, afu_id=_ACCELERATOR, power_state="0x0")
            self._attributes(f"{held}/errors", errors="0x0", first_error="0x0")
            self._platform(held, "dfl-port", 245, 2 * number + port)

    def _platform(self, path: str, kind: str, major: int, number: int) -> None:
        self._attributes(
            path, dev=f"{major}:{number}", uevent=f"MAJOR={major}\nMINOR={number}\nDEVNAME={kind}.{number}"
        )
        self._tree.link(f"{path}/driver", f"/sys/bus/platform/drivers/{kind}")
        self._tree.stand_in(f"/dev/{kind}.{number}", major=major, minor=number)
