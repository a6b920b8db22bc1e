"""What is read of device plugins: a `PluginManager` and the counts of its plugins."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, final

from ..deviceplugin.counts import RESULTS as REGISTRATION_RESULTS
from ..deviceplugin.session import State
from ..deviceplugin.status import ABSENT
from . import series
from .devices import Held
from .reading import expect_operations, read_causes, read_measurements, read_operations, read_part, read_transitions

if TYPE_CHECKING:
    from ..deviceplugin.counts import PluginCounts
    from ..deviceplugin.manager import PluginManager
    from ..deviceplugin.status import ResourceStatus
    from .cluster_reporter import ClusterCounts
    from .reading import Scrape, Vocabulary

CAUSES: Final = ("backend", "list_too_large", "kubelet", "registration", "obstacle", "no_devices")


@final
class PluginsReader:
    """Reads device plugins.

    Args:
        counts: What they count, over all reloads.
        names_pods: Whether each allocated device is exported with its pod.
        needs_devices: Whether a resource without a device is not ready.
        cluster: What is counted in the cluster; None: nothing is done there.
    """

    def __init__(
        self,
        counts: PluginCounts,
        *,
        names_pods: bool,
        needs_devices: bool = False,
        cluster: ClusterCounts | None = None,
    ) -> None:
        self._counts = counts
        self._cluster = cluster
        self._names_pods = names_pods
        self._needs_devices = needs_devices

    def read(self, reading: Scrape, names: Vocabulary, manager: PluginManager | None) -> None:
        """Add what there is to say now."""
        self._read_counts(reading, names)
        self._read_cluster(reading)
        if manager is None:
            return
        reading.names_pods = self._names_pods
        resources = manager.status().resources
        if manager.state_problem is not None:
            reading.add(series.WRITABLE, 0, "state")
        if any(status.cdi is not None for status in resources.values()):
            reading.add(series.WRITABLE, 0, "cdi")
        for name, status in resources.items():
            label = self._read_resource(reading, names, manager, status)
            holders = manager.holders(name)
            if holders is None:
                continue
            reading.add(series.ALLOCATED, len(holders), label)
            held = [(device_id, holder) for device_id, each in holders.items() for holder in each]
            reading.held.append(Held(label, held, functools.partial(manager.device_of, name)))
        read_transitions(reading, names, manager)
        read_measurements(reading, names, manager)
        reading.add(series.KUBELET_RESTARTS, manager.kubelet_restarts)
        reading.add(series.KUBELET_FROZEN, manager.kubelet_problem is not None)
        for socket, is_there in manager.kubelet_sockets.items():
            reading.add(series.KUBELET_SOCKET, is_there, socket)

    def _read_resource(self, reading: Scrape, names: Vocabulary, manager: PluginManager, status: ResourceStatus) -> str:
        label = read_part(reading, names, status.resource, status)
        expect_operations(reading, label, ("Allocate", "GetPreferredAllocation", "PreStartContainer"))
        for result in REGISTRATION_RESULTS:
            reading.add(series.REGISTRATIONS, 0, label, result)
        reading.add(series.LIST_UPDATES, 0, label)
        causes = {cause: status.cause == cause for cause in CAUSES}
        causes["no_devices"] = self._needs_devices and not status.devices
        if status.state != ABSENT:
            reading.add(series.REGISTERED, status.state == State.CONNECTED.value, label)
            causes["backend"] |= manager.problem_of(status.resource) is not None
        read_causes(reading, label, causes)
        reading.add(series.RELEASE_PENDING, manager.releasing(status.resource), label)
        if (view := manager.kubelet_view(status.resource)) is not None:
            reading.add(series.DISAGREES, view.disagrees, label)
            reading.add(series.FOREIGN, view.foreign, label)
        reading.add(series.CONTESTED, status.rival is not None, label)
        reading.add(series.GIVEN_TWICE, len(status.doubles), label)
        sent = self._counts.lists.get(self._counts.resources.of(status.resource))
        if sent is not None:
            reading.add(series.LIST_BYTES, sent.size, label)
            reading.add(series.LIST_SENT, sent.sent_at, label)
        return label

    def _read_counts(self, reading: Scrape, names: Vocabulary) -> None:
        read_operations(reading, names, self._counts)
        for (resource, result), count in self._counts.registrations.counts.items():
            reading.add(series.REGISTRATIONS, count, names.resources.of(resource), result)
        for (resource,), count in self._counts.updates.counts.items():
            reading.add(series.LIST_UPDATES, count, names.resources.of(resource))
        for (resource,), took in self._counts.registering.counts.items():
            reading.add_durations(series.REGISTRATION_SECONDS, took, names.resources.of(resource))

    def _read_cluster(self, reading: Scrape) -> None:
        if self._cluster is None:
            return
        for (result,), count in self._cluster.events.counts.items():
            reading.add(series.EVENTS, count, result)
        for (result,), count in self._cluster.evictions.counts.items():
            reading.add(series.EVICTIONS, count, result)
