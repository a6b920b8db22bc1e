"""The kubelet's own device manager 1.37.1, killed a thousand times, under kdp's plugin and one in Go.

Both plugins are on the same node, so every life of the kubelet is the same for both: kdp's minimal example as a
process, and the reference plugin of tests/node/peers, which is written as plugins in Go usually are. The instants of
death are drawn; some lives end before they listen, some in the middle of a registration.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from .processes import REPOSITORY, Process
from .setting import Setting, variables
from .table import Row, quantile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["rows"]

DIES_YOUNG: Final = 0.15
"""Share of kubelets killed within their first `YOUTH` seconds; most of them do not listen yet."""

YOUTH: Final = 0.1

MOST_AFTER_LISTENING: Final = 0.3
"""How long after it began to listen, at most, the instant of death of any other is drawn."""

FAIR_CHANCE: Final = 0.1
"""A kubelet that has listened for so many seconds lives until both plugins are registered; any other may die before."""

PATIENCE: Final = 20.0
"""Seconds after which a plugin that has not registered counts as lost: four times the pause of the one in Go."""

KDP: Final = "example.com/fuse"
GO: Final = "example.com/reference"

_BIN: Final = REPOSITORY / "tests" / "node" / "bin"
_LINE: Final = re.compile(
    r'^I(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}).*"'
    r"(?:Starting device plugin registration server|Got registration request from device plugin with resource)"
    r'"(?: resourceName="([^"]*)")?',
    re.MULTILINE,
)
"""Of the kubelet's log. It says the first one just before it listens, so no latency is flattered."""


@attrs.define
class _Plugin:
    """What came of one plugin; times in ms after the kubelet began to listen."""

    resource: str
    registered: list[float] = attrs.field(factory=list)
    offered: list[float] = attrs.field(factory=list)
    lost: int = 0


def rows(setting: Setting) -> Iterator[Row]:
    """Restart it."""
    if reason := _missing():
        yield Row("real device manager", "skipped", note=reason)
        return
    restarts, chance = setting.rounds(1000, 50), setting.random("real")
    ours, other = _Plugin(KDP), _Plugin(GO)
    plugins = (ours, other)
    early = 0
    with setting.directory() as root:
        kdp_command = [os.fspath(Path(sys.executable).with_name("kdp")), "run", "minimal"]
        go_command = [os.fspath(_BIN / "peer-reference"), f"-dir={root}/device-plugins", f"-resource={GO}"]
        with (
            Process(kdp_command, environment=variables(root), log=root / "kdp.log") as kdp,
            Process(go_command, log=root / "go.log") as go,
        ):
            _live(
                root, (_Plugin(KDP), _Plugin(GO)), 0.0, is_young=False, must_register=True
            )  # the plugins start: does not count
            for number in range(restarts):
                is_last = number == restarts - 1
                is_young = chance.random() < DIES_YOUNG and not is_last
                lifetime = chance.uniform(0, YOUTH if is_young else MOST_AFTER_LISTENING)
                early += not _live(root, plugins, lifetime, is_young=is_young, must_register=is_last)
            alive = kdp.is_alive and go.is_alive
        refused = {name: (root / f"{name}.log").read_text().count("already connected") for name in ("kdp", "go")}
    yield from _judge(plugins, restarts, early, alive, refused)


def _missing() -> str:
    for name in ("devmgr-1.37", "peer-reference"):
        if not os.access(_BIN / name, os.X_OK):
            return f"{name} is not compiled: run `make node-tools`, which needs Go"
    if not Path("/dev/fuse").exists():
        return "this kernel has no /dev/fuse, which examples/minimal serves"
    return "" if shutil.which("kdp", path=os.fspath(Path(sys.executable).parent)) else "kdp is not installed here"


def _live(root: Path, plugins: Sequence[_Plugin], lifetime: float, *, is_young: bool, must_register: bool) -> bool:
    """Let one kubelet live and kill it; return whether it came to listen."""
    log = root / "kubelet.log"
    log.unlink(missing_ok=True)
    began = time.monotonic()
    flags = [f"-root={root}", "-watcher=false", "-pod-resources=false", "-v=2"]
    with Process([os.fspath(_BIN / "devmgr-1.37"), *flags], log=log) as kubelet:
        kubelet.say(id=1, do="start", ready=True, running={}, shown={})
        while True:
            listening, registered = _told(log)
            awaited = [p for p in plugins if p.resource not in registered or _offered(kubelet, p.resource) is None]
            age, listened = time.monotonic() - began, time.time() - listening if listening else 0.0
            if listened > PATIENCE:
                for plugin in awaited:
                    plugin.lost += 1
                break
            if age > 2 * PATIENCE:
                raise TimeoutError(f"the device manager did not listen within {age:.0f} s: {log.read_text()[-500:]}")
            has_lived = age >= lifetime if is_young else listened >= lifetime and listening > 0
            may_be_unregistered = not must_register and listened < FAIR_CHANCE
            if has_lived and (may_be_unregistered or not awaited):
                break
            time.sleep(0.002)
        kubelet.signal(signal.SIGKILL)
        while kubelet.is_alive:
            time.sleep(0.0005)
    listening, registered = _told(log)
    for plugin in plugins:
        if plugin.resource in registered:
            plugin.registered.append(1e3 * (registered[plugin.resource] - listening))
            if (offered := _offered(kubelet, plugin.resource)) is not None:
                plugin.offered.append(1e3 * (offered - listening))
    return listening > 0


def _told(log: Path) -> tuple[float, dict[str, float]]:
    """Return when the kubelet began to listen, 0 if it did not, and when each resource was registered first."""
    listening, registered = 0.0, dict[str, float]()
    for found in _LINE.finditer(log.read_text(errors="replace")):
        month, day, hour, minute, second, microsecond = map(int, found.groups()[:6])
        year = datetime.date.today().year
        at = datetime.datetime(year, month, day, hour, minute, second, microsecond).timestamp()
        if (resource := found[7]) is None:
            listening = at
        else:
            registered.setdefault(resource, at)
    return listening, registered


def _offered(kubelet: Process, resource: str) -> float | None:
    """Return when the resource was first allocatable in this life, in Unix seconds."""
    for line in list(kubelet.lines):
        if line.get("event") == "count" and line["allocatable"].get(resource):
            return float(line["t"])
    return None


def _judge(
    plugins: Sequence[_Plugin], restarts: int, early: int, alive: bool, refused: Mapping[str, int]
) -> Iterator[Row]:
    note = f"{early} killed before they listened; both plugins alive at the end: {'yes' if alive else 'no'}"
    for plugin, name in zip(plugins, ("kdp", "go"), strict=True):
        judged = plugin.resource == KDP
        yield Row(
            f"real 1.37.1: {name}: lost of {restarts:,}, poisoned",
            f"{plugin.lost}, {refused[name]}",
            "0, 0" if judged else "",
            plugin.lost == 0 and refused[name] == 0 and alive if judged else None,
            note,
        )
    for plugin, name in zip(plugins, ("kdp", "Go plugin"), strict=True):
        for title, times in (("registered", plugin.registered), ("allocatable", plugin.offered)):
            figure = f"{statistics.median(times):.1f} ms, {quantile(times, 0.99):.1f} ms"
            note = f"{len(times)} of {restarts:,}, max {max(times):.1f} ms"
            yield Row(f"real 1.37.1: {name}: listening -> {title}, p50, p99", figure, note=note)
