"""A living plugin of this node: which socket a command means, the plugin's answer, and the table of its devices.

The commands load neither gRPC nor a vendor's class. They run in the plugin's container, within its limit of memory.
So the table is made without the library for tables.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ..daemon.setting import GivenValue
from ..daemon.settings import SETTINGS
from ..daemon.sources import from_environment, resolve_some
from ..errors import ConfigurationError
from ..kubelet.sockets import connect, is_answered
from .found_sockets import found_sockets, why_no_socket
from .options import refusing
from .streams import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..daemon.settings import Settings

SOCKET_HELP = {
    "socket": "The socket of the plugin; default: the only one in the state directory or in the pods of this node.",
    "state_dir": "The state directory of the plugin, where its socket is.",
}
"""What the settings mean to a command that asks a plugin."""

_NAMES = ("socket", "state_dir", "kubelet_root", "device_plugin_dir")

_HEADS: Final = {
    "id": "ID",
    "health": "HEALTH",
    "state": "STATE",
    "since": "SINCE",
    "held_by": "HELD BY",
    "numa_nodes": "NUMA",
    "unit": "UNIT",
    "reason": "REASON",
}


def socket_of(ctx: click.Context, **flags: str | None) -> Path:
    """Return the plugin's socket: the one that is named, else the only one of this node.

    Args:
        ctx: Its command ends with 1 if no plugin has a socket.
        **flags: The settings ``socket`` and ``state_dir``.

    Raises:
        Refusal: An option is wrong, or several plugins have a socket.
    """
    with refusing():
        settings = resolved(flags)
        if isinstance(settings.socket, Path):
            return settings.socket
        if settings.socket is None or settings.state_dir is None:
            raise ConfigurationError("--socket is missing; expected the socket of a running plugin")
        found = found_sockets(settings.state_dir, settings.kubelet_root)
        if len(found) > 1:  # a killed plugin leaves one
            found = [each for each in found if is_answered(each) is not False] or found[:1]
        if len(found) > 1:
            raise ConfigurationError(several(found))
    if not found:
        absence = why_no_socket(settings.state_dir, settings.paths)
        click.echo(shown(f"{absence.seen}; {absence.remedy}"))
        ctx.exit(1)
    return found[0]


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


def device_lines(listed: Sequence[Mapping[str, Any]], *, is_terminal: bool) -> Iterator[str]:
    """Return a table of the devices that a status document lists. On a terminal, sick ones are red."""
    columns = {head: [_cell(device, key) for device in listed] for key, head in _HEADS.items()}
    heads = tuple(head for head, cells in columns.items() if any(cells))
    rows = [*zip(*(columns[head] for head in heads), strict=True)]
    for line, device in zip(_aligned([heads, *rows]), [None, *listed], strict=True):
        is_sick = device is not None and device["health"] != "Healthy"
        yield click.style(line, fg="red" if is_sick else None, bold=device is None) if is_terminal else line


def _cell(device: Mapping[str, Any], key: str) -> str:
    value = device.get(key)
    if key == "unit" and value == device["id"]:
        return ""
    if key == "state" and value in ("healthy", "unhealthy"):  # HEALTH says so
        return ""
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value or "")


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Return lines whose columns stand below each other."""
    printed = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printed, strict=True)]
    for row in printed:
        yield "  ".join(itertools.starmap(str.ljust, zip(row, widths, strict=True))).rstrip()
