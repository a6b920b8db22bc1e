"""Which instances of which driver are registered, and which of them is called.

Modelled after ``k8s.io/kubernetes`` ``pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import anyio

from .wire import DriverConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.wire import PluginStream

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
