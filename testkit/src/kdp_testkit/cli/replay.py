"""``kdp replay``: play the kubelet's side of a recording to a plugin, and compare its answers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Literal

import anyio
import click

from kdp.command.failures import Failure, Refusal
from kdp.command.options import Word, format_option, refusing
from kdp.command.streams import console, shown
from kdp.daemon.process import silence_grpc

from .interruption import Interrupted, unless_interrupted
from .options import check_private_mount, deadline_option, private_mount_option

if TYPE_CHECKING:
    from ..recording import Report

_KEPT_LINES = 20


@click.command("replay", short_help="Play a recording to a plugin and compare its answers.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.argument("program", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@deadline_option(10.0, "How long each thing may take that the plugin must do.")
@click.option(
    "--lists",
    type=Word(["all", "first"]),
    default="all",
    show_default=True,
    help="Expect every recorded list, or only the first of each stream: where no hardware changes, no other one comes.",
)
@click.option("--partial", is_flag=True, help="Take what there is of a recording that is cut off.")
@private_mount_option("COMMAND")
@format_option()
def command(
    file: str,
    program: tuple[str, ...],
    deadline: float,
    lists: Literal["all", "first"],
    partial: bool,
    private_mount: bool,
    format: str,
) -> None:
    """Play the kubelet's side of a recording to a plugin, and compare what it answers with what was recorded.

    COMMAND starts the plugin; it is started anew where the recorded one came back. In its arguments {root} and
    {device_plugins} stand for the directory to take for the kubelet's and for the device-plugins in it; the variables
    KDP_KUBELET_ROOT and KDP_DEVICE_PLUGIN_DIR name them, too.

    Free are the names of sockets, times, and the order of devices, ids, mounts and device nodes; everything else must
    be as recorded.

    \b
    Exit codes:
      0  the plugin answers as recorded
      1  it does not, or ended before it could
      2  the recording cannot be read, COMMAND cannot be started, or an option is
         wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    silence_grpc()
    check_private_mount(private_mount)
    from ..recording import RecordingError, Replay, of_command, read

    with refusing():
        try:
            recording = read(file, partial=partial)
        except RecordingError as error:
            raise Refusal(str(error)) from None
        replay = Replay(
            recording, of_command(program, mount=private_mount, deadline=deadline), deadline=deadline, lists=lists
        )
        try:
            report = anyio.run(unless_interrupted, replay.run)
        except Interrupted as signal:
            raise Failure(f"interrupted by {signal}") from None
    if format == "json":
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    if not report.is_same:
        tell_output(report.said)
        raise SystemExit(1)


def tell_output(said: str) -> None:
    """Show the last lines that a plugin printed, on stderr."""
    if said:
        click.echo("what the plugin printed last:", err=True)
        click.echo("\n".join(f"  {shown(line)}" for line in said.splitlines()[-_KEPT_LINES:]), err=True)


def _print(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console(sys.stdout)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("LINE", "TIME", "CALL", "VERDICT", "DIFFERENCE"):
        table.add_column(name, overflow="fold")
    for step in report.steps:
        style = {"same": "", "different": "red"}.get(step.verdict, "dim")
        where = (str(step.line) if step.line else "", f"{step.time:.3f} s", step.what, step.verdict)
        table.add_row(*(Text(cell, style=style) for cell in where), shown("\n".join(step.differences)))
    if report.steps:
        screen.print(table)
    screen.print(shown(report.sentence))
