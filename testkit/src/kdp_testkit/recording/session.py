"""`RecordingSession`: a recorder, perhaps with a plugin that it starts, until somebody asks it to stop."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from kdp.kubelet import KubeletState, look

from ..lifetime import leaves
from .record import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from kdp.kubelet.paths import KubeletPaths

    from .plugins import Running, Start
    from .transcript import Writer


class RecordingSession:
    """One recording, from the first look at the kubelet to the request to stop.

    Args:
        kubelet: The kubelet's directories.
        plugin: Where the plugin looks for the kubelet.
        start: Starts the plugin; None: somebody else does.
        tell: Told what a person wants to know, a line at a time.

    Attributes:
        failure: What was wrong with the plugin's end; empty: nothing.
        said: The last lines that the plugin printed.
    """

    def __init__(
        self, kubelet: KubeletPaths, plugin: KubeletPaths, *, start: Start | None, tell: Callable[[str], None]
    ) -> None:
        self.failure = ""
        self.said = ""
        self._kubelet = kubelet
        self._plugin = plugin
        self._start = start
        self._tell = tell
        self._is_over = False
        self._news: anyio.Event | None = None

    def stir(self) -> None:
        """Look again: the plugin has ended, or the file cannot be written any more."""
        if self._news is not None:
            self._news.set()

    async def run(self, writer: Writer) -> None:
        """Record until asked to stop, until the plugin ends by itself, or until the file cannot be written."""
        self._news = anyio.Event()
        _link_apis(self._kubelet, self._plugin)
        began = time.monotonic()
        resources: dict[str, int] = {}
        try:
            async with (
                Recorder(writer, kubelet=self._kubelet, plugin=self._plugin) as recorder,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._hear_signals)
                self._greet()
                if self._start is None:
                    await self._until_over(writer, None)
                else:
                    async with self._start(self._plugin, self.stir) as running:
                        writer.plugin("started")
                        await self._until_over(writer, running)
                        if not self.failure:
                            self.failure = await running.stop() or ""
                        writer.plugin("ended")
                        self.said = running.said()
                resources = recorder.resources
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise leaves(group)[0] from None
        names = ", ".join(sorted(resources)) or "no resource"
        self._tell(f"recorded {writer.calls} calls of {names} in {time.monotonic() - began:.1f} s: {writer.path}")

    def _greet(self) -> None:
        view = look(self._kubelet.kubelet_socket)
        if view.state is not KubeletState.LISTENING:
            self._tell(f"waiting for the kubelet: {view.state.value} ({self._kubelet.kubelet_socket})")
        self._tell(f"recording; the plugin's directory is {self._plugin.device_plugin_dir}")

    async def _hear_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self._is_over = True
                self.stir()

    async def _until_over(self, writer: Writer, running: Running | None) -> None:
        assert self._news is not None
        while not self._is_over and writer.error is None:
            if running is not None and (ending := running.ending()) is not None:
                self.failure = ending
                return
            await self._news.wait()
            self._news = anyio.Event()


def _link_apis(kubelet: KubeletPaths, plugin: KubeletPaths) -> None:
    """Let a plugin that knows only one directory find the kubelet's other sockets in it."""
    root = plugin.device_plugin_dir.parent
    root.mkdir(mode=0o750, parents=True, exist_ok=True)
    for there in (kubelet.pod_resources_dir, kubelet.pods_api_dir):
        with suppress(OSError):
            (root / there.name).symlink_to(there)
