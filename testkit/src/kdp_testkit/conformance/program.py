"""`Program`: a plugin's or a driver's program, in any language, started anew for each check.

How it learns where the kubelet is: by placeholders in the command (``{root}``, ``{device_plugins}``,
``{plugins_registry}``, ``{pod_resources}``), by the variables ``KDP_*`` in its environment, or, for a program with the
paths built in, by a private mount namespace in which ``/var/lib/kubelet`` is the simulated one.

Rule: nothing that was started here is left when an instance is over. The program gets a process group of its own, which
is killed as a whole; whatever has left the group is found by a mark in its environment.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from typing_extensions import override

from .checks import NotApplicable
from .instance import Ending, Instance, Lever, Levers, SharedLevers, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from anyio.abc import ByteReceiveStream, Process

    from kdp.kubelet.paths import KubeletPaths

MARK = "KDP_CONFORMANCE_MARK"
"""Names the variable by which a program's runaway children are found."""

LEVER_SECONDS = 60.0

_KEPT_LINES = 300
_LINE_BYTES = 2000


def places(paths: KubeletPaths) -> dict[str, str]:
    """Return the placeholders with their values."""
    return {
        "root": os.fspath(paths.device_plugin_dir.parent),
        "device_plugins": os.fspath(paths.device_plugin_dir),
        "plugins_registry": os.fspath(paths.plugins_registry_dir),
        "pod_resources": os.fspath(paths.pod_resources_dir),
    }


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def shell_levers(commands: Mapping[str, str]) -> Levers:
    """Make levers of shell commands.

    ``{id}`` and the variable ``KDP_DEVICE`` are the device, ``{resource}`` and ``KDP_RESOURCE`` its resource.

    Args:
        commands: By the lever's name.
    """

    def lever(command: str) -> Lever:
        async def pull(device: str, *, resource: str) -> None:
            with anyio.fail_after(LEVER_SECONDS):
                done = await anyio.run_process(
                    ["/bin/sh", "-c", _filled(command, {"id": shlex.quote(device), "resource": shlex.quote(resource)})],
                    env={**os.environ, "KDP_DEVICE": device, "KDP_RESOURCE": resource},
                    stderr=subprocess.STDOUT,
                    check=False,
                )
            if done.returncode:
                words = done.stdout.decode(errors="replace").strip()[-300:]
                raise NotApplicable(f"the lever's command {command!r} ended with exit code {done.returncode}: {words}")

        return pull

    return Levers(**{name: lever(command) for name, command in commands.items()})


class _Process(Instance):
    def __init__(self, process: Process, levers: SharedLevers, mark: str) -> None:
        self._process = process
        self._levers = levers
        self._mark = mark
        self._asked_at: float | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.ended = anyio.Event()

    async def watch(self, wake: Callable[[], None]) -> None:
        """Wait for the process's end."""
        code = await self._process.wait()
        now = time.monotonic()
        asked = self._asked_at is not None
        self.ending = Ending(seconds=now - (self._asked_at or now), code=code, asked=asked)
        self.ended.set()
        wake()

    async def read(self, stream: ByteReceiveStream) -> None:
        """Keep the last lines that it says; read as fast as it writes, or it would stand still."""
        rest = b""
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LINE_BYTES:]
            self._lines.extend(line[:_LINE_BYTES].decode(errors="replace") for line in lines[-_KEPT_LINES:])
        if rest:
            self._lines.append(rest.decode(errors="replace"))

    @override
    async def stop(self, within: float) -> Ending:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            with anyio.fail_after(within):
                await self.ended.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            raise
        assert self.ending is not None
        return self.ending

    @override
    async def kill(self) -> None:
        self._asked_at = time.monotonic()
        self._signal(signal.SIGKILL)
        with anyio.move_on_after(10):
            await self.ended.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end_all(self) -> None:
        """Kill the group, and what has left it."""
        self._signal(signal.SIGKILL)
        mark = f"{MARK}={self._mark}".encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with suppress(OSError):
                    with open(f"/proc/{entry}/environ", "rb") as environ:
                        is_ours = mark in environ.read().split(b"\0")
                    if is_ours:
                        os.kill(int(entry), signal.SIGKILL)

    @override
    def output(self) -> str:
        return "\n".join(self._lines)

    @override
    def usage(self) -> Usage:
        try:
            return Usage.of_process(self._process.pid)
        except OSError:
            return Usage(rss=0, fds=0, threads=0)  # it has ended; the check will see that

    @override
    async def fail(self, device: str) -> None:
        await self._levers.pull("fail", device)

    @override
    async def heal(self, device: str) -> None:
        await self._levers.pull("heal", device)

    @override
    async def vanish(self, device: str) -> None:
        await self._levers.pull("vanish", device)

    @override
    async def add(self, device: str = "") -> None:
        await self._levers.pull("add", device)

    @override
    def pause(self) -> bool:
        self._signal(signal.SIGSTOP)
        return True

    @override
    def resume(self) -> None:
        self._signal(signal.SIGCONT)


class Program:
    """A program and how it is started.

    Args:
        command: The program and its arguments, with placeholders.
        levers: What the kit can do to its hardware.
        mount: Give it a private mount namespace with the simulated directories at ``/var/lib/kubelet``; needs root.

    Attributes:
        levers: What the kit can do to its hardware.
    """

    def __init__(self, command: Sequence[str], *, levers: Levers | None = None, mount: bool = False) -> None:
        self._command = tuple(command)
        self.levers = SharedLevers(levers)
        self._mount = mount

    @asynccontextmanager
    async def running(
        self,
        paths: KubeletPaths,
        wake: Callable[[], None],
        *,
        more: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Instance]:
        """Run the program; it is gone, with everything that it started, when the context is left.

        Args:
            paths: The kubelet's directories.
            wake: Called when it has ended.
            more: Placeholders besides those of `places`.
            environment: Variables besides those that tell the same.
        """
        values = {**places(paths), **(more or {})}
        mark = secrets.token_hex(12)
        command = [_filled(part, values) for part in self._command]
        if self._mount:
            command = [sys.executable, "-m", f"{__package__}.mounted", values["root"], "--", *command]
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**_NO_QUARANTINE, **os.environ, **_variables(paths), **(environment or {}), MARK: mark},
            start_new_session=True,  # a group of its own, and no Ctrl-C but through us
        )
        instance = _Process(process, self.levers, mark)
        try:
            async with anyio.create_task_group() as tasks:
                assert process.stdout is not None
                tasks.start_soon(instance.read, process.stdout)
                tasks.start_soon(instance.watch, wake)
                yield instance
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                instance.end_all()
                with anyio.move_on_after(5):
                    await process.wait()
                instance.end_all()  # what was being started when the first one came
                await process.aclose()
                await self.levers.undo()


_NO_QUARANTINE = {"KDP_HEALTH_POLICY": "flaps=none"}
"""For plugins made with kdp: the kit flips devices more often than any that is worth to be listed."""


def _variables(paths: KubeletPaths) -> dict[str, str]:
    known = places(paths)
    return {
        "KDP_KUBELET_ROOT": known["root"],
        "KDP_DEVICE_PLUGIN_DIR": known["device_plugins"],
        "KDP_PLUGINS_REGISTRY_DIR": known["plugins_registry"],
        "KDP_POD_RESOURCES_DIR": known["pod_resources"],
        "KDP_PODS_API_DIR": os.fspath(paths.pods_api_dir),
        # A plugin made with kdp keeps there what must outlive it; the machine's own directory is none of the kit's.
        "KDP_STATE_DIR": os.path.join(known["root"], "state"),
    }
