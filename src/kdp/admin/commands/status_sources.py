"""Where ``kdp status`` finds the plugins that it shows: the sockets of this node, or files of any node.

A file is a status document, as ``kdp status --format json`` prints it, or a bundle of ``kdp doctor --bundle``. So one
page can show the plugins of several nodes.

All functions block: for plugins, or for the disk.
"""

from __future__ import annotations

import functools
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

import attrs

from ...command import asking
from ...command.failures import Failure, Refusal
from ...command.living import ask_status
from ...operations.status_document import StatusDocument
from ...storage import reading
from ..doctor.answers import beside
from ..page.view import AskedPlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

MOST_PLUGINS: Final = 32
"""Most plugins of a node. Each question takes a thread."""

GRACE: Final = 0.2
"""Seconds beyond `asking.DEADLINE` in which a thread hands over an answer. Browsers wait 5 s."""

_GZIP: Final = b"\x1f\x8b"


@final
class NodePlugins:
    """Asks the plugins of this node, again and again.

    Args:
        sockets: The sockets of the plugins at first.
        find: Returns the sockets of the plugins now. If there is none, `look` asks the earlier ones.
    """

    def __init__(self, sockets: Sequence[Path], find: Callable[[], Sequence[Path]]) -> None:
        self._sockets = sockets
        self._find = find
        self._known: dict[Path, AskedPlugin] = {}

    def look(self) -> Sequence[AskedPlugin]:
        """Ask the plugins at the same time, for 4 seconds at most. A plugin without an answer has its last status."""
        self._sockets = self._find() or self._sockets
        sockets = self._sockets[:MOST_PLUGINS]
        works = {path: functools.partial(self._ask, path) for path in sockets}
        late = f"no answer within {asking.DEADLINE:g} s"
        found = beside(works, asking.DEADLINE + GRACE)
        self._known = {path: found.get(path) or self._silent(path, late) for path in sockets}
        return [*self._known.values()]

    def _ask(self, path: Path) -> AskedPlugin:
        try:
            return AskedPlugin(place=str(path), status=ask_status(path), at=datetime.now(UTC))
        except Failure as error:
            return self._silent(path, error.message.partition("; ")[0])

    def _silent(self, path: Path, problem: str) -> AskedPlugin:
        known = self._known.get(path)
        if known is None:
            return AskedPlugin(place=str(path), status=None, at=datetime.now(UTC), problem=problem)
        return attrs.evolve(known, problem=problem)


def saved_plugins(files: Iterable[Path]) -> list[AskedPlugin]:
    """Return the plugins of files from any node.

    Raises:
        ConfigurationError: A bundle is damaged.
        Refusal: A file cannot be read, or has no status.
    """
    return [plugin for file in files for plugin in _plugins_in(file)]


def _plugins_in(file: Path) -> Iterator[AskedPlugin]:
    try:
        data = reading.read(file, limit=asking.MOST_BYTES)
        changed = datetime.fromtimestamp(os.stat(file).st_mtime, UTC)
    except OSError as error:
        raise Refusal(f"{file}: cannot be read ({error.strerror}); name a file that can") from None
    if data.startswith(_GZIP):
        from ..doctor import bundle  # late: it loads the reader of archives

        found = bundle.read(file)
        for each in found.statuses:
            yield AskedPlugin(place=f"{file}: {each.socket}", status=each.status, at=found.made, problem=each.problem)
        return
    try:
        status = StatusDocument.parse(data)
    except ValueError as error:
        raise Refusal(
            f"{file}: is no status of a plugin ({error}); expected what kdp status --format json prints, or a bundle "
            "of kdp doctor --bundle"
        ) from None
    at = changed if status.as_of is None else datetime.fromisoformat(status.as_of).astimezone(UTC)
    yield AskedPlugin(place=str(file), status=status, at=at)
