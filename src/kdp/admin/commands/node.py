"""``kdp node``: labels of a node by its devices, and extended resources by hand."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, TextIO

import click

from ...command.failures import Failure, Group
from ...command.living import SOCKET_HELP
from ...command.options import backend_options, format_option, refusing, setting_options
from ...command.streams import document, shown
from ...errors import ConfigurationError, KdpError, sentence
from ...storage.documents import parse_json
from .reaching import agree, chosen, cluster_option, node_option, reach, server_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ...cluster.api import Object
    from ...cluster.client import KubeApi
    from ..cluster.extended_resources import ResourceChange
    from ..cluster.node_labels import LabelChange

_STATE_DIR = {"state_dir": "The state directory of the plugins, where they are asked whether one serves the resource."}
_TRIES = 3
_RACES = (409, 422)

_yes = click.option("--yes", is_flag=True, help="Agree to what would be asked.")
_dry_run = click.option("--dry-run", is_flag=True, help="Let the API server check it, and change nothing.")


def _of_a_node(function: Callable[..., object]) -> Callable[..., object]:
    """Give a command the options of those that change a resource in a node's status."""
    state_dir = setting_options("state_dir", help=_STATE_DIR)
    for option in reversed((_yes, _dry_run, node_option, cluster_option, state_dir, format_option())):
        function = option(function)
    return function


@click.group("node", cls=Group, short_help="Label a node by its devices; count resources by hand.")
def command() -> None:
    """Label a node by its devices, or tell the scheduler of resources that no plugin serves."""


# -- labels ------------------------------------------------------------------------------------------------------------


@command.command("label", short_help="Put the labels of a backend on the Node object.")
@click.argument("target", required=False, metavar="[TARGET]")
@click.option("--remove", is_flag=True, help="Remove the labels instead.")
@click.option("--force", is_flag=True, help="Take over labels that another manager owns.")
@_dry_run
@node_option
@cluster_option
@backend_options
@setting_options("host_root", "snapshot", "socket", "state_dir", help=SOCKET_HELP)
@format_option()
@click.pass_context
def label(
    ctx: click.Context,
    /,
    target: str | None,
    remove: bool,
    force: bool,
    dry_run: bool,
    node: str | None,
    kubeconfig: Path | None,
    assignments: tuple[str, ...],
    config: Path | None,
    format: str,
    **flags: str | None,
) -> None:
    """Put the labels of a backend on the Node object itself, in a cluster without Node Feature Discovery.

    With a TARGET its devices are looked for on this machine, and its hook 'labels' is asked. Without one, the running
    plugin is asked, which must have its labels on. They are applied by server-side apply: labels that the
    backend no longer has are removed, and those of others stay. It needs the verbs 'get' and 'patch' on 'nodes'.

    \b
    Exit codes:
      0  the node has the labels
      1  the API server refused, a label belongs to another manager, or the
         discovery failed
      2  the target, a parameter, or an option is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    out = document()
    with refusing():
        name, labels = (
            _of_target(target, assignments, config, flags, asks=not remove)
            if target is not None
            else _of_plugin(ctx, assignments, config, flags)
        )
        wanted: Mapping[str, str] = {} if remove else labels

        async def work(api: KubeApi) -> tuple[str, LabelChange]:
            return await _apply(api, node, wanted, _manager(name), force=force, dry_run=dry_run)

        where, change = reach(kubeconfig, work)
    is_refused = bool(change.conflicts) and not force
    if format == "json":
        told = {"node": where, "manager": _manager(name), "dry_run": dry_run, "is_applied": not (is_refused or dry_run)}
        click.echo(json.dumps({**told, **_as_json(change)}, indent=2), file=out)
    else:
        _tell(out, where, change, is_refused=is_refused, dry_run=dry_run)
    ctx.exit(1 if is_refused else 0)


def _manager(name: str) -> str:
    from ..cluster.node_labels import manager_of

    return manager_of(name)


def _of_target(
    target: str, assignments: tuple[str, ...], config: Path | None, flags: Mapping[str, str | None], *, asks: bool
) -> tuple[str, Mapping[str, str]]:
    """Return a backend's name, and the labels that it wants for what is on this machine."""
    from ...command.invocation import Invocation
    from ...supervision.discover import discover_labels
    from .looking import looked

    plan = Invocation(targets=(target,), assignments=assignments, config=config, flags=flags).plan()
    (backend,) = plan.served()
    name = backend.resource or type(backend).__qualname__
    if not asks:
        return name, {}
    try:
        found = looked(discover_labels, backend, plan)
    except KdpError as error:
        raise Failure(sentence(error)) from None
    if found.problem is not None:
        raise Failure(shown(found.problem))
    return name, found.values or {}


