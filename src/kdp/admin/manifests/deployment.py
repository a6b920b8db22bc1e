"""`Deployment`: what a plugin's process must be given on a node, and why; neither Kubernetes nor systemd yet.

Least privilege: what `Needs` and the devices' edits name, what kdp itself needs under these settings, and nothing else.

Device nodes are looked at in the node's own ``/dev``, never as one mounted node: a mounted file stays the one that it
was, so a device that comes back would not be seen. To look is no right to open: that is the device cgroup's. A
backend that names ``/sys`` gets the directories of its device model, and others that it names.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, final

import attrs

from ...command.found_sockets import POD_NAMESPACE
from ...daemon.parsers import Address
from ...daemon.settings import SETTINGS, Settings
from ...errors import InvalidNameError, InvalidValueError
from ...model.needs import Needs
from .cluster import Account, Cluster

CONFIG_DIR: Final = "/etc/kdp"
"""Where the container has the files that were given."""

HOST_ROOT: Final = Path("/host")
"""Where the container has the node's directories, for backends that take a `kdp.hardware.Host`."""

_DEVICE_MODEL: Final = ("/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module")
"""Directories of sysfs whose links lead into one another. A program that reads one needs all, and no other file system
is mounted below them, as the writable control groups are below ``/sys/fs``."""

_LINKS: Final = ("/sys/bus", "/sys/class", "/sys/dev")
_DEVICES: Final = "/sys/devices"
"""The entries of `_LINKS` are links into this directory, so a write to a file of a device is a write here."""

_PORT: Final = 8080

_OWN_PORTS: Final = range(18_000, 20_000)
"""Ports in the node's network, below those of NodePorts and of connections that a kernel opens."""

Probing = Literal["http", "exec"]
"""How the kubelet asks: at a port, or by a command in the container that asks at a unix socket."""

_FIELDS: Final = {"node_name": "spec.nodeName", "pod_uid": "metadata.uid"}
"""Which field of its pod a DRA driver has each of these settings from; a device plugin, the first."""


_OF_POD: Final = ("socket", *_FIELDS)
"""Settings that a pod has from variables, which are stronger than a file."""


def on_one_line(text: str) -> str:
    r"""Return a text with unprintable characters, such as line breaks, escaped as in C: ``\x0a``."""
    return "".join(
        c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in c.encode(errors="surrogateescape")) for c in text
    )


@final
@attrs.frozen(kw_only=True)
class Folder:
    """A directory of the node that the process is given.

    Attributes:
        name: A short name, unlike the others'.
        path: The directory on the node.
        seen_at: Where the process has it.
        writable: Whether it may write there.
        made: Whether it is made on the node if it is not there.
        why: What for, in words.
    """

    name: str
    path: str
    seen_at: str
    writable: bool = False
    made: bool = False
    why: str


@final
@attrs.frozen(kw_only=True)
class Deployment:
    """The process, and everything that it gets.

    Attributes:
        name: The name of all objects.
        target: As ``kdp run`` takes it.
        options: The command's options, as flags.
        folders: The node's directories.
        files: The files that it reads in `CONFIG_DIR`, by name; a container's only.
        needs: What the backend says that it needs.
        http: Where it answers over TCP; `None` if nowhere.
        probing: How the kubelet asks it.
        restarts_with: A mark that changes when the process must restart to see changed files.
        fields: Variables that a pod gets from fields of its own, by name.
        cluster: What it is in the cluster; None: a device plugin.
        account: A device plugin's account in the cluster; `None` if it needs none.
        config_label: The label of a node that names its configuration in `CONFIG_DIR`; `None` if there is only one.
        chosen_paths: Those of the needs' optional paths that all of its nodes have.
        driver: The DRA driver of the same devices; `None` if their resource gives it no name.
    """

    name: str
    target: str
    options: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    files: Mapping[str, str] = attrs.field(factory=dict[str, str])
    needs: Needs = attrs.field(factory=Needs)
    http: Address | None = None
    probing: Probing = "http"
    restarts_with: str | None = None
    fields: Mapping[str, str] = attrs.field(factory=dict[str, str])
    cluster: Cluster | None = None
    account: Account | None = None
    config_label: str | None = None
    chosen_paths: tuple[str, ...] = ()
    driver: str | None = None

    @property
    def has_account(self) -> bool:
        """Whether it speaks to the API server."""
        return self.cluster is not None or self.account is not None

    @property
    def is_controller(self) -> bool:
        """Whether it is one process for the whole cluster, which publishes a pool."""
        return self.cluster is not None and self.cluster.is_controller

    def reasons(self) -> list[tuple[str, str]]:
        """Return what it is given, in words, with the reason: for people who review it."""
        given = [
            (f"{on_one_line(folder.path)}{' (to write)' if folder.writable else ''}", folder.why)
            for folder in sorted(self.folders, key=lambda folder: folder.path)
        ]
        if not self.is_controller:
            given.append(("user root", "the kubelet's directories belong to root"))
        for nodes, how in (
            (self.needs.opened_nodes, "is privileged for it"),
            (self.needs.injected_nodes, "has it from its runtime"),
        ):
            given += [(f"open {on_one_line(n)}", f"the backend opens it itself; a container {how}") for n in nodes]
        asked = [f"capability {name}" for name in self.needs.capabilities]
        asked += ["the node's network"] * self.needs.host_network + ["the node's processes"] * self.needs.host_pid
        given += [(what, "the backend asks for it") for what in asked]
        rules = self.cluster.rules if self.cluster is not None else ()
        rules += self.account.rules if self.account is not None else ()
        return given + [(f"{', '.join(rule.verbs)} {rule.resource}", rule.why) for rule in rules]


