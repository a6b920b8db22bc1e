"""The configuration file while the plugin runs: a valid change is in force at once, an invalid one changes nothing.

Kubernetes swaps a ConfigMap by a symbolic link (``config.yaml -> ..data/config.yaml``, ``..data -> ..2026_01_01``), an
editor renames a new file over the old one: both are seen as new names in a directory. A file that is overwritten in
place is seen at the next discovery.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import kdp
from kdp.storage import read_text

from .config import Config, read

logger = logging.getLogger(__name__)


def _load(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise kdp.ConfigurationError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from error
    except UnicodeDecodeError as error:
        raise kdp.ConfigurationError(f"{path}: is not UTF-8 (byte {error.start}); give a YAML text file") from error


class ConfigFile:
    """The newest valid configuration. May be used from any thread.

    Attributes:
        path: The file, in this process's file system (not the node's).
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            kdp.ConfigurationError: It cannot be read or is not valid.
        """
        self.path = path
        self._lock = threading.Lock()
        self._signature = self._look()
        self._text = _load(path)
        self._config = read(self._text, str(path))
        self._complaint = ""

    @property
    def current(self) -> Config:
        """The configuration in force: the same object until a valid change."""
        return self._config

    def _look(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.path)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def refresh(self, *, changed: bool = False) -> Config:
        """Read the file again if it has changed, and return the configuration in force.

        Args:
            changed: It is known to have changed, whatever its size and time are.
        """
        with self._lock:
            signature = self._look()
            if signature == self._signature and not changed:
                return self._config
            self._signature = signature
            try:
                text = _load(self.path)
                if text != self._text:
                    self._config = read(text, str(self.path))
                    self._text = text
                    names = ", ".join(resource.name for resource in self._config.resources)
                    logger.info("%s has changed and is in force: %s", self.path, names)
                elif self._complaint:
                    logger.info("%s is again the configuration in force", self.path)
                self._complaint = ""
            except kdp.ConfigurationError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    logger.error("%s; the previous configuration stays in force", error)
            return self._config

    def directories(self) -> set[str]:
        """Return the directories in which a new name may mean a new file, links resolved."""
        found: set[str] = set()
        for path in (Path(os.path.abspath(self.path)), Path(os.path.realpath(self.path))):
            directory = path.parent
            while not directory.is_dir():
                directory = directory.parent
            found.add(os.path.realpath(directory))
        return found
