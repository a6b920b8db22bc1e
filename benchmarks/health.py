"""Health: from a card's fault to a kubelet that knows it of all replicas; and what the state machine costs a poll."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

import kdp
from kdp.supervision.health import HealthMonitor

from .kubelets import Client, plugin_socket
from .processes import program
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .setting import Setting

__all__ = ["rows"]

CARDS, REPLICAS = 8, 100


def rows(setting: Setting) -> Iterator[Row]:
    """Measure on the wire, then the machine by itself."""
    yield _fault(setting)
    yield _poll(setting)


def _fault(setting: Setting) -> Row:
    """Let cards fail and heal, with polls an hour apart, and see when a client has the whole card's replicas."""
    flips = setting.rounds(64, 8)
    with setting.connected(program("cards", str(CARDS), str(REPLICAS))) as (root, _, plugin):
        plugin.event("ready")
        client = Client(plugin_socket(root, "kdp"))
        stream = client.watch()
        received: list[tuple[float, int]] = []

        def read() -> None:
            for when, message in stream:
                received.append((when, sum(d.health != "Healthy" for d in message.devices)))

        reader = threading.Thread(target=_quietly, args=(read,), daemon=True)
        reader.start()
        while not received:
            time.sleep(0.01)
        first = len(plugin.lines)
        plugin.say(flips=flips, period=0.15, devices=CARDS)
        times = plugin.event("flipped", after=first, timeout=60.0)["times"]
        time.sleep(0.5)
        stream.cancel()
        reader.join()
        client.close()
    took: list[float] = []
    for number, began in enumerate(times):
        # The first round takes one card after another down, the second one brings them back, and so on.
        round_, card = divmod(number, CARDS)
        failed = REPLICAS * (card + 1 if round_ % 2 == 0 else CARDS - card - 1)
        took.append(1e3 * (next(w for w, unhealthy in received if w > began and unhealthy == failed) - began))
    return at_most(
        f"a card's fault or its end -> kubelet has it, all {REPLICAS} replicas",
        statistics.median(took),
        100,
        "ms",
        note=f"p50 of {flips}, quartiles {spread(took)}, max {max(took):.1f}; poll interval 1 h",
    )


def _quietly(read: Callable[[], None]) -> None:
    import grpc

    try:
        read()
    except grpc.RpcError:
        return  # cancelled by us


def _poll(setting: Setting) -> Row:
    """Judge ten thousand devices, one of a hundred of which has been faulty."""
    devices = [kdp.Device(id=f"d{i}", unit=f"u{i // 100}") for i in range(10_000)]
    monitor = HealthMonitor()
    monitor.probed(devices, {}, 0.0)
    monitor.fault(["u7"], "broken", kind="xid", now=1.0)
    times: list[float] = []
    for number in range(setting.rounds(200, 20)):
        began = time.perf_counter()
        monitor.probed(devices, {}, 2.0 + number)
        assert len(monitor.devices) == len(devices)
        times.append(1e3 * (time.perf_counter() - began))
    return Row(
        "10,000 devices, 100 faulty: judging a discovery", f"{statistics.median(times):.1f} ms", note=spread(times)
    )