def deployment_of(
    given: Deployment,
    *,
    settings: Settings,
    options: Mapping[str, str],
    parameters: Iterable[str] = (),
    nodes: Iterable[str] = (),
    directories: Mapping[str, str] | None = None,
    takes_host: bool,
    in_container: bool,
) -> Deployment:
    """Decide what a plugin's process must be given, besides what is given already.

    The settings in force decide which of the kubelet's directories are needed; options are those that were given, by
    flag. With ``takes_host`` the backend reads the node through `kdp.hardware.Host`, so that the node's directories may
    be elsewhere than at their own place. The directories are those that the backend's parameters name, by parameter.
    """
    name, needs, probing, cluster, account = given.name, given.needs, given.probing, given.cluster, given.account
    options = dict(options)
    root = Path("/")
    if in_container and takes_host:
        root = settings.host_root if settings.host_root != Path("/") else HOST_ROOT
        options["--host-root"] = str(root)
    http = settings.http
    measures = settings.metrics != "off"
    if http is None and in_container and (probing == "http" or measures):
        http = default_http(name, in_the_nodes=needs.host_network, measures=measures)
        options["--http"] = str(http)
    if http is not None and not http.port and in_container and probing == "http":
        raise InvalidValueError(
            f"--http {http}: the kubelet's probes need a port that is known; leave it out, or choose --probes exec"
        )
    if http is not None and is_loopback(http) and in_container and probing == "http" and not needs.host_network:
        raise InvalidValueError(
            f"--http {http}: in a pod with a network of its own the kubelet's probes do not reach it, and the kubelet "
            f"would restart the pod for ever; give :{http.port}, or choose --probes exec"
        )
    if in_container:
        for setting in map(SETTINGS.__getitem__, _OF_POD):
            options.pop(setting.flag, None)
    fields = {POD_NAMESPACE: "metadata.namespace", SETTINGS["node_name"].variable: _FIELDS["node_name"]}
    own = _own(settings, given.driver, keeps_evictions=account is not None and account.evicts)
    if cluster is not None:
        own = () if cluster.is_controller else _of_driver(settings, cluster.driver)
        fields |= {SETTINGS[name].variable: field for name, field in _FIELDS.items()}
        if cluster.is_controller:  # it has no node
            fields = {}
        if takes_host and not cluster.is_controller:
            needs = attrs.evolve(needs, host_paths=(*needs.host_paths, "/sys"))
    return attrs.evolve(
        given,
        options=(
            *(f"--set={parameter}" for parameter in parameters),
            *(f"{flag}={text}" for flag, text in options.items()),
        ),
        folders=_with_named((*own, *_read(needs, given.chosen_paths, nodes, root)), directories or {}),
        needs=needs,
        http=http,
        fields=fields,
    )


def default_http(name: str, *, in_the_nodes: bool, measures: bool) -> Address:
    """Return where a pod answers its probes, and Prometheus if it has metrics.

    In the node's network nobody but Prometheus needs to reach it, and the kubelet's probes come from the node.
    """
    if not in_the_nodes:
        return Address("", _PORT)
    return Address("" if measures else "127.0.0.1", own_port(name))


def is_loopback(http: Address) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(http.host).is_loopback
    except ValueError:
        return http.host == "localhost"


def own_port(name: str) -> int:
    """Return the port of a plugin in the node's network, where all plugins share the ports: the same for each name."""
    return _OWN_PORTS[zlib.crc32(name.encode()) % len(_OWN_PORTS)]


def _own(settings: Settings, driver: str | None, *, keeps_evictions: bool) -> Iterable[Folder]:
    """Tell what kdp itself needs as a device plugin."""
    paths = settings.paths
    if settings.registration == "watcher":
        yield _same("registry", paths.plugins_registry_dir, "its sockets, which the kubelet finds here", writable=True)
    else:
        yield _same("device-plugins", paths.device_plugin_dir, "its sockets, and the kubelet's", writable=True)
    yield _pod_resources(settings)
    if driver is not None:
        yield _claims_of(settings, "driver", driver)
    if settings.pods_api_dir is not None:
        yield _same("pods-api", paths.pods_api_dir, "learn from the kubelet when a pod is gone")
    if settings.cdi != "off":
        yield _same(
            "cdi", settings.cdi_dir, "the files that describe its devices to the runtime", writable=True, made=True
        )
    yield from _labels(settings)
    if settings.state_dir is not None:
        lock = "the lock that keeps a DRA driver of the same devices away"
        kept = ["allocations until they are released"]
        kept += ["when pods were evicted, for the limit per hour"] if keeps_evictions else []
        why = ", and ".join([*kept, lock])
        yield _same("state", settings.state_dir, why, writable=True, made=True)


