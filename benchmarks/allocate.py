"""Allocate: the default path, a hook in a thread, and one that leaves a state, beside the bare plugin."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .kubelets import RESOURCE, Client, allocate_request, plugin_socket
from .processes import Process, program
from .programs.names import ids
from .setting import Setting, bare, variables
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["rows"]

CALLS = 100


PROGRAMS = {"bare": "bare", "widgets": "widgets", "hooked": "hooked", "synced": "stated", "unsynced": "stated"}
"""The program of each plugin. The state directory of ``unsynced`` is in memory, where a sync costs nothing."""

LIMITS = {
    "widgets": ("default path", 1.25),
    "hooked": ("def hook", 2.0),
    "synced": ("a state, with its sync", None),
    "unsynced": ("a state, without its sync", None),
}
"""How the table calls each, and the most times the bare plugin's figure."""


def rows(setting: Setting) -> Iterator[Row]:
    """Time Allocate in interleaved blocks of calls; return the median over the rounds of the ratio of medians."""
    rounds = setting.rounds(60, 8)
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        memory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kdp-bench-", dir="/dev/shm"))
        for name, its in PROGRAMS.items():
            root, node = stack.enter_context(setting.node())
            command = bare(root) if its == "bare" else program(its)
            environment = variables(root) | ({"KDP_STATE_DIR": memory} if name == "unsynced" else {})
            stack.enter_context(Process(command, environment=environment, log=root / "plugin.log"))
            node.event("list_received", resource=RESOURCE)
            clients[name] = Client(plugin_socket(root, "bare" if its == "bare" else "kdp"))
            stack.callback(clients[name].close)
        order = list(clients)
        shuffle = setting.random("allocate").shuffle
        for count in (1, 8):
            request = allocate_request(ids(count))
            medians: dict[str, list[float]] = {name: [] for name in clients}
            for client in clients.values():
                client.time_allocate(request, 3 * CALLS)
            for _ in range(rounds):
                shuffle(order)
                for name in order:
                    medians[name].append(1e6 * statistics.median(clients[name].time_allocate(request, CALLS)))
            devices = "1 device" if count == 1 else f"{count} devices"
            for name, (what, limit) in LIMITS.items():
                ratio = statistics.median(a / b for a, b in zip(medians[name], medians["bare"], strict=True))
                note = (
                    f"p50 {spread(medians[name], 0)} µs, bare {spread(medians['bare'], 0)} µs; "
                    f"{rounds} rounds of {CALLS} calls each, interleaved"
                )
                title = f"Allocate, {what}, {devices}"
                if count == 1 and limit is not None:
                    yield at_most(title, ratio, limit, "x bare", digits=2, note=note)
                else:
                    yield Row(title, f"{ratio:.2f} x bare", note=note)
