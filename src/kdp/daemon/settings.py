"""Every setting of the process, once: name, rule, example, and the order of its sources.

`SETTINGS` is the table from which the keyword arguments of `kdp.run`, the variables ``KDP_*``, the flags of the
command and the keys of its configuration file all follow, so that they cannot disagree. Precedence: keyword or flag,
then environment, then file, then default. An empty environment variable counts as not set, because templates
(Helm, envsubst) leave such ones behind.

Rule: a wrong value is refused with the name under which it was given (``KDP_POLL_INTERVAL``, ``--poll-interval``), the
value, the rule and a valid example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, final

import attrs

from ..errors import ConfigurationError
from ..kubelet.paths import DEFAULT_ROOT, KubeletPaths
from ..model.names import MAX_REPLICAS
from . import parsers
from .parsers import Address

if TYPE_CHECKING:
    import os

    from ..allocation import Sharing
    from ..model.claims import TaintEffect  # noqa: TC004 - attrs reads no annotation
    from ..model.health_policy import HealthPolicy

__all__ = [
    "SETTINGS",
    "Address",
    "Given",
    "RunOptions",
    "ServeOptions",
    "Setting",
    "Settings",
    "from_environment",
    "from_keywords",
    "resolve",
]


DEFAULT_STATE_DIR = Path("/var/lib/kdp")
"""Where allocations are saved; a DaemonSet mounts it from the node."""


@final
@attrs.frozen
class Given:
    """A value for a setting, and what its giver calls it.

    Attributes:
        label: The name for messages: ``--http``, ``KDP_HTTP``, ``http in /etc/kdp.yaml``.
        value: What was given: text, or a value of the right type.
    """

    label: str
    value: object


def _about(parse: Callable[[object], object], metavar: str, text: str) -> dict[str, object]:
    return {"parse": parse, "metavar": metavar, "help": text}


@final
@attrs.frozen(kw_only=True)
class Settings:
    """All settings of a process, checked. Make one with `resolve`.

    Attributes:
        kubelet_root: The kubelet's directory, as this process sees it.
        device_plugin_dir: Where ``kubelet.sock`` is; None: below the root, as the next three.
        plugins_registry_dir: The plugin watcher's directory.
        pod_resources_dir: The pod-resources API's directory.
        pods_api_dir: The pods API's directory.
        registration: Whether we call the kubelet (``kubelet``) or are found by it (``watcher``).
        poll_interval: Seconds between two discoveries; None: never; ``keep``: as each backend says.
        health_policy: Thresholds of health that differ from those of each backend, by name; None: none does.
        host_root: Where the node's root directory is.
        snapshot: A snapshot of another node, which takes the place of this node's files; None: there is none.
        cdi: ``off``, ``beside`` (CDI names, and everything else as without), ``only`` (the runtime is known to do CDI).
        cdi_dir: Where the runtime finds CDI files.
        cdi_names: Where the names are in Allocate's reply: in CRI's ``field``, in an ``annotation``, or ``both``.
        state_dir: Where allocations are saved until they are released; None: nowhere.
        http: Where ``/livez`` and ``/readyz`` answer; None: nowhere.
        log_format: ``text`` or ``json``.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        policy: Which devices to prefer; None: as each backend says.
        replicas: How often each device is advertised; None: it is not shared.
        replicas_for: Other numbers for the devices that a selector fits, the first that fits first.
        replica_placement: Which replicas to prefer.
        replica_limit: The most replicas that a container may ask for; None: any number.
        replica_resource: Whether shared devices' resource keeps its name (``same``) or gets ``.shared``.
        mode: Whether devices are served by the device-plugin protocol (``device-plugin``) or by DRA (``dra``), or a pool of devices
            that are no node's is published (``dra-controller``).
        node_name: DRA: the node's name, as the API server has it.
        driver_name: DRA: the driver's name; None: it is made of the backend's resource.
        pool: DRA: the pool of devices that are no node's own; None: they are the node's.
        pool_nodes: DRA, of a controller: the labels of the nodes that can use the pool's devices; none: all nodes can.
        pod_uid: DRA: the UID of the pod that this is, so that it can overlap with its successor; None: it does not.
        kubeconfig: DRA: how to reach the API server; None: with the pod's account.
        health_taint: DRA: the effect of the taint of an unhealthy device; None: it gets none.
        device_status: DRA: whether claims say in ``status.devices`` that their devices are ready; it needs more permissions.
        device_metadata: DRA: whether containers get a file that describes their devices (`kdp.dra.claims.metadata`).
    """

    kubelet_root: Path = attrs.field(
        default=DEFAULT_ROOT, metadata=_about(parsers.path, "DIR", "The kubelet's directory, as this process sees it.")
    )
    device_plugin_dir: Path | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.path, "DIR", "Where kubelet.sock is; default: device-plugins below the kubelet's directory."
        ),
    )
    plugins_registry_dir: Path | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.path, "DIR", "The plugin watcher's directory; default: plugins_registry below the kubelet's."
        ),
    )
    pod_resources_dir: Path | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.path, "DIR", "Where the pod-resources API is; default: pod-resources below the kubelet's directory."
        ),
    )
    pods_api_dir: Path | None = attrs.field(
        default=None,
        metadata=_about(parsers.path, "DIR", "Where the pods API is; default: pods-api below the kubelet's directory."),
    )
    registration: Literal["kubelet", "watcher"] = attrs.field(
        default="kubelet",
        metadata=_about(
            parsers.choice("kubelet", "watcher"),
            "kubelet|watcher",
            "Call the kubelet at kubelet.sock, or be found by its plugin watcher.",
        ),
    )
    poll_interval: float | Literal["keep"] | None = attrs.field(
        default="keep",
        metadata=_about(
            parsers.poll_interval,
            "SECONDS",
            "Between two discoveries; 'none': never; default: what each backend says.",
        ),
    )
    health_policy: Mapping[str, float | None] | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.health_policy,
            "NAME=NUMBER,...",
            "Thresholds of health over each backend's own, as 'failures=2,hold_down=30'.",
        ),
    )
    host_root: Path = attrs.field(
        default=Path("/"),
        metadata=_about(
            parsers.path, "DIR", "Where the node's root directory is mounted, for backends that read /sys and /dev."
        ),
    )
    snapshot: Path | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.path, "FILE", "Work on another node's files, as kdp snapshot wrote them, instead of on this node's."
        ),
    )
    cdi: Literal["off", "beside", "only"] = attrs.field(
        default="off",
        metadata=_about(
            parsers.choice("off", "beside", "only"),
            "off|beside|only",
            "Describe devices by CDI: beside device nodes, or alone where the runtime is known to do CDI.",
        ),
    )
    cdi_dir: Path = attrs.field(
        default=Path("/var/run/cdi"), metadata=_about(parsers.path, "DIR", "Where the runtime finds CDI files.")
    )
    cdi_names: Literal["field", "annotation", "both"] = attrs.field(
        default="field",
        metadata=_about(
            parsers.choice("field", "annotation", "both"),
            "field|annotation|both",
            "Where Allocate's reply has CDI names: CRI's field, an annotation for older runtimes, or both.",
        ),
    )
    state_dir: Path | None = attrs.field(
        default=DEFAULT_STATE_DIR,
        metadata=_about(
            parsers.path_or_none,
            "DIR",
            "Save allocations here until they are released; 'none': nowhere, a killed process forgets them.",
        ),
    )
    http: Address | None = attrs.field(
        default=None,
        metadata=_about(parsers.address, "ADDRESS", "Answer /livez and /readyz here, as ':8080'; default: nowhere."),
    )
    log_format: Literal["text", "json"] = attrs.field(
        default="text",
        metadata=_about(parsers.choice("text", "json"), "text|json", "Lines for people, or one JSON object a line."),
    )
    log_level: Literal["debug", "info", "warning", "error"] = attrs.field(
        default="info",
        metadata=_about(
            parsers.choice("debug", "info", "warning", "error"), "debug|info|warning|error", "The least that is logged."
        ),
    )

    policy: Literal["first", "packed", "spread", "numa", "linked", "none"] | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.choice("first", "packed", "spread", "numa", "linked", "none"),
            "NAME",
            "Which devices to prefer: first, packed, spread, numa or linked; 'none': the kubelet chooses; default: what "
            "each backend says.",
        ),
    )
    replicas: int | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.number(1, MAX_REPLICAS, 4),
            "NUMBER",
            "Share each device: advertise it so many times. It isolates nothing.",
        ),
    )
    replicas_for: tuple[tuple[str, int], ...] = attrs.field(
        default=(),
        metadata=_about(
            parsers.replicas_for,
            "SELECTOR=NUMBER,...",
            "Share some devices otherwise: by a pattern of ids, or unit=, resource= or ATTRIBUTE=PATTERN; the first "
            "that fits counts.",
        ),
    )
    replica_placement: Literal["spread", "packed", "distinct"] = attrs.field(
        default="spread",
        metadata=_about(
            parsers.choice("spread", "packed", "distinct"),
            "spread|packed|distinct",
            "Prefer replicas of the least used devices, of as few as possible, or of different ones that the policy "
            "chooses.",
        ),
    )
    replica_limit: int | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.number(1, None, 1), "NUMBER", "The most replicas a container may ask for; default: any number."
        ),
    )
    replica_resource: Literal["same", "shared"] = attrs.field(
        default="same",
        metadata=_about(
            parsers.choice("same", "shared"),
            "same|shared",
            "The name of shared devices' resource; 'shared' appends '.shared'.",
        ),
    )

    mode: Literal["device-plugin", "dra", "dra-controller"] = attrs.field(
        default="device-plugin",
        metadata=_about(
            parsers.choice("device-plugin", "dra", "dra-controller"),
            "device-plugin|dra|dra-controller",
            "How the devices are served: by a device plugin, or by a DRA driver; dra-controller: publish a pool of devices that are no "
            "node's.",
        ),
    )
    node_name: str | None = attrs.field(
        default=None, metadata=_about(parsers.text, "NAME", "DRA: the node's name, as the API server has it.")
    )
    driver_name: str | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.driver_name,
            "NAME",
            "DRA: the driver's name; default: of example.com/widget it is widget.example.com.",
        ),
    )
    pool: str | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.pool,
            "NAME",
            "DRA: the pool of devices that are no node's own, which a controller publishes; default: they are the node's.",
        ),
    )
    pool_nodes: tuple[tuple[str, str], ...] = attrs.field(
        default=(),
        metadata=_about(
            parsers.labels,
            "LABEL=VALUE,...|all",
            "DRA, of a controller: the labels of the nodes that can use the pool's devices; default: all nodes can.",
        ),
    )
    pod_uid: str | None = attrs.field(
        default=None,
        metadata=_about(
            parsers.text, "UID", "DRA: the UID of the pod that this is, so that it can overlap with its successor."
        ),
    )
    kubeconfig: Path | None = attrs.field(
        default=None,
        metadata=_about(parsers.path, "FILE", "DRA: how to reach the API server; default: with the pod's account."),
    )
    health_taint: TaintEffect | None = attrs.field(
        default="NoSchedule",
        metadata=_about(
            parsers.taint,
            "NoSchedule|NoExecute|None|off",
            "DRA: the effect of the taint of an unhealthy device; None only informs; off: there is no taint.",
        ),
    )
    device_status: Literal["off", "on"] = attrs.field(
        default="off",
        metadata=_about(
            parsers.choice("off", "on"),
            "off|on",
            "DRA: whether claims say in status.devices that their devices are ready; it needs more permissions.",
        ),
    )
    device_metadata: Literal["off", "on"] = attrs.field(
        default="off",
        metadata=_about(
            parsers.choice("off", "on"), "off|on", "DRA: whether containers get a file that describes their devices."
        ),
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


@final
@attrs.frozen
class Setting:
    """One line of the table of settings.

    Attributes:
        name: As keyword argument and, with dashes, as flag and key of a file.
        metavar: What stands for the value in ``--help``.
        help: What it does, and its default if that is not a plain value.
        default: The value when no source gives one.
        parse: Turns text or a value into what `Settings` holds.
    """

    name: str
    metavar: str
    help: str
    default: object
    parse: Callable[[object], object]

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"KDP_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command's flag."""
        return f"--{self.key}"

    @property
    def key(self) -> str:
        """The configuration file's key."""
        return self.name.replace("_", "-")

    def read(self, given: Given) -> object:
        """Return the value that was given, checked.

        Raises:
            ConfigurationError: It breaks the rule.
        """
        try:
            return self.parse(given.value)
        except parsers.Unacceptable as error:
            raise ConfigurationError(f"{given.label}: {given.value!r} {error}") from None


