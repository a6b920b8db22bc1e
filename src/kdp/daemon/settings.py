"""Every setting of the process, in one place: type, default, rule, help, and the modes that it applies to.

The keyword arguments of `kdp.run`, the variables ``KDP_*``, the flags of the command, the keys of its configuration
file, and the tables of the documentation all follow from the fields of `Settings`, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Literal, TypedDict, final

import attrs

from ..kubelet.paths import DEFAULT_ROOT, DEVICE_PLUGIN_DIR, KubeletPaths
from ..model.names import MAX_REPLICAS
from ..startup import shown
from . import parsers
from .parsers import Address
from .setting import CONTROLLER, DRA, NODE_DRIVER, ON_NODE, PLUGIN, Mode, Need, Setting, setting, settings_of

if TYPE_CHECKING:
    import os

    from ..allocation import Sharing
    from ..model.claims import TaintEffect  # noqa: TC004 - attrs reads no annotation
    from ..model.health_policy import HealthPolicy

DEFAULT_LABELS_DIR = Path("/etc/kubernetes/node-feature-discovery/features.d")
"""Where Node Feature Discovery's local source reads files."""

DEFAULT_STATE_DIR = Path("/var/lib/kdp")
"""Where allocations are saved; a DaemonSet mounts it from the node."""

