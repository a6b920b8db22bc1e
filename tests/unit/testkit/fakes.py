"""A device manager whose plugins are a few lines of Python."""

from __future__ import annotations

import random
from collections.abc import Collection

from kdp_testkit.devicemanager.assignments import Endpoint
from kdp_testkit.devicemanager.manager import DeviceManager
from kdp_testkit.devicemanager.topology import Topology
from kdp_testkit.protocol.pods import ContainerReply
from kdp_testkit.protocol.wire import ListedDevice, PluginOptions

RESOURCE = "example.com/widget"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Calls:
    """Answers of all plugins; every call is kept."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[str, ...]]] = []
        self.preference: list[str] = []
        self.replies = [ContainerReply(envs={"A": "1"})]
        self.error: Exception | None = None
        self.saved = 0

    async def preferred(
        self, endpoint: Endpoint, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        self.made.append(("preferred", tuple(sorted(available))))
        self.asked = (set(available), set(must_include), size)
        if self.error is not None:
            raise self.error
        return tuple(self.preference)

    async def allocate(self, endpoint: Endpoint, device_ids: Collection[str]) -> list[ContainerReply]:
        self.made.append(("allocate", tuple(sorted(device_ids))))
        if self.error is not None:
            raise self.error
        return self.replies

    async def pre_start(self, endpoint: Endpoint, device_ids: Collection[str]) -> None:
        self.made.append(("pre_start", tuple(sorted(device_ids))))
        if self.error is not None:
            raise self.error

    def save(self) -> None:
        self.saved += 1


class Node:
    """One manager with what it asks of its surroundings."""

    def __init__(
        self, *, one_endpoint_per_resource: bool = False, seed: int = 1, topology: Topology | None = None
    ) -> None:
        self.clock = Clock()
        self.pods: set[str] = set()
        self.running: set[tuple[str, str]] = set()
        self.manager = DeviceManager(
            one_endpoint_per_resource=one_endpoint_per_resource,
            clock=self.clock,
            rng=random.Random(seed),  # noqa: S311
            active_pods=lambda: self.pods,
            is_running=lambda pod, container: (pod, container) in self.running,
            topology=topology or Topology(),
            health_by_id_alone=one_endpoint_per_resource,
        )

    def register(
        self, *devices: str, path: str = "/a", resource: str = RESOURCE, options: PluginOptions | None = None
    ) -> Endpoint:
        """Connect a plugin and list these devices; a name with ``!`` before it is unhealthy."""
        endpoint = Endpoint(resource, path, options or PluginOptions())
        self.manager.connected(endpoint)
        self.list(*devices, resource=resource)
        return endpoint

    def list(self, *devices: str, resource: str = RESOURCE) -> None:
        self.manager.listed(
            resource,
            [ListedDevice(d.lstrip("!"), "Unhealthy" if d.startswith("!") else "Healthy", None) for d in devices],
        )
