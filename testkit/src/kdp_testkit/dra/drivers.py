"""What the kubelet has of DRA drivers: a connection for each registration, and which instance of a driver is called.

Modelled after ``k8s.io/kubernetes`` ``pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go``. Only this module and
`kdp_testkit.protocol.wire` touch protobuf or gRPC in this package. A connection is kept. If it breaks, it is made anew
at once, and both ends of it are told.
"""

from __future__ import annotations

import json
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
    from collections.abc import Callable, Collection, Mapping, Sequence

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


SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


def choose_service(driver: str, endpoint: str, services: Sequence[str]) -> str:
    """Return the first service of the plugin's list that the kubelet knows: the plugin's order decides.

    Raises:
        ValueError: There is none; the text is the kubelet's.
    """
    problem = "empty list of supported gRPC services (aka supported versions)"
    if services:
        for service in services:
            if service in SERVICES:
                return service
        problem = (
            f"none of services supported by the plugin ({_quoted(services)}) are supported by the kubelet "
            f"({_quoted(SERVICES)})"
        )
    raise ValueError(f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: {problem}")


def choose_health_service(services: Sequence[str]) -> str:
    """Return the newest health service that the plugin advertises, "" if none: here the kubelet's order decides."""
    return next((service for service in HEALTH_SERVICES if service in services), "")


def _quoted(names: Sequence[str]) -> str:
    return "[" + " ".join(json.dumps(name) for name in names) + "]"


class DriverInstance:
    """One registered instance of a driver."""

    def __init__(self, driver: str, endpoint: str, service: str, health_service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.service = service
        self.health_service = health_service
        self.connection = DriverConnection(endpoint, service)
        self.is_connected = False
        self.is_gone = False
        self.kept = anyio.CancelScope()
        self.health: PluginStream | None = None

    def end_health(self) -> None:
        """Cancel the health stream."""
        if self.health is not None:
            self.health.cancel()


class DriverTable:
    """The registered instances, oldest first."""

    def __init__(self) -> None:
        self._instances: dict[str, list[DriverInstance]] = {}

    def add(self, instance: DriverInstance) -> None:
        """Register an instance.

        Raises:
            ValueError: Its endpoint is another one's; the text is the kubelet's.
        """
        instances = self._instances.setdefault(instance.driver, [])
        if any(other.endpoint == instance.endpoint for other in instances):
            raise ValueError(f"endpoint {instance.endpoint} already registered for DRA driver plugin {instance.driver}")
        instances.append(instance)

    def remove(self, driver: str, endpoint: str) -> DriverInstance | None:
        """Drop an instance and return it; None: there is none."""
        for instance in self._instances.get(driver, ()):
            if instance.endpoint == endpoint:
                self._instances[driver].remove(instance)
                if not self._instances[driver]:
                    del self._instances[driver]
                return instance
        return None

    def get(self, driver: str) -> DriverInstance | None:
        """Return the instance to call: the newest that is connected, else the newest; None: there is none."""
        instances = self.of(driver)
        candidates = [instance for instance in instances if instance.is_connected] or instances
        return candidates[-1] if candidates else None

    def of(self, driver: str) -> list[DriverInstance]:
        """Return a driver's instances."""
        return list(self._instances.get(driver, ()))

    def all(self) -> list[DriverInstance]:
        """Return all instances."""
        return [instance for instances in self._instances.values() for instance in instances]

    def is_usable(self, driver: str) -> bool:
        """Whether an instance of the driver is connected; if not, its slices are wiped in a while."""
        return any(instance.is_connected for instance in self._instances.get(driver, ()))
