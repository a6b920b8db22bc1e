"""`run_recording`: a recorder, perhaps with a plugin that it starts, until somebody asks it to stop."""

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

    from .plugins import Start
    from .transcript import Writer


async def run_recording(
    writer: Writer, *, kubelet: KubeletPaths, plugin: KubeletPaths, start: Start | None, tell: Callable[[str], None]
) -> tuple[str, str]:
    """Record until asked to stop, until the plugin ends by itself, or until the file cannot be written.

    Args:
        writer: What is written to.
        kubelet: The kubelet's directories.
        plugin: Where the plugin looks for the kubelet.
        start: Starts the plugin; None: somebody else does.
        tell: Told what a person wants to know, a line at a time.

    Returns:
        What was wrong with the plugin's end ("": nothing), and the last lines that it printed.
    """
    over = anyio.Event()
    is_asked = False
    writer.on_error = over.set
    failure = said = ""
    resources: dict[str, int] = {}
    began = time.monotonic()
    _link_apis(kubelet, plugin)

    async def hear_signals() -> None:
        nonlocal is_asked
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                is_asked = True
                over.set()

    try:
        async with (
            Recorder(writer, kubelet=kubelet, plugin=plugin) as recorder,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(hear_signals)
            state = look(kubelet.kubelet_socket).state
            if state is not KubeletState.LISTENING:
                tell(f"waiting for the kubelet: {state.value} ({kubelet.kubelet_socket})")
            tell(f"recording; the plugin's directory is {plugin.device_plugin_dir}")
            if start is None:
                await over.wait()
            else:
                async with start(plugin, over.set) as running:
                    writer.plugin("started")
                    await over.wait()
                    failure = "" if is_asked or writer.error is not None else running.ending() or ""
                    failure = failure or await running.stop() or ""
                    writer.plugin("ended")
                    said = running.said()
            resources = recorder.resources
            tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise leaves(group)[0] from None
    names = ", ".join(sorted(resources)) or "no resource"
    tell(f"recorded {writer.calls} calls of {names} in {time.monotonic() - began:.1f} s: {writer.path}")
    return failure, said


def _link_apis(kubelet: KubeletPaths, plugin: KubeletPaths) -> None:
    """Let a plugin that knows only one directory find the kubelet's other sockets in it."""
    root = plugin.device_plugin_dir.parent
    root.mkdir(mode=0o750, parents=True, exist_ok=True)
    for there in (kubelet.pod_resources_dir, kubelet.pods_api_dir):
        with suppress(OSError):
            (root / there.name).symlink_to(there)
