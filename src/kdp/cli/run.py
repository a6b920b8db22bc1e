"""``kdp run TARGET...``: serve the node's kubelet."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ..daemon.process import prepare_process, run_plan
from ..daemon.settings import SETTINGS
from .invocation import Invocation
from .options import backend_options, refusing, setting_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command("run", short_help="Serve the kubelet of this node.")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@backend_options
@setting_options(*SETTINGS)
def command(targets: tuple[str, ...], assignments: tuple[str, ...], config: Path | None, **flags: str | None) -> None:
    """Serve the kubelet of this node with the devices of one or several classes, until asked to stop.

    SIGTERM and SIGINT stop in order, SIGHUP reads the configuration file again and discovers again over the living
    streams, SIGQUIT writes all stacks to stderr.

    \b
    Exit codes:
      0  asked to stop
      1  internal failure: a bug of kdp
      2  the configuration, a target, a parameter or a limit of the process is wrong
      3  the plugin directory is unlinked: only a new process (a new mount) helps
    """  # noqa: D301 - click's mark for a block that keeps its lines
    sys.stdout = sys.__stdout__  # it is the vendor's: nothing of ours is written there
    with refusing():
        signals = prepare_process()
        invocation = Invocation(targets=targets, assignments=assignments, config=config, flags=flags)
        plan = invocation.plan()
    raise SystemExit(run_plan(plan, signals=signals, read_again=invocation.plan))
