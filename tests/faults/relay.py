"""A man in the middle between the simulated kubelet and a plugin: bytes both ways, and frames of its own between them.

gRPC gives no hold of HTTP/2: no GOAWAY, no PING, no windows. So a connection that is to misbehave is dialed to this
relay, which dials the plugin. It forwards whole frames and can, at their borders, say something to the plugin in the
kubelet's name; the plugin's answers to that are kept from the kubelet's gRPC, which never asked.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import attrs

from kdp_testkit.patience import PATIENCE
from kdp_testkit.protocol.listener import serve_connections

from . import frames
from .frames import Frame, FrameReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

_CHUNK_BYTES = 64 * 1024
_MARK = b"kdp!"
"""How the payloads of our own PINGs begin."""


@attrs.frozen(kw_only=True)
class Shape:
    """How the kubelet's end of a connection behaves beyond what gRPC does.

    Attributes:
        window: Bytes that the plugin may send on a stream before it must wait for more; None: gRPC's own window.
        settings: HTTP/2 settings that are told to the plugin beside gRPC's own, by their numbers.
    """

    window: int | None = None
    settings: dict[int, int] = attrs.field(factory=dict[int, int])


class Relay:
    """Relays connections to one plugin.

    Args:
        target: The plugin's socket.
        shape: How it behaves.

    Attributes:
        address: Where to dial, an abstract unix address without its leading NUL.
        pings_answered: How many of `ping`'s came back.
    """

    def __init__(self, target: str, shape: Shape) -> None:
        self.address = f"kdp-relay-{os.getpid()}-{secrets.token_hex(8)}"
        self.pings_answered = 0
        self._target = target
        self._shape = shape
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind("\0" + self.address)
        self._listener.listen()
        self._plugin: _Side | None = None
        self._own_settings: list[bool] = []
        self._pings = 0
        self._ping_answered = anyio.Event()

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Relay until cancelled."""
        await serve_connections(self._listener, self._relay, task_status=task_status)

    def send(self, frame: Frame) -> None:
        """Say something to the plugin in the kubelet's name."""
        if self._plugin is not None:
            if frame.type == frames.SETTINGS:
                self._own_settings.append(True)
            self._plugin.send(frame.encode())

    def ping(self) -> None:
        """Send one PING of our own."""
        self._pings += 1
        self.send(frames.ping(_MARK + self._pings.to_bytes(4, "big")))

    async def until_answered(self, pings: int, timeout: float = PATIENCE) -> None:  # noqa: ASYNC109 - a deadline for tests
        """Wait until so many PINGs came back, or the time is over."""
        with anyio.move_on_after(timeout):
            while self.pings_answered < pings:
                self._ping_answered = anyio.Event()
                await self._ping_answered.wait()

    def half_close(self) -> None:
        """Send nothing more to the plugin and say so (FIN), but go on listening to it."""
        if self._plugin is not None:
            self._plugin.finish()

    async def _relay(self, kubelet: socket.socket) -> None:
        plugin = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._own_settings.clear()
        try:
            with suppress(OSError):  # a failed relay is a lost connection, nothing else
                plugin.connect(self._target)
                async with anyio.create_task_group() as tasks:
                    scope = tasks.cancel_scope
                    to_kubelet, to_plugin = _Side(kubelet), _Side(plugin)
                    self._plugin = to_plugin
                    tasks.start_soon(to_kubelet.write, scope)
                    tasks.start_soon(to_plugin.write, scope)
                    tasks.start_soon(_read, kubelet, True, self._from_kubelet, to_plugin, scope)
                    tasks.start_soon(_read, plugin, False, self._from_plugin, to_kubelet, scope)
        finally:
            self._plugin = None
            kubelet.close()
            plugin.close()

    def _from_kubelet(self, frame: Frame) -> Frame | None:
        if frame.type == frames.SETTINGS and not frame.is_ack:
            self._own_settings.append(False)
            values = frames.read_settings(frame) | self._shape.settings
            if self._shape.window is not None:
                values[frames.INITIAL_WINDOW_SIZE] = self._shape.window
            return frames.settings(values)
        if frame.type == frames.WINDOW_UPDATE and self._shape.window is not None:
            return None  # the windows are ours
        return frame

    def _from_plugin(self, frame: Frame) -> Frame | None:
        if frame.type == frames.PING and frame.is_ack and frame.payload.startswith(_MARK):
            self.pings_answered += 1
            self._ping_answered.set()
            return None
        if frame.type == frames.SETTINGS and frame.is_ack and self._own_settings and self._own_settings.pop(0):
            return None
        if frame.type == frames.DATA and frame.payload and self._shape.window is not None:
            self.send(frames.window_update(frame.stream, len(frame.payload)))
            self.send(frames.window_update(0, len(frame.payload)))
        return frame


class _Side:
    """What is to be written to one of the two sockets."""

    def __init__(self, sink: socket.socket) -> None:
        self._sink = sink
        self._bytes = bytearray()
        self._more = anyio.Event()
        self._less = anyio.Event()
        self._finished = False

    def send(self, data: bytes) -> None:
        self._bytes += data
        self._more.set()

    def finish(self) -> None:
        self._finished = True
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)

    async def write(self, scope: anyio.CancelScope) -> None:
        with suppress(OSError):
            while True:
                await self._more.wait()
                self._more = anyio.Event()
                while self._bytes and not self._finished:
                    try:
                        sent = self._sink.send(self._bytes)
                    except BlockingIOError:
                        await anyio.wait_writable(self._sink)
                    else:
                        del self._bytes[:sent]
                        self._less.set()
        scope.cancel()

    async def room(self) -> None:
        """Wait until so little waits to be written that more should be read."""
        while len(self._bytes) > _CHUNK_BYTES:
            self._less = anyio.Event()
            await self._less.wait()


async def _read(
    source: socket.socket,
    preface: bool,
    translate: Callable[[Frame], Frame | None],
    sink: _Side,
    scope: anyio.CancelScope,
) -> None:
    """Carry frames one way until the source ends; then the whole connection ends."""
    reader = FrameReader(preface=preface)
    with suppress(OSError):
        while True:
            await anyio.wait_readable(source)
            data = source.recv(_CHUNK_BYTES)
            if not data:
                break
            said, whole = reader.feed(data)
            sink.send(said + b"".join(each.encode() for frame in whole if (each := translate(frame)) is not None))
            await sink.room()
    scope.cancel()
