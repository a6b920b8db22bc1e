"""What files of sysfs may say, and the kernel's datagrams: every reader answers, and none raises."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzzing import damaged, fuzz

import kdp.hardware
from kdp.errors import InvalidValueError
from kdp.hardware import Directory, Host, NetInterface, PciFunction, netlink
from kdp.hardware.fake_nodes import parse_nodes, parse_unreadable

Figure = Callable[[str, float, str], None]

SAID = [
    b"0x10de\n",
    b"-1\n",
    b"0-3,8\n",
    b"8.0 GT/s PCIe\n",
    b"up\n",
    b"52:54:00:12:34:56\n",
    b"10000\n",
    b"226:128\n",
]
SAID += [b"DRIVER=vfio\nPCI_ID=10DE:2330\nMAJOR=226\nMINOR=128\nDEVNAME=dri/renderD128\n"]

READERS = [
    name
    for kind in (PciFunction, NetInterface)
    for name, member in inspect.getmembers(kind)
    if isinstance(member, property)
]
FILES = [
    "address",
    "class",
    "current_link_speed",
    "current_link_width",
    "dev",
    "device",
    "driver_override",
    "ifindex",
    "iommu_group/name",
    "local_cpulist",
    "max_link_speed",
    "max_link_width",
    "mtu",
    "numa_node",
    "operstate",
    "carrier",
    "speed",
    "type",
    "revision",
    "sriov_totalvfs",
    "subsystem_vendor",
    "subsystem_device",
    "uevent",
    "vendor",
]


def test_every_reader_of_a_device_answers_whatever_its_files_say(tmp_path: Path, figure: Figure) -> None:
    host, place = Host(tmp_path), "/sys/devices/pci0000:00/0000:00:01.0"
    folder = host.path(place)
    folder.mkdir(parents=True)

    def look(data: bytes) -> None:
        for name in FILES:
            if "/" not in name:
                (folder / name).write_bytes(data)
        for kind in (PciFunction, NetInterface):
            device: Any = kind(host, place)
            for name in READERS:
                getattr(device, name, None)
        files = Directory(host, place)
        for name in FILES:
            for read in (files.text, files.integer, files.hexadecimal, files.flag, files.words, files.numbers):
                found = read(name)
                assert (found.value is None) == bool(found.problem)
            files.properties(name)
        kdp.hardware.attributes_of({"a": host.reading(f"{place}/vendor").value})

    tried = fuzz("sysfs", look, (), damaged(SAID), examples=75)
    figure("fuzzing: texts of sysfs", tried, "inputs")


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


LINK = struct.pack("=BxHiII", 0, 1, 7, 1, 0) + _attribute(3, b"eth0\0") + _attribute(16, b"\6") + _attribute(33, b"\1")
MESSAGE = netlink.HEADER.pack(netlink.HEADER.size + len(LINK), 16, 0, 0, 0) + LINK
UEVENT = b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=net\0SEQNUM=7\0"


def test_every_datagram_of_the_kernel_is_understood_as_far_as_it_goes(figure: Figure) -> None:
    def understand(data: bytes) -> None:
        for event in netlink.parse_links(data):
            assert isinstance(event.name, str)
        assert netlink.Uevent.of(netlink.parse_uevent(data)).path.startswith("/sys")

    tried = fuzz("netlink", understand, (), damaged([MESSAGE, MESSAGE * 3, UEVENT]), examples=2000)
    figure("fuzzing: netlink datagrams", tried, "inputs")


def test_the_lists_of_a_snapshot_are_understood_or_refused(figure: Figure) -> None:
    seeds = [
        b"/dev/null c 1:3 0666\n/dev/loop0 b 7:0 0660\n",
        b"/sys/x/speed Invalid argument\n/sys/y No such device\n",
    ]

    def understand(data: bytes) -> None:
        for parse in (parse_nodes, parse_unreadable):
            with suppress(InvalidValueError):
                parse(data.decode(errors="replace"))

    tried = fuzz("snapshot_lists", understand, (), damaged(seeds), examples=500)
    figure("fuzzing: lists of snapshots", tried, "inputs")
