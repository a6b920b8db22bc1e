"""From SIGTERM to the exit: with an open stream, with a call in flight, with hooks that never return."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import grpc

from .kubelets import Client, plugin_socket
from .processes import Process, program
from .programs.names import ids
from .setting import Setting, variables
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["rows"]

LIMIT = 2.0


def rows(setting: Setting) -> Iterator[Row]:
    """Stop plugins in each of these states; the figure is the slowest."""
    rounds = setting.rounds(10, 2)
    bare = [_open_stream(setting, is_bare=True) for _ in range(rounds)]
    ours = [_open_stream(setting, is_bare=False) for _ in range(rounds)]
    note = f"slowest of {rounds}; bare {1e3 * max(took for took, _ in bare):.0f} ms"
    yield _row("stop: SIGTERM -> exit 0, open stream", ours, note)

    calls = [_call_in_flight(setting, seconds=1.0) for _ in range(setting.rounds(5, 1))]
    yield _row("stop: the same, a call in flight that takes 1 s", [end for end, _ in calls], f"slowest of {len(calls)}")
    answers = [answer for _, answer in calls]
    right = all(answer == "answered" for answer in answers)
    yield Row("stop: that call", "finishes" if right else str(answers), "finishes", right)

    hung = [_hung(setting) for _ in range(setting.rounds(5, 1))]
    note = f"slowest of {len(hung)}; discover and allocate in reads that never return"
    yield _row("stop: the same, hooks hang at once", [end for end, _ in hung], note)
    answers = [answer for _, answer in hung]
    right = all(answer == "UNAVAILABLE: plugin is stopping" for answer in answers)
    yield Row("stop: the hung call's answer", answers[0], "UNAVAILABLE: plugin is stopping", right)
    opened = [_hung_open(setting) for _ in range(setting.rounds(5, 1))]
    yield _row("stop: the same, open hangs", opened, f"slowest of {len(opened)}")


def _row(name: str, ends: list[tuple[float, int]], note: str) -> Row:
    slowest, codes = max(took for took, _ in ends), {code for _, code in ends}
    holds = slowest < LIMIT and codes == {0}
    return Row(name, f"{slowest:.2f} s, code {'/'.join(map(str, codes))}", f"< {LIMIT:g} s, code 0", holds, note)


def _open_stream(setting: Setting, *, is_bare: bool) -> tuple[float, int]:
    with setting.connected(None if is_bare else program("widgets")) as (_, _, plugin):
        time.sleep(0.2)
        return plugin.terminate()


def _call_in_flight(setting: Setting, *, seconds: float) -> tuple[tuple[float, int], str]:
    with setting.connected(program("slow", str(seconds), "allocate")) as (root, _, plugin):
        caller = _Caller(plugin_socket(root, "kdp"))
        plugin.event("in_hook", hook="allocate")
        end = plugin.terminate()
        return end, caller.answer()


def _hung(setting: Setting) -> tuple[tuple[float, int], str]:
    with setting.connected(program("slow", "inf", "discover", "allocate"), poll="0.1") as (root, _, plugin):
        plugin.event("in_hook", hook="discover")
        caller = _Caller(plugin_socket(root, "kdp"))
        plugin.event("in_hook", hook="allocate")
        end = plugin.terminate()
        return end, caller.answer()


def _hung_open(setting: Setting) -> tuple[float, int]:
    command = program("slow", "inf", "open")
    with setting.node() as (root, _), Process(command, environment=variables(root)) as plugin:
        plugin.event("in_hook", hook="open")
        return plugin.terminate()


class _Caller:
    """One Allocate in a thread."""

    def __init__(self, path: str) -> None:
        self._client = Client(path)
        self._result = "no answer"
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        try:
            self._client.allocate(ids(1))
        except grpc.RpcError as error:
            failure: Any = error
            self._result = f"{failure.code().name}: {failure.details()}"
        else:
            self._result = "answered"

    def answer(self) -> str:
        """Wait for the answer, and return it or the error."""
        self._thread.join(5.0)
        self._client.close()
        return self._result
