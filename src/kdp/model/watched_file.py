"""`WatchedFile`: a file that a backend reads, such as a list of its devices. The last good content is in force.

A bad edit of a ConfigMap would otherwise wait for the next restart, and then no plugin of the cluster would start. So
bad content changes nothing while the process runs, and ``kdp run`` keeps good content for the start of the next one.

Kubernetes replaces a ConfigMap by a symbolic link (``a.yaml -> ..data/a.yaml``, ``..data -> ..2026_01_01``), and an
editor renames a new file over the old one: both are new names in a directory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, final

from ..errors import ConfigurationError, KdpError, in_one_line, message_of
from ..storage import files
from ..storage.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

logger = logging.getLogger(__name__)

_Content = TypeVar("_Content")

_kept: ContextVar[Callable[[Path], str | None]] = ContextVar("kept", default=lambda _: None)


@contextmanager
def falling_back_on(kept: Callable[[Path], str | None]) -> Generator[None]:
    """Have files with bad content begin with an earlier, good text.

    Args:
        kept: Returns the last good text of a file, by its absolute path; `None` if there is none.
    """
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)


@final
class WatchedFile(Generic[_Content]):
    """A file of a backend. `DeviceBackend.watched_file` makes one; any thread may use it.

    Attributes:
        path: The file, in the process's own file system, not the node's.
        keep: Told of each good text; it may block for the disk.
    """

    def __init__(self, path: str | os.PathLike[str], parse: Callable[[str], _Content]) -> None:
        """Read the file; it blocks for the disk.

        Args:
            path: The file.
            parse: Makes the content of the text, and raises `ValueError` or another error if the text is bad.

        Raises:
            ConfigurationError: The file is unreadable or bad, and there is no earlier, good text.
        """
        self.path = Path(os.path.abspath(path))
        self.keep: Callable[[str], object] = lambda _: None
        self._parse = parse
        self._lock = threading.RLock()
        self._problem: tuple[str, float] | None = None
        self._seen = self._look()
        self._text: str
        self._content: _Content
        try:
            self._text, self._content = self._read()
        except ConfigurationError as error:
            kept = _kept.get()(self.path)
            if kept is None:
                raise
            try:
                self._text, self._content = kept, self._parsed(kept)
            except ConfigurationError:  # it was good for an earlier version of the class
                raise error from None
            self._refuse(error)

    @property
    def current(self) -> _Content:
        """The content in force: the same object until good text of another wording. It blocks for the disk."""
        with self._lock:
            if self._look() != self._seen:
                self.look_again()
            return self._content

    @property
    def text(self) -> str:
        """The text of the content in force."""
        return self._text

    @property
    def problem(self) -> tuple[str, float] | None:
        """What is wrong with the file, and since when, in Unix seconds; `None` if its content is in force."""
        return self._problem

    def look_again(self) -> bool:
        """Read the file, whatever its size and time are, and return whether anything is other now."""
        with self._lock:
            self._seen = self._look()
            try:
                text = self._load()
                content = self._content if text == self._text else self._parsed(text)
            except ConfigurationError as error:
                return self._refuse(error)
            was_bad, self._problem = self._problem is not None, None
            if text == self._text:
                if was_bad:
                    logger.info("%s is again as it is in force", self.path)
                return was_bad
            self._text, self._content = text, content
            logger.info("%s has changed and is in force", self.path)
            self.keep(text)
            return True

    def directories(self) -> set[str]:
        """Return the directories in which a new name may mean a new file, links resolved. It blocks for the disk."""
        found: set[str] = set()
        for path in (self.path, Path(os.path.realpath(self.path))):
            directory = path.parent
            while not directory.is_dir():
                directory = directory.parent
            found.add(os.path.realpath(directory))
        return found

    def _look(self) -> tuple[int, ...]:
        try:
            return files.mark_of(os.stat(self.path))
        except OSError:
            return ()

    def _read(self) -> tuple[str, _Content]:
        text = self._load()
        return text, self._parsed(text)

    def _load(self) -> str:
        try:
            return read_text(self.path)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot be read ({error.strerror}); name another file") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{self.path}: is not UTF-8 (byte {error.start}); expected a text file") from error

    def _parsed(self, text: str) -> _Content:
        try:
            return self._parse(text)
        except (KdpError, ValueError) as error:  # both speak for themselves
            message = " ".join(message_of(error).split())
        except Exception as error:  # noqa: BLE001 - whatever the vendor's code does with text of anybody
            message = in_one_line(error)
        where = str(self.path)
        raise ConfigurationError(message if message.startswith(where) else f"{where}: {message}")

    def _refuse(self, error: ConfigurationError) -> bool:
        """Note that the content is bad; return whether that is news."""
        if self._problem is not None and self._problem[0] == str(error):
            return False
        self._problem = str(error), time.time()
        logger.error("%s; the last good content stays in force", error)
        return True