def _of_driver(settings: Settings, driver: str) -> Iterable[Folder]:
    """Tell what kdp itself needs as a DRA driver; the kubelet and the runtime must have each at the same path."""
    paths = settings.paths
    yield _same("registry", paths.plugins_registry_dir, "its socket, which the kubelet finds here", writable=True)
    yield _same(
        "driver",
        paths.plugins_dir / driver,
        "its socket for claims, and what it needs to undo them",
        writable=True,
        made=True,
    )
    yield _same(
        "cdi", settings.cdi_dir, "the files that describe claims to the container runtime", writable=True, made=True
    )
    if settings.pool is None or settings.metrics == "pods":
        yield _pod_resources(settings)
    if settings.replaces is not None and (replaced := driver_of(settings.replaces)) is not None:
        yield _claims_of(settings, "replaced", replaced)
    yield from _labels(settings)
    if settings.state_dir is not None:
        why = "the last good configuration, and the lock that keeps a device plugin of the same devices away"
        yield _same("state", settings.state_dir, why, writable=True, made=True)


def _pod_resources(settings: Settings) -> Folder:
    directory = settings.paths.pod_resources_dir
    return _same("pod-resources", directory, "ask the kubelet which pod holds which device")


def _claims_of(settings: Settings, name: str, driver: str) -> Folder:
    why = f"see which devices claims of {driver} have"
    return _same(name, settings.paths.plugins_dir / driver, why, made=True)


def driver_of(resource: str) -> str | None:
    """Return the name of the DRA driver of a resource; `None` if the rules for drivers allow none."""
    from ...dra.names import driver_name  # late: most commands need none

    try:
        return driver_name(resource)
    except InvalidNameError:
        return None


def _labels(settings: Settings) -> Iterable[Folder]:
    if settings.labels == "nfd":
        why = "the node's labels, for Node Feature Discovery"
        yield _same("labels", settings.labels_dir, why, writable=True, made=True)


def _same(name: str, path: Path, why: str, *, writable: bool = False, made: bool = False) -> Folder:
    return Folder(name=name, path=str(path), seen_at=str(path), writable=writable, made=made, why=why)


def _with_named(folders: tuple[Folder, ...], directories: Mapping[str, str]) -> tuple[Folder, ...]:
    """Add the directories that parameters name; the backend opens each at its own path."""
    for parameter, path in directories.items():
        if not _is_inside(path, [folder.seen_at for folder in folders]):
            name = f"set-{parameter.lower().replace('_', '-').strip('-')}"
            folders += (Folder(name=name, path=path, seen_at=path, why=f"the backend's parameter {parameter}"),)
    return folders


def _read(needs: Needs, chosen: Iterable[str], nodes: Iterable[str], root: Path) -> Iterable[Folder]:
    """Tell what the backend needs, each directory once and none that is in another."""
    looked_at = [*nodes, *(node for node in needs.opened_nodes if node.startswith("/"))]
    reasons = {_whole_dev(posixpath.dirname(path)): "look at device nodes" for path in looked_at}
    reasons |= {each: "the backend reads it where it is" for path in chosen for each in _readable(path)}
    reasons |= {each: "the backend reads it" for path in needs.host_paths for each in _readable(path)}
    written = dict.fromkeys(needs.writable_paths, "the backend writes to it")
    for path in needs.writable_paths:
        if _is_inside(path, _LINKS):
            written.setdefault(_DEVICES, f"the links in {path} lead there, and the backend writes to them")
    read = [path for path in sorted(reasons) if not _is_inside(path, (*(reasons.keys() - {path}), *written))]
    writable = [path for path in sorted(written) if not _is_inside(path, written.keys() - {path})]
    reasons |= written
    taken: set[str] = set()
    for path in [*read, *writable]:
        yield Folder(
            name=_name(path, taken),
            path=path,
            seen_at=str(root / path.lstrip("/")),
            writable=path in writable,
            why=reasons[path],
        )


def _readable(path: str) -> tuple[str, ...]:
    """Return the directories that the reader of a path needs."""
    if path == "/sys" or _is_inside(path, _DEVICE_MODEL):
        return _DEVICE_MODEL
    return (_whole_dev(path),)


def _whole_dev(path: str) -> str:
    return "/dev" if _is_inside(path, ("/dev",)) else path


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path == other or path.startswith(f"{other.rstrip('/')}/") for other in others)


def _name(path: str, taken: set[str]) -> str:
    """Return a volume's name: a DNS label, unlike the others."""
    base = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[-50:].strip("-") or "root"
    name, number = f"node-{base}", 2
    while name in taken:
        name, number = f"node-{base}-{number}", number + 1
    taken.add(name)
    return name