def _of_plugin(
    ctx: click.Context, assignments: tuple[str, ...], config: Path | None, flags: Mapping[str, str | None]
) -> tuple[str, Mapping[str, str]]:
    """Return the name of what a running plugin serves, and its labels."""
    from ...command import asking
    from ...command.living import socket_of

    if assignments or config is not None or flags["host_root"] or flags["snapshot"]:
        raise ConfigurationError("--set, --config, --host-root, and --snapshot are for a TARGET; name one")
    path = socket_of(ctx, socket=flags["socket"], state_dir=flags["state_dir"])
    code, text = asking.ask(str(path), "/status.json")
    if code != 0:
        raise Failure(shown(text.strip()))
    try:
        status: dict[str, Any] = parse_json(text)
        labels: dict[str, str] | None = None
        if status["labels"] is not None:
            labels = {name: value for file in status["labels"]["files"] for name, value in file["labels"].items()}
        resources = [resource["name"] for resource in status["resources"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Failure(f"{path}: its answer is no status of this version of kdp") from None
    if labels is None:
        raise ConfigurationError(
            f"{path}: the plugin runs with --labels off, so it has no labels; name a TARGET, or start it with "
            "--labels nfd"
        )
    return resources[0] if resources else path.stem, labels


async def _apply(
    api: KubeApi, node: str | None, labels: Mapping[str, str], manager: str, *, force: bool, dry_run: bool
) -> tuple[str, LabelChange]:
    from ..cluster.node_labels import application_of, change_of

    where = await chosen(api, node)
    found = await api.node(where)
    change = change_of(found, labels, manager)
    if not change.conflicts or force:
        await api.apply_node(application_of(found, labels), manager=manager, force=force, dry_run=dry_run)
    return where, change


def _as_json(change: LabelChange) -> dict[str, Any]:
    return {
        "labels": dict(change.labels),
        "added": list(change.added),
        "changed": dict(change.changed),
        "removed": list(change.removed),
        "conflicts": [
            {"label": each.label, "value": each.value, "owners": list(each.owners)} for each in change.conflicts
        ],
    }


def _tell(out: TextIO, node: str, change: LabelChange, *, is_refused: bool, dry_run: bool) -> None:
    for each in change.conflicts:
        click.echo(
            shown(
                f"{each.label}: node {node} has {each.value!r}, which {' and '.join(each.owners)} owns; this would set "
                f"{change.labels[each.label]!r}"
            ),
            file=out,
        )
    if is_refused:
        click.echo("nothing was changed; give --force to take these labels over, or remove them there", file=out)
        return
    for name in change.added:
        click.echo(shown(f"+ {name}={change.labels[name]}"), file=out)
    for name, before in change.changed.items():
        click.echo(shown(f"~ {name}={change.labels[name]} (was {before})"), file=out)
    for name in change.removed:
        click.echo(shown(f"- {name}"), file=out)
    if change.is_empty:
        click.echo(f"node {node} has these labels already: {len(change.labels)}", file=out)
    elif dry_run:
        click.echo(f"node {node}: nothing was changed, as --dry-run asks", file=out)
    else:
        click.echo(f"node {node} is labeled", file=out)


# -- extended resources ------------------------------------------------------------------------------------------------


@command.command("advertise", short_help="Tell the scheduler of a resource that no plugin serves.")
@click.argument("assignment", metavar="NAME=NUMBER")
@_of_a_node
def advertise(
    assignment: str,
    yes: bool,
    dry_run: bool,
    node: str | None,
    kubeconfig: Path | None,
    state_dir: str | None,
    format: str,
) -> None:
    """Tell the scheduler how many of an extended resource a node has, as example.com/dongle=4.

    Pods that ask for it are counted and scheduled, and get no device. The number stays in the node's status until it is
    withdrawn. A name that a device plugin serves is refused. It needs the verbs 'get' on 'nodes' and 'patch' on
    'nodes/status'.

    \b
    Exit codes:
      0  the node has that number
      1  the API server refused, or the question was answered with no
      2  the name, the number, or an option is wrong, a plugin serves the
         resource, or nobody could be asked
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from ..cluster.extended_resources import NO_DEVICE, advertising, parse_assignment

    out = document()
    with refusing():
        name, count = parse_assignment(assignment)

        def decide(found: Object, served_by: str | None) -> ResourceChange:
            return advertising(found, name, count, served_by=served_by)

        where, change = _changed(kubeconfig, node, name, decide, state_dir, yes=yes, dry_run=dry_run)
    if format == "json":
        _print_json(out, where, name, change, dry_run=dry_run)
        return
    _tell_question(out, change, dry_run=dry_run)
    has = "would have" if dry_run else "has"
    click.echo(f"node {where} {has} {count} of {name}: {NO_DEVICE}", file=out)


@command.command("withdraw", short_help="Take a resource away that no plugin serves.")
@click.argument("name", metavar="NAME")
@click.option(
    "--force", is_flag=True, help="Remove a number that the kubelet wrote, too; it comes back if it is right."
)
@_of_a_node
def withdraw(
    name: str,
    force: bool,
    yes: bool,
    dry_run: bool,
    node: str | None,
    kubeconfig: Path | None,
    state_dir: str | None,
    format: str,
) -> None:
    """Take an extended resource out of a node's status: what 'kdp node advertise' wrote, or a stale zero.

    A device plugin that has vanished leaves the number 0 behind, which the kubelet keeps for ever. It is removed after
    a question. A resource that a plugin serves is refused. Pods that have it already run on.

    \b
    Exit codes:
      0  the node does not have it
      1  the API server refused, or the question was answered with no
      2  the name or an option is wrong, a plugin serves the resource, or nobody
         could be asked
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from ..cluster.extended_resources import parse_name, withdrawing

    out = document()
    with refusing():
        resource = parse_name(name)

        def decide(found: Object, served_by: str | None) -> ResourceChange:
            return withdrawing(found, resource, served_by=served_by, force=force)

        where, change = _changed(kubeconfig, node, resource, decide, state_dir, yes=yes, dry_run=dry_run)
    if format == "json":
        _print_json(out, where, resource, change, dry_run=dry_run)
    elif not change.patch:
        click.echo(f"node {where} does not have {resource}", file=out)
    else:
        _tell_question(out, change, dry_run=dry_run)
        done = "would lose" if dry_run else "no longer has"
        click.echo(f"node {where} {done} {resource}, of which it had {change.before or 'nothing'}", file=out)


def _changed(
    kubeconfig: Path | None,
    node: str | None,
    name: str,
    decide: Callable[[Object, str | None], ResourceChange],
    state_dir: str | None,
    *,
    yes: bool,
    dry_run: bool,
) -> tuple[str, ResourceChange]:
    """Read the node, decide, ask, and write; again, if the node changed meanwhile."""

    async def look(api: KubeApi) -> Object:
        return await api.node(await chosen(api, node))

    for left in reversed(range(_TRIES)):
        found = reach(kubeconfig, look)
        where = str(found["metadata"]["name"])
        change = decide(found, server_of(name, where, state_dir))
        if not dry_run:
            agree(change.question, yes=yes)
        write = functools.partial(_written, node=where, change=change, dry_run=dry_run, is_last=not left)
        if not change.patch or reach(kubeconfig, write):
            return where, change
    raise AssertionError


async def _written(api: KubeApi, *, node: str, change: ResourceChange, dry_run: bool, is_last: bool) -> bool:
    """Write a change, and return whether the node was as it had been read."""
    from ...cluster.api import ApiError
    from ..cluster.extended_resources import MANAGER

    try:
        await api.patch_node_status(node, change.patch, manager=MANAGER, dry_run=dry_run)
    except ApiError as error:
        if error.status in _RACES and not is_last:
            return False
        raise
    return True


def _tell_question(out: TextIO, change: ResourceChange, *, dry_run: bool) -> None:
    if dry_run and change.question is not None:
        click.echo(shown(f"it would be asked: {change.question}?"), file=out)


def _print_json(out: TextIO, node: str, name: str, change: ResourceChange, *, dry_run: bool) -> None:
    told = {
        "node": node,
        "resource": name,
        "before": change.before,
        "after": change.after,
        "changed": bool(change.patch) and not dry_run,
        "dry_run": dry_run,
        "question": change.question,
    }
    click.echo(json.dumps(told, indent=2), file=out)
