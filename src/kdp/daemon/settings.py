"""Every setting of the process, once: type, default, rule, help, and the modes that it applies to.

The keyword arguments of `kdp.run`, the variables ``KDP_*``, the flags of the command, the keys of its configuration
file, and the tables of the documentation all follow from the fields of `Settings`, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Literal, TypedDict, final

import attrs

from ..kubelet.paths import DEFAULT_ROOT, KubeletPaths
from ..model.names import MAX_REPLICAS
from . import parsers
from .parsers import Address
from .setting import CONTROLLER, DRA, NODE_DRIVER, PLUGIN, Mode, Setting, setting, settings_of

if TYPE_CHECKING:
    import os

    from ..allocation import Sharing
    from ..model.claims import TaintEffect  # noqa: TC004 - attrs reads no annotation
    from ..model.health_policy import HealthPolicy

DEFAULT_STATE_DIR = Path("/var/lib/kdp")
"""Where allocations are saved; a DaemonSet mounts it from the node."""

Registration = Literal["kubelet", "watcher"]
Cdi = Literal["off", "beside", "only"]
CdiNames = Literal["field", "annotation", "both"]
HttpDetails = Literal["local", "all"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Policy = Literal["first", "packed", "spread", "numa", "linked", "none"]
ReplicaPlacement = Literal["spread", "packed", "distinct"]
ReplicaResource = Literal["same", "shared"]
Switch = Literal["off", "on"]


@final
@attrs.frozen(kw_only=True)
class Settings:
    """All settings of a process, checked; each explains itself in its help. Make one with `resolve`."""

    kubelet_root: Path = setting(DEFAULT_ROOT, parsers.path, "The kubelet's directory, as this process sees it.", "DIR")
    device_plugin_dir: Path | None = setting(
        None, parsers.path, "Where kubelet.sock is; default: device-plugins below the kubelet's directory.", "DIR"
    )
    plugins_registry_dir: Path | None = setting(
        None, parsers.path, "The plugin watcher's directory; default: plugins_registry below the kubelet's.", "DIR"
    )
    pod_resources_dir: Path | None = setting(
        None,
        parsers.path,
        "Where the pod-resources API is; default: pod-resources below the kubelet's directory.",
        "DIR",
    )
    pods_api_dir: Path | None = setting(
        None, parsers.path, "Where the pods API is; default: pods-api below the kubelet's directory.", "DIR"
    )
    registration: Registration = setting(
        "kubelet",
        parsers.Choice(Registration),
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
        parsers.Choice(Cdi),
        "Describe devices by CDI: beside device nodes, or alone where the runtime is known to do CDI.",
        modes=PLUGIN,
    )
    cdi_dir: Path = setting(Path("/var/run/cdi"), parsers.path, "Where the runtime finds CDI files.", "DIR")
    cdi_names: CdiNames = setting(
        "field",
        parsers.Choice(CdiNames),
        "Where Allocate's reply has CDI names: CRI's field, an annotation for older runtimes, or both.",
        modes=PLUGIN,
    )
    state_dir: Path | None = setting(
        DEFAULT_STATE_DIR,
        parsers.path_or_none,
        "Save allocations here until they are released; 'none': nowhere, a killed process forgets them.",
        "DIR",
        takes_none=True,
    )
    http: Address | None = setting(
        None, parsers.address, "Answer /livez and /readyz here, as ':8080'; default: nowhere.", "ADDRESS"
    )
    http_details: HttpDetails = setting(
        "local",
        parsers.Choice(HttpDetails),
        "Who gets the reasons and paths of /readyz: clients on this machine's loopback and on the socket, or all.",
    )
    socket: Path | EllipsisType | None = setting(
        ...,
        parsers.path_or_none,
        "Answer the commands of this node on this unix socket; 'none': nowhere; default: in the state directory.",
        "PATH",
        takes_none=True,
        of_place=True,
    )
    log_format: LogFormat = setting(
        "text", parsers.Choice(LogFormat), "Lines for people, or one JSON object a line.", of_process=True
    )
    log_level: LogLevel = setting("info", parsers.Choice(LogLevel), "The least that is logged.", of_process=True)
    policy: Policy | None = setting(
        None,
        parsers.Choice(Policy),
        "Which devices to prefer: first, packed, spread, numa or linked; 'none': the kubelet chooses; default: "
        "what each backend says.",
        "NAME",
        modes=PLUGIN,
    )
    replicas: int | None = setting(
        None,
        parsers.number(1, MAX_REPLICAS, 4),
        "Share each device: advertise it so many times. It isolates nothing.",
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
        parsers.Choice(ReplicaPlacement),
        "Prefer replicas of the least used devices, of as few as possible, or of different ones that the policy "
        "chooses.",
    )
    replica_limit: int | None = setting(
        None, parsers.number(1, None, 1), "The most replicas a container may ask for; default: any number.", "NUMBER"
    )
    replica_resource: ReplicaResource = setting(
        "same", parsers.Choice(ReplicaResource), "The name of shared devices' resource; 'shared' appends '.shared'."
    )
    mode: Mode = setting(
        "device-plugin",
        parsers.Choice(Mode),
        "How the devices are served: by a device plugin, or by a DRA driver; dra-controller: publish a pool of "
        "devices that are no node's.",
    )
    node_name: str | None = setting(
        None, parsers.text, "DRA: the node's name, as the API server has it.", "NAME", of_place=True
    )
    driver_name: str | None = setting(
        None,
        parsers.driver_name,
        "DRA: the driver's name; default: of example.com/widget it is widget.example.com.",
        "NAME",
        modes=DRA,
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
        "DRA: how to reach the API server; default: with the pod's account.",
        "FILE",
        modes=DRA,
        of_place=True,
    )
    health_taint: TaintEffect | None = setting(
        "NoSchedule",
        parsers.taint,
        "DRA: the effect of the taint of an unhealthy device; None only informs; off: there is no taint.",
        "NoSchedule|NoExecute|None|off",
        modes=DRA,
    )
    device_status: Switch = setting(
        "off",
        parsers.Choice(Switch),
        "DRA: whether claims say in status.devices that their devices are ready; it needs more permissions.",
        modes=NODE_DRIVER,
    )
    device_metadata: Switch = setting(
        "off",
        parsers.Choice(Switch),
        "DRA: whether containers get a file that describes their devices.",
        modes=NODE_DRIVER,
    )

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
    policy: Policy
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
    device_status: Switch
    device_metadata: Switch


class RunOptions(ServeOptions, total=False):
    """The keyword arguments of `kdp.run`: those of `kdp.serve`, and the logs."""

    log_format: LogFormat
    log_level: LogLevel
