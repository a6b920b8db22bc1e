from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator

import anyio
import pytest

from kdp.hardware import Host, LinkEvent, LinkWatch
from kdp.hardware.netlink import parse_links
from kdp.testing import SysfsTree
from kdp_testkit.patience import PATIENCE

pytestmark = pytest.mark.anyio


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, index: int, flags: int, *attributes: bytes) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, index, flags, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


UP = message(16, 2, 0x1043, attribute(3, b"eth0\0"), attribute(16, b"\6"), attribute(33, b"\1"))
DOWN = message(16, 2, 0x1002, attribute(3, b"eth0\0"), attribute(16, b"\2"), attribute(33, b"\0"))
GONE = message(17, 7, 0x1002, attribute(3, b"wlan10\0"), attribute(16, b"\x63"))


def test_a_datagram_is_parsed() -> None:
    assert parse_links(UP) == [LinkEvent(name="eth0", index=2, state="up", carrier=True)]
    assert parse_links(DOWN) == [LinkEvent(name="eth0", index=2, is_up=False, state="down", carrier=False)]
    assert parse_links(GONE) == [LinkEvent(name="wlan10", index=7, is_gone=True, is_up=False)]
    route = message(24, 0, 0)
    assert parse_links(DOWN + route + GONE + UP) == [*parse_links(DOWN), *parse_links(GONE), *parse_links(UP)]


def test_what_is_cut_off_is_left_out() -> None:
    assert parse_links(b"") == []
    assert parse_links(UP + GONE[:-8]) == parse_links(UP)
    assert parse_links(struct.pack("=IHHII", 0, 16, 0, 0, 0) + UP) == []
    assert parse_links(struct.pack("=IHHII", 20, 16, 0, 0, 0) + bytes(4)) == []
    nonsense = message(16, 3, 1, attribute(3, b"eth1\0"), struct.pack("=HH", 0, 16))
    assert parse_links(nonsense) == [LinkEvent(name="eth1", index=3)]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def pair() -> Iterator[str]:
    """A pair of interfaces that are one cable; the name of one."""
    name = f"kdp{os.getpid() % 100000}"
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}b")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a network interface can only be made by root, where the kernel knows veth and ip is installed")
    yield name
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


async def test_the_kernel_tells(pair: str, figure: Callable[[str, float, str], None]) -> None:
    async with LinkWatch(Host()) as watch:
        assert watch.refused is None
        seen: list[LinkEvent] = []

        async def until(is_wanted: Callable[[LinkEvent], bool]) -> None:
            with anyio.fail_after(PATIENCE):
                while not any(is_wanted(event) for event in seen):
                    seen.extend(event for event in await watch.events(at_most=None) if event.name == pair)

        await anyio.to_thread.run_sync(ip, "link", "set", f"{pair}b", "up")
        await anyio.to_thread.run_sync(ip, "link", "set", pair, "up")
        await until(lambda event: event.state == "up" and event.carrier is True)
        seen.clear()
        started = time.monotonic()
        await anyio.to_thread.run_sync(ip, "link", "set", f"{pair}b", "down")
        await until(lambda event: event.carrier is False)
        figure("a link that goes down is heard after", (time.monotonic() - started) * 1000, "ms")
        await anyio.to_thread.run_sync(ip, "link", "del", pair)
        await until(lambda event: event.is_gone)
        assert not watch.lost


async def test_lost_events_say_look_at_everything(pair: str) -> None:
    watch = LinkWatch(Host())
    async with watch:
        held = watch._socket  # pyright: ignore[reportPrivateUsage]
        assert held is not None
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for number in range(1500, 1510):
            await anyio.to_thread.run_sync(ip, "link", "set", pair, "mtu", str(number - 100))
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=None) == []
        assert watch.lost


async def test_a_tree_has_events_of_its_own(sysfs_tree: SysfsTree) -> None:
    sysfs_tree.write("/sys/class/net/eth0/ifindex", 4)
    sysfs_tree.link_event("eth0")  # before anybody waits: not told
    async with LinkWatch(sysfs_tree.host) as watch, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, lambda: sysfs_tree.link_event("eth0", state="down"))
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=None) == [LinkEvent(name="eth0", index=4, state="down")]
        sysfs_tree.link_event("eth9", is_gone=True)
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=None) == [LinkEvent(name="eth9", index=0, is_gone=True)]
            assert await watch.events(at_most=0.05) == []
