"""The last good configuration of ``kdp run``: kept, and used at a restart if the file is bad by then.

A bad edit of a ConfigMap would otherwise wait for the next restart, and then no plugin of the cluster would start.

The text of the file is kept in the state directory when a plan was made of it. If only the file names that directory,
the bad file is searched for its line, also if it cannot be parsed. If it cannot be read either, only the default
directory is left to look in. What is kept belongs to the targets and to the file's path. Flags and variables are taken
as they are now.

The text of a pipe is never kept: it may be a secret that was decrypted for this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, Final, final

from ..daemon import parsers
from ..daemon.readiness import Rejection
from ..daemon.settings import DEFAULT_STATE_DIR
from ..errors import ConfigurationError, InvalidValueError, message_of
from ..model.watched_file import falling_back_on
from ..storage import files, reading
from ..storage.documents import parse_json
from . import config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..daemon.plan import ServingPlan
    from .invocation import Invocation

logger = logging.getLogger(__name__)

VERSION: Final = 1

MOST_BYTES: Final = 8 * reading.MAX_CONFIG_BYTES
"""Limit of a kept file: a text grows when it is written as JSON."""


@final
class ConfigKeeper:
    """Makes the plans of an invocation, keeps the text of a good file, and falls back on it at the start.

    Args:
        invocation: What the command was called with.
        is_strict: Whether a bad file is refused although an earlier good one is kept.

    Attributes:
        rejection: Why the file is not in force after `first`; None: it is.
    """

    def __init__(self, invocation: Invocation, *, is_strict: bool) -> None:
        self.rejection: Rejection | None = None
        self._invocation = invocation
        self._is_strict = is_strict
        self._read: tuple[str | None, dict[str, object]] = (None, {})
        self._piped: str | None = None

    def first(self) -> ServingPlan:
        """Return the plan to start with.

        Raises:
            ConfigurationError: Something that was given is wrong, and nothing that was kept helps.
        """
        try:
            return self.again()
        except (ConfigurationError, InvalidValueError) as error:
            plan = self.last_good()
            if plan is None:
                raise
            self.rejection = Rejection(reason=message_of(error), since=time.time())
            return plan

    def last_good(self) -> ServingPlan | None:
        """Return the plan of an earlier file; None: none was kept, or it is not only the file.

        It blocks for the disk.
        """
        text = None if self._is_strict else self._kept_of(self._invocation.config)
        if text is None or text == self._read[0]:
            return None
        try:
            return self._plan(text)
        except (ConfigurationError, InvalidValueError):
            return None

    def again(self) -> ServingPlan:
        """Return the plan of the file as it is now.

        Raises:
            ConfigurationError: Something that was given is wrong.
        """
        file = self._invocation.config
        if file is None:
            return self._plan()
        if self._piped is not None:
            logger.warning("%s is a pipe, which can be read once: its configuration stays; restart to change it", file)
            return self._plan(self._piped)
        is_pipe = reading.is_pipe(file)
        plan = self._plan(config.text_of(file))
        if is_pipe:
            self._piped = plan.text
        else:
            self._read = (plan.text, self._key_of(file))
        return plan

    def keep(self, plan: ServingPlan) -> None:
        """Keep the text of a plan that has proved itself; that of one that was not read from the file is kept already.

        It blocks for the disk. A fault of it is a warning in the log.
        """
        directory = plan.settings.state_dir
        if directory is None:
            return
        text, key = self._read
        if text is not None and text == plan.text:
            self._keep(_path_in(directory, key), text, key)
        for file in plan.watched_files:
            key = self._key_of(file.path)
            file.keep = partial(self._keep, _path_in(directory, key), key=key)
            if file.problem is None:
                file.keep(file.text)

    def _plan(self, text: str | None = None) -> ServingPlan:
        """Return the plan; a bad file of a backend begins with its last good text, as the configuration does."""
        with falling_back_on(self._kept_of) if not self._is_strict else contextlib.nullcontext():
            return self._invocation.plan(text)

    def _key_of(self, file: Path) -> dict[str, object]:
        """Return the owner of a file's kept text."""
        return {"targets": list(self._invocation.targets), "file": os.path.abspath(file)}

    # -- the file ------------------------------------------------------------------------------------------------------

    def _directories(self) -> Iterator[Path]:
        """Return where the text may be kept: in the directory that is given, in that of the file, in the default one.

        The file is bad, and may be no YAML any more. Then a line that looks like the setting will do, because what is
        kept in a directory tells of which file it is.
        """
        if given := self._invocation.given("state_dir"):
            yield from _directory(given)
            return
        if self._invocation.config is not None:
            for found in config.seen_in(self._invocation.config, "state_dir"):
                yield from _directory(found)
        yield DEFAULT_STATE_DIR

    def _keep(self, path: Path, text: str, key: dict[str, object]) -> None:
        import json  # a plugin without a configuration file starts without it

        data = json.dumps({"version": VERSION, **key, "text": text}).encode(errors="surrogateescape")
        try:
            if path.exists() and reading.read(path, limit=MOST_BYTES, follow=False) == data:
                return
        except OSError:
            pass  # it is replaced
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, data, mode=0o600)
        except OSError as error:
            # An ordinary user who tries a plugin has no right to the default state directory.
            level = logging.DEBUG if isinstance(error, PermissionError) else logging.WARNING
            text = "a restart with a bad file will have no good one to fall back on"
            logger.log(level, "the configuration cannot be kept in %s (%s): %s", path, error.strerror, text)

    def _kept_of(self, file: Path | None) -> str | None:
        """Return the last good text of the configuration or of a backend's file; `None` if there is none."""
        if file is None or reading.is_pipe(file):
            return None
        found = (self._kept_in(directory, self._key_of(file)) for directory in self._directories())
        return next((text for text in found if text is not None), None)

    def _kept_in(self, directory: Path, key: dict[str, object]) -> str | None:
        path = _path_in(directory, key)
        try:
            document = parse_json(reading.read(path, limit=MOST_BYTES, follow=False))
            if document["version"] != VERSION or not isinstance(document["text"], str):
                raise ValueError("it is of another version")
            if {name: document[name] for name in key} != key:
                return None  # of another target or file
            text: str = document["text"]
        except (FileNotFoundError, PermissionError):  # who may not read there has kept nothing there
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            logger.warning("the kept configuration %s is ignored: %s", path, why)
            return None
        return text


def _path_in(directory: Path, key: dict[str, object]) -> Path:
    """Return where the text is kept in a state directory."""
    return directory / f"config-{zlib.crc32(repr(key).encode(errors='backslashreplace')):08x}.json"


def _directory(given: str) -> Iterator[Path]:
    with contextlib.suppress(parsers.Unacceptable):  # it is refused where the settings are resolved
        path = parsers.path_or_none(given)
        if path is not None:
            yield path
