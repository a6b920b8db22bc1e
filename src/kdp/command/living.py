"""A living plugin of this node: which socket a command means, and the plugin's status document.

The commands load neither gRPC nor a vendor's class. They run in the plugin's container, within its limit of memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .._version import __version__
from ..daemon.setting import GivenValue
from ..daemon.settings import SETTINGS
from ..daemon.sources import from_environment, resolve_some
from ..errors import ConfigurationError
from ..kubelet.sockets import connect, is_answered
from ..operations.status_document import StatusDocument
from . import asking
from .failures import Failure, Refusal
from .found_sockets import found_sockets, why_no_socket
from .options import refusing
from .streams import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..daemon.settings import Settings

SOCKET_HELP = {
    "socket": "The socket of the plugin; default: the only one in the state directory or in the pods of this node.",
    "state_dir": "The state directory of the plugin, where its socket is.",
}
"""What the settings mean to a command that asks a plugin."""

STATUS: Final = "/status.json"
"""The path of the status document at a plugin's socket."""

_NAMES = ("socket", "state_dir", "kubelet_root", "device_plugin_dir")


def socket_of(ctx: click.Context, **flags: str | None) -> Path:
    """Return the plugin's socket: the one that is named, else the only one of this node.

    Args:
        ctx: Its command ends with 1 if no plugin has a socket.
        **flags: The settings ``socket`` and ``state_dir``.

    Raises:
        Refusal: An option is wrong, or several plugins have a socket.
    """
    found = sockets_of(ctx, **flags)
    if len(found) > 1:
        raise Refusal(several(found))
    return found[0]


def sockets_of(ctx: click.Context, **flags: str | None) -> list[Path]:
    """Return the sockets of this node's plugins, at least one. An option can name a single one.

    Args:
        ctx: Its command ends with 1 if no plugin has a socket.
        **flags: The settings ``socket`` and ``state_dir``.

    Raises:
        Refusal: An option is wrong.
    """
    with refusing():
        settings = resolved(flags)
        if isinstance(settings.socket, Path):
            return [settings.socket]
        if settings.socket is None or settings.state_dir is None:
            raise ConfigurationError("--socket is missing; expected the socket of a running plugin")
    found = found_sockets(settings.state_dir, settings.kubelet_root)
    if len(found) > 1:  # a killed plugin leaves one
        found = [each for each in found if is_answered(each) is not False] or found[:1]
    if not found:
        absence = why_no_socket(settings.state_dir, settings.paths)
        click.echo(shown(f"{absence.seen}; {absence.remedy}"))
        ctx.exit(1)
    return found


def living_plugins(**flags: str | None) -> tuple[list[Path], list[Path]]:
    """Return the sockets at which plugins of this node answer, and where one may be that this user may not ask.

    A socket that is named is returned in any case. The others are looked for in the places of `socket_of`; the state
    directory and the sockets in it are those that a user may have no right to.

    Args:
        **flags: Any of the settings ``socket``, ``state_dir``, and ``kubelet_root``.

    Raises:
        Refusal: An option is wrong.
    """
    with refusing():
        settings = resolved(flags)
    if isinstance(settings.socket, Path):
        return [settings.socket], []
    if settings.socket is None or settings.state_dir is None:
        return [], []
    found = found_sockets(settings.state_dir, settings.kubelet_root)
    answered = [each for each in found if is_answered(each)]
    silent = [each for each in found if each not in answered]
    # Where there is no kubelet, a plugin that ended has left the directory.
    places = [settings.state_dir, *silent] if os.path.lexists(settings.kubelet_root) else silent
    return answered, [each for each in places if is_closed(each)]


def ask_status(socket: Path) -> StatusDocument:
    """Return the status of the plugin that listens at a socket. It blocks for at most `asking.DEADLINE` seconds.

    Raises:
        Failure: The plugin does not answer, or another program does.
    """
    code, text = asking.ask(str(socket), STATUS)
    if code != 0:
        raise Failure(text.rstrip("\n"))
    return parse_status(socket, text)


def parse_status(where: object, text: str) -> StatusDocument:
    """Return the status of an answer.

    Args:
        where: The address of the program that has answered.
        text: Its answer.

    Raises:
        Failure: The answer is no status.
    """
    try:
        return StatusDocument.parse(text)
    except ValueError as error:
        raise Failure(
            f"{where}: its answer is no status of kdp {__version__} ({error}); use the kdp of the plugin's container"
        ) from None


def is_closed(place: Path) -> bool:
    """Return whether this user may not list a directory, or not connect to a socket."""
    try:
        os.listdir(place)
    except PermissionError:
        return True
    except NotADirectoryError:
        with contextlib.suppress(OSError):
            return connect(place) == errno.EACCES
    except OSError:
        pass
    return False


def several(found: Sequence[Path]) -> str:
    """Return the sentence for several sockets of which one is meant."""
    sockets = ", ".join(map(str, found))
    return f"several plugins of this node have a socket; name one of them with --socket: {sockets}"


def resolved(flags: Mapping[str, str | None]) -> Settings:
    """Return the settings of these flags and of the environment that say where plugins are."""
    strongest = {name: GivenValue(SETTINGS[name].flag, text) for name, text in flags.items() if text is not None}
    return resolve_some([strongest, from_environment(os.environ)], _NAMES)
