"""The kubelet's side of the wire: its connection to one plugin, and the model's values as messages and back.

The only module of this package, with `registry`, that touches protobuf or gRPC. It dials as the kubelet does
(contract section 2.4): plaintext over a unix socket, authority ``localhost`` (the plugin watcher: the
percent-encoded path), no keepalive, no retries, the default receive limit of 4 MiB, a connection of its own for
each registration. Errors are spelled as grpc-go spells them, because the kubelet hands their texts on.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast
from urllib.parse import quote

import anyio
import anyio.lowlevel
import attrs
import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.proto import pluginregistration_v1_pb2 as registration

from ..patience import PATIENCE
from .pods import ContainerReply, DeviceSpec, MountSpec
from .severing import sever
from .validation import DIAL_TIMEOUT, INFO_TIMEOUT, MAX_SOCKET_PATH_BYTES, NOTIFY_TIMEOUT, PRE_START_TIMEOUT, rpc_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_M = TypeVar("_M", bound=Message)

_CLOSING = "grpc: the client connection is closing"
_SERVICE = "/v1beta1.DevicePlugin/"
_WATCHER_SERVICE = "/pluginregistration.Registration/"


class CallError(Exception):
    """A call to a plugin failed.

    Attributes:
        code: The gRPC status by its name, for example ``UNAVAILABLE``.
        detail: The status's text.
    """

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(rpc_error(code, detail))


class DialError(Exception):
    """There was no connection within the time; the text is grpc-go's."""


@attrs.frozen(kw_only=True)
class PluginOptions:
    """What a plugin wants the kubelet to do besides Allocate.

    Attributes:
        pre_start_required: PreStartContainer before each start of a container.
        preferred_allocation_available: GetPreferredAllocation may be called.
    """

    pre_start_required: bool = False
    preferred_allocation_available: bool = False


class ListedDevice(NamedTuple):
    """One entry of a device list, as it came.

    Attributes:
        id: The device's id.
        health: The health text, verbatim.
        numa_nodes: The NUMA nodes in their order; None if the entry has no topology.
    """

    id: str
    health: str
    numa_nodes: tuple[int, ...] | None


@attrs.frozen(kw_only=True)
class PluginInfo:
    """What a plugin in the watcher's directory says of itself.

    Attributes:
        type: ``DevicePlugin``, or the type of another handler.
        name: The resource name.
        endpoint: The service's socket; empty for the same socket.
        versions: The API versions that the plugin speaks.
    """

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


def decoded(kind: type[_M], payload: bytes) -> _M:
    """Read what a plugin sent.

    Raises:
        CallError: It is no such message; grpc-go ends the call or the stream with this (recv in its rpc_util.go).
    """
    try:
        return kind.FromString(payload)
    except DecodeError:
        raise CallError(
            "INTERNAL", "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"
        ) from None


def decode_devices(payload: bytes) -> list[ListedDevice]:
    """Read a ListAndWatchResponse, in its order, duplicates included.

    Raises:
        CallError: It is none.
    """
    return [
        ListedDevice(
            device.ID,
            device.health,
            tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None,
        )
        for device in decoded(v1beta1.ListAndWatchResponse, payload).devices
    ]


def encode_reply(reply: ContainerReply) -> bytes:
    """Write one container's reply as the checkpoint stores it."""
    return v1beta1.ContainerAllocateResponse(
        envs=dict(reply.envs),
        mounts=[
            v1beta1.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in reply.mounts
        ],
        devices=[
            v1beta1.DeviceSpec(container_path=d.container_path, host_path=d.host_path, permissions=d.permissions)
            for d in reply.devices
        ],
        annotations=dict(reply.annotations),
        cdi_devices=[v1beta1.CDIDevice(name=name) for name in reply.cdi_devices],
    ).SerializeToString()


def decode_reply(payload: bytes) -> ContainerReply:
    """Read one container's reply."""
    return _reply(v1beta1.ContainerAllocateResponse.FromString(payload))


