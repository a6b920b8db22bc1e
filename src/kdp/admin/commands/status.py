"""``kdp status``: the state of running plugins, as text, as JSON, or on a page."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from ...command import asking
from ...command.failures import Failure, Refusal
from ...command.living import SOCKET_HELP, STATUS, living_plugins, parse_status, socket_of, sockets_of
from ...command.options import Seconds, format_option, refusing, setting_options
from ...command.streams import document, shown
from ...daemon.parsers import Address, Unacceptable
from ...daemon.parsers import address as read_address
from ...errors import ConfigurationError, printable
from ...storage.documents import parse_json
from .status_text import status_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..page.view import AskedPlugin
    from .status_sources import NodePlugins

_CLEAR = "\x1b[H\x1b[2J"

LOOPBACK: Final = "127.0.0.1"

PAGE_PORT: Final = 8090
"""Port of the page. A plugin's container has the probes at 8080."""

_SHOWN: Final = 200


@click.command("status", short_help="Show the state of running plugins.")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@setting_options("socket", "state_dir", help=SOCKET_HELP)
@click.option(
    "--watch",
    type=Seconds(),
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Ask again after each pause, until interrupted; without a number every 2 s.",
)
@click.option(
    "--serve",
    is_flag=False,
    flag_value=f"{LOOPBACK}:{PAGE_PORT}",
    metavar="[ADDRESS]",
    help="Serve a page that refreshes itself, until interrupted. Anyone who can connect sees pods' names. Without an "
    f"address at {LOOPBACK}:{PAGE_PORT}; without a host only on this machine.",
)
@format_option("text", "json", "html", help="Text for people, JSON for programs, or a page as one HTML file.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    socket: str | None,
    state_dir: str | None,
    watch: float | None,
    serve: str | None,
    format: str,
) -> None:
    """Show the state of running plugins: resources or drivers, and each device with its health and its pod.

    A plugin answers on its unix socket, so the hardware is not looked at a second time. It answers root and its own
    user. A page shows all plugins of this node. Text and JSON show one of them.

    FILE shows plugins of any node: the JSON of this command, or a bundle of kdp doctor --bundle.

    \b
    Exit codes:
      0  each plugin is ready, or the page was served until it was interrupted
      1  one is not ready, or does not answer; the reason is shown
      2  several plugins have a socket there, or an option is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    is_format_given = ctx.get_parameter_source("format") is click.core.ParameterSource.COMMANDLINE
    _check(
        {
            "FILE": bool(files),
            "--socket": socket is not None,
            "--state-dir": state_dir is not None,
            "--watch": watch is not None,
            "--serve": serve is not None,
            "--format": is_format_given,
            "--format html": format == "html",
        }
    )
    if serve is not None:
        with refusing():
            address = page_address(serve)
        _serve(address, _plugins_of_node(ctx, socket, state_dir))
        return
    if files:
        from .status_sources import saved_plugins  # late: a command that asks one plugin does without

        with refusing():
            plugins: Sequence[AskedPlugin] = saved_plugins(files)
        ctx.exit(0 if _show_all(document(), plugins, format) else 1)
    if format == "html":
        plugins = _plugins_of_node(ctx, socket, state_dir).look()
        ctx.exit(0 if _show_all(document(), plugins, format) else 1)
    path = socket_of(ctx, socket=socket, state_dir=state_dir)
    out = document()
    is_ready = _show(out, path, asking.ask(str(path), STATUS), format)
    while watch is not None:
        time.sleep(watch)
        answer = asking.ask(str(path), STATUS)  # before the screen is cleared: it may take a while
        if out.isatty():
            click.echo(_CLEAR, file=out, nl=False)
        is_ready = _show(out, path, answer, format)
    ctx.exit(0 if is_ready else 1)


def page_address(text: str) -> Address:
    """Return where the page is served. Without a host, only this machine reaches it.

    Raises:
        ConfigurationError: The text is no address.
    """
    try:
        found = read_address(text)
    except Unacceptable:
        raise ConfigurationError(
            f"--serve {printable(text, _SHOWN)!r}: must be ADDRESS:PORT or :PORT; for example '{LOOPBACK}:{PAGE_PORT}'"
        ) from None
    return found if found.host else Address(LOOPBACK, found.port)


_EXCLUSIVE: Final = (
    ("FILE", "--socket"),
    ("FILE", "--state-dir"),
    ("FILE", "--watch"),
    ("FILE", "--serve"),
    ("--serve", "--watch"),
    ("--serve", "--format"),
    ("--format html", "--watch"),
)


def _check(given: dict[str, bool]) -> None:
    """Refuse two options if one of them would have no effect.

    Raises:
        Refusal: There are two of them.
    """
    for one, other in _EXCLUSIVE:
        if given[one] and given[other]:
            raise Refusal(f"{one} and {other} exclude each other; give one of them")


def _show(out: TextIO, path: Path, answer: tuple[int, str], format: str) -> bool:
    """Print a plugin's answer, and return whether the plugin is ready."""
    code, text = answer
    if code != 0:
        click.echo(text, file=out, nl=False)
        return False
    try:
        found = parse_status(path, text)
    except Failure as error:
        click.echo(shown(error.message), file=out)
        return False
    if format == "json":  # with the keys of a newer version
        click.echo(json.dumps(parse_json(text), indent=2), file=out)
    else:
        click.echo("\n".join(status_lines(found, is_terminal=out.isatty())), file=out)
    return found.is_ready


def _show_all(out: TextIO, plugins: Sequence[AskedPlugin], format: str) -> bool:
    """Print several plugins, and return whether all are ready."""
    if format == "html":
        from ..page.shell import StatusPage

        click.echo(StatusPage().file(plugins), file=out, nl=False)
    for each in plugins if format != "html" else ():
        if format == "json":
            click.echo(json.dumps({} if each.status is None else each.status.to_json(), indent=2), file=out)
            continue
        click.echo(shown(f"{each.place}, as of {each.at:%Y-%m-%d %H:%M:%S} UTC"), file=out)
        lines = [shown(each.problem)] if each.status is None else status_lines(each.status, is_terminal=out.isatty())
        click.echo("\n".join([*lines, ""]), file=out)
    return bool(plugins) and all(each.is_ready for each in plugins)


# -- the page ------------------------------------------------------------------------------------------------------


def _plugins_of_node(ctx: click.Context, socket: str | None, state_dir: str | None) -> NodePlugins:
    """Return the plugins of this node. The command ends with 1 if there is none."""
    from .status_sources import NodePlugins

    first = sockets_of(ctx, socket=socket, state_dir=state_dir)
    return NodePlugins(first, lambda: living_plugins(socket=socket, state_dir=state_dir)[0])


def _serve(address: Address, plugins: NodePlugins) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Raises:
        Refusal: Nobody can listen at the address.
    """
    import asyncio  # late: a command that asks one plugin does without

    from ...daemon.listener import listening_at, url_of
    from ..page.server import serve_until_interrupted

    def begun() -> None:
        click.echo(f"the status page is at {url}/ until this command is interrupted", err=True)

    with refusing():
        listening = listening_at(address)
    url = url_of(listening)
    asyncio.run(serve_until_interrupted(listening, plugins.look, begun))
