"""`KeptList`: a small list that outlives the process, such as the times of evictions.

A file that cannot be read, or is damaged, counts as empty: a plugin serves without it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, final

from . import files, reading
from .documents import parse_json

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

VERSION: Final = 1

_MOST_BYTES: Final = 1 << 20


@final
class KeptList:
    """One file. All methods block for the disk.

    Args:
        path: The file.
        key: What the value is called in it.
        lost: The effect of a restart without the file, for people.
    """

    def __init__(self, path: Path, key: str, lost: str) -> None:
        self._path = path
        self._key = key
        self._lost = lost
        self._has_complained = False

    def read(self) -> list[Any]:
        """Return the list. An empty one, with a line in the log, if the file is damaged or unreadable."""
        try:
            document = parse_json(reading.read(self._path, limit=_MOST_BYTES, follow=False))
            if document["version"] != VERSION:
                raise ValueError("it is of another version")
            return [*document[self._key]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.ignored(error)
            return []

    def ignored(self, error: Exception) -> None:
        """Log that the file is ignored."""
        logger.warning("%s is ignored, so %s: %s", self._path, self._lost, error)

    def write(self, value: list[Any]) -> bool:
        """Keep a list, and return whether the disk has taken it. If not, the log says so once."""
        data = json.dumps({"version": VERSION, self._key: value}).encode()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(self._path, data)
        except OSError as error:
            if not self._has_complained:
                logger.warning("%s: %s cannot be written (%s)", self._lost, self._path, error.strerror)
            self._has_complained = True
            return False
        self._has_complained = False
        return True