def _reply(message: v1beta1.ContainerAllocateResponse) -> ContainerReply:
    return ContainerReply(
        envs=message.envs,
        mounts=[MountSpec(m.container_path, m.host_path, m.read_only) for m in message.mounts],
        devices=[DeviceSpec(d.container_path, d.host_path, d.permissions) for d in message.devices],
        annotations=message.annotations,
        cdi_devices=[device.name for device in message.cdi_devices],
    )


def _stamped(payload: bytes) -> tuple[float, bytes]:
    return time.monotonic(), payload


class PluginStream:
    """One open ListAndWatch call. Nothing is read from it but by `read`: that is the flow control's back pressure."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[bytes, tuple[float, bytes]], socket_path: str) -> None:
        self._call = call
        self._socket_path = socket_path
        self._ending: tuple[str, str] | None = None

    async def read(self) -> tuple[float, bytes] | None:
        """Return the next message with the time of its last byte, or None at the stream's end.

        Cancelling it cancels the call.
        """
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._ending = _status(error, self._socket_path)
            return None
        except asyncio.CancelledError:
            await _raise_if_we_are_cancelled()
            return None
        if message is grpc.aio.EOF:
            self._ending = ("OK", "EOF")
            return None
        return cast("tuple[float, bytes]", message)

    async def next(self, timeout: float = PATIENCE) -> list[ListedDevice] | None:  # noqa: ASYNC109 - a deadline for tests
        """Return the next device list, or None at the stream's end.

        Args:
            timeout: Seconds to wait for it.

        Raises:
            TimeoutError: No list came in time. The call is cancelled by it.
        """
        with anyio.fail_after(timeout):
            message = await self.read()
        try:
            return None if message is None else decode_devices(message[1])
        except CallError as error:
            self.refuse(error)
            return None

    def refuse(self, error: CallError) -> None:
        """End the stream because of what came."""
        self._ending = error.code, error.detail
        self.cancel()

    @property
    def ending(self) -> tuple[str, str]:
        """How the stream ended: code and text; a stream that we ended ourselves was cancelled."""
        return self._ending or ("CANCELLED", "the kubelet ended the stream")

    def cancel(self) -> None:
        """End the stream from the kubelet's side."""
        self._call.cancel()


