"""``kdp probe ready|live``: asks a running plugin how it is, as an exec probe or by hand."""

from __future__ import annotations

import click

from . import asking
from .living import SOCKET_HELP, socket_of
from .options import setting_options


@click.command("probe", short_help="Ask a running plugin whether it is ready or alive.")
@click.argument("what", type=click.Choice(list(asking.PATHS)), metavar="ready|live")
@setting_options("socket", "state_dir", help=SOCKET_HELP)
@click.pass_context
def command(ctx: click.Context, what: str, socket: str | None, state_dir: str | None) -> None:
    """Ask a running plugin whether it is ready or alive.

    A plugin is ready if the kubelet lists the devices of all its resources. It is alive if its event loop runs. The
    probes of a container can use this command instead of a port. The plugin answers root and its own user.

    \b
    Exit codes:
      0  yes
      1  no, or nobody answers; the reason is written to stdout
      2  several plugins have a socket there, or an option is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    path = socket_of(ctx, socket=socket, state_dir=state_dir)
    code, text = asking.ask(str(path), asking.PATHS[what])
    click.echo(text, nl=False)
    ctx.exit(code)
