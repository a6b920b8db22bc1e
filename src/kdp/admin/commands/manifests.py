"""``kdp manifests TARGET``: what an admin applies to run this plugin on nodes, with no more rights than it needs."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from typing_extensions import override

from ...command.failures import warn
from ...command.invocation import Invocation, needs_of
from ...command.options import (
    CONFIGURATION,
    SETTING_GROUPS,
    GroupedCommand,
    Word,
    backend_options,
    refusing,
    setting_options,
)
from ...command.streams import document
from ...command.targets import is_file
from ...daemon.settings import SETTINGS
from ...daemon.sources import asking
from ...errors import ConfigurationError, KdpError, sentence
from ...hardware import Host
from ...hardware.capture import RecordingHost
from ...model.backend import DeviceBackend, is_overridden
from ...storage.reading import MAX_CONFIG_BYTES, is_pipe, read
from ..manifests.chart import chart
from ..manifests.cluster import Account, Cluster
from ..manifests.deployment import CONFIG_DIR, Deployment, deployment_of, driver_of
from ..manifests.kubernetes import base, daemon_set
from ..manifests.systemd import unit
from .charting import facts_of
from .looking import discovered
from .manifest_files import check_directory, head, to_yaml, write
from .placing import Placing, placement_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...daemon.plan import ServingPlan
    from ...model.devices import Device
    from ...model.needs import Needs
    from ..manifests.deployment import Probing

_PASSED_ON: Final = tuple(name for name, setting in SETTINGS.items() if not setting.of_place)

_LARGEST: Final = 900_000
"""Bytes of files; an object of the API has at most one MiB."""

_GROUPS: Final = {
    "What is written": (
        "kind",
        "output",
        "name",
        "namespace",
        "probing",
        "executable",
        "optional_paths",
        "extended_resource",
    ),
    "Pods and their nodes": (
        "image",
        "image_pull_secret",
        "node_selector",
        "toleration",
        "priority_class",
        "runtime_class",
        "selinux_type",
        "mount_propagation",
        "memory_limit",
        "network_policy",
        "metrics_from",
        "openshift",
    ),
    **CONFIGURATION,
    **SETTING_GROUPS,
}

_FIRST_FILES: Final = {"kustomize": "kustomization.yaml", "helm": "Chart.yaml"}
"""The formats that are a directory, each with the file that says how the directory was made."""

_ARGUMENTS: Final = "kdp.admin.manifests.arguments"


class _Command(GroupedCommand):
    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


@click.command("manifests", cls=_Command, groups=_GROUPS, short_help="Write what deploys this plugin on nodes.")
@click.argument("target", metavar="TARGET")
@click.option(
    "--format",
    "kind",
    type=Word(["yaml", "kustomize", "helm", "systemd"]),
    default="yaml",
    show_default=True,
    help="A DaemonSet with what it needs, a kustomize base or a Helm chart, which are several files, or a systemd "
    "unit.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write here, not to stdout; for 'kustomize' and 'helm' a directory.",
)
@click.option("--name", metavar="NAME", help="What the objects are called; default: kdp- and the target's name.")
@placement_options
@click.option(
    "--probes",
    "probing",
    type=Word(["http", "exec"]),
    default="http",
    show_default=True,
    help="How the kubelet asks the plugin: at a port, or with 'kdp probe' in the container, which opens no port.",
)
@click.option(
    "--executable",
    default="/usr/local/bin/kdp",
    show_default=True,
    metavar="PATH",
    help="Where the command kdp is on the node, for a systemd unit.",
)
@click.option(
    "--optional-path",
    "optional_paths",
    multiple=True,
    metavar="DIR",
    help="A directory that the class reads where it is, and that all nodes of these pods have; may be repeated.",
)
@click.option(
    "--extended-resource",
    is_flag=True,
    help="With --mode dra: pods may also request the class's resource by number.",
)
@backend_options
@click.option(
    "--config-label",
    metavar="LABEL",
    envvar="KDP_CONFIG_LABEL",
    help="Let a label of the node name its configuration: --config is a directory then, whose files go into the "
    "ConfigMap.  [KDP_CONFIG_LABEL]",
)
@setting_options("snapshot", *_PASSED_ON)
def command(
    target: str,
    kind: str,
    output: Path | None,
    name: str | None,
    placing: Placing,
    probing: Probing,
    executable: str,
    optional_paths: tuple[str, ...],
    extended_resource: bool,
    assignments: tuple[str, ...],
    config: Path | None,
    config_label: str | None,
    **flags: str | None,
) -> None:
    """Write what an admin applies to run this plugin on nodes, with no more rights than it needs.

    The class says what it reads (its hook 'needs'), and the devices that it discovers here name their nodes. All other
    options are those of 'kdp run' and end up in the process's arguments. A file that --config or a parameter of type
    Path names goes into a ConfigMap.

    \b
    Exit codes:
      0  written
      2  the target, an option or the configuration is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    out = document()
    with refusing():
        if kind != "systemd" and placing.image is None:
            raise ConfigurationError(
                "--image is missing; expected the container's image, as --image registry.example.com/widgets:1"
            )
        if kind in _FIRST_FILES:
            if output is None:
                raise ConfigurationError(f"--format {kind} writes several files; name a directory, as --output base")
            check_directory(output, _FIRST_FILES[kind])
        chosen = _chosen(config, config_label)
        invocation = _invocation(target, assignments, chosen, flags)
        deployment = _deployment(
            invocation, kind, name, extended_resource, probing, optional_paths, config_label or None
        )
        if kind == "systemd":
            written = {"": unit(deployment, executable=executable)}
        else:
            placement = placing.placement(deployment.needs, is_controller=deployment.is_controller)
            if kind == "helm":
                written = chart(
                    deployment, placement, facts_of(invocation, deployment, placement, optional_paths), to_yaml=to_yaml
                )
            else:
                files = {"": daemon_set(deployment, placement)} if kind == "yaml" else base(deployment, placement)
                written = {name: to_yaml(documents) for name, documents in files.items()}
        comment = head(click.get_current_context().meta[_ARGUMENTS], deployment, is_pod=kind != "systemd")
        headed = ("Chart.yaml",) if kind == "helm" else written.keys()
        written = {name: comment + text if name in headed else text for name, text in written.items()}
        if kind == "kustomize":
            written |= deployment.files
        write(written, output, out)
    if kind != "systemd" and is_file(target):
        warn(
            f"{target} names a file, so the image must have it at this path, seen from its working directory; see "
            "'An image of your own plugin' in docs/how-to/deploy.md"
        )


