"""The story that ``make demo`` tells; every figure in it is measured while it is told.

A plugin (``kdp run generic``) and a kubelet (the simulated one) are processes of their own. The plugin's devices are
nodes that this machine really has, and one that the demo plugs in, unplugs, and plugs in again. Discovery polls once an
hour, so what is seen at once was seen by an event.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import attrs

from .hardware import KINDS, PLUGGABLE, Kind, Pluggable, Unavailable
from .processes import DemoFailed, Kubelet, Plugin

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["Options", "Story"]

DOMAIN = "example.com"
RESTARTS = 3
PROFILE = "k137"
Use = Callable[[str], str]
"""Does something with an opened node and says what came of it."""

_PAUSE = 0.2
"""Seconds of quiet before a change: kdp answers the first one at once and puts together those of a burst."""


@attrs.frozen(kw_only=True)
class Options:
    """What ``python -m demo`` can be told.

    Attributes:
        device: The unpluggable device, a key of `PLUGGABLE`; None: the best that can be had.
        start_delay: Seconds that each start of the kubelet takes longer.
        listen_delay: Seconds between bind(2) and listen(2) of kubelet.sock.
        deadline: Seconds that one wait may take.
    """

    device: str | None = None
    start_delay: float = 0.0
    listen_delay: float = 0.0
    deadline: float = 15.0


class Story:
    """One run of the demo.

    Args:
        options: See `Options`.
        directory: A directory of the demo's own, for the configuration and the kubelet's root.
    """

    def __init__(self, options: Options, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._root = directory / "kubelet"
        self._config = directory / "devices.yaml"
        self._start = time.monotonic()
        self._counts: dict[str, int] = {}
        self._figures: dict[str, list[float]] = {}

    def tell(self) -> None:
        """Go through all steps.

        Raises:
            DemoFailed: A step did not come out as it must.
        """
        with ExitStack() as stack:
            pluggable = self._plug_in(stack)
            plugged = f"{DOMAIN}/{pluggable.name}"
            first, use = self._choose()
            self._look_around(pluggable)
            self._head("A kubelet and the plugin start")
            kubelet = stack.enter_context(self._kubelet())
            self._say(f"a simulated kubelet listens (process {kubelet.pid})")
            plugin = stack.enter_context(self._plugin())
            try:
                self._register(plugin, kubelet)
                self._head("A pod")
                self._admit(kubelet, f"{DOMAIN}/{first.name}", "first", use)
                self._head("A device is unplugged")
                self._unplug(kubelet, pluggable, plugged)
                self._head(f"The kubelet dies {RESTARTS} times")
                for _ in range(RESTARTS):
                    kubelet = stack.enter_context(self._restart(kubelet, plugged))
                self._head("The device comes back")
                self._plug_in_again(kubelet, pluggable, plugged)
                self._admit(kubelet, plugged, "second", pluggable.use)
                self._head("The end")
                self._stop(plugin)
            except DemoFailed:
                for line in plugin.errors[-15:]:
                    print(f"  plugin: {line}", file=sys.stderr)
                raise
        self._summarise()

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _plug_in(self, stack: ExitStack) -> Pluggable:
        reasons: list[str] = []
        wanted = PLUGGABLE if self._options.device is None else {self._options.device: PLUGGABLE[self._options.device]}
        for make in wanted.values():
            try:
                return stack.enter_context(make())
            except Unavailable as error:
                reasons.append(str(error))
        raise DemoFailed(f"no device can be plugged in here: {'; '.join(reasons)}")

    def _choose(self) -> tuple[Kind, Use]:
        for kind in KINDS:
            if kind.use is None or not kind.paths:
                continue
            try:
                kind.use(kind.paths[0])
            except OSError:
                continue  # not for this user, or no driver behind it
            return kind, kind.use
        raise DemoFailed("there is no device on this machine that may be opened, not even /dev/random")

    def _look_around(self, pluggable: Pluggable) -> None:
        self._head("What is on this machine")
        lines = [f"domain: {DOMAIN}", "resources:"]
        for kind in KINDS:
            if kind.paths:
                self._counts[f"{DOMAIN}/{kind.name}"] = len(kind.paths)
                lines += [f"  - name: {kind.name}", f"    groups: [{{paths: [{{path: '{kind.pattern}'}}]}}]"]
        self._counts[f"{DOMAIN}/{pluggable.name}"] = 1
        lines += [
            f"  - name: {pluggable.name}",
            "    groups:",
            f"      - paths: [{{path: '{pluggable.path}', mountPath: /dev/{pluggable.name}0}}]",
            f"        env: {{{pluggable.name.upper()}: '{{path}}'}}",
        ]
        self._config.write_text("\n".join(lines) + "\n")
        self._say(f"plugged in: {pluggable.what}, whose node is {pluggable.path}")
        arguments = ["devices", "generic", "--set", f"config={self._config}"]
        self._say(f"kdp {' '.join(arguments)}")
        print()
        done = subprocess.run([sys.executable, "-m", "kdp", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoFailed(f"kdp devices ended with exit code {done.returncode}: {done.stderr.strip()}")
        print("\n".join(line.rstrip() for line in done.stdout.splitlines()))

    def _kubelet(self) -> Kubelet:
        return Kubelet(
            self._root,
            profile=PROFILE,
            start_delay=self._options.start_delay,
            listen_delay=self._options.listen_delay,
            deadline=self._options.deadline,
        )

    def _plugin(self) -> Plugin:
        arguments = ["generic", "--set", f"config={self._config}", "--poll-interval", "3600"]
        # As root, it would leave its allocations in the state directory of this machine's plugins.
        arguments += ["--device-plugin-dir", os.fspath(self._root / "device-plugins")]
        arguments += ["--state-dir", os.fspath(self._root / "state")]
        self._say("the plugin starts; it looks for devices once an hour, and listens to events")
        self._more(f"kdp run {' '.join(arguments[:5])}")
        self._more(f"  {' '.join(arguments[5:])}")
        return Plugin(arguments, deadline=self._options.deadline)

    def _register(self, plugin: Plugin, kubelet: Kubelet) -> None:
        at = max(kubelet.registered(resource) for resource in self._counts)
        self._measure("start of the plugin's process -> registered", at - plugin.started)
        self._say(f"all {len(self._counts)} resources are registered {_ms(at - plugin.started)} after its start", at=at)
        for resource, count in self._counts.items():
            kubelet.told(resource, healthy=count, unhealthy=0)
        self._say("the node has")
        self._show_node(kubelet, *self._counts)

    def _admit(self, kubelet: Kubelet, resource: str, pod: str, use: Use) -> None:
        asked = time.monotonic()
        limits = {"name": "main", "limits": {resource: 1}}
        answer = kubelet.ask("admit", pod={"name": pod, "uid": pod, "containers": [limits]})
        seconds = time.monotonic() - asked
        container = answer["containers"]["main"]
        ((device,),) = container["devices"].values()
        self._measure(f"the {pod} pod asked for a device -> admitted", seconds)
        self._say(f"the {pod} pod asks for one {resource} and gets {device}; admitted after {_ms(seconds)}")
        reply = container["reply"]
        for node in reply["devices"]:
            self._more(f"its container gets {node['host_path']} at {node['container_path']}, {node['permissions']}")
        for name, value in reply["envs"].items():
            self._more(f"its container gets {name}={value}")
        (node,) = reply["devices"]
        path = node["host_path"]
        try:
            number = os.stat(path).st_rdev
            kind = "block" if stat.S_ISBLK(os.stat(path).st_mode) else "character"
            said = use(path)
        except OSError as error:
            raise DemoFailed(f"the device {path} of the {pod} pod cannot be used: {error.strerror}") from error
        self._more(f"{path} opened: {kind} device {os.major(number)}:{os.minor(number)}; {said}")

    def _unplug(self, kubelet: Kubelet, device: Pluggable, resource: str) -> None:
        time.sleep(_PAUSE)
        with _LastSeen(device.path) as last:
            device.unplug()
        at = kubelet.told(resource, healthy=0, unhealthy=1, after=last.seen)
        self._measure("node gone -> the kubelet is told", at - last.seen)
        self._say(f"unplugged: {device.path} is gone; the kubelet is told {_ms(at - last.seen)} later", at=at)
        self._show_node(kubelet, resource)

    def _restart(self, before: Kubelet, plugged: str) -> Kubelet:
        time.sleep(_PAUSE)
        killed = time.monotonic()
        before.kill()
        self._say(f"killed (SIGKILL, process {before.pid})", at=killed)
        kubelet = self._kubelet()
        try:
            at = max(kubelet.registered(resource) for resource in self._counts)
            for resource, count in self._counts.items():
                away = count if resource == plugged else 0
                kubelet.told(resource, healthy=count - away, unhealthy=away)
        except BaseException:
            kubelet.kill()
            raise
        self._measure("kubelet killed -> registered again", at - killed)
        self._measure("kubelet.sock is there -> registered again", at - kubelet.bound)
        self._measure("kubelet listens -> registered again", at - kubelet.listening)
        self._say(f"a new one listens (process {kubelet.pid})", at=kubelet.listening)
        self._say(
            f"all {len(self._counts)} resources are registered again, {_ms(at - kubelet.listening)} after it listened",
            at=at,
        )
        self._show_node(kubelet, plugged)
        return kubelet

    def _plug_in_again(self, kubelet: Kubelet, device: Pluggable, resource: str) -> None:
        time.sleep(_PAUSE)
        with _LastSeen(device.path, is_there=False) as last:
            device.plug()
        at = kubelet.told(resource, healthy=1, unhealthy=0, after=last.seen)
        self._measure("node back -> the kubelet is told", at - last.seen)
        self._say(f"plugged in again: {device.path} is back; the kubelet is told {_ms(at - last.seen)} later", at=at)
        self._show_node(kubelet, resource)

    def _stop(self, plugin: Plugin) -> None:
        if not plugin.is_running:
            raise DemoFailed("the plugin has ended, though nobody asked it to")
        self._say("the plugin is asked to stop (SIGTERM)")
        code, seconds = plugin.stop()
        if code != 0:
            raise DemoFailed(f"the plugin ended with exit code {code}, not 0")
        left = sorted(path.name for path in (self._root / "device-plugins").glob("*kdp*"))
        if left:
            raise DemoFailed(f"the plugin has left {', '.join(left)} behind")
        self._measure("asked to stop -> ended", seconds)
        self._say(f"it has ended with exit code 0 after {_ms(seconds)} and left nothing behind")

    # -- telling -------------------------------------------------------------------------------------------------------

    def _head(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def _say(self, line: str, *, at: float | None = None) -> None:
        seconds = (time.monotonic() if at is None else at) - self._start
        print(f"{seconds:8.3f} s  {line}", flush=True)

    def _more(self, line: str) -> None:
        print(f"            {line}", flush=True)

    def _show_node(self, kubelet: Kubelet, *resources: str) -> None:
        node = kubelet.node()
        for resource in resources:
            capacity, allocatable = node[resource]
            self._more(f"{resource}: capacity {capacity}, allocatable {allocatable}")

    def _measure(self, name: str, seconds: float) -> None:
        self._figures.setdefault(name, []).append(seconds)

    def _summarise(self) -> None:
        print("\nMeasured in this run, in milliseconds")
        for name, values in self._figures.items():
            print(f"  {name:<46}  {'  '.join(f'{value * 1000:8.1f}' for value in values)}")


class _LastSeen:
    """Watches a node while something is done: when was it last seen as it was before?

    What the kubelet is told can only be later than that, so a latency from here is never too short.
    """

    def __init__(self, path: str, *, is_there: bool = True) -> None:
        self._path = path
        self._is_there = is_there
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen = 0.0

    def __enter__(self) -> Self:
        self.seen = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._thread.join(1.0)
        self._done.set()

    def _watch(self) -> None:
        while not self._done.is_set():
            now = time.monotonic()
            if os.path.exists(self._path) is not self._is_there:
                return
            self.seen = now
            time.sleep(0.0002)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
