"""Faults 82 to 85: what happens to the plugin's process, from outside and by its process id."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
from typing_extensions import override

from kdp_testkit import events
from kdp_testkit.faults.base import FaultGroup
from kdp_testkit.patience import PATIENCE
from kdp_testkit.protocol.pods import ScenarioError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from kdp_testkit.armed_faults import ArmedFaults
    from kdp_testkit.devicemanager.kubelet_core import CurrentProcess, KubeletCore

Moment = Literal["waiting", "registering", "awaiting stream", "connected", "allocating", "lost"]
"""A state of a plugin as the kubelet can tell it."""


class ProcessFaults(FaultGroup):
    """Faults of the plugin's process."""

    def __init__(self, kubelet: KubeletCore, process: CurrentProcess, armed: ArmedFaults) -> None:
        super().__init__(kubelet, process, armed)
        self._clock: Path | None = None

    @override
    def release(self) -> None:
        super().release()
        if self._clock is not None:
            shutil.rmtree(self._clock.parent, ignore_errors=True)
            self._clock = None

    def on_own_clock(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs this one on a wall clock of its own, for `jump_clock`.

        It works for programs that are linked with libc dynamically, as Python is; Go programs read the clock
        themselves.

        Raises:
            ScenarioError: There is no C compiler to make the clock with.
        """
        if self._clock is None:
            folder = Path(tempfile.mkdtemp(prefix="kdp-clock-"))
            compiler = shutil.which("cc")
            if compiler is None:
                folder.rmdir()
                raise ScenarioError("a clock of its own needs a C compiler (cc)")
            source = Path(__file__).with_name("clock.c")
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O1", "-o", folder / "clock.so", source],
                check=True,
                capture_output=True,
            )
            self._clock = folder / "offset"
            self._clock.write_bytes(struct.pack("=q", 0))
        return [
            "env",
            f"LD_PRELOAD={self._clock.with_name('clock.so')}",
            f"KDP_CLOCK={self._clock}",
            *command,
        ]

    def jump_clock(self, seconds: float) -> None:
        """Fault 82: the wall clock of the processes that `on_own_clock` started jumps by so many seconds, also back.

        On a node: time is set long after the boot, or by hand.

        A good plugin measures its deadlines and pauses with a clock that never jumps.

        Raises:
            ScenarioError: No process was started by `on_own_clock`.
        """
        if self._clock is None:
            raise ScenarioError("no process has a clock of its own: start the plugin's command by on_own_clock()")
        with self._clock.open("r+b") as file:
            [before] = struct.unpack("=q", file.read(8))
            file.seek(0)
            file.write(struct.pack("=q", before + round(seconds * 1e9)))

    @asynccontextmanager
    async def starve(self, pid: int, seconds: float = 15.0) -> AsyncGenerator[None]:
        """Fault 83: the process gets no CPU for so many seconds: SIGSTOP, then SIGCONT.

        On a node: a CPU quota that is used up, swapping, a hypervisor that pauses the machine.

        A good plugin goes on where it was, and takes no deadline for missed whose answer has come meanwhile, or
        registers once more at worst.

        Args:
            pid: The process. It runs again at the end of the context or after the time, whichever comes last.
            seconds: How long it is stopped.
        """
        os.kill(pid, signal.SIGSTOP)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, seconds)
                yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def exhaust_descriptors(self, pid: int) -> Generator[int]:
        """Fault 84: the process can open no file and no socket more, as long as the context lasts.

        On a node: a leak in the vendor's library, or a limit that is too low.

        A good plugin keeps the streams that it has, never ends, and registers when descriptors are free again.

        Args:
            pid: The process.

        Returns:
            A context with the limit that is in force inside.

        Raises:
            ScenarioError: There is no such process, or it may not be limited.
        """
        try:
            taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))
        except OSError as error:
            raise ScenarioError(f"the descriptors of process {pid} cannot be limited: {error.strerror}") from None
        try:
            yield free
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    async def terminate(self, pid: int, resource: str, moment: Moment, timeout: float = PATIENCE) -> None:  # noqa: ASYNC109
        """Fault 85: SIGTERM as soon as the plugin is in a certain state, as far as the kubelet can tell.

        On a node: a pod is deleted whenever it pleases its owner. Other faults hold a state for as long as it takes:
        `hang_register` keeps it registering, `dial_without_stream` awaiting its stream.

        A good plugin finishes its calls, ends its streams, unlinks its own socket, and exits with code 0 within 2 s.

        Args:
            pid: The process.
            resource: Its resource.
            moment: The state.
            timeout: Seconds to wait for that state.
        """
        log, kubelet = self._kubelet.events, self._kubelet

        def calls(kind: type[events.Event]) -> int:
            return len(log.of(kind, resource=resource))

        conditions: dict[Moment, Callable[[], bool]] = {
            "waiting": lambda: not kubelet.is_running,
            "registering": lambda: calls(events.RegisterReceived) > calls(events.RegisterAnswered),
            "awaiting stream": lambda: calls(events.RegisterAnswered) > 0 and not kubelet.streams(resource),
            "connected": lambda: kubelet.streams(resource) > 0,
            "allocating": lambda: calls(events.AllocateRequested) > calls(events.AllocateAnswered),
            "lost": lambda: calls(events.StreamEnded) > 0 and not kubelet.streams(resource),
        }
        await kubelet.until(conditions[moment], timeout=timeout)
        os.kill(pid, signal.SIGTERM)