def _chosen(config: Path | None, config_label: str | None) -> Path | None:
    """Return the configuration to plan with: where a label names it, that of nodes without the label."""
    if not config_label:
        return config
    if config is None:
        raise ConfigurationError(
            "--config-label: --config is missing; expected a directory with a file for each configuration"
        )
    from ...command.chosen_config import ConfigChoice

    return ConfigChoice(config, config_label, state_dir=None).first()


def _invocation(
    target: str, assignments: tuple[str, ...], config: Path | None, flags: Mapping[str, str | None]
) -> Invocation:
    return Invocation(
        targets=(target,),
        assignments=assignments,
        config=config,
        # Each node's own name is in its pod; here any will do.
        flags={**flags, "node_name": "node"},
        # A --host-root of the configuration file is the container's; here the node's files are this machine's.
        wrap=lambda h: RecordingHost(Host().root) if h.is_real else h,
    )


def _deployment(
    invocation: Invocation,
    kind: str,
    name: str | None,
    extended_resource: bool,
    probing: Probing,
    chosen_paths: tuple[str, ...],
    config_label: str | None,
) -> Deployment:
    in_container = kind != "systemd"
    if config_label is not None and not in_container:
        raise ConfigurationError(
            "--format systemd: --config-label reads the node's labels by its pod's account; expected yaml, kustomize, "
            "or helm"
        )
    (target,) = invocation.targets
    config = invocation.config
    plan = invocation.plan()
    (backend,) = plan.backends
    reads_labels = config_label is not None
    _check_cluster(backend, plan, in_container=in_container, extended_resource=extended_resource)
    needs, found = needs_of(backend), _found(backend, plan)
    for chosen in chosen_paths:
        if chosen not in needs.optional_paths:
            known = ", ".join(needs.optional_paths) or "none"
            raise ConfigurationError(
                f"--optional-path {chosen}: {type(backend).__name__} does not read it where it is; it names {known}"
            )
    cluster = _cluster(backend, plan, found or {}, extended_resource=extended_resource, reads_labels=reads_labels)
    is_controller = cluster is not None and cluster.is_controller  # whose devices are not this machine's
    nodes = [] if found is None or is_controller else _nodes(found, plan.host)
    if found is not None and not is_controller:
        needs = _with_sources(needs, found)
        needs = _with_read(needs, backend, plan.host)
    if not is_controller and not nodes:
        has_devices = any((found or {}).values())
        needs = _with_all_of_it(needs, backend, has_devices=has_devices, takes_host=invocation.takes_host)
    # A chart has no file of the settings, unless a label names one: they are values, or fixed.
    becomes_values = kind == "helm" and not reads_labels
    options = {SETTINGS[name].flag: text for name, text in invocation.passed_on(with_file=becomes_values).items()}
    named = [] if becomes_values else [config]
    for path in (*named, *(value for _, _, value in invocation.parameters())):
        if isinstance(path, Path) and is_pipe(path):
            raise ConfigurationError(f"{path}: it is a pipe, which only this command can read; give a file")
    files: dict[str, str] = {}
    parameters = _parameters(invocation, files if in_container else None)
    restarts_with: str | None = None
    if config is not None and config_label is not None:
        for each in sorted(config.parent.iterdir()):
            if os.path.isfile(each) and not each.name.startswith("."):
                _carried(each, files)
        options = {"--config": CONFIG_DIR, "--config-label": config_label, **options}
    elif config is not None and not becomes_values:
        path = _carried(config, files) if in_container else str(config.absolute())
        options = {"--config": path, **options}
        restarts_with = hashlib.sha256(read(config, limit=MAX_CONFIG_BYTES)).hexdigest()[:16]
    if sum(len(text.encode()) for text in files.values()) > _LARGEST:
        raise ConfigurationError(
            f"files of more than {_LARGEST} bytes fit in no ConfigMap: {', '.join(files)}; put them into the image"
        )
    given = Deployment(
        name=name or _default_name(target, is_controller=is_controller),
        target=target if in_container or ":" not in target else _on_this_node(target),
        needs=needs,
        probing=probing,
        files=files,
        restarts_with=restarts_with,
        cluster=cluster,
        account=_account(plan, in_container=in_container, reads_labels=reads_labels),
        config_label=config_label,
        chosen_paths=chosen_paths if kind != "helm" else needs.optional_paths,  # values choose
        driver=plan.settings.driver_name or (driver_of(backend.resource) if backend.resource is not None else None),
    )
    return deployment_of(
        given,
        settings=plan.settings,
        options=options,
        parameters=parameters,
        nodes=nodes,
        directories=_directories(invocation),
        takes_host=invocation.takes_host,
        in_container=in_container,
    )


