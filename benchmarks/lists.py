"""ListAndWatch: ten thousand devices, lists that are too long, and a device that flaps."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import kdp
from kdp.deviceplugin.inventory import MAX_LIST_BYTES, Inventory
from kdp.deviceplugin.wire import encode_device, worst_case_bytes

from .kubelets import RESOURCE, Client, plugin_socket
from .processes import Process, program
from .programs.names import ids
from .programs.widgets import Widgets
from .setting import variables
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .setting import Setting

__all__ = ["MANY", "rows", "time_flips"]

MANY = 10_000


def rows(setting: Setting) -> Iterator[Row]:
    """Measure the encoding by itself, then the way to a client that reads as the kubelet does."""
    yield _encoding(setting)
    yield from _starts(setting)
    yield from _flips(setting)
    yield from _flapping(setting)
    yield from _too_large(setting)


def _encoding(setting: Setting) -> Row:
    """Flip one device after another: the whole table is compared, one piece is encoded, and all are joined."""
    devices = list(Widgets(MANY).discover())
    clock, times = time.perf_counter, setting.rounds(400, 100)
    inventory = Inventory(encode=encode_device, worst_case=worst_case_bytes)
    inventory.update(devices, 0.0)
    size = len(inventory.message)
    update: list[float] = []
    join: list[float] = []
    for number in range(times):
        place = number * 7919 % MANY
        devices[place] = _flip(devices[place])
        began = clock()
        inventory.update(devices, 0.0)
        updated = clock()
        assert len(inventory.message) > size
        join.append((clock() - updated) * 1e6)
        update.append((updated - began) * 1e6)
    return at_most(
        f"{MANY:,} devices: one flip's encoding",
        statistics.median(join),
        500,
        "µs",
        note=f"of a list of {size // 1000} kB, after {statistics.median(update):.0f} for the whole table's comparison",
    )


def _flip(device: kdp.Device) -> kdp.Device:
    health = kdp.Health.unhealthy("flipped")
    return kdp.Device(id=device.id, health=health, numa_nodes=device.numa_nodes, edits=device.edits)


def _starts(setting: Setting) -> Iterator[Row]:
    """Start a plugin with ten thousand devices again and again, and see when the kubelet has its first list."""
    times: list[float] = []
    for _ in range(setting.rounds(7, 1)):
        with setting.node() as (root, node):
            environment = {**variables(root), "KDP_LOG_LEVEL": "error"}
            with Process(program("driven", str(MANY)), environment=environment, log=root / "plugin.log") as plugin:
                times.append(node.event("list_received", healthy=MANY)["t"] / 1e9 - plugin.started)
    name = f"{MANY:,} devices: first list after the process's start"
    yield at_most(name, statistics.median(times), 1, "s", digits=2, note=f"{spread(times, 2)} s, {len(times)} starts")


def _flips(setting: Setting) -> Iterator[Row]:
    """Flip devices of ten thousand now and then, with kdp and without, and see when a client has the list."""
    flips = setting.rounds(60, 8)
    took: dict[str, list[float]] = {}
    for name in ("bare", "kdp"):
        with setting.node() as (root, node):
            command = program("driven", str(MANY))
            if name == "bare":
                command = program("bare_driven", str(root / "device-plugins"), str(MANY))
            environment = {**variables(root), "KDP_LOG_LEVEL": "error"}
            with Process(command, environment=environment, log=root / "plugin.log") as plugin:
                node.event("list_received", healthy=MANY)
                # From here on the kubelet is a client that takes its time from the wire; the other one rests.
                node.say(op="pause_reading", id=1, resource=RESOURCE)
                plugin.event("ready")
                client = Client(plugin_socket(root, name))
                took[name] = time_flips(plugin, client, flips)
                client.close()
    yield at_most(
        f"{MANY:,} devices: flip -> kubelet has it",
        statistics.median(took["kdp"]),
        10,
        "ms",
        note=f"p50 of {flips}, quartiles {spread(took['kdp'])}, max {max(took['kdp']):.1f}; "
        f"bare {spread(took['bare'])}, max {max(took['bare']):.1f}",
    )


def time_flips(plugin: Process, client: Client, flips: int) -> list[float]:
    """Return the ms from each flip until a client has the list with it."""
    stream = client.watch()
    received: list[float] = []

    def read() -> None:
        for when, _ in stream:
            received.append(when)

    reader = _reading(stream, read)
    while not received:
        time.sleep(0.01)
    first = len(plugin.lines)
    plugin.say(flips=flips, period=0.2, devices=flips)
    flipped = plugin.event("flipped", after=first, timeout=60.0)["times"]
    time.sleep(0.5)
    stream.cancel()
    reader.join()
    ends = [*flipped[1:], float("inf")]
    arrivals = [
        next((when for when in received if began < when < end), None) for began, end in zip(flipped, ends, strict=True)
    ]
    return [1e3 * ((when or end) - began) for began, when, end in zip(flipped, arrivals, ends, strict=True)]


def _reading(stream: Any, read: Any) -> threading.Thread:
    import grpc

    def run() -> None:
        try:
            read()
        except grpc.RpcError:
            return  # cancelled by us

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _flapping(setting: Setting) -> Iterator[Row]:
    """Flip one device a thousand times a second and look at what the kubelet gets."""
    flips, period = setting.rounds(10_001, 1501), 0.001
    with setting.connected(program("driven", "100")) as (root, _, plugin):
        plugin.event("ready")
        client = Client(plugin_socket(root, "kdp"))
        stream = client.watch()
        received: list[tuple[float, list[str]]] = []

        def read() -> None:
            for when, message in stream:
                received.append((when, [d.ID for d in message.devices if d.health != "Healthy"]))

        reader = _reading(stream, read)
        while not received:
            time.sleep(0.01)
        time.sleep(0.2)
        first = len(plugin.lines)
        plugin.say(flips=flips, period=period, devices=1)
        line = plugin.event("flipped", after=first, timeout=60.0)
        time.sleep(0.5)
        stream.cancel()
        reader.join()
        client.close()
    times = [when for when, _ in received[1:]]
    busiest = max(sum(1 for when in times if start <= when < start + 1.0) for start in times)
    rate = (flips - 1) / (line["times"][-1] - line["times"][0])
    yield at_most(
        "flapping: messages in the busiest second",
        busiest,
        20,
        "",
        digits=0,
        note=f"{flips} flips at {rate:.0f} Hz, {len(times)} messages",
    )
    yield at_most("flapping: first change -> kubelet", 1e3 * (times[0] - line["times"][0]), 10, "ms")
    right = received[-1][1] == line["unhealthy"]
    late = 1e3 * (times[-1] - line["times"][-1])
    yield Row(
        "flapping: the last state arrives",
        "right" if right else "wrong",
        "right",
        right,
        f"{late:.1f} ms after the last flip",
    )


def _too_large(setting: Setting) -> Iterator[Row]:
    """Declare a longer and longer list of devices to a running plugin."""
    with setting.connected(program("growing", "1000", "100000")) as (root, node, plugin):
        first = len(node.lines)
        plugin.event("declared", devices=1000)
        plugin.event("declared", devices=100_000, timeout=60.0)
        text, until = "", time.monotonic() + 20
        while "fit" not in text and time.monotonic() < until:
            text = (root / "plugin.log").read_text()
            time.sleep(0.1)
        sentence = next((line for line in text.splitlines() if "fit" in line), "nothing was said")
        node.say(op="devices", id="after", resource=RESOURCE)
        listed = node.event("reply", id="after", after=first)["devices"]
        lost = [line for line in node.lines[first:] if line.get("event") == "stream_ended"]
    fits = _number_that_fits()
    named = f" {fits} of them fit" in sentence
    yield Row("4 MiB: the refusal names the number that fits", str(fits), "named", named, sentence.partition(": ")[2])
    kept = len(listed) == 1000 and not lost
    yield Row("4 MiB: the previous list stays in force", f"{len(listed)} devices", "1000 devices", kept)


def _number_that_fits() -> int:
    """Return how many widgets fit if all are Unhealthy, counted in protobuf's own bytes."""
    size = len(encode_device(_unhealthy(ids(1)[0]), True))
    return MAX_LIST_BYTES // size


def _unhealthy(device_id: str) -> kdp.Device:
    return kdp.Device(id=device_id, health=kdp.Health.unhealthy("for its length"), numa_nodes=[0])
