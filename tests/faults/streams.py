"""Faults 30 to 40: the stream and the connection that carries it, down to HTTP/2.

Of these `SimulatedKubelet.drop_stream` is fault 30, `sever` fault 32, `pause_reading` fault 33. What gRPC does not let
one do goes through a relay: it must be in place before the connection is made, so `intercept`, or a fault that says so,
comes before the plugin registers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from kdp.testing import ListedDevice, PluginConnection, ScenarioError
from kdp_testkit.armed_faults import ArmedFaults
from kdp_testkit.faults.base import FaultGroup
from kdp_testkit.protocol.wire import PluginStream

from . import frames
from .relay import Relay, Shape

if TYPE_CHECKING:
    from kdp_testkit.devicemanager.kubelet_core import CurrentProcess, KubeletCore

_UNUSUAL = {frames.MAX_FRAME_SIZE: 2**24 - 1, 0x1: 0, 0x6: 2**24, 0xF0: 7, 0xFFFF: 2**32 - 1}
"""The largest frames, no table for header compression, a large header list, and two settings that do not exist."""


class RelayedFaults(ArmedFaults):
    """What is to go wrong, connections among it that go through a relay.

    Args:
        start_soon: Runs a relay until the kubelet's end.

    Attributes:
        relay_shape: How the relay shapes connections; None: they are made without one.
        relays: The relay of each connection that was made through one.
    """

    def __init__(self, start_soon: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]) -> None:
        super().__init__()
        self._start_soon = start_soon
        self.relay_shape: Shape | None = None
        self.relays: dict[PluginConnection, Relay] = {}

    @override
    def clear(self) -> None:
        super().clear()
        self.relay_shape = None

    @override
    def connection(self, socket_path: str) -> PluginConnection:
        if self.relay_shape is None:
            return super().connection(socket_path)
        relay = Relay(socket_path, self.relay_shape)
        connection = PluginConnection(
            socket_path, authority=self.authority, address=relay.address, max_receive_bytes=self.max_receive_bytes
        )
        self.relays[connection] = relay
        self._start_soon(relay.serve)
        return connection


class StreamFaults(FaultGroup):
    """Faults of streams and connections.

    Args:
        kubelet: The kubelet.
        process: Its process, if it has one now.
        armed: What makes its connections.
    """

    def __init__(self, kubelet: KubeletCore, process: CurrentProcess, armed: RelayedFaults) -> None:
        super().__init__(kubelet, process, armed)
        self._relayed = armed

    def intercept(self) -> None:
        """Dial plugins through a relay from now on, so that `goaway`, `ping_flood` and `half_close` can be done."""
        self._relayed.relay_shape = self._relayed.relay_shape or Shape()

    def goaway(self, resource: str) -> None:
        """Fault 31: the plugin is told GOAWAY on the kubelet's connection, which stays open.

        On a node: grpc-go says it when it closes a connection; proxies say it when they want to be rid of one.

        A good plugin goes on serving the streams that live, and registers again when they end.

        Raises:
            ScenarioError: The connection was not made through a relay: call `intercept` before.
        """
        self._relay(resource).send(frames.goaway("the kubelet goes away"))

    def half_close(self, resource: str) -> None:
        """Fault 32: the kubelet's end is closed for sending only; what the plugin sends is still read.

        On a node: a peer that was stopped in the middle of its end. To break it in both directions, use
        `SimulatedKubelet.sever`.

        A good plugin takes it for the end of the connection, and registers again.

        Raises:
            ScenarioError: The connection was not made through a relay: call `intercept` before.
        """
        self._relay(resource).half_close()

    def tiny_windows(self, size: int = 1) -> None:
        """Fault 34: on connections made from now on the plugin may send ``size`` bytes of a stream at a time.

        On a node: a kubelet under memory pressure, or a client with odd settings. Not together with `pause_reading`.

        A good plugin sends the same lists, in small pieces.
        """
        self._relayed.relay_shape = Shape(window=size)

    async def open_streams(self, resource: str, count: int) -> list[PluginStream]:
        """Fault 35: ``count`` more ListAndWatch streams are opened on the kubelet's connection; return them.

        On a node: nothing in the API forbids it, and kubelets up to 1.36 may hold two of one plugin (section 2.5).

        A good plugin sends the whole list and every change to each of them.
        """
        connection = self._process.client(resource).connection
        return [connection.watch() for _ in range(count)]

    async def flap_streams(self, resource: str, times: int) -> list[list[ListedDevice] | None]:
        """Fault 36: ``times`` times a stream is opened, one list is read, and the stream is closed.

        On a node: a debugging tool that looks at the list. The kubelet's own stream stays open beside it.

        A good plugin answers each with the whole list, and loses neither memory nor its registration by it.
        """
        connection = self._process.client(resource).connection
        read: list[list[ListedDevice] | None] = []
        for _ in range(times):
            stream = connection.watch()
            read.append(await stream.next())
            stream.cancel()
        return read

    def limit_receive(self, max_bytes: int = 4 * 1024 * 1024) -> None:
        """Fault 37: on connections made from now on a larger message ends the stream with RESOURCE_EXHAUSTED.

        On a node: the limit is 4 MiB and the kubelet does not raise it (section 5, B11); less here saves a large list.

        A good plugin never sends more than 4 MiB, and after such an end registers again with growing pauses.
        """
        self.armed.max_receive_bytes = max_bytes

    def unusual_settings(self) -> None:
        """Fault 38: connections made from now on begin with unusual HTTP/2 settings, some of which do not exist.

        On a node: another gRPC library, another version, a proxy.

        A good plugin ignores what it does not know (RFC 9113 section 6.5.2), and serves as ever.
        """
        self._relayed.relay_shape = Shape(settings=dict(_UNUSUAL))

    async def ping_flood(self, resource: str, count: int) -> int:
        """Fault 39: the plugin gets ``count`` PINGs at once on the kubelet's connection; return how many it answered.

        On a node: a client with a keepalive that is too lively; strict servers answer with GOAWAY too_many_pings.

        A good plugin answers them all and keeps the connection: an end costs the registration.

        Raises:
            ScenarioError: The connection was not made through a relay: call `intercept` before.
        """
        relay = self._relay(resource)
        before = relay.pings_answered
        for _ in range(count):
            relay.ping()
        await relay.until_answered(before + count)
        return relay.pings_answered - before

    def end_stream_only(self, resource: str) -> PluginConnection:
        """Fault 40: ListAndWatch ends, and its connection is kept open; return the connection.

        On a node: kubelets up to 1.36 leak a superseded connection, 1.37 that of a Register that failed (B5).

        A good plugin counts streams, not connections: it registers again, and its stop waits for no idle one.
        """
        [*_, client] = self._process.streaming(resource)
        client.is_leaked = True
        client.end_stream()
        return client.connection

    def _relay(self, resource: str) -> Relay:
        relay = self._relayed.relays.get(self._process.client(resource).connection)
        if relay is None:
            raise ScenarioError(
                f"the connection to {resource} was not made through a relay; call faults.intercept() before the "
                "plugin registers"
            )
        return relay