def _account(plan: ServingPlan, *, in_container: bool, reads_labels: bool) -> Account | None:
    """Return what a device plugin does in the cluster; None: nothing."""
    settings = plan.settings
    if settings.mode != "device-plugin" or not (settings.asks_cluster or (reads_labels and in_container)):
        return None
    if not in_container:
        raise ConfigurationError(
            f"--format systemd: {asking(settings)} needs an account of the cluster, which a pod has; expected yaml or "
            "kustomize"
        )
    evicts = settings.on_unhealthy == "evict"
    return Account(
        events=settings.events == "on",
        evicts=evicts,
        startup_taint=settings.startup_taint,
        reads_labels=reads_labels,
    )


def _check_cluster(backend: DeviceBackend, plan: ServingPlan, *, in_container: bool, extended_resource: bool) -> None:
    """Refuse what a plugin or driver cannot be in the cluster.

    Raises:
        ConfigurationError: It cannot be that.
    """
    label = type(backend).__name__
    if plan.settings.mode == "device-plugin":
        if extended_resource:
            raise ConfigurationError(
                "--extended-resource: a device plugin's resource is one already; leave it out, or say --mode dra"
            )
        return
    if not in_container:
        raise ConfigurationError(
            "--format systemd: a DRA driver is known to the API server by its pod's account; expected yaml or kustomize"
        )
    if plan.settings.driver_name is None and backend.resource is None:
        raise ConfigurationError(
            f"{label}.resource is None, so the driver has no name; give one as --driver-name widget.example.com"
        )
    if extended_resource and plan.settings.mode == "dra-controller":
        raise ConfigurationError(
            "--extended-resource: the DeviceClass comes with the nodes' driver; say so there, with --mode dra and the "
            "same --pool"
        )
    if extended_resource and backend.resource is None:
        raise ConfigurationError(
            f"--extended-resource: {label}.resource is None, so there is no name that pods could ask for; leave it out"
        )


