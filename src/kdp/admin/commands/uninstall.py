"""``kdp uninstall [TARGET...]``: remove what plugins have left, after they were taken away for good.

Files are those of this machine. What the API server has of a node is asked for only if a node is named.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

from ...command.failures import Failure
from ...command.invocation import Invocation
from ...command.living import is_closed
from ...command.options import backend_options, refusing, setting_options
from ...command.streams import shown
from ...errors import ConfigurationError
from .reaching import cluster_option, node_name, reach, server_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ...daemon.plan import ServingPlan
    from ...daemon.settings import Settings
    from ..cluster.node_leftovers import NodeLeftover, Wanted
    from .leftovers import FileOwner, Leftover

SOMETHING_LEFT: Final = 3
_ALL: Final = "all"

_LOOK: Final = 1.0
"""Seconds between two looks whether claims are held."""


@click.command("uninstall", short_help="Remove from this node what plugins have left.")
@click.argument("targets", metavar="[TARGET...]", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--force", is_flag=True, help="Remove also what a running plugin or a pod still needs.")
@click.option("--stay", is_flag=True, help="Stay until asked to stop, as a container of a DaemonSet must.")
@click.option(
    "--node-name",
    "node",
    metavar="NAME",
    callback=node_name,
    help="Remove also what the API server has of this node: labels, the start-up taint, zeros, and slices.",
)
@click.option(
    "--nodes",
    metavar="SELECTOR",
    help="Remove that of these nodes, by a label selector as 'example.com/gpu=true', or 'all'; no file is looked at.",
)
@click.option(
    "--resource",
    "resources",
    metavar="NAME",
    multiple=True,
    help="With a node: also remove this resource's capacity and labels. Name each resource that only devices carry.",
)
@cluster_option
@backend_options
@setting_options(
    "kubelet_root",
    "device_plugin_dir",
    "plugins_registry_dir",
    "cdi_dir",
    "state_dir",
    "labels_dir",
    "driver_name",
    "startup_taint",
    help={
        "state_dir": "The state directory of the plugins.",
        "labels_dir": "Where plugins have written labels for Node Feature Discovery.",
        "driver_name": "DRA: the name of the driver whose files and slices are meant.",
        "startup_taint": "With a node: the taint that the plugin would have removed.",
    },
)
def command(
    targets: tuple[str, ...],
    dry_run: bool,
    force: bool,
    stay: bool,
    node: str | None,
    nodes: str | None,
    resources: tuple[str, ...],
    kubeconfig: Path | None,
    assignments: tuple[str, ...],
    config: Path | None,
    **flags: str | None,
) -> None:
    """Remove from this node what plugins and drivers have left: sockets, CDI files, claims, allocations, and locks.

    Do this after you have deleted the DaemonSet, or disabled the unit. Without a TARGET, the files of all plugins and
    drivers of kdp go; with one, those of its class. Nothing is removed while a plugin runs, or while pods hold claims,
    or devices that a hook must take back. With --stay and a TARGET, the driver runs until no pod holds a claim.

    With --node-name or --nodes, what the API server has of a node goes, too. That is labels of 'kdp node label', the
    taint of --startup-taint, the zero of a resource that nobody serves, and ResourceSlices. They are those
    of the TARGET, of --resource, and of --driver-name; without a TARGET, also those that the files found here name. If
    none of the three is given, all labels of kdp go. It needs the verbs 'get', 'list', and 'patch' on 'nodes', 'patch'
    on 'nodes/status', 'list' and 'delete' on 'resourceslices', and 'list' on 'pods'.

    \b
    Exit codes:
      0  nothing is left of what was looked for
      1  a plugin runs, pods hold what must be taken back, or something could not
         be removed
      2  a target, an option or the configuration is wrong
      3  with --dry-run: something is left
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from .leftovers import find, owner_of, remove

    # Whatever the mode of the driver was, its name may be said, and a plugin's taint beside it.
    given_taint = flags.pop("startup_taint")
    mode = {"mode": "dra"} if flags.get("driver_name") else {}
    with refusing():
        if node is not None and nodes is not None:
            raise ConfigurationError("--node-name and --nodes are two answers to which nodes are meant; give one")
        if (resources or given_taint is not None) and node is None and nodes is None:
            flag = "--resource" if resources else "--startup-taint"
            raise ConfigurationError(f"{flag} names what the API server has of a node; give --node-name or --nodes")
        invocation = Invocation(
            targets=targets,
            assignments=assignments,
            config=config,
            flags={**flags, **mode, "node_name": "node"},
            checks_needs=False,  # a directory may be named without what writes there
        )
        plan = invocation.plan() if targets else None
        settings = invocation.settings() if plan is None else plan.settings
        owner = None if plan is None else owner_of(plan, targets)
    places = _looked_at(settings) if nodes is None else []
    if closed := [each for each in places if is_closed(each)]:
        raise Failure(
            f"user {os.geteuid()} may not look into {', '.join(map(str, closed))}, so what is left there is not known; "
            "run this as root"
        )
    found = find(settings, owner) if nodes is None else []
    if not found and nodes is None:
        click.echo(f"nothing of kdp is left in {', '.join(map(_named, places))}")
    obstacles = [each for each in found if each.obstacle is not None]
    asked = _asked_to_stop() if stay else None  # once: a request between two waits is for the second one, too
    if asked is not None and targets and obstacles and all(each.is_claim for each in obstacles) and not force:
        _serve_until_unprepared(
            ["run", *targets, "--mode=dra", *_given(assignments, config, flags)],
            lambda: any(each.is_claim for each in find(settings, owner)),
            asked,
        )
        found = find(settings, owner)
        obstacles = [each for each in found if each.obstacle is not None]
    if obstacles and not force:
        for each in obstacles:
            click.echo(f"{each.path} ({each.what}): {each.obstacle}", err=True)
        raise Failure(_why_not(obstacles, has_target=bool(targets)))
    cluster: list[NodeLeftover] = []
    if node is not None or nodes is not None:
        with refusing():
            taint = settings.startup_taint if given_taint is None else _read_taint(given_taint)
            wanted = _wanted(plan, owner, settings, found, resources, taint)
            cluster = _found_in_cluster(kubeconfig, wanted, node, nodes, flags["state_dir"], force=force)
    waiting = [each for each in cluster if each.obstacle is not None and not (force and each.change)]
    ready = [each for each in cluster if each not in waiting]
    for leftover in waiting:
        click.echo(shown(f"{leftover.path} ({leftover.what}): {leftover.obstacle}"), err=True)
    if dry_run:
        _tell_of_nodes(ready, "would be removed")
        _tell(found, "would be removed")
        is_left = bool(ready) or any(not each.is_directory for each in found)
        raise SystemExit(1 if waiting else SOMETHING_LEFT if is_left else 0)
    # The files say which resources there were, so they go last.
    refused = _removed_in_cluster(kubeconfig, ready)
    failed = remove(found)
    _tell([each for each in found if each not in [one for one, _ in failed]], "removed")
    if owner is not None:
        _tell([each for each in find(settings) if not each.is_directory], "left, may be another plugin's")
    for each, why in failed:
        click.echo(f"{each.path} ({each.what}): cannot be removed ({why})", err=True)
    # The files that named them are gone.
    of_files = {each.resource for each in found if plan is None} - {*resources}
    if named := sorted({each.name for each in waiting if each.step == "patch-status"} & of_files):
        again = " ".join(f"--resource {name}" for name in named)
        click.echo(f"look again when that is mended, with {again}", err=True)
    if failed or refused or waiting:
        raise SystemExit(1)
    if asked is not None:
        click.echo("staying until asked to stop")
        while not asked.wait(60):  # a wait without an end would keep a signal from being seen
            pass


