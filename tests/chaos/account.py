"""`Account`: what a living plugin remembers of its allocations, asked over a socket; and what its files say.

`answer_questions` runs in the plugin's process. `Account.of` asks from outside. `saved_in` reads the files as another
program does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import anyio
import attrs

from kdp.deviceplugin.manager import PluginManager

ANSWER_SECONDS: Final = 1.0
"""For an answer of a process; one that is frozen gives none."""

Entry: TypeAlias = tuple[tuple[str, ...], str | None]
"""The devices of an allocation, and the number in its state."""


@final
@attrs.frozen(kw_only=True)
class Account:
    """What a process says of itself.

    Attributes:
        owed: The allocations that are not released, by UID.
        problem: Why they are not saved, as the status document has it. `None` if the plugin sees no reason.
    """

    owed: Mapping[str, Entry]
    problem: str | None

    @classmethod
    async def of(cls, channel: socket.socket) -> Account | None:
        """Ask a process; return `None` if it does not answer in time."""
        loop = asyncio.get_running_loop()
        with anyio.move_on_after(ANSWER_SECONDS), contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(BlockingIOError):
                while channel.recv(1 << 20):  # a late answer to an earlier question
                    pass
            await loop.sock_sendall(channel, b"?")
            said = json.loads(await loop.sock_recv(channel, 1 << 20))
            owed = {uid: (tuple(ids), number) for uid, ids, number in said["owed"]}
            return cls(owed=owed, problem=said["problem"])
        return None


@final
@attrs.frozen(kw_only=True)
class Saved:
    """What the files have.

    Attributes:
        entries: The allocations, by UID.
        listed: The numbers of those that the kubelet's list has named.
    """

    entries: Mapping[str, Entry]
    listed: frozenset[str]


def saved_in(directory: Path) -> Saved:
    """Return what all files of a state directory have.

    Raises:
        OSError: A file went away meanwhile.
        ValueError: A file is broken.
    """
    found: dict[str, Entry] = {}
    listed: set[str] = set()
    gone: set[str] = set()
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        if not path.name.startswith("."):
            document = json.loads(path.read_bytes())
            for each in document.get("allocations", ()):
                if each.get("gone"):  # in whatever file: another one may have it that cannot be removed
                    gone.add(each["uid"])
                    continue
                number = each["state"].get("number")
                found[each["uid"]] = tuple(each["ids"]), number
                if each.get("seen") and number is not None:
                    listed.add(number)
    found = {uid: entry for uid, entry in found.items() if uid not in gone}
    return Saved(entries=found, listed=frozenset(listed))


def differences(memory: Mapping[str, Entry], disk: Mapping[str, Entry]) -> list[str]:
    """Return the allocations that are not the same in memory and on the disk."""
    return [
        f"{uid[:6]}: memory has {memory.get(uid)}, and the disk has {disk.get(uid)}"
        for uid in sorted({*memory, *disk})
        if memory.get(uid) != disk.get(uid)
    ]


def answer_questions(descriptor: int) -> None:
    """Answer each question on a socket with the account of this process, from a thread of its own."""
    managers: list[tuple[PluginManager, asyncio.AbstractEventLoop]] = []
    begin = PluginManager._begin  # pyright: ignore[reportPrivateUsage]

    def begun(self: PluginManager) -> None:
        managers.append((self, asyncio.get_running_loop()))
        begin(self)

    setattr(PluginManager, "_begin", begun)  # noqa: B010 - types know no change of a class
    threading.Thread(target=_answer, args=(descriptor, managers), name="account", daemon=True).start()


def _answer(descriptor: int, managers: list[tuple[PluginManager, asyncio.AbstractEventLoop]]) -> None:
    with socket.socket(fileno=descriptor) as channel, contextlib.suppress(OSError):
        channel.setblocking(True)
        while channel.recv(1):
            if not managers:
                continue
            manager, loop = managers[-1]
            with contextlib.suppress(RuntimeError):  # the loop is closed
                account = asyncio.run_coroutine_threadsafe(_account(manager), loop).result()
                channel.send(json.dumps(account).encode())


async def _account(manager: PluginManager) -> dict[str, Any]:
    # No interface shows the memory.
    owed = manager._tracker._allocations.owed()  # pyright: ignore[reportPrivateUsage]
    return {
        "owed": [(each.uid, each.ids, dict(each.state).get("number")) for each in owed],
        "problem": manager.state_problem,
    }
