"""Every series that kdp exports, in one place: name, type, help, and labels.

`docs/reference/metrics.md` is written from here. To add a series, add a `Series` here and one line where it is read
(`reading`, `plugins`, or `drivers`). Each label's values are bounded and stand in `LABELS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, final

import attrs

from ..supervision.conditions import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["counter", "gauge", "histogram"]


@final
@attrs.frozen
class Series:
    """One series.

    Attributes:
        name: As Prometheus sees it; a counter's ends with ``_total``.
        kind: Its type.
        help: What it says, as a sentence.
        labels: The names of its labels; the DRA modes have ``driver_name`` for ``resource_name`` (`labels_in`).
        joins: What those have together that have the same labels, as all names beyond the limit.
        modes: In which modes it is there; ``pods``: with that choice of ``--metrics``, ``file``: with a configuration
            file; ``kubelet``: where a kubelet calls, so not in ``dra-controller``; ``driver``: of those, with DRA.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    joins: Literal["sum", "max", "min"] = "sum"
    modes: Literal["all", "kubelet", "device-plugin", "dra", "driver", "pods", "file"] = "all"

    def labels_in(self, mode: str) -> tuple[str, ...]:
        """Return the names of its labels in a mode, as ``dra``."""
        return self.labels if mode == "device-plugin" else tuple(map(_of_driver, self.labels))


def _of_driver(label: str) -> str:
    return "driver_name" if label == "resource_name" else label


LABELS: Final[Mapping[str, str]] = {
    "resource_name": "The extended resource, as in the kubelet's own series. The first 64 names; `other` for further "
    "ones.",
    "driver_name": "The DRA driver.",
    "health": "`healthy`, `unhealthy`: as the kubelet or the scheduler sees the device. `withheld`: unhealthy for the "
    f"kubelet, although it works: {', '.join(f'`{name}`' for name, own in KINDS.items() if own.is_withheld)} "
    "([conditions](conditions.md)).",
    "kind": "What the backend calls the fault, the first 32 kinds; `other` for further ones. kdp's own: "
    f"{', '.join(f'`{name}`' for name, own in KINDS.items() if not own.is_withheld)}; a backend's kind of such a name "
    "has the prefix `backend:`. `none`: the device has no fault.",
    "to": "`healthy`, `suspect`, `unhealthy`, `recovering`, `quarantined`.",
    "result": "Of an operation: `ok`; `refused`, if kdp or the backend said no; `failed`, if a hook raised or was "
    "late, if a claim of the call failed, or if the kubelet hung up. Of a registration: `accepted`, `refused`, "
    "`failed`, `no_stream`; the last one may follow `accepted`. Of a change that kdp reports as an Event: `created`; "
    "`repeated`, if an Event with the same words counts one more; `suppressed`, if another Event includes it or it has "
    "ended; `refused`; `unanswered`, to be tried again. Of an eviction: `accepted`; `dry_run`, if it would be; "
    "`blocked` by a PodDisruptionBudget or the load; `failed`; `gone`, if the pod is; `unknown`.",
    "operation": "The kubelet's call: `GetDevicePluginOptions`, `GetPreferredAllocation`, `Allocate`, "
    "`PreStartContainer`; in the DRA modes `NodePrepareResources`, `NodeUnprepareResources`.",
    "code": "The HTTP status of the answer; `<error>` if there was none.",
    "host": "The API server's address.",
    "method": "`GET`, also of a watch; `POST`, `PUT`, `PATCH`, `DELETE`.",
    "backend": "The backend's class. The first 16 names; `other` for further ones.",
    "hook": "The hook's method, as `discover`.",
    "reason": "`error`, `deadline`, `not_ready`, `refused`.",
    "cause": "`backend`, `list_too_large`, `kubelet`, `registration`, `obstacle`, `publication`; with "
    "`--when-no-devices not-ready` also `no_devices`.",
    "directory": "`plugins`: where the kubelet finds the plugin's socket. `cdi`, `state`: as the settings name them. "
    "`claims`: the driver's own below the kubelet's.",
    "hash": "The first 12 hexadecimal digits of the SHA-256 of the file's text, as `sha256sum` prints it.",
    "device": "The device's id; at most 1,024 devices.",
    "namespace": "The pod's namespace.",
    "pod": "The pod's name.",
    "container": "The container's name.",
    "socket": "`kubelet`: kubelet.sock, for registrations. `pod-resources`: the API that names the pods with devices.",
    "version": "kdp's version.",
    "mode": "`device-plugin`, `dra`, `dra-controller`.",
}
"""Which values each label has."""