SETTINGS: Mapping[str, Setting] = {
    field.name: Setting(
        field.name, field.metadata["metavar"], field.metadata["help"], field.default, field.metadata["parse"]
    )
    for field in attrs.fields(Settings)
}
"""Every setting by its name, in the order of ``--help``."""

_OF_DRA = (
    "driver_name",
    "kubeconfig",
    "health_taint",
    "device_status",
    "device_metadata",
    "pool",
    "pool_nodes",
)  # a manifest may give a pod its node's name whatever the mode is
_NOT_OF_DRA = ("registration", "cdi", "cdi_names", "policy", "replicas", "replicas_for")
_NOT_OF_CONTROLLER = ("device_status", "device_metadata")
_NOT_OF_NODES_DRIVER = ("pool_nodes",)
_OF_THE_PROCESS = ("log_format", "log_level")


class ServeOptions(TypedDict, total=False):
    """The keyword arguments of `kdp.serve`; what each means is in `Settings`."""

    kubelet_root: str | os.PathLike[str]
    device_plugin_dir: str | os.PathLike[str]
    plugins_registry_dir: str | os.PathLike[str]
    pod_resources_dir: str | os.PathLike[str]
    pods_api_dir: str | os.PathLike[str]
    registration: Literal["kubelet", "watcher"]
    poll_interval: float | None
    health_policy: str | Mapping[str, float | None] | HealthPolicy
    host_root: str | os.PathLike[str]
    snapshot: str | os.PathLike[str]
    cdi: Literal["off", "beside", "only"]
    cdi_dir: str | os.PathLike[str]
    cdi_names: Literal["field", "annotation", "both"]
    state_dir: str | os.PathLike[str] | None
    http: str | None
    policy: Literal["first", "packed", "spread", "numa", "linked", "none"]
    replicas: int
    replicas_for: str | Mapping[str, int]
    replica_placement: Literal["spread", "packed", "distinct"]
    replica_limit: int
    replica_resource: Literal["same", "shared"]
    mode: Literal["device-plugin", "dra", "dra-controller"]
    node_name: str
    driver_name: str
    pool: str
    pool_nodes: str | Mapping[str, str]
    pod_uid: str
    kubeconfig: str | os.PathLike[str]
    health_taint: Literal["NoSchedule", "NoExecute", "None", "off"]
    device_status: Literal["off", "on"]
    device_metadata: Literal["off", "on"]


