"""Shell patterns for a node's paths: what `glob.glob` finds, but a link leads to what the node has there.

Below a root the kernel would follow an absolute link to this machine's own files, and list those.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
from typing import TYPE_CHECKING

from ..errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .directory import NodeFiles


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path or pattern of the node as text.

    Raises:
        InvalidValueError: It is relative: this process's working directory is no place of the node.
    """
    text = os.fspath(path)
    if not text.startswith("/"):
        raise InvalidValueError(f"path {text!r}: must be absolute; for example '/sys/class/net/*'")
    return text


@functools.lru_cache(maxsize=1024)
def in_one_directory(pattern: str) -> tuple[str, str] | None:
    """Return directory and name of a pattern within one directory, the common and cheap case; else None."""
    above, _, name = f"/{pattern.lstrip('/')}".rpartition("/")
    is_one = glob.has_magic(name) and "**" not in name and "//" not in above and not glob.has_magic(above)
    return (above, name) if is_one and "\0" not in pattern else None


def names(directory: str, pattern: str) -> dict[str, os.DirEntry[str]]:
    """Return the entries of a directory whose names match a pattern; none if there is no directory.

    Raises:
        PermissionError: This process may not read it, so that nobody knows what is in it.
    """
    try:
        with os.scandir(directory) as entries:
            there = {entry.name: entry for entry in entries}
    except PermissionError:
        raise
    except OSError:
        return {}
    is_hidden = pattern.startswith(".")
    return {name: there[name] for name in fnmatch.filter(there, pattern) if is_hidden or not name.startswith(".")}


def check_readable(pattern: str) -> None:
    """Check that this process may read the directory in which a pattern's first wildcard is looked up.

    Raises:
        PermissionError: It may not. `glob.glob` finds nothing there, as in an empty directory.
    """
    parts = pattern.split("/")
    plain = next((n for n, part in enumerate(parts) if glob.has_magic(part)), None)
    if plain is not None:
        names("/".join(parts[:plain]) or "/", "")


def matching(host: NodeFiles, pattern: str) -> list[str]:
    """Return the matching paths, links followed inside the root; a part ``**`` matches any depth."""
    *above, last = pattern.split("/")
    parts = list(filter(None, above))
    plain = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))  # of all but the last few
    places = ["".join(f"/{part}" for part in parts[:plain])]
    for part in parts[plain:]:
        places = [found for place in places for found in _step(host, place, part)]
    return [found for place in places for found in _end(host, place, last)]


def _step(host: NodeFiles, place: str, part: str) -> Iterator[str]:
    """Return where a pattern may go on: paths that may not be there, which shows when it does."""
    if part == "**":
        yield place
        yield from _below(host, place)
    elif glob.has_magic(part):
        yield from _in(host, place, part)
    else:
        yield f"{place}/{part}"


def _end(host: NodeFiles, place: str, part: str) -> Iterator[str]:
    """Return what a pattern's last part finds, which is there, be it a link that leads nowhere."""
    if part in ("", "**"):
        if host.is_directory(place or "/"):
            yield f"{place}/"
        if part:
            yield from _below(host, place)
    elif glob.has_magic(part):
        yield from _in(host, place, part)
    elif (directory := _directory(host, place)) is not None and os.path.lexists(f"{directory}/{part}"):
        yield f"{place}/{part}"


def _below(host: NodeFiles, place: str) -> Iterator[str]:
    for path in _in(host, place, "*"):
        yield path
        yield from _below(host, path)


def _in(host: NodeFiles, place: str, pattern: str) -> Iterator[str]:
    if (directory := _directory(host, place)) is not None:
        yield from (f"{place}/{name}" for name in names(directory, pattern))


def _directory(host: NodeFiles, place: str) -> str | None:
    """Return where this process finds a directory of the node; None: nowhere."""
    try:
        return host.inside(host.resolve(place or "/"))
    except OSError:  # a loop of links
        return None
