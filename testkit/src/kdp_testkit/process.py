"""The simulated kubelet as a process of its own: ``python -m kdp_testkit.process --root DIR``.

What a test kills with SIGKILL must be a process: its connections break as those of a real kubelet break, its
kubelet.sock stays as a dead file, and the next one wipes the directory at its start.

stdout has one JSON object a line: ``{"event": NAME, "t": NANOSECONDS, ...}`` with ``t`` of `time.monotonic_ns`'s
clock, so times of several processes can be compared. ``listening`` is printed when listen(2) has returned,
``registered`` when a Register was answered ok (``refused``: with an error); the others are the names of
`kdp.testing.events`. Its parent must read stdout: a full pipe stops it.

stdin takes one JSON object a line, ``{"op": NAME, "id": ANYTHING, ...}``, each answered in its order by
``{"event": "reply", "id": ..., "ok": true|false, ...}``. Each operation is a method of `Commands`, or one of five of
`SimulatedKubelet`. At the end of stdin (a pipe or a terminal) the process ends; SIGTERM and SIGINT end it too, with
exit code 0, and as a real kubelet's does, its kubelet.sock stays behind.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import anyio
import attrs

from . import events
from .kubelet import SimulatedKubelet
from .patience import PATIENCE
from .profiles import DEFAULT_PROFILE, PROFILES
from .protocol.pods import AdmissionError, AdmittedPod, Container, ContainerStartError, KubeletPanic, Pod, ScenarioError

_OF_THE_KUBELET = ("delete", "drop_stream", "pause_reading", "restart", "stop")
"""The operations that are methods of `SimulatedKubelet`, with its arguments."""


class Commands:
    """The other operations of stdin; each method is one, its keyword arguments are the line's other members.

    It returns what the reply has besides ``ok``; None: nothing.
    """

    def __init__(self, kubelet: SimulatedKubelet) -> None:
        self._kubelet = kubelet

    async def state(self) -> dict[str, Any]:
        """Return capacity, allocatable, and whether the kubelet runs."""
        running = self._kubelet.is_running
        return {
            "running": running,
            "capacity": self._kubelet.capacity() if running else {},
            "allocatable": self._kubelet.allocatable() if running else {},
        }

    async def node_status(self) -> dict[str, Any]:
        """Return what the node object shows."""
        return attrs.asdict(self._kubelet.node_status())

    async def devices(self, resource: str) -> dict[str, Any]:
        """Return the device table of a resource: id -> health."""
        return {"devices": {device.id: device.health for device in self._kubelet.devices(resource).values()}}

    async def in_use(self, resource: str) -> dict[str, Any]:
        """Return the ids in use."""
        return {"device_ids": sorted(self._kubelet.in_use(resource))}

    async def wait(self, timeout: float = PATIENCE, **conditions: Any) -> None:  # noqa: ASYNC109 - the command's
        """Wait for ``capacity``, ``allocatable``, ``registered``, ``streaming`` as `SimulatedKubelet.until` does."""
        await self._kubelet.until(timeout=timeout, **conditions)

    async def admit(self, pod: Mapping[str, Any], start: bool = True) -> dict[str, Any]:
        """Admit a pod: ``{"name", "uid", "containers": [{"name", "limits"}], "init_containers": [...]}``."""
        return _admitted(await self._kubelet.admit(_pod(pod), start=start))

    async def fault(self, name: str, **arguments: Any) -> None:
        """Inject the fault of this name (`kdp.testing.Faults`) with these arguments."""
        method = None if name.startswith("_") else getattr(self._kubelet.faults, name, None)
        if method is None:
            raise ScenarioError(f"there is no fault {name!r}")
        await _done(method(**arguments))

    async def options(self, resource: str) -> dict[str, Any]:
        """Call GetDevicePluginOptions."""
        return attrs.asdict(await self._kubelet.plugin(resource).options())

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Call Allocate with these ids for each container."""
        replies = await self._kubelet.plugin(resource).allocate(*containers)
        return {"replies": replies}


async def _done(result: Any) -> Any:
    """Return what a method has returned, when it is done: some are ``def`` and some are ``async def``."""
    return await result if inspect.isawaitable(result) else result


