"""Faults 6 and 8 to 10: how the plugin is dialed.

All but the last are queued: each one meets the next Register calls, ``times`` of them (None: all that follow).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from kdp.hardware import DirectoryWatch
from kdp.testing import CallError, PluginConnection, RegisterFault, ScenarioError
from kdp_testkit.faults.base import FaultGroup
from kdp_testkit.protocol.wire import DialError


class DialFaults(FaultGroup):
    """Faults of dialing."""

    def skip_options(self, *, times: int | None = 1) -> None:
        """Fault 6: the plugin is dialed, and ListAndWatch is called without GetDevicePluginOptions.

        On a node: no kubelet does so; tools and other clients do, and the API promises no order.

        A good plugin needs no call before another: the stream serves as ever.
        """
        self.register(RegisterFault(options=False), times=times)

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