BUILD = Series("kdp_build_info", "gauge", "Which kdp this is. Always 1.", ("version", "mode"), "max")
BLOCKED = Series(
    "kdp_event_loop_blocked",
    "gauge",
    "1 if the event loop did not answer the scrape. Then the other values are those of the previous scrape.",
)
CONFIG_REJECTED = Series(
    "kdp_config_rejected", "gauge", "1 if the configuration file is bad, so that the last good one is in force."
)
CONFIG = Series(
    "kdp_config_info",
    "gauge",
    "Which configuration file is in force. Always 1; missing if there is none.",
    ("hash",),
    "max",
    "file",
)
WRITABLE = Series(
    "kdp_directory_writable",
    "gauge",
    "1 if new files can be made in the directory; 0 if not, or if its disk does not answer. Looked at each 10 s.",
    ("directory",),
    "min",
    "kubelet",
)
DEVICES = Series("kdp_devices", "gauge", "Devices that are listed or published.", ("resource_name", "health"))
FAULTS = Series(
    "kdp_device_faults", "gauge", "Unhealthy devices that have this kind of fault.", ("resource_name", "kind")
)
TRANSITIONS = Series(
    "kdp_device_transitions_total", "counter", "Changes of devices' states.", ("resource_name", "to", "kind")
)
REGISTERED = Series(
    "kdp_registered",
    "gauge",
    "1 if the kubelet holds a stream, or has registered the driver; none for a resource of which there is no hardware.",
    ("resource_name",),
    modes="kubelet",
)
NOT_READY = Series(
    "kdp_not_ready", "gauge", "1 for each cause why the resource is not ready.", ("resource_name", "cause"), "max"
)
REGISTRATIONS = Series(
    "kdp_registrations_total",
    "counter",
    "Registrations with the kubelet.",
    ("resource_name", "result"),
    modes="device-plugin",
)
REGISTRATION_SECONDS = Series(
    "kdp_registration_duration_seconds",
    "histogram",
    "Time from Register to the stream that proves it.",
    ("resource_name",),
    modes="device-plugin",
)
KUBELET_RESTARTS = Series(
    "kdp_kubelet_restarts_total",
    "counter",
    "Restarts of the kubelet, seen at kubelet.sock.",
    modes="device-plugin",
)
KUBELET_FROZEN = Series(
    "kdp_kubelet_frozen",
    "gauge",
    "1 if the kubelet accepts connections but answered no call twice in a row, so that it hangs or is stopped.",
    (),
    "max",
    "device-plugin",
)
KUBELET_SOCKET = Series(
    "kdp_kubelet_socket",
    "gauge",
    "1 if the kubelet's socket is there; for kubelet.sock, if the kubelet listens.",
    ("socket",),
    "min",
    "device-plugin",
)
LIST_UPDATES = Series(
    "kdp_list_updates_total",
    "counter",
    "Device lists that were sent to the kubelet.",
    ("resource_name",),
    modes="device-plugin",
)
LIST_BYTES = Series(
    "kdp_list_bytes",
    "gauge",
    "Size of the device list that was sent last; a kubelet takes 4 MiB.",
    ("resource_name",),
    "max",
    "device-plugin",
)
LIST_SENT = Series(
    "kdp_list_last_sent_timestamp_seconds",
    "gauge",
    "When a device list was sent last.",
    ("resource_name",),
    "max",
    "device-plugin",
)
DISAGREES = Series(
    "kdp_kubelet_disagrees",
    "gauge",
    "1 if the kubelet's healthy devices are not those that kdp sent. kdp asks the kubelet every 30 s.",
    ("resource_name",),
    "max",
    "device-plugin",
)
CONTESTED = Series(
    "kdp_contested",
    "gauge",
    "1 if another process serves the resource as well, as its socket or its devices in the kubelet show.",
    ("resource_name",),
    "max",
    "device-plugin",
)
FOREIGN = Series(
    "kdp_foreign_devices",
    "gauge",
    "Devices of the resource that the kubelet has of another plugin. It is asked every 30 s.",
    ("resource_name",),
    modes="device-plugin",
)
OPERATIONS = Series(
    "kdp_operations_total",
    "counter",
    "Calls of the kubelet.",
    ("operation", "resource_name", "result"),
    modes="kubelet",
)
OPERATION_SECONDS = Series(
    "kdp_operation_duration_seconds",
    "histogram",
    "Time until a call was answered.",
    ("operation", "resource_name"),
    modes="kubelet",
)
HOOK_SECONDS = Series(
    "kdp_hook_duration_seconds", "histogram", "Time that a hook took, or until its deadline.", ("backend", "hook")
)
HOOK_FAILURES = Series("kdp_hook_failures_total", "counter", "Hooks that failed.", ("backend", "hook", "reason"))
HOOKS_HANGING = Series("kdp_hooks_hanging", "gauge", "Hooks that run on after their deadline.")
DISCOVERY_AGE = Series(
    "kdp_discovery_age_seconds", "gauge", "Time since a discovery succeeded last.", ("backend",), "max"
)
DISCOVERY_INTERVAL = Series(
    "kdp_discovery_interval_seconds",
    "gauge",
    "Time between discoveries; missing if the backend is not polled or the node has no such hardware.",
    ("backend",),
    "max",
)
ALLOCATED = Series(
    "kdp_allocated_devices",
    "gauge",
    "Devices that pods hold. The kubelet is asked every 30 s.",
    ("resource_name",),
    modes="device-plugin",
)
GIVEN_TWICE = Series(
    "kdp_devices_given_twice",
    "gauge",
    "Devices that the kubelet has given to two pods (kubernetes/kubernetes#137534).",
    ("resource_name",),
    modes="device-plugin",
)
RELEASE_PENDING = Series(
    "kdp_release_pending",
    "gauge",
    "Allocations that pods gave back and whose released() has not succeeded yet.",
    ("resource_name",),
    modes="device-plugin",
)
EVENTS = Series(
    "kdp_events_total",
    "counter",
    "Changes that kdp reports as Kubernetes Events, by result. Only with --events on.",
    ("result",),
    modes="device-plugin",
)
EVICTIONS = Series(
    "kdp_evictions_total",
    "counter",
    "Requests to evict a pod that holds a failed device. Only with --on-unhealthy evict.",
    ("result",),
    modes="device-plugin",
)
CLAIMS_PREPARED = Series(
    "kdp_claims_prepared",
    "gauge",
    "Claims that are prepared on this node, or being prepared.",
    ("resource_name",),
    modes="driver",
)
PUBLISHED = Series(
    "kdp_published_devices",
    "gauge",
    "Devices in the slices that were published last.",
    ("resource_name",),
    modes="dra",
)
SLICES = Series("kdp_resource_slices", "gauge", "ResourceSlices that are published.", ("resource_name",), modes="dra")
PUBLICATION_AGE = Series(
    "kdp_publication_age_seconds",
    "gauge",
    "Time for which the API server's slices have differed from the wanted ones; 0 while they are equal.",
    ("resource_name",),
    "max",
    "dra",
)
API_REQUESTS = Series(
    "rest_client_requests_total",
    "counter",
    "Requests to the API server, as Kubernetes' own clients count theirs.",
    ("code", "host", "method"),
    modes="dra",
)
ALLOCATION = Series(
    "kdp_device_allocation",
    "gauge",
    "1 for each device that a pod holds. Only with --metrics pods.",
    ("resource_name", "device", "namespace", "pod", "container"),
    "max",
    "pods",
)

SERIES: Final[tuple[Series, ...]] = tuple(each for each in globals().values() if isinstance(each, Series))
"""All of them, in the order in which they are exported."""