def _cluster(
    backend: DeviceBackend,
    plan: ServingPlan,
    found: Mapping[str, tuple[Device, ...]],
    *,
    extended_resource: bool,
    reads_labels: bool,
) -> Cluster | None:
    """Return what a DRA driver is in the cluster; None: it is to be a device plugin."""
    from ...dra.names import driver_name

    if plan.settings.mode == "device-plugin":
        return None
    return Cluster(
        driver=plan.settings.driver_name or driver_name(backend.resource or ""),
        resource=backend.resource,
        others=tuple(sorted({*backend.resources, *found} - {backend.resource})),
        has_extended_resources=extended_resource,
        writes_status=plan.settings.device_status == "on",
        pool=plan.settings.pool,
        is_controller=plan.settings.mode == "dra-controller",
        reads_labels=reads_labels,
    )


def _found(backend: DeviceBackend, plan: ServingPlan) -> Mapping[str, tuple[Device, ...]] | None:
    """Return what is discovered here, by resource; None: the discovery failed."""
    try:
        return discovered(backend, plan)
    except KdpError as error:
        warn(f"{sentence(error)}; what its devices need is not known")
        return None


def _nodes(found: Mapping[str, tuple[Device, ...]], host: Host | None) -> list[str]:
    """Return the device nodes of what was discovered; of a link, also what it leads to."""
    named = {node.host_path for held in found.values() for device in held for node in device.edits.device_nodes}
    assert host is not None  # an invocation's plan has one
    targets: set[str] = set()
    for path in named:
        with suppress(OSError):  # a link that leads round in a circle leads nowhere
            targets.add(host.resolve(path))
    return sorted(named | targets)


def _with_sources(needs: Needs, found: Mapping[str, tuple[Device, ...]]) -> Needs:
    """Return needs with the directories of all sources of mounts: a device whose source is not seen is Unhealthy."""
    import attrs

    sources = {mount.host_path for held in found.values() for device in held for mount in device.edits.mounts}
    # The directory above: Kubernetes would make the one that is missing, and the source would be there, and empty.
    above = {path if posixpath.dirname(path) == "/" else posixpath.dirname(path) for path in sources}
    return attrs.evolve(needs, host_paths=(*needs.host_paths, *sorted(above)))