def _why_not(obstacles: list[Leftover], *, has_target: bool) -> str:
    """Return the sentence for leftovers that must stay. It suggests no --force for files of a living process."""
    if not any(each.is_living for each in obstacles):
        return "nothing was removed; do what the lines above say, or give --force to remove all the same"
    others = "" if has_target else ", or name the TARGET whose files are to go"
    return f"nothing was removed; end the plugins that the lines above are about{others}"


def _given(assignments: tuple[str, ...], config: Path | None, flags: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the options that this command has in common with ``kdp run``."""
    from ...daemon.settings import SETTINGS

    yield from (f"--set={assignment}" for assignment in assignments)
    if config is not None:
        yield f"--config={config}"
    # No labels are written then, so that their directory would be refused.
    kept = {name: text for name, text in flags.items() if text is not None and name != "labels_dir"}
    yield from (f"{SETTINGS[name].flag}={text}" for name, text in kept.items())


def _serve_until_unprepared(arguments: Sequence[str], are_held: Callable[[], bool], asked: threading.Event) -> None:
    """Run the driver until no claim is prepared: only a driver can unprepare one, and without it no pod can end.

    Raises:
        Failure: The driver ended by itself.
        SystemExit: A signal asks this process to stop.
    """
    click.echo("pods hold claims: the driver serves until the last one is unprepared; end these pods")
    process = subprocess.Popen([sys.executable, "-m", "kdp", *arguments])  # noqa: S603 - this program, without a shell
    try:
        while are_held():
            if asked.wait(_LOOK):
                raise SystemExit(0)
            if process.poll() is not None:
                raise Failure(f"the driver ended with exit code {process.returncode}; the lines above say why")
    finally:
        process.terminate()
        process.wait()


def _tell(leftovers: list[Leftover], verb: str) -> None:
    for each in leftovers:
        if not each.is_directory:
            click.echo(f"{each.path} ({each.what}): {verb}")
        elif verb == "removed":
            click.echo(f"{each.path} ({each.what}): {'not empty, or a mount' if os.path.exists(each.path) else verb}")
        else:
            click.echo(f"{each.path} ({each.what}): {verb}, if it is empty then")


def _looked_at(settings: Settings) -> list[Path]:
    paths = settings.paths
    places = [paths.device_plugin_dir, paths.plugins_registry_dir, paths.plugins_dir, settings.cdi_dir]
    places += [settings.labels_dir] if settings.state_dir is None else [settings.labels_dir, settings.state_dir]
    return places


def _named(place: Path) -> str:
    """Return a directory that was looked at, for a person who has mistyped it."""
    return f"{place}{'' if os.path.isdir(place) else ' (there is no such directory)'}"


def _read_taint(text: str) -> str | None:
    from ...daemon.setting import GivenValue
    from ...daemon.settings import SETTINGS
    from ...daemon.sources import resolve_some

    name = "startup_taint"
    return resolve_some([{name: GivenValue(SETTINGS[name].flag, text)}], [name]).startup_taint


def _wanted(
    plan: ServingPlan | None,
    owner: FileOwner | None,
    settings: Settings,
    found: list[Leftover],
    resources: tuple[str, ...],
    taint: str | None,
) -> Wanted:
    """Return what is looked for in the API server.

    Raises:
        ConfigurationError: A resource's name is wrong.
    """
    from ..cluster.extended_resources import parse_name
    from ..cluster.node_labels import manager_of
    from ..cluster.node_leftovers import Wanted

    given = [parse_name(name) for name in resources]
    managers: tuple[str, ...] | None = None
    if plan is not None:
        managers = tuple(manager_of(each.resource or type(each).__qualname__) for each in plan.served())
    elif given or settings.driver_name is not None:
        managers = tuple(manager_of(name) for name in given)
    if owner is None:
        of_files = [each.resource for each in found if each.resource is not None]
        drivers = [each.driver for each in found if each.driver is not None]
        if settings.driver_name is not None:
            drivers.append(settings.driver_name)
    else:
        of_files = list(owner.resources)
        drivers = [] if owner.driver is None else [owner.driver]
    return Wanted(
        managers=managers,
        taint=taint,
        resources=tuple(dict.fromkeys([*given, *of_files])),
        drivers=tuple(dict.fromkeys(drivers)),
    )


def _found_in_cluster(
    kubeconfig: Path | None, wanted: Wanted, node: str | None, nodes: str | None, state_dir: str | None, *, force: bool
) -> list[NodeLeftover]:
    from ..cluster.node_leftovers import find

    def served_by(where: str, resource: str) -> str | None:
        return server_of(resource, where, state_dir)

    labels = "" if nodes is None or nodes == _ALL else nodes
    work = functools.partial(find, wanted=wanted, node=node, labels=labels, served_by=served_by, force=force)
    return reach(kubeconfig, work)


def _removed_in_cluster(kubeconfig: Path | None, leftovers: Sequence[NodeLeftover]) -> bool:
    """Remove it, and return whether something could not be."""
    from ..cluster.node_leftovers import remove

    if not leftovers:
        return False
    refused = reach(kubeconfig, functools.partial(remove, leftovers=leftovers))
    _tell_of_nodes([each for each in leftovers if each not in [one for one, _ in refused]], "removed")
    for each, why in refused:
        click.echo(shown(f"{each.path} ({each.what}): cannot be removed ({why})"), err=True)
    return bool(refused)


def _tell_of_nodes(leftovers: Sequence[NodeLeftover], verb: str) -> None:
    for each in leftovers:
        click.echo(shown(f"{each.path} ({each.what}): {verb}"))


def _asked_to_stop() -> threading.Event:
    asked = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return asked
