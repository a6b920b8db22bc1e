"""Allocate: the default path and a hook in a thread, beside the bare plugin."""

from __future__ import annotations

import statistics
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


def rows(setting: Setting) -> Iterator[Row]:
    """Time Allocate in interleaved blocks of calls; return the median over the rounds of the ratio of medians."""
    rounds = setting.rounds(60, 8)
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        for name in ("bare", "widgets", "hooked"):
            root, node = stack.enter_context(setting.node())
            command = bare(root) if name == "bare" else program(name)
            stack.enter_context(Process(command, environment=variables(root), log=root / "plugin.log"))
            node.event("list_received", resource=RESOURCE)
            clients[name] = Client(plugin_socket(root, "bare" if name == "bare" else "kdp"))
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
            for name, limit, what in (("widgets", 1.15, "default path"), ("hooked", 2.0, "def hook")):
                ratio = statistics.median(a / b for a, b in zip(medians[name], medians["bare"], strict=True))
                note = (
                    f"p50 {spread(medians[name], 0)} µs, bare {spread(medians['bare'], 0)} µs; "
                    f"{rounds} rounds of {CALLS} calls each, interleaved"
                )
                row = at_most(f"Allocate, {what}, {devices}", ratio, limit, "x bare", digits=2, note=note)
                yield row if count == 1 else Row(row.name, row.figure, note=note)
