"""`EvictionRecord`: when pods were evicted, kept in the state directory, so that a restart does not begin a new hour.

All methods block for the disk.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Final, final

from ..storage import files, reading
from ..storage.documents import parse_json
from .eviction import HOUR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

VERSION: Final = 1
MOST: Final = 1000
"""Times that are read: the largest limit per hour."""

_MOST_BYTES: Final = 64 * 1024


@final
class EvictionRecord:
    """The times of one process's evictions, in Unix seconds.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_complained = False

    def read(self) -> list[float]:
        """Return the times of the last hour. One that seems to be in the future counts as now: the clock was set."""
        now = time.time()
        try:
            document = parse_json(reading.read(self._path, limit=_MOST_BYTES, follow=False))
            if document["version"] != VERSION:
                raise ValueError("it is of another version")
            times = [min(now, float(each)) for each in document["evicted"]][-MOST:]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("the record of evictions %s is ignored: %s", self._path, error)
            return []
        return [at for at in times if now - at < HOUR]

    def write(self, times: Sequence[float]) -> None:
        """Keep these times; a disk that cannot be written is said, and changes nothing else."""
        data = json.dumps({"version": VERSION, "evicted": [round(at, 3) for at in times[-MOST:]]}).encode()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(self._path, data)
        except OSError as error:
            if not self._has_complained:
                text = "a restart begins a new hour for --evict-limit: %s cannot be written (%s)"
                logger.warning(text, self._path, error.strerror)
            self._has_complained = True
