"""What a recording is played to: a program in any language, or a vendor's class in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions
from kdp.errors import ConfigurationError

if TYPE_CHECKING:
    from kdp.hardware import Host
    from kdp.kubelet.paths import KubeletPaths
    from kdp.model.backend import DeviceBackend

    from ..conformance.instance import Instance


class Running:
    """A plugin that runs.

    Args:
        instance: Its program; None: it is a class in this process, which ends with its context.
        deadline: Seconds to end after SIGTERM before it is killed.
    """

    def __init__(self, instance: Instance | None = None, deadline: float = 0.0) -> None:
        self._instance = instance
        self._deadline = deadline

    def ending(self) -> str | None:
        """Say how it ended, though nobody asked it to; None: it runs."""
        ended = self._instance is not None and self._instance.ending
        return f"the plugin {ended}" if ended else None

    async def stop(self) -> str | None:
        """Ask it to end and wait; say what was wrong with that."""
        if self._instance is None:
            return None
        try:
            ending = await self._instance.stop(self._deadline)
        except TimeoutError:
            return f"the plugin was still running {self._deadline:g} s after SIGTERM, so it was killed"
        return None if ending.code == 0 else f"the plugin {ending}; expected is exit code 0"

    def said(self) -> str:
        """Return the last lines that it printed."""
        return "" if self._instance is None else self._instance.output()


Start = Callable[["KubeletPaths", Callable[[], None]], AbstractAsyncContextManager[Running]]
"""Start a plugin on a kubelet's directories until the context ends; the function is called at its end."""


def of_command(command: Sequence[str], *, mount: bool = False, deadline: float = 10.0) -> Start:
    """Return what starts a program.

    Args:
        command: The program and its arguments, with the placeholders of ``kdp conformance``.
        mount: Give it a private mount namespace with our directories at ``/var/lib/kubelet``; needs root.
        deadline: Seconds to end after SIGTERM before it is killed.
    """
    from ..conformance.program import Program

    @asynccontextmanager
    async def start(paths: KubeletPaths, wake: Callable[[], None]) -> AsyncGenerator[Running]:
        context = Program(command, mount=mount).running(paths, wake)
        try:
            instance = await context.__aenter__()
        except OSError as error:
            raise ConfigurationError(f"the program {command[0]!r} cannot be started: {error.strerror}") from None
        try:
            yield Running(instance, deadline)
        finally:
            await context.__aexit__(None, None, None)

    return start


def of_backend(make: Callable[[], DeviceBackend], *, host: Host | None = None) -> Start:
    """Return what runs a vendor's class under kdp in this process.

    Args:
        make: Called for each start: a plugin that comes back is a new object.
        host: The node's files.
    """

    @asynccontextmanager
    async def start(paths: KubeletPaths, wake: Callable[[], None]) -> AsyncGenerator[Running]:
        async with PluginManager([make()], ManagerOptions(paths=paths, host=host)):
            yield Running()

    return start
