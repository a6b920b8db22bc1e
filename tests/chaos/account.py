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

Entry: TypeAlias = tuple[tuple[str, ...], str | None, int | None]
"""The devices of an allocation, the number in its state, and how many hooks have counted there."""


@final
@attrs.frozen(kw_only=True)
class Account:
    """What a process says of itself.

    Attributes:
        owed: The allocations that are not released, by UID.
        problem: Why they are not saved, as the status document has it. `None` if the plugin sees no reason.
        has_adopted: Whether it knows what earlier processes gave.
        believed: Why each is not released, in the words of a programmer, by number.
    """

    owed: Mapping[str, Entry]
    problem: str | None
    has_adopted: bool
    believed: Mapping[str | None, str]

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
            owed = {uid: (tuple(ids), number, calls) for uid, ids, number, calls, _ in said["owed"]}
            believed = {number: text for _, _, number, _, text in said["owed"]}
            return cls(owed=owed, problem=said["problem"], has_adopted=said["has_adopted"], believed=believed)
        return None


@final
@attrs.frozen(kw_only=True)
class Saved:
    """What the files have.

    Attributes:
        entries: The allocations, by UID.
        listed: The numbers of those that the kubelet's list has named.
        intents: The devices of Allocates that run, or whose process has ended amid the hook, by UID.
    """

    entries: Mapping[str, Entry]
    listed: frozenset[str]
    intents: Mapping[str, tuple[str, ...]]


def saved_in(directory: Path) -> Saved:
    """Return what all files of a state directory have.

    Raises:
        OSError: A file went away meanwhile.
        ValueError: A file is broken.
    """
    found: dict[str, Entry] = {}
    listed: set[str] = set()
    gone: set[str] = set()
    intents: dict[str, tuple[str, ...]] = {}
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        if not path.name.startswith("."):
            document = json.loads(path.read_bytes())
            for each in document.get("allocations", ()):
                if each.get("gone"):  # in whatever file: another one may have it that cannot be removed
                    gone.add(each["uid"])
                    continue
                number = each["state"].get("number")
                found[each["uid"]] = tuple(each["ids"]), number, each["state"].get("calls")
                intents.pop(each["uid"], None)
                if number is None and "at" in each:  # an allocation that was taken from a list has no time
                    intents[each["uid"]] = tuple(each["ids"])
                if each.get("seen") and number is not None:
                    listed.add(number)
    found = {uid: entry for uid, entry in found.items() if uid not in gone}
    intents = {uid: ids for uid, ids in intents.items() if uid in found}
    return Saved(entries=found, listed=frozenset(listed), intents=intents)


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
    allocations = manager._tracker._allocations  # pyright: ignore[reportPrivateUsage]
    tracks = allocations._tracks  # pyright: ignore[reportPrivateUsage]
    resources = manager._tracker.records._resources  # pyright: ignore[reportPrivateUsage]
    return {
        "owed": [
            (
                *(each.uid, each.ids, each.state.get("number"), each.state.get("calls")),
                f"{each}, {[str(tracks[key]) for key in each.keys]}",
            )
            for each in allocations.owed()
        ],
        "problem": manager.state_problem,
        "has_adopted": bool(resources) and all(each.adopted.is_set() for each in resources.values()),
    }
