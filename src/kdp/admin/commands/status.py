"""``kdp status``: what a running plugin serves, asked of itself, at its unix socket or over HTTP."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, TextIO
from urllib.parse import urlsplit

import click

from ...command import asking
from ...command.failures import Failure
from ...command.living import SOCKET_HELP, STATUS, parse_status, socket_of
from ...command.options import Seconds, format_option, refusing, setting_options
from ...command.streams import document, shown
from ...errors import ConfigurationError, printable
from ...storage.documents import parse_json
from .status_text import status_lines

if TYPE_CHECKING:
    from collections.abc import Callable

_CLEAR = "\x1b[H\x1b[2J"

DEADLINE: Final = 10.0
"""Seconds for the whole answer over HTTP, which may cross a network."""

_CHUNK: Final = 1 << 16
_SHOWN: Final = 200


@click.command("status", short_help="Show what a running plugin serves.")
@setting_options("socket", "state_dir", help=SOCKET_HELP)
@click.option(
    "--url",
    metavar="URL",
    help="Ask over HTTP instead: where the probes of a plugin are answered that runs with --status-page on.",
)
@click.option(
    "--watch",
    type=Seconds(),
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Ask again after each pause, until interrupted; without a number every 2 s.",
)
@format_option()
@click.pass_context
def command(
    ctx: click.Context, socket: str | None, state_dir: str | None, url: str | None, watch: float | None, format: str
) -> None:
    """Show what a running plugin serves: its resources or drivers, and each device with its health and its pod.

    The plugin answers on its unix socket, so the hardware is not looked at a second time. It answers root and its own
    user. With --url a plugin is asked whose status page is on, also from another machine.

    \b
    Exit codes:
      0  the plugin is ready
      1  it is not ready, or nobody answers; the reason is shown
      2  several plugins have a socket there, or an option is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    where, ask = _asked_of(ctx, url, socket, state_dir)
    out = document()
    is_ready = _show(out, where, ask(), format)
    while watch is not None:
        time.sleep(watch)
        answer = ask()  # before the screen is cleared: it may take a while
        if out.isatty():
            click.echo(_CLEAR, file=out, nl=False)
        is_ready = _show(out, where, answer, format)
    ctx.exit(0 if is_ready else 1)


def _asked_of(
    ctx: click.Context, url: str | None, socket: str | None, state_dir: str | None
) -> tuple[str, Callable[[], tuple[int, str]]]:
    """Return what messages call the plugin, and what asks it."""
    if url is None:
        path = str(socket_of(ctx, socket=socket, state_dir=state_dir))
        return path, lambda: asking.ask(path, STATUS)
    with refusing():
        if socket is not None or state_dir is not None:
            other = "--socket" if socket is not None else "--state-dir"
            raise ConfigurationError(f"--url and {other} are two answers to which plugin is asked; give one")
        checked = check_url(url)
    return checked, lambda: ask_over_http(checked)


def check_url(url: str) -> str:
    """Return a plugin's URL without a slash at its end.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    else:
        is_one = is_one and url.isascii() and url.isprintable() and not (" " in url or parts.query or parts.fragment)
    if not is_one:
        raise ConfigurationError(
            f"--url {printable(url, _SHOWN)!r}: must be where the plugin's probes are answered, for example "
            "http://10.0.0.7:8080"
        )
    return url.rstrip("/")


def ask_over_http(url: str, *, deadline: float | None = None, most: int = asking.MOST_BYTES) -> tuple[int, str]:
    """Ask for a plugin's status; return 0 and the document, else 1 and the reason.

    Args:
        url: As `check_url` returned it.
        deadline: Seconds for the whole answer; None: `DEADLINE`.
        most: Bytes of the answer.
    """
    import http.client  # late: a command in the plugin's container does not need it

    deadline = DEADLINE if deadline is None else deadline
    until = time.monotonic() + deadline
    parts = urlsplit(url)
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        with closing(made(parts.hostname or "", parts.port, timeout=deadline)) as connection:
            connection.request("GET", f"{parts.path}/status.json")
            answer = connection.getresponse()
            body = bytearray()
            while chunk := answer.read1(_CHUNK):
                body += chunk
                if len(body) > most:
                    return 1, f"{url}: its answer has more than {most >> 20} MiB; is this the address of a plugin?\n"
                if time.monotonic() > until:
                    raise TimeoutError
                if connection.sock is not None:  # None: the answer is complete
                    connection.sock.settimeout(max(until - time.monotonic(), 0.001))
    except (OSError, http.client.HTTPException) as error:
        late = isinstance(error, TimeoutError)
        reason = (
            f"no answer within {deadline:g} s" if late else getattr(error, "strerror", None) or type(error).__name__
        )
        return 1, f"{url}: {reason}; is the plugin running, and are its probes answered there?\n"
    text = body.decode(errors="replace")
    if answer.headers.get("Kdp-Protocol") != "1":
        return 1, f"{url}: another program answers there; is this the address of a plugin?\n"
    if answer.status != http.HTTPStatus.OK:
        return 1, f"{url}: shows no status over the network; start the plugin with --status-page on\n"
    return 0, text


def _show(out: TextIO, where: str, answer: tuple[int, str], format: str) -> bool:
    """Print an answer, and return whether the plugin is ready."""
    code, text = answer
    if code != 0:
        click.echo(text, file=out, nl=False)
        return False
    try:
        found = parse_status(where, text)
    except Failure as error:
        click.echo(shown(error.message), file=out)
        return False
    if format == "json":  # also what this version does not know
        click.echo(json.dumps(parse_json(text), indent=2), file=out)
    else:
        click.echo("\n".join(status_lines(found, is_terminal=out.isatty())), file=out)
    return found.is_ready
