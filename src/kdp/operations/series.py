"""Every series that kdp exports, in one place: name, type, help, and labels.

`docs/reference/metrics.md` is written from here. To add a series, add a `Series` here and one line where it is read
(`reading`, `plugins`, or `drivers`). Each label's values are bounded and stand in `LABELS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, final

import attrs

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
        labels: The names of its labels.
        joins: What those have together that have the same labels, as all names beyond the limit.
        modes: In which modes it is there; ``pods``: with that choice of ``--metrics``, ``file``: with a configuration
            file.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    joins: Literal["sum", "max", "min"] = "sum"
    modes: Literal["all", "device-plugin", "dra", "pods", "file"] = "all"


LABELS: Final[Mapping[str, str]] = {
    "resource": "The extended resource; in the DRA modes the driver. The first 64 names; `other` for further ones.",
    "health": "`healthy`, `unhealthy`: as the kubelet or the scheduler sees the device. `withheld`: unhealthy for the "
    "kubelet, because it is being scrubbed or its share is in use.",
    "kind": "What the backend calls the fault, the first 32 kinds; `other` for further ones. kdp's own: `discover`, "
    "`device_node`, `silence`, `quarantine`, `further`, `vanished`. `none`: the device has no fault.",
    "to": "`healthy`, `suspect`, `unhealthy`, `recovering`, `quarantined`.",
    "result": "Of a registration: `accepted`, `refused`, `failed`, `no_stream`; the last one may follow `accepted`. Of "
    "a change that kdp reports as an Event: `created`; `repeated`, if an Event with the same words counts one more; "
    "`suppressed`, if another Event includes it or it has ended; `refused`; `unanswered`, to be tried again. Of an "
    "eviction: `accepted`; `dry_run`, if it would be; `blocked` by a PodDisruptionBudget or the load; `failed`; "
    "`gone`, if the pod is; `unknown`.",
    "method": "`GetDevicePluginOptions`, `GetPreferredAllocation`, `Allocate`, `PreStartContainer`; in the DRA modes "
    "`NodePrepareResources`, `NodeUnprepareResources`.",
    "code": "Of a call, the gRPC status code, as `OK`; `CLAIM_FAILED` if a claim of it failed. Of a request to the API "
    "server, the HTTP status of the error, `ok`, `odd`, or `unanswered`.",
    "backend": "The backend's class. The first 16 names; `other` for further ones.",
    "hook": "The hook's method, as `discover`.",
    "reason": "`error`, `deadline`, `not_ready`, `refused`.",
    "cause": "`backend`, `list_too_large`, `kubelet`, `registration`, `obstacle`, `publication`.",
    "directory": "`plugins`: where the kubelet finds the plugin's socket. `cdi`, `state`: as the settings name them. "
    "`claims`: the driver's own below the kubelet's.",
    "hash": "The first 12 hexadecimal digits of the SHA-256 of the file's text, as `sha256sum` prints it.",
    "verb": "`get`, `list`, `watch`, `create`, `update`, `delete`.",
    "object": "The kind of object in the API server, as `resourceslices`.",
    "device": "The device's id; at most 1,024 devices.",
    "namespace": "The pod's namespace.",
    "pod": "The pod's name.",
    "container": "The container's name.",
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
)
DEVICES = Series("kdp_devices", "gauge", "Devices that are listed or published.", ("resource", "health"))
FAULTS = Series("kdp_device_faults", "gauge", "Unhealthy devices that have this kind of fault.", ("resource", "kind"))
TRANSITIONS = Series(
    "kdp_device_transitions_total", "counter", "Changes of devices' states.", ("resource", "to", "kind")
)
REGISTERED = Series(
    "kdp_registered", "gauge", "1 if the kubelet holds a stream, or has registered the driver.", ("resource",)
)
NOT_READY = Series(
    "kdp_not_ready", "gauge", "1 for each cause why the resource is not ready.", ("resource", "cause"), "max"
)
REGISTRATIONS = Series(
    "kdp_registrations_total",
    "counter",
    "Registrations with the kubelet.",
    ("resource", "result"),
    modes="device-plugin",
)
REGISTRATION_SECONDS = Series(
    "kdp_registration_duration_seconds",
    "histogram",
    "Time from Register to the stream that proves it.",
    modes="device-plugin",
)
KUBELET_RESTARTS = Series(
    "kdp_kubelet_restarts_total",
    "counter",
    "Restarts of the kubelet, seen at kubelet.sock.",
    modes="device-plugin",
)
LIST_UPDATES = Series(
    "kdp_list_updates_total",
    "counter",
    "Device lists that were sent to the kubelet.",
    ("resource",),
    modes="device-plugin",
)
LIST_BYTES = Series(
    "kdp_list_bytes",
    "gauge",
    "Size of the device list that was sent last; a kubelet takes 4 MiB.",
    ("resource",),
    "max",
    "device-plugin",
)
LIST_SENT = Series(
    "kdp_list_last_sent_timestamp_seconds",
    "gauge",
    "When a device list was sent last.",
    ("resource",),
    "max",
    "device-plugin",
)
DISAGREES = Series(
    "kdp_kubelet_disagrees",
    "gauge",
    "1 if the kubelet's healthy devices are not those that kdp sent. kdp asks the kubelet each minute.",
    ("resource",),
    "max",
    "device-plugin",
)
FOREIGN = Series(
    "kdp_foreign_devices",
    "gauge",
    "Devices of the resource that the kubelet has of another plugin. It is asked each minute.",
    ("resource",),
    modes="device-plugin",
)
CALLS = Series("kdp_calls_total", "counter", "Calls of the kubelet.", ("method", "resource", "code"))
CALL_SECONDS = Series(
    "kdp_call_duration_seconds", "histogram", "Time until a call was answered.", ("method", "resource")
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
    "Devices that pods hold. The kubelet is asked each minute.",
    ("resource",),
    modes="device-plugin",
)
RELEASE_PENDING = Series(
    "kdp_release_pending",
    "gauge",
    "Allocations that pods gave back and whose released() has not succeeded yet.",
    ("resource",),
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
PREPARED_CLAIMS = Series(
    "kdp_prepared_claims",
    "gauge",
    "Claims that are prepared on this node, or being prepared.",
    ("resource",),
    modes="dra",
)
SLICES = Series("kdp_resource_slices", "gauge", "ResourceSlices that are published.", ("resource",), modes="dra")
PUBLICATION_AGE = Series(
    "kdp_publication_age_seconds",
    "gauge",
    "Time for which the API server's slices have differed from the wanted ones; 0 while they are equal.",
    ("resource",),
    "max",
    "dra",
)
API_REQUESTS = Series(
    "kdp_api_requests_total",
    "counter",
    "Requests to the API server; writes of slices are those with object resourceslices.",
    ("verb", "object", "code"),
    modes="dra",
)
ALLOCATION = Series(
    "kdp_device_allocation",
    "gauge",
    "1 for each device that a pod holds. Only with --metrics pods.",
    ("resource", "device", "namespace", "pod", "container"),
    "max",
    "pods",
)

SERIES: Final[tuple[Series, ...]] = tuple(each for each in globals().values() if isinstance(each, Series))
"""All of them, in the order in which they are exported."""
