"""``kdp nodes``: the devices of all nodes of a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

import click

from ...command.failures import warn
from ...command.options import format_option, refusing
from ...command.streams import console, document, table
from .reaching import cluster_option, reach

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ...cluster.client import KubeApi
    from ..cluster.cluster_view import ClusterView

_EXPIRED = 410
_NOT_SERVED = (403, 404)


@click.command("nodes", short_help="Show the devices of all nodes of a cluster.")
@click.option(
    "--resource",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only resources and DRA drivers with such a name, as 'nvidia.com/*'; may be repeated.",
)
@cluster_option
@format_option()
def command(patterns: tuple[str, ...], kubeconfig: Path | None, format: str) -> None:
    """Show the devices of all nodes of a cluster: extended resources, and the pools of DRA drivers.

    REQUESTED is the sum of the requests of the node's pods that have not ended. UNHEALTHY is capacity without
    allocatable, or 'no plugin': no device plugin is ready on the node, and pods keep the devices that they have. The
    last table has the DaemonSets of plugins, with the number of their nodes and of their ready pods. A plugin's pod
    mounts a kubelet's directory for plugins. The command needs the verb 'list' on 'nodes', 'pods', and, for pools,
    'resourceslices'.

    \b
    Exit codes:
      0  shown
      1  the API server refused
      2  an option is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    out = document()

    async def work(api: KubeApi) -> tuple[ClusterView, str | None]:
        return await _collected(api, patterns)

    with refusing():
        view, missing = reach(kubeconfig, work)
    if format == "json":
        click.echo(json.dumps({**view.as_json(), "pools_unknown": missing}, indent=2), file=out)
    else:
        _print(out, view, missing)


async def _collected(api: KubeApi, patterns: Sequence[str]) -> tuple[ClusterView, str | None]:
    """Return what the cluster says, and why its pools are not known; None: they are."""
    from ...cluster.api import ApiError
    from ...cluster.nodes import nodes, resource_slices, running_pods
    from ...errors import sentence
    from ..cluster.cluster_view import ClusterView

    for is_last in (False, True):
        view = ClusterView(patterns)
        try:
            async for node in nodes(api):
                view.add_node(node)
            async for pod in running_pods(api):
                view.add_pod(pod)
            try:
                async for item in resource_slices(api):
                    view.add_slice(item)
            except ApiError as error:
                if error.status not in _NOT_SERVED:
                    raise
                return view, sentence(error)
        except ApiError as error:
            if error.status != _EXPIRED or is_last:  # a list took so long that its version is gone: once more
                raise
        else:
            return view, None
    raise AssertionError


def _print(out: TextIO, view: ClusterView, missing: str | None) -> None:
    screen = console(out)
    rows, pools, plugins = [*view.resources()], view.pools(), view.plugin_counts()
    if rows:
        heads = ("NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "UNHEALTHY")
        lines = [
            (
                row.node if row.is_node_ready else f"{row.node} (not ready)",
                row.resource,
                *map(str, (row.capacity, row.allocatable, row.requested)),
                "no plugin" if row.is_unserved else str(row.unhealthy or "-"),
            )
            for row in rows
        ]
        bad = [row.is_unserved or row.unhealthy or not row.is_node_ready for row in rows]
        screen.print(table(heads, lines, ["red" if each else "" for each in bad]))
    if pools:
        of_pools = ("NODE", "DRIVER", "POOL", "SLICES", "DEVICES", "TAINTED")
        if rows:
            click.echo(file=out)
        cells = [
            (each.node, each.driver, each.pool, str(each.slices), str(each.devices), str(each.tainted or "-"))
            for each in pools
        ]
        screen.print(table(of_pools, cells, ["red" if each.tainted else "" for each in pools]))
    if not rows and not pools:
        click.echo(f"none of the {view.nodes} nodes has such a resource", file=out)
    elif plugins:
        click.echo(file=out)
        counts = [(each.owner, each.version or "-", str(each.nodes), str(each.ready)) for each in plugins]
        styles = ["red" if each.ready < each.nodes else "" for each in plugins]
        screen.print(table(("PLUGIN", "VERSION", "NODES", "READY"), counts, styles))
    if missing is not None:
        warn(f"the pools of DRA drivers are not known: {missing}")