def _pod(document: Mapping[str, Any]) -> Pod:
    fields = dict(document)
    for key in ("containers", "init_containers"):
        fields[key] = [Container(**container) for container in fields.get(key, ())]
    return Pod(**fields)


def _admitted(admitted: AdmittedPod) -> dict[str, Any]:
    return {
        "containers": {
            name: {"devices": dict(given.devices), "reply": given.reply} for name, given in admitted.containers.items()
        }
    }


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, AdmissionError | ContainerStartError):
        return {"ok": False, "reason": error.reason, "message": error.message}
    return {"ok": False, "reason": type(error).__name__, "message": str(error)}


def _plain(value: Any) -> Any:
    """Turn the model's values into what JSON knows; for `json.dumps`."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else attrs.asdict(value, recurse=False)


def _emit(name: str, when: int, **fields: Any) -> None:
    line = json.dumps({"event": name, "t": when, **fields}, default=_plain) + "\n"
    with suppress(BrokenPipeError):  # our parent reads no more
        os.write(1, line.encode())


def _print_event(event: events.Event) -> None:
    name = event.name
    if isinstance(event, events.KubeletStarted):
        name = "listening"
    elif isinstance(event, events.RegisterAnswered):
        name = "registered" if event.error is None else "refused"
    _emit(name, int(event.time * 1e9), **event.fields())


async def _lines() -> AsyncIterator[str]:
    """Give the lines of stdin; one that is neither pipe, socket nor terminal is as good as none."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)):
        await anyio.sleep_forever()
    rest = b""
    while True:
        await anyio.wait_readable(0)
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line.decode()


async def _obey(kubelet: SimulatedKubelet, line: str) -> None:
    number: Any = None
    try:
        document = json.loads(line)
        number = document.pop("id", None)
        operation = document.pop("op")
        owner = kubelet if operation in _OF_THE_KUBELET else Commands(kubelet)
        method = None if operation.startswith("_") else getattr(owner, operation, None)
        if method is None:
            raise ScenarioError(f"there is no operation {operation!r}")
        found: dict[str, Any] = await _done(method(**document)) or {}
        answer = {"ok": True, **found}
    except KubeletPanic:  # the kubelet's process is gone
        raise
    except Exception as error:  # noqa: BLE001 - who asked is told
        answer = _failure(error)
    _emit("reply", time.monotonic_ns(), id=number, **answer)


async def _serve(arguments: argparse.Namespace) -> None:
    if arguments.start_delay > 0:
        await anyio.sleep(arguments.start_delay)
    kubelet = SimulatedKubelet(
        arguments.root,
        profile=arguments.profile,
        seed=arguments.seed,
        autostart=False,
        listener=_print_event,
    )
    async with kubelet, anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

        async def make_noise() -> None:
            async with kubelet.checkpoint_noise(arguments.checkpoint_noise):
                await anyio.sleep_forever()

        tasks.start_soon(end_on_signal)
        if arguments.checkpoint_noise > 0:
            tasks.start_soon(make_noise)
        await kubelet.start(listen_delay=arguments.listen_delay)
        async for line in _lines():
            await _obey(kubelet, line)
        tasks.cancel_scope.cancel()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the process; return its exit code.

    Args:
        argv: The arguments; those of the process if None.
    """
    parser = argparse.ArgumentParser(prog="python -m kdp_testkit.process", description="A simulated kubelet.")
    parser.add_argument("--root", type=Path, required=True, help="the kubelet's root directory")
    parser.add_argument("--profile", choices=sorted(PROFILES), default=DEFAULT_PROFILE, help="which kubelet")
    parser.add_argument("--start-delay", type=float, default=0.0, metavar="S", help="seconds before anything")
    parser.add_argument(
        "--listen-delay", type=float, default=0.0, metavar="S", help="seconds between bind and listen of kubelet.sock"
    )
    parser.add_argument("--seed", type=int, help="make the kubelet's random choices reproducible")
    parser.add_argument(
        "--checkpoint-noise", type=float, default=0.0, metavar="HZ", help="checkpoint writes a second, as noise"
    )
    anyio.run(_serve, parser.parse_args(argv), backend="asyncio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