class PluginConnection:
    """One connection to one plugin, as the kubelet makes it for one registration.

    Args:
        socket_path: Absolute path of the plugin's socket.
        authority: The ``:authority`` of all calls; None for the path, percent-encoded, as the plugin watcher does.
        address: Dial this abstract unix address instead, without its leading NUL; somebody there dials the plugin.
        max_receive_bytes: The largest message that is received; None for gRPC's default, which is the kubelet's.
    """

    def __init__(
        self,
        socket_path: str,
        authority: str | None = "localhost",
        *,
        address: str | None = None,
        max_receive_bytes: int | None = None,
    ) -> None:
        self.socket_path = socket_path
        self.is_dialed = False
        limit = () if max_receive_bytes is None else (("grpc.max_receive_message_length", max_receive_bytes),)
        self._channel = grpc.aio.insecure_channel(
            "unix:" + quote(socket_path) if address is None else f"unix-abstract:{address}",
            options=(
                *limit,
                ("grpc.default_authority", quote(socket_path, safe="") if authority is None else authority),
                # Without it channels to one path share a connection, and inherit each other's backoff.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
                ("grpc.enable_http_proxy", 0),
            ),
        )

    async def dial(self, timeout: float = DIAL_TIMEOUT) -> None:  # noqa: ASYNC109 - the kubelet's own deadline
        """Connect, trying again after 1 s, then 1.6 times as long each time, as grpc-go does (contract section 2.2).

        Args:
            timeout: Seconds until it gives up.

        Raises:
            DialError: There is no connection after that time; the channel is closed then, as after a cancellation.
        """
        if len(os.fsencode(self.socket_path)) > MAX_SOCKET_PATH_BYTES:
            # grpc-go's attempts all fail; the C core gives out a dead channel whose state cannot be watched.
            await anyio.sleep(timeout)
            raise DialError("context deadline exceeded")
        async with anyio.create_task_group() as tasks:
            connected = anyio.Event()
            tasks.start_soon(self._become_ready, connected)
            try:
                with anyio.move_on_after(timeout):
                    await connected.wait()
            finally:
                if not self.is_dialed:
                    with anyio.CancelScope(shield=True):
                        await self.close()
        if not self.is_dialed:
            raise DialError("context deadline exceeded")

    async def _become_ready(self, connected: anyio.Event) -> None:
        # A watch of the channel's state must not be cancelled: gRPC would wait for it at the interpreter's end, for
        # ever. Closing the channel ends it.
        with anyio.CancelScope(shield=True), suppress(grpc.aio.UsageError):
            await self._channel.channel_ready()
            self.is_dialed = True
            connected.set()

    async def options(self, timeout: float | None = None) -> PluginOptions:  # noqa: ASYNC109 - sent as grpc-timeout
        """Call GetDevicePluginOptions; without a deadline, as the kubelet does.

        Raises:
            CallError: The call failed.
        """
        payload = await self.call("GetDevicePluginOptions", b"", timeout=timeout)
        message = decoded(v1beta1.DevicePluginOptions, payload)
        return PluginOptions(
            pre_start_required=message.pre_start_required,
            preferred_allocation_available=message.get_preferred_allocation_available,
        )

    def watch(self) -> PluginStream:
        """Call ListAndWatch: each call opens one more stream on this connection.

        Raises:
            CallError: The connection is closed.
        """
        return self.stream(_SERVICE + "ListAndWatch")

    def stream(self, method: str) -> PluginStream:
        """Call a method with many answers: its service with both slashes, and its name.

        Raises:
            CallError: The connection is closed.
        """
        call: grpc.aio.UnaryStreamMultiCallable[bytes, tuple[float, bytes]] = self._channel.unary_stream(
            method, response_deserializer=_stamped
        )
        try:
            return PluginStream(call(b""), self.socket_path)
        except grpc.aio.UsageError:
            raise CallError("CANCELLED", _CLOSING) from None

    async def allocate(self, *device_ids: Sequence[str], timeout: float | None = None) -> list[ContainerReply]:  # noqa: ASYNC109
        """Call Allocate with one container request for each argument; a kubelet sends exactly one.

        Raises:
            CallError: The call failed.
        """
        request = v1beta1.AllocateRequest(
            container_requests=[v1beta1.ContainerAllocateRequest(devices_ids=ids) for ids in device_ids]
        )
        payload = await self.call("Allocate", request.SerializeToString(), timeout=timeout)
        return [_reply(reply) for reply in decoded(v1beta1.AllocateResponse, payload).container_responses]

    async def preferred(
        self,
        available: Iterable[str],
        must_include: Iterable[str],
        size: int,
        timeout: float | None = None,  # noqa: ASYNC109 - sent as grpc-timeout
    ) -> list[tuple[str, ...]]:
        """Call GetPreferredAllocation for one container; return the ids of each container response.

        Raises:
            CallError: The call failed.
        """
        request = v1beta1.PreferredAllocationRequest(
            container_requests=[
                v1beta1.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        payload = await self.call("GetPreferredAllocation", request.SerializeToString(), timeout=timeout)
        message = decoded(v1beta1.PreferredAllocationResponse, payload)
        return [tuple(response.deviceIDs) for response in message.container_responses]

    async def pre_start(self, device_ids: Iterable[str], timeout: float = PRE_START_TIMEOUT) -> None:  # noqa: ASYNC109
        """Call PreStartContainer with the kubelet's 30 s.

        Raises:
            CallError: The call failed.
        """
        request = v1beta1.PreStartContainerRequest(devices_ids=device_ids)
        await self.call("PreStartContainer", request.SerializeToString(), timeout=timeout)

    async def info(self) -> PluginInfo:
        """Call GetInfo with the watcher's 1 s.

        Raises:
            CallError: The call failed.
        """
        payload = await self.call("GetInfo", b"", service=_WATCHER_SERVICE, timeout=INFO_TIMEOUT)
        message = decoded(registration.PluginInfo, payload)
        return PluginInfo(
            type=message.type,
            name=message.name,
            endpoint=message.endpoint,
            versions=tuple(message.supported_versions),
        )

    async def notify(self, *, registered: bool, error: str = "") -> None:
        """Call NotifyRegistrationStatus with the watcher's 5 s.

        Raises:
            CallError: The call failed.
        """
        request = registration.RegistrationStatus(plugin_registered=registered, error=error)
        await self.call(
            "NotifyRegistrationStatus", request.SerializeToString(), service=_WATCHER_SERVICE, timeout=NOTIFY_TIMEOUT
        )

    async def call(
        self,
        method: str,
        payload: bytes,
        *,
        service: str = _SERVICE,
        timeout: float | None = None,  # noqa: ASYNC109 - sent as grpc-timeout
    ) -> bytes:
        """Make one unary call with bytes, also of a method that does not exist.

        Args:
            method: The method's name in its service.
            payload: The serialised request.
            service: The service, with both slashes.
            timeout: Seconds, sent as grpc-timeout; None for no deadline.

        Raises:
            CallError: The call failed. Cancelling it cancels the call at the plugin.
        """
        try:
            stub: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(service + method)
            return await stub(payload, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise CallError(*_status(error, self.socket_path)) from None
        except grpc.aio.UsageError:
            raise CallError("CANCELLED", _CLOSING) from None
        except asyncio.CancelledError:
            await _raise_if_we_are_cancelled()
            raise CallError("CANCELLED", _CLOSING) from None

    def sever(self) -> bool:
        """Break the connection abruptly, as a killed process does; return whether a socket was found.

        A closing channel says goodbye (RST_STREAM, GOAWAY); a kubelet that is killed does not. The channel must still
        be closed.
        """
        return sever(self.socket_path)

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled. Idempotent."""
        await self.drop()
        await settle()

    async def drop(self) -> None:
        """Close the connection, and leave it to the caller to `settle` for many together."""
        await self._channel.close()


async def settle() -> None:
    """Let the event loop see the end of every call that was cancelled.

    gRPC reports the end of a cancelled call later, through a queue that all event loops of the process share. A loop
    that is closed before is an error for whichever loop comes next. One more call, which cannot succeed, takes its
    place in that queue behind the others: a millisecond.
    """
    async with grpc.aio.insecure_channel(
        "unix-abstract:kdp-nobody", options=(("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        with suppress(grpc.aio.AioRpcError):
            stub: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/kdp.Nobody/Nothing")
            await stub(b"", timeout=0)


def _status(error: grpc.aio.AioRpcError, socket_path: str) -> tuple[str, str]:
    """Return code and text of a failed call, with what the C core says itself put into grpc-go's words."""
    code, detail = error.code().name, error.details() or ""
    if "Received message larger than max" in detail:
        sizes = detail.partition("larger than max ")[2].rstrip(")")
        detail = f"grpc: received message larger than max {sizes})"
    elif code == "UNAVAILABLE" and detail == "Socket closed":
        detail = "error reading from server: EOF"
    elif code == "UNAVAILABLE" and detail.startswith("failed to connect to all addresses"):
        reason = _why_no_connection(socket_path)
        detail = (
            f'connection error: desc = "transport: Error while dialing: dial unix {socket_path}: connect: {reason}"'
        )
    return code, detail


async def _raise_if_we_are_cancelled() -> None:
    """Go on only if the call was cancelled by somebody else: gRPC raises CancelledError for both.

    It also raises a new CancelledError when a task is cancelled that waits for a call. anyio does not know that
    one for its own and would take the task for crashed, so anyio's is raised here in its place.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise asyncio.CancelledError


def _why_no_connection(socket_path: str) -> str:
    if not Path(socket_path).exists():
        return "no such file or directory"
    return "connection refused"