def _with_read(needs: Needs, backend: DeviceBackend, host: Host | None) -> Needs:
    """Return needs with the kernel's file systems that the discovery has read here: it reads them on the node, too."""
    import attrs

    seen = host.seen if isinstance(host, RecordingHost) else ()
    declared = (*needs.host_paths, *needs.writable_paths, *needs.optional_paths)
    lacking = [
        top
        for top in ("/sys", "/proc")
        if any(path.startswith(f"{top}/") for path in seen)
        and not any(f"{path}/".startswith(f"{top}/") for path in declared)
    ]
    for top in lacking:
        warn(f"{type(backend).__name__} reads {top}, and does not declare it in 'needs'; the pod is given it to read")
    return attrs.evolve(needs, host_paths=(*needs.host_paths, *lacking))


def _with_all_of_it(needs: Needs, backend: DeviceBackend, *, has_devices: bool, takes_host: bool) -> Needs:
    """Return needs for a backend without a device node on this machine, because its library is missing for example.

    Args:
        needs: The needs that its hook declares.
        backend: The backend.
        has_devices: Whether it has shown devices: then they have no nodes.
        takes_host: Whether it can read a snapshot.
    """
    import attrs

    elsewhere = ", or with --snapshot FILE" if takes_host else ""
    declared = (*needs.host_paths, *needs.writable_paths, *needs.opened_nodes)
    if not is_overridden(backend, "needs"):
        wanted: tuple[str, ...] = ("/dev", "/sys")
        why = "discovers no device node here and has no hook 'needs', so it is given /dev and /sys to read"
    elif has_devices or any(each == "/dev" or each.startswith("/dev/") for each in declared):
        return needs
    else:  # without /dev, each device would be Unhealthy on the node, since its device node is gone there
        wanted = ("/dev",)
        why = "discovers no device here and declares nothing below /dev in 'needs', so it is given /dev to read"
    warn(f"{type(backend).__name__} {why}; run this where its hardware is{elsewhere}, or say in 'needs' what it reads")
    return attrs.evolve(needs, host_paths=(*needs.host_paths, *wanted))


def _parameters(invocation: Invocation, files: dict[str, str] | None) -> list[str]:
    """Return the constructor's parameters that were given outside of the configuration file, as ``NAME=VALUE``."""
    given: list[str] = []
    for name, texts, value in invocation.parameters():
        for text in texts:
            if isinstance(value, Path) and os.path.isfile(value):
                text = str(value.absolute()) if files is None else _carried(value, files)
            given.append(f"{name}={text}")
    return given


def _directories(invocation: Invocation) -> dict[str, str]:
    """Return the directories that parameters name, by parameter; of one that is not here, warn."""
    given = {name: value for name, value in invocation.recipe.arguments.items() if isinstance(value, Path)}
    for name, path in given.items():
        try:
            os.stat(path)
        except OSError as error:
            is_closed = isinstance(error, PermissionError)
            why = f"user {os.geteuid()} may not look at it" if is_closed else "nothing is there on this machine"
            warn(f"{name}={path}: {why}; the pod gets it as a directory of its node")
    return {
        name: str(path.absolute()) for name, path in given.items() if os.path.isdir(path) or not os.path.exists(path)
    }


def _carried(file: Path, files: dict[str, str]) -> str:
    """Put a file among those that the container gets, and return where that has it."""
    name = re.sub(r"[^-._a-zA-Z0-9]", "-", file.name)
    try:
        text = read(file, limit=MAX_CONFIG_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"file {file}: cannot be put into a ConfigMap ({error}); expected a text file, or put it into the image"
        ) from error
    if files.setdefault(name, text) != text:
        raise ConfigurationError(f"two files are called {name}; give one of them another name")
    return f"{CONFIG_DIR}/{name}"


def _default_name(target: str, *, is_controller: bool) -> str:
    word = target.rpartition(":")[2].rpartition(".")[2]
    return f"kdp-{re.sub(r'[^a-z0-9]+', '-', word.lower()).strip('-')}{'-controller' if is_controller else ''}"


def _on_this_node(target: str) -> str:
    place, _, attribute = target.rpartition(":")
    return f"{Path(place).absolute()}:{attribute}" if is_file(target) else target
