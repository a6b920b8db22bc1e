from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.hardware import Host
from kdp.hardware.netlink import parse_addresses
from kdp.testing import SysfsTree


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, family: int, prefix: int, scope: int, index: int, *attributes: bytes) -> bytes:
    body = struct.pack("=BBBBI", family, prefix, 0, scope, index) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


FOUR = message(20, 2, 24, 0, 3, attribute(1, bytes((192, 0, 2, 5))), attribute(2, bytes((192, 0, 2, 5))))
PEER = message(20, 2, 32, 0, 4, attribute(1, bytes((192, 0, 2, 9))), attribute(2, bytes((192, 0, 2, 8))))
SIX = message(20, 10, 64, 0, 3, attribute(1, bytes.fromhex("20010db8000000000000000000000005")))
LINK_LOCAL = message(20, 10, 64, 253, 3, attribute(1, bytes.fromhex("fe800000000000000000000000000005")))


def test_a_datagram_is_parsed() -> None:
    other = message(24, 2, 24, 0, 3, attribute(1, bytes(4)))
    assert [*parse_addresses(FOUR + other + LINK_LOCAL + PEER + SIX + FOUR[:-4])] == [
        (3, "192.0.2.5/24"),
        (4, "192.0.2.8/32"),
        (3, "2001:db8::5/64"),
    ]


@given(st.binary(max_size=200))
def test_no_datagram_raises_or_hangs(data: bytes) -> None:
    [*parse_addresses(data)]
    [*parse_addresses(FOUR + data)]


def test_a_tree_tells_what_it_was_told(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.write("/sys/class/net/eth0/ifindex", 2)
    interface = tree.host.net_interface("eth0")
    assert interface is not None
    assert not interface.ips
    tree.address("eth1", "192.0.2.6/24")
    tree.address("eth0", "192.0.2.5/24")
    assert interface.ips == ("192.0.2.5/24",)


@pytest.fixture
def interface() -> Iterator[str]:
    """The name of an interface with addresses."""
    name = f"kdpa{os.getpid() % 100000}"
    try:
        for words in (
            f"link add {name} type veth peer name {name}b",
            f"address add 192.0.2.5/24 dev {name}",
            f"address add 2001:db8::5/64 dev {name} nodad",
        ):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        pytest.skip(
            "a network interface can only be made by root, where the kernel knows veth and IPv6 and ip is installed"
        )
    yield name
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def test_the_kernel_tells(interface: str) -> None:
    found = Host().net_interface(interface)
    assert found is not None
    assert found.ips == ("192.0.2.5/24", "2001:db8::5/64")
    loopback = Host().net_interface("lo")
    assert loopback is None or loopback.ips == (), "nobody else can reach it"
