"""The kubelet's side of the wire to a DRA driver: one connection for each registration, values as messages.

Only this module and `kdp_testkit.protocol.wire` touch protobuf or gRPC in this package. The connection is kept. If it
breaks, it is made anew at once, and both ends of it are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio
import grpc

from kdp.proto import dra_v1_pb2 as v1
from kdp.proto import dra_v1beta1_pb2 as v1beta1
from kdp.proto import drahealth_v1_pb2 as health_v1

from ..protocol.wire import CallError, PluginConnection, PluginStream, decoded
from .claims import ClaimEntry, PreparedDevice
from .health import DeviceReport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_LOOK: Final = 0.01
_PATH: Final = "/k8s.io.kubelet.pkg.apis.dra."
_HEALTH: Final = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
_MESSAGES: Final[Mapping[str, Any]] = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}


class DriverConnection(PluginConnection):
    """The connection to one instance of a driver.

    Args:
        endpoint: Its service socket.
        service: As it advertised it: ``v1.DRAPlugin`` or ``v1beta1.DRAPlugin``.
    """

    def __init__(self, endpoint: str, service: str) -> None:
        super().__init__(endpoint)
        self._messages = _MESSAGES[service]
        self._service = f"{_PATH}{service}/"

    async def keep(self, changed: Callable[[bool], None]) -> None:
        """Keep the connection until cancelled, and tell when it comes up and goes down.

        The state is looked at, not watched: a watch of a channel's state cannot be cancelled, and one beside an open
        stream does not always end with the channel. A loss that is repaired within a hundredth of a second goes unseen;
        nothing that lasts 30 s depends on it.
        """
        was_ready = False
        while True:
            is_ready = self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
            if is_ready != was_ready:
                was_ready = is_ready
                changed(is_ready)
            await anyio.sleep(_LOOK)

    async def prepare(
        self,
        claims: Collection[ClaimEntry],
        timeout: float,  # noqa: ASYNC109 - sent as grpc-timeout
    ) -> dict[str, tuple[tuple[PreparedDevice, ...], str]]:
        """Call NodePrepareResources; return devices and error by claim UID.

        Raises:
            CallError: The call failed.
        """
        request = self._messages.NodePrepareResourcesRequest(claims=self._claims(claims))
        payload = await self._ask("NodePrepareResources", request.SerializeToString(), timeout)
        message = decoded(self._messages.NodePrepareResourcesResponse, payload)
        return {
            uid: (tuple(_device(device) for device in result.devices), result.error)
            for uid, result in message.claims.items()
        }

    async def unprepare(
        self,
        claims: Collection[ClaimEntry],
        timeout: float,  # noqa: ASYNC109 - sent as grpc-timeout
    ) -> dict[str, str]:
        """Call NodeUnprepareResources; return the error by claim UID, "" if none.

        Raises:
            CallError: The call failed.
        """
        request = self._messages.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        payload = await self._ask("NodeUnprepareResources", request.SerializeToString(), timeout)
        message = decoded(self._messages.NodeUnprepareResourcesResponse, payload)
        return {uid: result.error for uid, result in message.claims.items()}

    def watch_health(self, service: str) -> PluginStream:
        """Call NodeWatchResources of ``v1.DRAResourceHealth`` or ``v1alpha1.DRAResourceHealth``.

        Raises:
            CallError: The connection is closed.
        """
        return self.stream(f"/{service}/NodeWatchResources")

    async def _ask(self, method: str, payload: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        try:
            return await self.call(method, payload, service=self._service, timeout=timeout)
        except CallError as error:
            if error.code == "DEADLINE_EXCEEDED":
                raise CallError(error.code, "context deadline exceeded") from None
            raise

    def _claims(self, claims: Collection[ClaimEntry]) -> list[Any]:
        claim = self._messages.Claim
        return [claim(namespace=entry.namespace, name=entry.name, uid=entry.uid) for entry in claims]


def _device(device: Any) -> PreparedDevice:
    share_id = device.share_id if isinstance(device, v1.Device) and device.HasField("share_id") else None
    return PreparedDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=share_id,
    )


def decode_health(payload: bytes) -> list[DeviceReport]:
    """Read a report of health: both versions are the same on the wire.

    Raises:
        CallError: It is none.
    """
    return [
        DeviceReport(
            pool=device.device.pool_name,
            device=device.device.device_name,
            health=_HEALTH.get(device.health, "Unknown"),
            message=device.message,
            timeout=float(device.health_check_timeout_seconds),
        )
        for device in decoded(health_v1.NodeWatchResourcesResponse, payload).devices
    ]
