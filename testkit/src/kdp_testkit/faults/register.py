"""Faults 1 to 10: how Register is answered, and whether and how the plugin is dialed.

They are queued: each one meets the next Register calls, ``times`` of them (None: all that follow).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from kdp.hardware import DirectoryWatch

from ..armed_faults import RegisterFault
from ..protocol.pods import ScenarioError
from ..protocol.wire import CallError, DialError, PluginConnection
from .base import FaultGroup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class RegisterFaults(FaultGroup):
    """Faults of Register."""

    def delay_register(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 1: Register is answered ``seconds`` late, after the plugin was dialed and asked for its options.

        On a node: a busy kubelet. The stream may be open long before the reply comes.

        A good plugin serves the stream meanwhile, waits at least 15 s for the reply, and does not register twice.
        """
        self.register(RegisterFault(delay=seconds), times=times)

    def refuse_register(self, text: str, *, code: str = "UNKNOWN", times: int | None = 1) -> None:
        """Fault 2: Register is answered with this status, whatever it says; the kubelet's own code is UNKNOWN.

        On a node: a version or a name that this kubelet does not accept, or it could not reach the plugin (section
        2.2).

        A good plugin tells the lasting refusals from the passing ones by their text, says why once, and tries again.
        """
        self.register(RegisterFault(code=code, text=text), times=times)

    def hang_register(self, *, times: int | None = 1) -> None:
        """Fault 3: Register is never answered; it ends at the plugin's deadline.

        On a node: the kubelet's disk or its locks are stuck.

        A good plugin has a deadline of its own, of 15 s or more, and then tries again under a new socket name.
        """
        self.register(RegisterFault(hang=True), times=times)

    def drop_register(self, *, times: int | None = 1) -> None:
        """Fault 4: the connection breaks after the request came.

        On a node: the kubelet is killed while it registers the plugin.

        A good plugin takes it for a failure and registers with the next kubelet that listens.
        """
        self.register(RegisterFault(drop=True), times=times)

    def accept_without_dialing(self, *, times: int | None = 1) -> None:
        """Fault 5: Register is answered ok, and the plugin is never dialed.

        On a node: the kubelet ended in between, or took the call for a repetition.

        A good plugin believes only in an open stream: without one after 10 s it registers anew.
        """
        self.register(RegisterFault(dial=False), times=times)

    def skip_options(self, *, times: int | None = 1) -> None:
        """Fault 6: the plugin is dialed, and ListAndWatch is called without GetDevicePluginOptions.

        On a node: no kubelet does so; tools and other clients do, and the API promises no order.

        A good plugin needs no call before another: the stream serves as ever.
        """
        self.register(RegisterFault(options=False), times=times)

    def dial_without_stream(self, *, times: int | None = 1) -> None:
        """Fault 7: the plugin is dialed and asked for its options; ListAndWatch is never called.

        On a node: the kubelet ended between its answer and the stream (B6).

        A good plugin registers anew when no stream has come after 10 s.
        """
        self.register(RegisterFault(stream=False), times=times)

    def dial_twice(self, *, times: int | None = 1) -> None:
        """Fault 8: two connections with a stream each, both feeding the device table.

        On a node: kubelets up to 1.36 after a second Register under the same name (section 2.5).

        A good plugin sends every list to every stream, and stays while one of them lives.
        """
        self.register(RegisterFault(connections=2), times=times)

    def dial_late(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 9: the plugin is dialed ``seconds`` after Register came.

        On a node: dialing may take 10 s, and Register is answered only then.

        A good plugin does not give up before 15 s, and keeps its socket all the time.
        """
        self.register(RegisterFault(dial_delay=seconds), times=times)

    @asynccontextmanager
    async def dial_early(self) -> AsyncGenerator[list[tuple[str, str | None]]]:
        """Fault 10: every socket that appears is dialed at once, before Register, and asked for its options.

        On a node: a monitoring agent, or a kubelet that was quicker than the plugin's own start.

        A good plugin answers as soon as its socket can be found, and takes no such call for its registration.

        Returns:
            A context; inside it a growing list of file names and how the call ended (None: it was answered).
        """
        seen: list[tuple[str, str | None]] = []
        directory = self._kubelet.paths.device_plugin_dir

        async def dial(name: str) -> None:
            connection = PluginConnection(str(directory / name))
            error: str | None = None
            try:
                await connection.dial(timeout=1.0)
                await connection.options(timeout=5.0)
            except (DialError, CallError) as failed:
                error = str(failed)
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.close()
            seen.append((name, error))

        async with DirectoryWatch() as watch, anyio.create_task_group() as tasks:
            if not watch.watch(directory):
                raise ScenarioError(f"{directory} cannot be watched: {watch.refused or 'it does not exist'}")

            async def follow() -> None:
                dialed = {path.name for path in directory.iterdir()}
                while True:
                    names = sorted({name for _, name in await watch.changes()} - dialed)
                    for name in names:
                        if name and (directory / name).is_socket():
                            dialed.add(name)
                            tasks.start_soon(dial, name)

            tasks.start_soon(follow)
            try:
                yield seen
            finally:
                tasks.cancel_scope.cancel()
