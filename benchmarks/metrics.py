"""Metrics: a scrape of a plugin with a thousand measured devices, all of which pods hold."""

from __future__ import annotations

import socket
import statistics
import time
from typing import TYPE_CHECKING

from .kubelets import RESOURCE
from .processes import Process, memory, processor, program
from .setting import variables
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .setting import Setting

__all__ = ["rows"]

DEVICES = 1000
PODS = 100
PAUSE = 1.1
"""Seconds between two scrapes: the answer is made anew, and so is what was measured."""


def rows(setting: Setting) -> Iterator[Row]:
    """Measure a scrape without metrics of devices, then with everything on."""
    for name, choice in (("without pods", "on"), ("with pods", "pods")):
        with setting.node() as (root, node):
            own = root / "own.sock"
            environment = {**variables(root), "KDP_METRICS": choice, "KDP_SOCKET": str(own)}
            command = program("metered", str(DEVICES))
            with Process(command, environment=environment, log=root / "plugin.log") as plugin:
                node.event("list_received", resource=RESOURCE)
                for number in range(PODS):
                    container = {"name": "main", "limits": {RESOURCE: DEVICES // PODS}}
                    node.say(op="admit", id=number, pod={"name": f"train-{number}", "containers": [container]})
                    reply = node.event("reply", id=number)
                    if not reply["ok"]:
                        raise RuntimeError(f"the kubelet refused pod {number}: {reply}")
                _until_all_are_held(own)
                yield from _scrapes(setting, own, plugin.pid, name)


def _scrapes(setting: Setting, own: Path, pid: int, name: str) -> Iterator[Row]:
    took: list[float] = []
    used = 0.0
    text = ""
    for _ in range(setting.rounds(30, 5)):
        time.sleep(PAUSE)
        before, began = processor(pid), time.perf_counter()
        text = scrape(own)
        took.append((time.perf_counter() - began) * 1e3)
        used += processor(pid) - before
    series = sum(not line.startswith("#") for line in text.splitlines())
    note = (
        f"{spread(took)}; {series} series, {len(text) / 1e3:.0f} kB; {used / len(took) * 1e3:.0f} ms of processor each"
    )
    yield at_most(f"metrics: a scrape of {DEVICES:,} devices, {name}", statistics.median(took), 50, "ms", note=note)
    yield Row(f"metrics: memory with {DEVICES:,} devices, {name}", f"{memory(pid):.1f} MB")


def scrape(own: Path) -> str:
    """Return what a plugin answers at its socket to ``GET /metrics``."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(own))
        client.sendall(b"GET /metrics HTTP/1.0\r\nHost: kdp\r\n\r\n")
        parts: list[bytes] = []
        while part := client.recv(1 << 20):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"{own} answered {head[:80]!r}")
    return body.decode()


def _until_all_are_held(own: Path) -> None:
    wanted = f'kdp_allocated_devices{{resource_name="{RESOURCE}"}} {DEVICES:.1f}'
    until = time.monotonic() + 120
    while wanted not in scrape(own):
        if time.monotonic() > until:
            raise TimeoutError(f"the plugin does not say {wanted}")
        time.sleep(0.5)
