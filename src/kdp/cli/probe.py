"""``kdp probe ready|live``: asks a running plugin how it is, as an exec probe or by hand."""

from __future__ import annotations

import os
from pathlib import Path

import click

from . import asking
from .options import refusing, setting_options


@click.command("probe", short_help="Ask a running plugin whether it is ready or alive.")
@click.argument("what", type=click.Choice(list(asking.PATHS)), metavar="ready|live")
@setting_options("socket", "state_dir")
@click.pass_context
def command(ctx: click.Context, what: str, socket: str | None, state_dir: str | None) -> None:
    """Ask a running plugin whether it is ready, or alive, over its unix socket.

    Without --socket it is the one socket in the state directory. Root is answered, or the user whose process the
    plugin is.

    \b
    Exit codes:
      0  yes
      1  no, or nobody answers; the reason is written to stdout
      2  several plugins have a socket there, or an option is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from ..daemon.setting import Given
    from ..daemon.settings import SETTINGS
    from ..daemon.sources import from_environment, resolve
    from ..errors import ConfigurationError

    names = ("socket", "state_dir")
    flags = {
        name: Given(SETTINGS[name].flag, text)
        for name, text in zip(names, (socket, state_dir), strict=True)
        if text is not None
    }
    given = {name: each for name, each in from_environment(os.environ).items() if name in names}
    with refusing():
        settings = resolve([flags, given])
        path = settings.socket if isinstance(settings.socket, Path) else None
        if path is None:
            if settings.socket is None or settings.state_dir is None:
                raise ConfigurationError("--socket is missing; expected the socket of a running plugin")
            found = sorted(each for each in settings.state_dir.glob("[!.]*.sock") if each.is_socket())
            if len(found) > 1:
                raise ConfigurationError(
                    f"state directory {str(settings.state_dir)!r}: it has the sockets of several plugins; name one of "
                    f"them with --socket: {', '.join(each.name for each in found)}"
                )
            path = found[0] if found else None
    if path is None:
        click.echo(f"{settings.state_dir}: no plugin has a socket there; is it running, with this state directory?")
        ctx.exit(1)
    code, text = asking.ask(str(path), asking.PATHS[what])
    click.echo(text, nl=False)
    ctx.exit(code)
