"""Loads modules in the middle of a run, when there may be no file descriptor to read them with."""

from __future__ import annotations

import importlib
import logging
from typing import Final

import anyio

logger = logging.getLogger(__name__)

AGAIN: Final = 0.5
"""Seconds between two tries."""


async def load(name: str) -> None:
    """Import a module, so that the import statement that follows opens no file. It waits while that is impossible.

    For tasks of kdp's own, whose end would be the process's. Loading holds the event loop for some milliseconds; once
    the module is there, this costs a microsecond. A cancellation ends the wait.

    Args:
        name: The module's absolute name.
    """
    is_logged = False
    while True:
        try:
            importlib.import_module(name)
        except (OSError, ImportError) as error:
            if not is_logged:
                logger.warning("cannot load %s: %s; trying again", name, error)
            is_logged = True
            await anyio.sleep(AGAIN)
        else:
            return