class RunOptions(ServeOptions, total=False):
    """The keyword arguments of `kdp.run`: those of `kdp.serve`, and the logs."""

    log_format: Literal["text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]


def from_keywords(options: Mapping[str, object], *, function: str) -> dict[str, Given]:
    """Return the keyword arguments of `kdp.run` or `kdp.serve` as a layer for `resolve`.

    Args:
        options: What the caller gave.
        function: ``kdp.run`` or ``kdp.serve``.

    Raises:
        ConfigurationError: There is no such option.
    """
    known = [name for name in SETTINGS if function == "kdp.run" or name not in _OF_THE_PROCESS]
    for name in options:
        if name not in known:
            raise ConfigurationError(f"{function} has no option {name!r}; it has {', '.join(known)}")
    return {
        name: Given(f"{function}({name}=...)", value)
        for name, value in options.items()
        if value is not None or name in ("poll_interval", "state_dir")
    }


def from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    """Return the variables ``KDP_*`` that are set and not empty as a layer for `resolve`."""
    return {
        setting.name: Given(setting.variable, environ[setting.variable])
        for setting in SETTINGS.values()
        if environ.get(setting.variable)
    }


def resolve(layers: Sequence[Mapping[str, Given]]) -> Settings:
    """Make the settings of these layers, the strongest first.

    A value that a stronger layer hides is not looked at.

    Raises:
        ConfigurationError: A value breaks its setting's rule, or two contradict each other.
    """
    found: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for layer in layers:
        for name, given in layer.items():
            if name not in found:
                found[name] = SETTINGS[name].read(given)
                labels[name] = given.label
    if "snapshot" in found and "host_root" in found:
        raise ConfigurationError(
            f"{labels['snapshot']} and {labels['host_root']} are two answers to where the node's files are; give one"
        )
    settings = Settings(**found)
    _check_mode(settings, labels)
    if settings.sharing is None:
        for layer in layers:
            for name, given in layer.items():
                if name.startswith("replica_"):
                    raise ConfigurationError(
                        f"{given.label}: nothing is shared, so it has no meaning; say how many replicas, as "
                        f"{SETTINGS['replicas'].flag} 4"
                    )
    return settings


def _check_mode(settings: Settings, labels: Mapping[str, str]) -> None:
    """Refuse settings of the other mode: they would do nothing, and nobody would say so."""
    is_dra = settings.mode != "device-plugin"
    for name in _NOT_OF_DRA if is_dra else _OF_DRA:
        if name in labels and getattr(settings, name) != SETTINGS[name].default:
            only = "a device plugin" if is_dra else "a DRA driver"
            raise ConfigurationError(
                f"{labels[name]}: only {only} has it, and the mode is {settings.mode}; leave it out, or say "
                f"{SETTINGS['mode'].flag} {'device-plugin' if is_dra else 'dra'}"
            )
    is_controller = settings.mode == "dra-controller"
    for name in _NOT_OF_CONTROLLER if is_controller else _NOT_OF_NODES_DRIVER if is_dra else ():
        if name in labels and getattr(settings, name) != SETTINGS[name].default:
            only = "a node's driver" if is_controller else "a pool's controller"
            raise ConfigurationError(
                f"{labels[name]}: only {only} has it, and the mode is {settings.mode}; leave it out"
            )
    if is_controller and settings.pool is None:
        raise ConfigurationError(
            f"{SETTINGS['mode'].flag} dra-controller needs the pool's name; give one, as {SETTINGS['pool'].flag} fabric"
        )
    if settings.mode == "dra" and settings.node_name is None:
        raise ConfigurationError(
            f"{SETTINGS['mode'].flag} dra needs the node's name, as the API server has it; give {SETTINGS['node_name'].flag}, "
            f"or in a pod {SETTINGS['node_name'].variable} from the field spec.nodeName"
        )
