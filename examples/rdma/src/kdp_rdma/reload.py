"""The configuration file at run time: a valid edit applies at the next look, an invalid one changes nothing.

Kubernetes swaps a ConfigMap by a symbolic link, an editor renames a new file over the old one: both change what stat(2)
says.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import kdp
from kdp.storage import read_text

from .config import Config, Mode, read

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


class ConfigFile:
    """The newest valid configuration. Used by one thread at a time.

    Args:
        path: The file, in this process's file system (not the node's).
        mode: The mode that it must be for.
        prefix: The domain of names without one; None: the Go plugin's.

    Attributes:
        current: The configuration in force: the same object until a valid change.

    Raises:
        kdp.ConfigurationError: It cannot be read or is not valid.
    """

    def __init__(self, path: Path, mode: Mode, prefix: str | None) -> None:
        self._path = path
        self._mode: Mode = mode
        self._prefix = prefix
        self._signature = self._look()
        self._complaint = ""
        self.current = self._read()

    def refresh(self) -> None:
        """Read the file again if it has changed; `current` is then the new one, if that is valid."""
        signature = self._look()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            config = self._read()
        except kdp.ConfigurationError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.error("%s; the previous configuration stays in force", error)
            return
        self._complaint = ""
        if config != self.current:
            self.current = config
            logger.info("%s has changed and is in force: %s", self._path, ", ".join(config.resources))

    def _look(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> Config:
        try:
            text = read_text(self._path)
        except OSError as error:
            raise kdp.ConfigurationError(
                f"{self._path}: cannot be read ({error.strerror}); give a JSON file"
            ) from error
        except UnicodeDecodeError as error:
            raise kdp.ConfigurationError(
                f"{self._path}: is not UTF-8 (byte {error.start}); give a JSON file"
            ) from error
        return read(text, str(self._path), self._mode, self._prefix)
