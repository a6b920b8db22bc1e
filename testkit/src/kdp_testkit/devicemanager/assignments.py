"""What the device manager keeps: registrations, and the devices of containers; how it divides devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from ..protocol.pods import ContainerReply, KubeletPanic
from ..protocol.wire import ListedDevice, PluginOptions
from .topology import has_topology

if TYPE_CHECKING:
    import random

_NO_NODE: Final = -1


class AlreadyConnected(Exception):
    """The resource is still on record with this socket path (contract section 2.5, 1.37)."""


class AllocationRefused(Exception):
    """The devices cannot be had; the text is the kubelet's."""


@attrs.define(eq=False)
class Endpoint:
    """The device manager's record of one registration.

    Attributes:
        resource: The resource name.
        socket_path: Where the plugin serves; empty for a resource known from the checkpoint only.
        options: The plugin's options; None if it has not registered since the kubelet started.
        stopped_at: When its end was noticed, by the manager's clock; None while it lives.
    """

    resource: str
    socket_path: str = ""
    options: PluginOptions | None = None
    stopped_at: float | None = None


@attrs.frozen
class Assignment:
    """The devices of one resource that one container holds.

    Attributes:
        by_numa_node: The ids by NUMA node, -1 for those without; a device with several nodes is there several times.
        reply: The plugin's reply, kept and used again at each start of the container.
    """

    by_numa_node: Mapping[int, tuple[str, ...]]
    reply: ContainerReply

    @property
    def device_ids(self) -> set[str]:
        """The ids, each once."""
        return {device_id for ids in self.by_numa_node.values() for device_id in ids}


class PluginCalls(Protocol):
    """What the manager asks of plugins. Errors are the calls' own; their texts reach the pod's author."""

    async def preferred(
        self, endpoint: Endpoint, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Call GetPreferredAllocation."""
        ...

    async def allocate(self, endpoint: Endpoint, device_ids: Collection[str]) -> list[ContainerReply]:
        """Call Allocate."""
        ...

    async def pre_start(self, endpoint: Endpoint, device_ids: Collection[str]) -> None:
        """Call PreStartContainer."""
        ...

    def save(self) -> None:
        """Write the checkpoint."""
        ...


def by_affinity(
    devices: Mapping[str, ListedDevice], nodes: Collection[int] | None, available: set[str]
) -> tuple[set[str], set[str], set[str]]:
    """Divide the free devices of a resource: on these NUMA nodes, on others, on none.

    Args:
        devices: The resource's device table.
        nodes: The nodes of the container's hint; None: it has none, and then no device counts as on a node.
        available: The ids of the free devices.
    """
    if nodes is None or not has_topology(devices):
        return set(), set(), available
    where = {device_id: set(devices[device_id].numa_nodes or ()) for device_id in available}
    aligned = {device_id for device_id, on in where.items() if not on.isdisjoint(nodes)}
    unplaced = {device_id for device_id, on in where.items() if on <= {_NO_NODE}}
    return aligned, available - aligned - unplaced, unplaced


def by_numa_node(
    resource: str, devices: Mapping[str, ListedDevice], device_ids: Iterable[str]
) -> dict[int, tuple[str, ...]]:
    """Return ids by NUMA node, -1 for those without one.

    Raises:
        KubeletPanic: One is not in the resource's device table.
    """
    by_node: dict[int, tuple[str, ...]] = {}
    for device_id in sorted(device_ids):
        if device_id not in devices:
            raise KubeletPanic(
                f"nil pointer dereference in allocateContainerResources: device {device_id} of {resource} left the "
                f"plugin's list before Allocate was answered; it must stay in the list, unhealthy"
            )
        for node in devices[device_id].numa_nodes or (_NO_NODE,):
            by_node[node] = (*by_node.get(node, ()), device_id)
    return by_node


def check_running(endpoint: Endpoint, rng: random.Random, *, names_path: bool) -> None:
    """Refuse calls to a plugin whose end is known.

    Args:
        endpoint: The plugin's registration.
        rng: Makes up the addresses in the text.
        names_path: Whether the text has the socket's path, as from 1.37 on.

    Raises:
        AllocationRefused: It has ended.
    """
    if endpoint.stopped_at is None:
        return
    # The kubelet prints the whole Go struct: a mutex, the name, the path (1.37), the connection's address, the
    # time of the end in Go's own numbers, and nothing. A test that looks for a name in such a text must not need more.
    name = f"{endpoint.resource} {endpoint.socket_path}" if names_path else endpoint.resource
    connection = f"0xc{rng.randrange(1 << 36):09x}"
    ended = f"{{{rng.randrange(1 << 63, 1 << 64)} {int(endpoint.stopped_at * 1e9)} 0x34fba60}}"
    raise AllocationRefused(f"endpoint &{{{{{{}} {{0 0}}}} {name} {connection} {ended} <nil>}} has been stopped")