Registration = Literal["kubelet", "watcher"]
Cdi = Literal["off", "beside", "only"]
CdiNames = Literal["field", "annotation", "both"]
HttpDetails = Literal["local", "all"]
Labels = Literal["off", "nfd"]
Metrics = Literal["off", "on", "pods"]
OnUnhealthy = Literal["log", "evict"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Policy = Literal["first", "packed", "spread", "numa", "linked", "none"]
ReleasePolicy = Literal["notify", "scrub"]
ReplicaPlacement = Literal["spread", "packed", "distinct"]
ReplicaResource = Literal["same", "shared"]
Switch = Literal["off", "on"]
WhenNoDevices = Literal["ready", "not-ready"]

_CDI = Need(
    lambda settings: settings.cdi != "off" or settings.mode == "dra",
    "CDI is off",
    "switch it on with --cdi beside",
)
_HTTP = Need(lambda settings: settings.http is not None, "no probe is answered over TCP", "give --http :8080")
_ANSWERED = Need(
    lambda settings: settings.http is not None or settings.has_socket,
    "neither --http nor --socket is given, so nothing can answer",
    "give one, as --http :8080",
)
_LABELS = Need(lambda settings: settings.labels != "off", "nodes are not labelled", "say --labels nfd")
_EVICTION = Need(lambda settings: settings.on_unhealthy == "evict", "no pod is evicted", "say --on-unhealthy evict")
_CLUSTER = Need(
    lambda settings: settings.mode != "device-plugin" or settings.asks_cluster,
    "nothing asks the API server",
    "say --events on, or --mode dra",
)
_REPLICAS = Need(
    lambda settings: settings.replicas is not None or bool(settings.replicas_for),
    "nothing is shared",
    "say how many replicas, as --replicas 4",
)


@final
@attrs.frozen(kw_only=True)
class Settings:
    """All settings of a process, checked; each explains itself in its help. Make one with `resolve`."""

    __repr__ = shown

    kubelet_root: Path = setting(
        DEFAULT_ROOT, parsers.path, "The kubelet's --root-dir, as this process sees it.", "DIR"
    )
    device_plugin_dir: Path = setting(
        DEVICE_PLUGIN_DIR, parsers.path, "Where kubelet.sock is; the kubelet's --root-dir does not move it.", "DIR"
    )
    plugins_registry_dir: Path | None = setting(
        None, parsers.path, "The plugin watcher's directory; default: plugins_registry below --kubelet-root.", "DIR"
    )
    pod_resources_dir: Path | None = setting(
        None,
        parsers.path,
        "Where the pod-resources API is; default: pod-resources below --kubelet-root.",
        "DIR",
    )
    pods_api_dir: Path | None = setting(
        None, parsers.path, "Where the pods API is; default: pods-api below --kubelet-root.", "DIR"
    )
    registration: Registration = setting(
        "kubelet",
        parsers.OneOf(Registration),
        "Call the kubelet at kubelet.sock, or be found by its plugin watcher.",
        modes=PLUGIN,
    )
    poll_interval: float | EllipsisType | None = setting(
        ...,
        parsers.poll_interval,
        "Between two discoveries; 'none': never; default: what each backend says.",
        "SECONDS",
        takes_none=True,
    )
    health_policy: Mapping[str, float | None] | None = setting(
        None,
        parsers.health_policy,
        "Thresholds of health over each backend's own, as 'failures=2,hold_down=30'.",
        "NAME=NUMBER,...",
    )
    host_root: Path = setting(
        Path("/"),
        parsers.path,
        "Where the node's root directory is mounted, for backends that read /sys and /dev.",
        "DIR",
        of_place=True,
    )
    snapshot: Path | None = setting(
        None,
        parsers.path,
        "Work on another node's files, as kdp snapshot wrote them, instead of on this node's.",
        "FILE",
        of_place=True,
    )
    cdi: Cdi = setting(
        "off",
        parsers.OneOf(Cdi),
        "Describe devices by CDI: beside device nodes, or alone where the runtime is known to do CDI.",
        modes=PLUGIN,
    )
    cdi_dir: Path = setting(Path("/var/run/cdi"), parsers.path, "Where the runtime finds CDI files.", "DIR", need=_CDI)
    cdi_names: CdiNames = setting(
        "field",
        parsers.OneOf(CdiNames),
        "Where Allocate's reply has CDI names: CRI's field, an annotation for older runtimes, or both.",
        modes=PLUGIN,
        need=_CDI,
    )
    state_dir: Path | None = setting(
        DEFAULT_STATE_DIR,
        parsers.path_or_none,
        "Save allocations here until they are released; 'none': nowhere, a killed process forgets them.",
        "DIR",
        takes_none=True,
    )
    http: Address | None = setting(
        None,
        parsers.address,
        "Answer /livez and /readyz here, as ':8080', or ':0' for any free port; default: nowhere.",
        "ADDRESS",
    )
    http_details: HttpDetails = setting(
        "local",
        parsers.OneOf(HttpDetails),
        "Who gets the reasons and paths of /readyz: clients on this machine's loopback and on the socket, or all.",
        need=_HTTP,
    )
    socket: Path | EllipsisType | None = setting(
        ...,
        parsers.path_or_none,
        "Answer the commands of this node on this unix socket; 'none': nowhere; default: in the state directory.",
        "PATH",
        takes_none=True,
        of_place=True,
    )
    when_no_devices: WhenNoDevices = setting(
        "ready",
        parsers.OneOf(WhenNoDevices),
        "What /readyz says on a node without hardware. A driver that is missing is not ready in any case.",
    )
    metrics: Metrics = setting(
        "off",
        parsers.OneOf(Metrics),
        "Answer /metrics for Prometheus where the probes are answered; pods: also which pod holds which device.",
        need=_ANSWERED,
    )
    events: Switch = setting(
        "off",
        parsers.OneOf(Switch),
        "Tell Kubernetes by Events on the node, and on pods that hold a failed device. Needs the extra 'kube'.",
        modes=PLUGIN,
    )
    on_unhealthy: OnUnhealthy = setting(
        "log",
        parsers.OneOf(OnUnhealthy),
        "What to do about pods that hold a failed device: name them in the log, or evict them.",
        modes=PLUGIN,
    )
    evict_after: float = setting(
        300.0,
        parsers.duration,
        "With --on-unhealthy evict: for how long a device must have failed, as 90, '90s', '5m' or '1h'.",
        "DURATION",
        modes=PLUGIN,
        need=_EVICTION,
    )
    evict_limit: int = setting(
        3,
        parsers.Number(1, 1000, 3),
        "With --on-unhealthy evict: the most pods of this node that are evicted in an hour.",
        "NUMBER",
        modes=PLUGIN,
        need=_EVICTION,
    )
    evict_dry_run: Switch = setting(
        "off",
        parsers.OneOf(Switch),
        "With --on-unhealthy evict: have the API server try each eviction, and end no pod.",
        modes=PLUGIN,
        need=_EVICTION,
    )
    startup_taint: str | None = setting(
        None,
        parsers.taint_key,
        "Remove this taint from the node when all resources are registered; default: none.",
        "KEY",
        modes=PLUGIN,
    )
    labels: Labels = setting(
        "off",
        parsers.OneOf(Labels),
        "Label the node by its devices: nfd: through a file for Node Feature Discovery.",
        modes=ON_NODE,
    )
    labels_dir: Path = setting(
        DEFAULT_LABELS_DIR,
        parsers.path,
        "Where Node Feature Discovery finds files with labels.",
        "DIR",
        modes=ON_NODE,
        need=_LABELS,
    )
    log_format: LogFormat = setting(
        "text", parsers.OneOf(LogFormat), "Lines for people, or one JSON object a line.", of_process=True
    )
    log_level: LogLevel = setting("info", parsers.OneOf(LogLevel), "The least that is logged.", of_process=True)
    policy: Policy | None = setting(
        None,
        parsers.OneOf(Policy),
        "Which devices to prefer: first, packed, spread, numa or linked; 'none': the kubelet chooses; default: "
        "what each backend says.",
        "NAME",
        modes=PLUGIN,
    )
    release_policy: ReleasePolicy | None = setting(
        None,
        parsers.OneOf(ReleasePolicy),
        "Offer a device that a pod gave back at once, or only when it is scrubbed; default: what each backend says.",
    )
    replicas: int | None = setting(
        None,
        parsers.Number(1, MAX_REPLICAS, 4),
        "Share each device: advertise it this many times. It isolates nothing.",
        "NUMBER",
        modes=PLUGIN,
    )
    replicas_for: tuple[tuple[str, int], ...] = setting(
        (),
        parsers.replicas_for,
        "Share some devices otherwise: by a pattern of ids, or unit=, resource= or ATTRIBUTE=PATTERN; the first "
        "that fits counts.",
        "SELECTOR=NUMBER,...",
        modes=PLUGIN,
    )
    replica_placement: ReplicaPlacement = setting(
        "spread",
        parsers.OneOf(ReplicaPlacement),
        "Prefer replicas of the least used devices, of as few as possible, or of different ones that the policy "
        "chooses.",
        need=_REPLICAS,
    )
    replica_limit: int | None = setting(
        None,
        parsers.Number(1, None, 1),
        "The most replicas a container may ask for; default: any number.",
        "NUMBER",
        need=_REPLICAS,
    )
    replica_resource: ReplicaResource = setting(
        "same",
        parsers.OneOf(ReplicaResource),
        "The name of shared devices' resource; 'shared' appends '.shared'.",
        need=_REPLICAS,
    )
    mode: Mode = setting(
        "device-plugin",
        parsers.OneOf(Mode),
        "How the devices are served: by a device plugin, or by a DRA driver; dra-controller: publish a pool of "
        "devices that are no node's.",
    )
    node_name: str | None = setting(
        None,
        parsers.text,
        "The node's name, as the API server has it: for DRA, and for what is done in the cluster.",
        "NAME",
        of_place=True,
    )
    driver_name: str | None = setting(
        None,
        parsers.driver_name,
        "Name of the DRA driver; a plugin's pod sees the claims of that driver. Default: for example.com/widget, "
        "widget.example.com.",
        "NAME",
    )
    pool: str | None = setting(
        None,
        parsers.pool,
        "DRA: the pool of devices that are no node's own, which a controller publishes; default: they are the node's.",
        "NAME",
        modes=DRA,
    )
    pool_nodes: tuple[tuple[str, str], ...] = setting(
        (),
        parsers.labels,
        "DRA, of a controller: the labels of the nodes that can use the pool's devices; default: all nodes can.",
        "LABEL=VALUE,...|all",
        modes=CONTROLLER,
    )
    pod_uid: str | None = setting(
        None,
        parsers.text,
        "DRA: the UID of the pod that this is, so that it can overlap with its successor.",
        "UID",
        of_place=True,
    )
    kubeconfig: Path | None = setting(
        None,
        parsers.path,
        "How to reach the API server; default: with the pod's account.",
        "FILE",
        of_place=True,
        need=_CLUSTER,
    )
    health_taint: TaintEffect | None = setting(
        "NoSchedule",
        parsers.taint,
        "DRA: the effect of the taint of an unhealthy device; None only informs; off: there is no taint.",
        "NoSchedule|NoExecute|None|off",
        modes=DRA,
    )
    replaces: str | None = setting(
        None,
        parsers.resource,
        "DRA: another plugin's resource for the same devices; while a pod holds some of it, no claim gets a device.",
        "RESOURCE",
        modes=NODE_DRIVER,
    )
    device_status: Switch = setting(
        "off",
        parsers.OneOf(Switch),
        "DRA: whether claims say in status.devices that their devices are ready; it needs more permissions.",
        modes=NODE_DRIVER,
    )
    device_metadata: Switch = setting(
        "off",
        parsers.OneOf(Switch),
        "DRA: whether containers get a file that describes their devices.",
        modes=NODE_DRIVER,
    )

    @property
    def has_socket(self) -> bool:
        """Whether the commands of this node are answered on a unix socket."""
        return self.socket is not None and (self.socket is not ... or self.state_dir is not None)

    @property
    def asks_cluster(self) -> bool:
        """Whether a device plugin asks the API server; a DRA driver does so in any case."""
        return self.events == "on" or self.on_unhealthy == "evict" or self.startup_taint is not None

    @property
    def asks_holders(self) -> bool:
        """Whether somebody wants to know which pods hold devices."""
        return self.metrics != "off" or self.events == "on" or self.on_unhealthy == "evict"

    @property
    def sharing(self) -> Sharing | None:
        """How devices are shared; None: they are not."""
        if self.replicas is None and not self.replicas_for:
            return None
        from ..allocation import Override, Sharing

        return Sharing(
            replicas=self.replicas,
            overrides=(Override(selector, number) for selector, number in self.replicas_for),
            placement=self.replica_placement,
            limit=self.replica_limit,
            rename=self.replica_resource == "shared",
        )

    @property
    def directories(self) -> Mapping[str, str | None]:
        """The directories that the process uses, as its status tells them; None: it uses none for that."""
        is_watched = self.mode == "dra" or (self.mode == "device-plugin" and self.registration == "watcher")
        writes_cdi = self.cdi != "off" if self.mode == "device-plugin" else self.mode == "dra"
        return {
            "device_plugins": str(self.paths.device_plugin_dir),
            "plugins_registry": str(self.paths.plugins_registry_dir) if is_watched else None,
            "state": None if self.state_dir is None else str(self.state_dir),
            "cdi": str(self.cdi_dir) if writes_cdi else None,
        }

    @property
    def changed(self) -> Mapping[str, str]:
        """The settings that differ from their defaults, by key, as the process's status tells them."""
        values = {each.key: (getattr(self, name), each.default) for name, each in SETTINGS.items()}
        return {key: "none" if value is None else str(value) for key, (value, at) in values.items() if value != at}

    @property
    def paths(self) -> KubeletPaths:
        """The kubelet's directories."""
        return KubeletPaths.under(
            self.kubelet_root,
            device_plugin_dir=self.device_plugin_dir,
            plugins_registry_dir=self.plugins_registry_dir,
            pod_resources_dir=self.pod_resources_dir,
            pods_api_dir=self.pods_api_dir,
        )


SETTINGS: Mapping[str, Setting] = settings_of(Settings)
"""Every setting by its name, in the order of ``--help``."""


class ServeOptions(TypedDict, total=False):
    """The keyword arguments of `kdp.serve`; what each means is in `Settings`."""

    kubelet_root: str | os.PathLike[str]
    device_plugin_dir: str | os.PathLike[str]
    plugins_registry_dir: str | os.PathLike[str]
    pod_resources_dir: str | os.PathLike[str]
    pods_api_dir: str | os.PathLike[str]
    registration: Registration
    poll_interval: float | None
    health_policy: str | Mapping[str, float | None] | HealthPolicy
    host_root: str | os.PathLike[str]
    snapshot: str | os.PathLike[str]
    cdi: Cdi
    cdi_dir: str | os.PathLike[str]
    cdi_names: CdiNames
    state_dir: str | os.PathLike[str] | None
    http: str | None
    http_details: HttpDetails
    socket: str | os.PathLike[str] | None
    when_no_devices: WhenNoDevices
    metrics: Metrics
    events: Switch
    on_unhealthy: OnUnhealthy
    evict_after: float | str
    evict_limit: int
    evict_dry_run: Switch
    startup_taint: str
    labels: Labels
    labels_dir: str | os.PathLike[str]
    policy: Policy
    release_policy: ReleasePolicy
    replicas: int
    replicas_for: str | Mapping[str, int]
    replica_placement: ReplicaPlacement
    replica_limit: int
    replica_resource: ReplicaResource
    mode: Mode
    node_name: str
    driver_name: str
    pool: str
    pool_nodes: str | Mapping[str, str]
    pod_uid: str
    kubeconfig: str | os.PathLike[str]
    health_taint: Literal["NoSchedule", "NoExecute", "None", "off"]
    replaces: str
    device_status: Switch
    device_metadata: Switch


class RunOptions(ServeOptions, total=False):
    """The keyword arguments of `kdp.run`: those of `kdp.serve`, and the logs."""

    log_format: LogFormat
    log_level: LogLevel
