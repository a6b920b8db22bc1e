from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from kdp.hardware import Host, LinkWatch, UeventWatch
from kdp.hardware.netlink import parse_uevent
from kdp.testing import SysfsTree
from kdp_testkit.patience import PATIENCE

pytestmark = pytest.mark.anyio

FUSE = Path("/sys/class/misc/fuse/uevent")


def ask() -> None:
    FUSE.write_text("change")


def test_a_message_is_parsed() -> None:
    data = b"add@/devices/virtual/misc/fuse\0ACTION=add\0DEVPATH=/devices/virtual/misc/fuse\0X=a=b\0nonsense\0\xff=\0"
    assert parse_uevent(data) == {"ACTION": "add", "DEVPATH": "/devices/virtual/misc/fuse", "X": "a=b", "�": ""}
    assert parse_uevent(b"") == {}


async def test_the_kernel_tells(figure: Callable[[str, float, str], None]) -> None:
    if not os.access(FUSE, os.W_OK):
        pytest.skip("an event can only be asked for by root, and where /sys is writable")
    async with UeventWatch(Host(), subsystems=["misc"]) as watch:
        assert watch.refused is None
        started = time.monotonic()
        ask()
        with anyio.fail_after(PATIENCE):
            while not (found := [e for e in await watch.events(at_most=None) if e.path.endswith("/misc/fuse")]):
                pass
        figure("a uevent is heard after", (time.monotonic() - started) * 1000, "ms")
        assert (found[0].action, found[0].subsystem) == ("change", "misc")
        assert found[0].path == "/sys/devices/virtual/misc/fuse"
        assert found[0].properties["DEVNAME"] == "fuse"
        assert not watch.lost


async def test_a_watch_that_was_not_entered_waited_in_vain() -> None:
    with pytest.raises(RuntimeError, match="enter the watch with async with"):
        await UeventWatch(Host()).events(at_most=0)


async def test_other_subsystems_do_not_wake_and_the_floor_holds() -> None:
    if not os.access(FUSE, os.W_OK):
        pytest.skip("an event can only be asked for by root, and where /sys is writable")
    async with UeventWatch(Host(), subsystems=["infiniband"]) as watch:
        ask()
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=0.1) == []


async def test_lost_events_say_look_at_everything() -> None:
    if not os.access(FUSE, os.W_OK):
        pytest.skip("an event can only be asked for by root, and where /sys is writable")
    watch = UeventWatch(Host())
    async with watch:
        held = watch._socket  # pyright: ignore[reportPrivateUsage]
        assert held is not None
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(200):
            ask()
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=None) == []
        assert watch.lost
        ask()
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=None)


@pytest.mark.parametrize(("events", "kind"), [("device", UeventWatch), ("link", LinkWatch)], ids=["device", "link"])
async def test_where_netlink_is_refused_the_floor_is_all(
    monkeypatch: pytest.MonkeyPatch, events: str, kind: type[UeventWatch | LinkWatch]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    async with kind(Host()) as watch:
        assert watch.refused == f"the kernel's {events} events are refused: Operation not permitted"
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=0.01) == []


async def test_a_tree_has_events_of_its_own(sysfs_tree: SysfsTree) -> None:
    card = sysfs_tree.pci_function("0000:3b:00.0", vendor=1, device=2)
    sysfs_tree.link(f"{card}/subsystem", "/sys/bus/pci")
    sysfs_tree.write(f"{card}/uevent", "PCI_ID=1:2")
    sysfs_tree.uevent("add", card)  # before anybody waits: not told
    async with UeventWatch(sysfs_tree.host, subsystems={"pci"}) as watch, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, lambda: sysfs_tree.uevent("change", card, REASON="x"))
        with anyio.fail_after(PATIENCE):
            (event,) = await watch.events(at_most=None)
        assert (event.action, event.path, event.subsystem) == ("change", card, "pci")
        assert (event.properties["PCI_ID"], event.properties["REASON"]) == ("1:2", "x")
        sysfs_tree.uevent("add", "/sys/devices/virtual/net/x", SUBSYSTEM="net")
        with anyio.fail_after(PATIENCE):
            assert await watch.events(at_most=0.1) == []
