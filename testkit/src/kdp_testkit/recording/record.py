"""`Recorder`: stands between kubelet and plugin, and writes down what passes.

The plugin is given a directory of its own with a ``kubelet.sock`` in it. Each Register that arrives there gets a socket
in the kubelet's directory, and goes on to the kubelet with that socket's name instead of the plugin's: the one thing
that is changed on the way. All other messages pass as the bytes that they are; error codes, error texts and deadlines
pass too.

What each side sees of the other's end:

* the kubelet ends: its connections break, so the plugin's streams are cancelled; the plugin's ``kubelet.sock`` is dead.
  The new kubelet listens: the sockets in the plugin's directory are wiped, and there is a new ``kubelet.sock``.
* the plugin ends: its streams break, so the kubelet's end with the same status. Its next Register is a new
  registration.

Rule: the recorder decides nothing. What it does not understand it passes on. `run_recording` runs it until somebody
asks it to stop.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
import grpc
import grpc.aio
from anyio import AsyncContextManagerMixin
from google.protobuf.message import DecodeError
from typing_extensions import override

from kdp.deviceplugin.registration import SocketNames
from kdp.errors import InvalidNameError
from kdp.kubelet import KubeletState, KubeletView, KubeletWatch, look
from kdp.kubelet.server import ServeError, SocketServer, start_server, stop_server, unix_target
from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1

from ..lifetime import leaves
from ..protocol.listener import KubeletSocket, wipe
from ..protocol.registry import joined_path
from ..protocol.wire import CallError, DialError, PluginConnection, settle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path
    from typing import Self

    from anyio.abc import TaskGroup

    from kdp.kubelet.paths import KubeletPaths

    from .plugins import Start
    from .transcript import Writer

_Context = grpc.aio.ServicerContext[bytes, bytes]

_REGISTER = "/v1beta1.Registration/Register"

LOOK_SECONDS = 0.05
"""Between two looks for a kubelet that is away."""

_FOR_EVER = 1e6
"""gRPC spells "no deadline" as one in some centuries."""

_TO_KUBELET = [
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class _Calls(grpc.GenericRpcHandler):
    """Hands every call of a server, whatever its name, to one function; requests and answers are bytes."""

    def __init__(
        self,
        unary: Callable[[str, bytes, _Context], Any],
        stream: Callable[[str, bytes, _Context], Any],
    ) -> None:
        self._unary = unary
        self._stream = stream

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method

        async def unary(payload: bytes, context: _Context) -> Any:
            return await self._unary(method, payload, context)

        async def stream(payload: bytes, context: _Context) -> None:
            await self._stream(method, payload, context)

        if method.endswith("/ListAndWatch"):
            return cast("Any", grpc.unary_stream_rpc_method_handler(stream))
        return cast("Any", grpc.unary_unary_rpc_method_handler(unary))


class _Registration:
    """One Register of the plugin: the socket that the kubelet dials, and the connection to the plugin behind it."""

    def __init__(self, recorder: Recorder, number: int, resource: str, endpoint: str, path: Path) -> None:
        self.number = number
        self.resource = resource
        self.path = path
        self.streams = 0
        self.had_stream = False
        self.undialed: str | None = None
        self._recorder = recorder
        self._writer = recorder.writer
        self._connection = PluginConnection(endpoint)
        self._dialing = anyio.Lock()
        self._server = SocketServer(path, [_Calls(self._call, self._list_and_watch)])

    async def serve(self) -> None:
        """Make the socket for the kubelet."""
        await self._server.start()
        self._server.publish()

    async def close(self) -> None:
        """End it with all its calls."""
        await self._server.stop()
        await self._connection.close()

    async def _dial(self) -> None:
        """Connect at the kubelet's first call, as the kubelet would have done by then."""
        async with self._dialing:
            if not self._connection.is_dialed and self.undialed is None:
                try:
                    await self._connection.dial()
                except DialError as error:
                    self.undialed = f"failed to dial device plugin: {error}"
        if self.undialed is not None:
            raise CallError("UNAVAILABLE", self.undialed)

    async def _call(self, method: str, payload: bytes, context: _Context) -> bytes:
        service, name = _split(method)
        number = self._writer.call("kubelet", name, payload, resource=self.resource, registration=self.number)
        try:
            await self._dial()
            answer = await self._connection.call(name, payload, service=service, timeout=_deadline(context))
        except CallError as error:
            self._writer.end(number, "plugin", error.code, error.detail)
            await context.abort(grpc.StatusCode[error.code], error.detail)
        except asyncio.CancelledError:
            self._recorder.kubelet_may_be_gone()
            self._writer.end(number, "kubelet", "CANCELLED", "the kubelet did not wait for the answer")
            raise
        self._writer.answer(number, "plugin", name, answer)
        return answer

    async def _list_and_watch(self, method: str, payload: bytes, context: _Context) -> None:
        name = _split(method)[1]
        number = self._writer.call("kubelet", name, payload, resource=self.resource, registration=self.number)
        self.streams += 1
        self.had_stream = True
        stream = None
        try:
            await self._dial()
            stream = self._connection.watch()
            while (message := await stream.read()) is not None:
                self._writer.answer(number, "plugin", name, message[1])
                await context.write(message[1])
            code, detail = stream.ending
            self._writer.end(number, "plugin", code, detail)
            if code != "OK":
                await context.abort(grpc.StatusCode[code], detail)
        except CallError as error:
            self._writer.end(number, "plugin", error.code, error.detail)
            await context.abort(grpc.StatusCode[error.code], error.detail)
        except asyncio.CancelledError:
            self._recorder.kubelet_may_be_gone()
            self._writer.end(number, "kubelet", "CANCELLED", "the kubelet ended the stream")
            raise
        finally:
            self.streams -= 1
            if stream is not None:
                stream.cancel()
            self._recorder.stir()


