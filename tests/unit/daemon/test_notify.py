"""What systemd is told, at a socket of the test's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from kdp.daemon.notify import Notifier, in_words
from kdp.deviceplugin.manager import Status
from kdp.deviceplugin.status import ResourceStatus
from kdp_testkit.patience import PATIENCE

READY = Status(
    resources={
        "example.com/w": ResourceStatus(resource="example.com/w", state="connected", reason=None, devices=3, healthy=2)
    },
    backends=(("Widgets", None),),
)
WAITING = Status(
    resources={
        "example.com/w": ResourceStatus(
            resource="example.com/w", state="waiting", reason="there is no\nkubelet.sock", devices=0, healthy=0
        )
    },
    backends=(("Widgets", None),),
)
CLOSED = Status(resources={}, backends=(("Widgets", "driver not loaded"),))


class Listener:
    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(address)

    def heard(self) -> list[list[str]]:
        found: list[list[str]] = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode().splitlines())
            except BlockingIOError:
                return found


@pytest.fixture(params=["file", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"@kdp-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")


@pytest.fixture
def listener(address: str) -> Iterator[Listener]:
    listener = Listener(address.replace("@", "\0", 1))
    yield listener
    listener.socket.close()


def test_ready_is_said_once_and_the_status_when_it_changed(address: str, listener: Listener) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address})

    for status in (None, CLOSED, WAITING, WAITING, READY, READY, WAITING, READY):
        notifier.tell(status)
    notifier.stopping()

    assert listener.heard() == [
        ["STATUS=starting"],
        ["STATUS=Widgets: driver not loaded"],
        ["STATUS=example.com/w: waiting, there is no kubelet.sock"],
        ["READY=1", "STATUS=example.com/w: devices 3, healthy 2"],
        ["STATUS=example.com/w: waiting, there is no kubelet.sock"],
        ["STATUS=example.com/w: devices 3, healthy 2"],
        ["STOPPING=1", "STATUS=stopping"],
    ]


def test_a_watchdog_hears_each_look(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "n"))
    notifier = Notifier(
        {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
    )

    notifier.tell(READY)
    notifier.tell(READY)

    assert [lines[0] for lines in listener.heard()] == ["WATCHDOG=1", "WATCHDOG=1"]
    listener.socket.close()


@pytest.mark.parametrize("environ", [{"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}])
def test_a_watchdog_of_nobody_hears_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "n"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "n"), **environ})

    notifier.tell(READY)
    notifier.tell(READY)

    assert listener.heard() == [["READY=1", f"STATUS={in_words(READY)}"]]
    listener.socket.close()


async def test_it_looks_often_enough_for_the_watchdog(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "n"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "20000"})

    heard: list[list[str]] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notifier.follow, lambda: READY)
        with anyio.fail_after(PATIENCE):
            while len(heard) < 3:
                await anyio.sleep(0.005)
                heard += listener.heard()
        tasks.cancel_scope.cancel()
    listener.socket.close()


async def test_where_nobody_wants_to_know_it_does_nothing() -> None:
    notifier = Notifier({})

    with anyio.fail_after(5):
        await notifier.follow(lambda: pytest.fail("nobody asked"))
    notifier.stopping()


def test_a_listener_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell(READY)