class Recorder(AsyncContextManagerMixin):
    """Stands between a kubelet and the plugins that are told of another directory; an async context manager.

    Leaving it ends the registrations that went through it, as the end of the plugins would; the recording is closed
    before.

    Args:
        writer: What it writes to.
        kubelet: The kubelet's directories.
        plugin: Where the plugins look for the kubelet; its ``device_plugin_dir`` is made if it is missing, and must not
            be the kubelet's own.

    Attributes:
        writer: What it writes to.
    """

    def __init__(self, writer: Writer, *, kubelet: KubeletPaths, plugin: KubeletPaths) -> None:
        self.writer = writer
        self._kubelet = kubelet
        self._plugin = plugin
        self._watch = KubeletWatch(kubelet.device_plugin_dir)
        self._names: dict[str, SocketNames] = {}
        self._generation = 0
        self._registrations: list[_Registration] = []
        self._identity: tuple[int, int, int] | None = None
        self._is_told = False
        self._socket = KubeletSocket(plugin.kubelet_socket, "recorder")
        self._news = anyio.Event()
        self._tasks: TaskGroup

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        directory = self._plugin.device_plugin_dir
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        registry = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        registry.add_generic_rpc_handlers([_Calls(self._unary, self._unary)])
        registry.add_insecure_port("unix-abstract:" + self._socket.address)
        await start_server(registry)
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._watch.run)
                self._tasks.start_soon(self._hear)
                self._tasks.start_soon(self._follow)
                try:
                    yield self
                finally:
                    self.writer.close()  # what follows is our own doing
                    self._tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                self._socket.vanish()
                self._plugin.kubelet_socket.unlink(missing_ok=True)
                await stop_server(registry, None)
                for registration in self._registrations:
                    await registration.close()
                await settle()

    @property
    def resources(self) -> dict[str, int]:
        """The resources that have been registered, each with the number of its streams that are open."""
        found: dict[str, int] = {}
        for registration in self._registrations:
            found[registration.resource] = found.get(registration.resource, 0) + registration.streams
        return found

    # The kubelet's life ----------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """Look again whether everything is as it should be: a stream has ended, or the kubelet has changed."""
        news, self._news = self._news, anyio.Event()
        news.set()

    def kubelet_may_be_gone(self) -> None:
        """Look at the kubelet now: it has ended a call."""
        view = look(self._kubelet.kubelet_socket)
        if view.state is not KubeletState.LISTENING or view.identity != self._identity:
            self._tell_gone(view)
        self.stir()

    def _tell_gone(self, view: KubeletView) -> None:
        if self._is_told:
            self._is_told = False
            listens = view.state is KubeletState.LISTENING
            self.writer.kubelet("gone", "another one listens" if listens else view.state.value)

    async def _hear(self) -> None:
        while True:
            version = self._watch.view.version
            self.stir()
            await self._watch.view.after(version)

    async def _follow(self) -> None:
        while True:
            news = self._news
            await self._adapt(look(self._kubelet.kubelet_socket))
            # The watch tells of the new kubelet at once; the look is for one that comes while the watch is blind.
            with anyio.move_on_after(math.inf if self._socket.is_listening else LOOK_SECONDS):
                await news.wait()

    async def _adapt(self, view: KubeletView) -> None:
        listens = view.state is KubeletState.LISTENING
        streams = any(registration.streams for registration in self._registrations)
        if self._socket.is_listening and (not listens or view.identity != self._identity):
            if listens and streams:
                return  # a kubelet that is replaced breaks its connections: until then it is the same one
            self._tell_gone(view)
            self._socket.vanish()
        if listens and not self._socket.is_listening:
            if not streams:
                for registration in self._registrations:
                    await registration.close()
                self._registrations.clear()
                wipe(self._plugin.device_plugin_dir)
            self._identity = view.identity
            self.writer.kubelet("listening")
            self._is_told = True
            self._plugin.kubelet_socket.unlink(missing_ok=True)
            self._socket.listen(self._tasks)

    # Register --------------------------------------------------------------------------------------------------------

    async def _unary(self, method: str, payload: bytes, context: _Context) -> bytes:
        if method != _REGISTER:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {_split(method)[1]}")
        try:
            request = v1beta1.RegisterRequest.FromString(payload)
        except DecodeError:
            await context.abort(grpc.StatusCode.INTERNAL, "this is no RegisterRequest")
            raise
        number = self.writer.call("plugin", "Register", payload, resource=request.resource_name)
        try:
            return await self._register(number, request, context)
        except asyncio.CancelledError:
            self.writer.end(number, "plugin", "CANCELLED", "the plugin did not wait for the answer")
            raise

    async def _register(self, number: int, request: v1beta1.RegisterRequest, context: _Context) -> bytes:
        resource = request.resource_name
        await self._retire(resource)
        endpoint = joined_path(self._plugin.device_plugin_dir, request.endpoint)
        try:
            registration = _Registration(self, number, resource, endpoint, self._socket_for(resource))
            await registration.serve()
        except (ServeError, InvalidNameError) as error:
            self.writer.end(number, "kubelet", "UNAVAILABLE", f"the recorder could not pass it on: {error}")
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"kdp record: {error}")
        self._registrations.append(registration)
        forwarded = v1beta1.RegisterRequest()
        forwarded.CopyFrom(request)
        forwarded.endpoint = registration.path.name
        target = unix_target(self._kubelet.kubelet_socket)
        try:
            async with grpc.aio.insecure_channel(target, options=_TO_KUBELET) as channel:
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_REGISTER)
                answer = await call(forwarded.SerializeToString(), timeout=_deadline(context))
        except grpc.aio.AioRpcError as error:
            code, detail = error.code(), error.details() or ""
            if registration.undialed is not None:
                code, detail = grpc.StatusCode.UNKNOWN, registration.undialed
            if code is grpc.StatusCode.UNAVAILABLE:
                self.kubelet_may_be_gone()
            await self._end(registration)
            self.writer.end(number, "kubelet", code.name, detail)
            await context.abort(code, detail)
        except asyncio.CancelledError:
            if not registration.had_stream:
                with anyio.CancelScope(shield=True):
                    await self._end(registration)
            raise
        self.writer.answer(number, "kubelet", "Register", answer)
        return answer

    def _socket_for(self, resource: str) -> Path:
        if resource not in self._names:
            self._names[resource] = SocketNames(self._kubelet.device_plugin_dir, resource or "unnamed")
        self._generation += 1
        return self._names[resource].path(self._generation)

    async def _retire(self, resource: str) -> None:
        """End those registrations of a resource whose streams have come and gone: nobody calls there any more."""
        for registration in [*self._registrations]:
            if registration.resource == resource and registration.had_stream and not registration.streams:
                await self._end(registration)

    async def _end(self, registration: _Registration) -> None:
        if registration in self._registrations:
            self._registrations.remove(registration)
            await registration.close()


def _deadline(context: _Context) -> float | None:
    """Return the seconds that the caller still waits; None: for ever."""
    seconds: float | None = cast("Any", context).time_remaining()  # None where there is none; the stubs do not know
    return seconds if seconds is not None and seconds < _FOR_EVER else None


def _split(method: str) -> tuple[str, str]:
    """Return the service with both slashes, and the method's name."""
    service, _, name = method.rpartition("/")
    return f"{service}/", name


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
    if writer.error is not None:
        over.set()
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
