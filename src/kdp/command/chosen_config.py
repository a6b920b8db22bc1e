"""``--config-label``: which of several configurations a node has, by the value of a label of the node.

``--config`` is a directory, such as a mounted ConfigMap. The label's value names a file in it, without the suffix. A
node without the label has the configuration ``default``.

`ConfigChoice` decides, and knows no API. `LabelledConfig` asks the API server for the node: at the start for a few
seconds, then again and again. What changes leads to the same reload as SIGHUP does: a name that no file has is refused
there, and the previous configuration stays in force.

The API server may be out of reach when a process starts. The last choice is kept in the state directory for that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final

from ..daemon import parsers
from ..daemon.readiness import Rejection
from ..daemon.settings import DEFAULT_STATE_DIR
from ..errors import ConfigurationError, InvalidValueError, KdpError, sentence
from ..model.names import check_label_name
from ..model.spelling import hint
from ..storage import files, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..daemon.plan import ServingPlan
    from .invocation import Invocation
    from .kept_config import ConfigKeeper

logger = logging.getLogger(__name__)

DEFAULT: Final = "default"
"""The configuration of nodes without the label."""

SUFFIXES: Final = ("", ".yaml", ".yml", ".json", ".toml", ".conf")

PERIOD: Final = 30.0
"""Seconds between two looks at the node's label. 500 nodes ask 17 times a second, a third of their kubelets' calls."""

FIRST: Final = 5.0
"""Seconds for the first look, before anything is served."""


@final
class ConfigChoice:
    """Which file of a directory is the configuration, by a label's value.

    Args:
        directory: The directory.
        key: The label.
        state_dir: Where the last choice is kept; None: nowhere.

    Raises:
        ConfigurationError: The key is no label's, or there is no such directory.

    Attributes:
        problem: Why the label's value is not the choice at the start; None: it is.
    """

    def __init__(self, directory: Path, key: str, *, state_dir: Path | None) -> None:
        try:
            check_label_name(key)
        except InvalidValueError as error:
            raise ConfigurationError(f"--config-label: {error}") from None
        try:
            os.listdir(directory)
        except OSError as error:
            raise ConfigurationError(
                f"--config {directory}: with --config-label it must be a directory with a file for each configuration "
                f"({error.strerror})"
            ) from None
        self.problem: str | None = None
        self._directory = directory
        self._key = key
        self._value: str | None = None
        self._is_known = False
        self._kept: Path | None = None
        if state_dir is not None:
            digest = zlib.crc32(f"{directory.absolute()}\0{key}".encode(errors="surrogateescape"))
            self._kept = state_dir / f"config-label-{digest:08x}.txt"

    def take(self, labels: Mapping[str, Any]) -> None:
        """Have these labels of the node."""
        value = labels.get(self._key)
        self._value = value if isinstance(value, str) and value else None
        self._is_known = True

    @property
    def name(self) -> str:
        """The name that the label asks for."""
        return self._value or DEFAULT

    def file(self) -> Path:
        """Return the file that the label asks for.

        Raises:
            ConfigurationError: There is none.
        """
        found = self._named(self.name)
        if found is None:
            what = f"node label {self._key}={self._value}" if self._value else f"the node has no label {self._key}, and"
            names = self.names()
            near = hint(self.name, names) or f"there are {', '.join(names) or 'none'}"
            raise ConfigurationError(f"{what} names no configuration in {self._directory}: {self.name!r}; {near}")
        return found

    def first(self) -> Path:
        """Return the file to start with: the label's, the previous one, or the default.

        Raises:
            ConfigurationError: There is none of these.
        """
        if self._is_known:
            try:
                return self.file()
            except ConfigurationError as error:
                refused = error
        else:
            refused = ConfigurationError(f"the node's label {self._key} is not known: the API server did not answer")
        for name in (self._before(), DEFAULT):
            if name is not None and (found := self._named(name)) is not None:
                self.problem = f"{refused}; {name} is in force"
                return found
        raise refused

    def keep(self) -> None:
        """Remember the choice for a start without the API server."""
        if self._kept is None or not self._is_known or self._named(self.name) is None:
            return
        try:
            self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(self._kept, self.name.encode(), mode=0o600)
        except OSError as error:
            logger.debug("the choice of the configuration cannot be kept in %s (%s)", self._kept, error.strerror)

    def mark(self) -> tuple[object, ...]:
        """Return what changes when the configuration does: its name, and its file."""
        found = self._named(self.name)
        try:
            status = None if found is None else os.stat(found)
        except OSError:
            status = None
        return self.name, None if status is None else (status.st_ino, status.st_mtime_ns, status.st_size)

    def names(self) -> list[str]:
        """Return the names of the configurations that there are."""
        try:
            held = sorted(os.listdir(self._directory))
        except OSError:
            return []
        stems = {name.removesuffix(Path(name).suffix) if Path(name).suffix in SUFFIXES else name for name in held}
        return sorted(name for name in stems if not name.startswith("."))

    def _named(self, name: str) -> Path | None:
        if "/" in name or name.startswith("."):
            return None
        return next((path for each in SUFFIXES if os.path.isfile(path := self._directory / f"{name}{each}")), None)

    def _before(self) -> str | None:
        if self._kept is None:
            return None
        try:
            return reading.read(self._kept, limit=1024, follow=False).decode()
        except (OSError, ValueError):
            return None


def _state_dir(invocation: Invocation) -> Path | None:
    """Return the state directory that flags and variables name, else the default one; None: nowhere."""
    given = invocation.given("state_dir")
    try:
        return parsers.path_or_none(given) if given else DEFAULT_STATE_DIR
    except parsers.Unacceptable:  # it is refused where the settings are resolved
        return None


@final
class LabelledConfig:
    """Makes the plans of an invocation whose configuration a label of the node names.

    Args:
        invocation: What the command was called with; its configuration becomes the file that is chosen.
        keeper: Makes plans of that file.
        key: The label.

    Raises:
        ConfigurationError: The directory or the node's name is missing, or the key is no label's.

    Attributes:
        rejection: Why the configuration that was asked for is not in force after `first`; None: it is.
    """

    def __init__(self, invocation: Invocation, keeper: ConfigKeeper, key: str) -> None:
        self.rejection: Rejection | None = None
        invocation.used = ("kubeconfig",)  # to read the label
        self._invocation = invocation
        self._keeper = keeper
        if invocation.config is None:
            raise ConfigurationError(
                "--config-label: --config is missing; expected a directory with a file for each configuration"
            )
        node = invocation.given("node_name")
        if node is None:
            raise ConfigurationError(
                "--config-label: --node-name is missing; expected the node's name, as the API server has it"
            )
        self._node = node
        self._kubeconfig = invocation.given("kubeconfig")
        self._choice = ConfigChoice(invocation.config, key, state_dir=_state_dir(invocation))
        self._problem: str | None = None

    def first(self) -> ServingPlan:
        """Return the plan to start with. For a few seconds it asks for the label; what is not found out is said.

        Raises:
            ConfigurationError: Nothing that was given can be used.
        """
        asyncio.run(self._look_first())
        self._invocation.config = self._choice.first()
        plan = self._keeper.first()
        self.rejection = self._keeper.rejection
        if self._choice.problem is not None and self.rejection is None:
            self.rejection = Rejection(reason=self._choice.problem, since=time.time())
        self._choice.keep()
        return plan

    def again(self) -> ServingPlan:
        """Return the plan of the configuration that the label names now.

        Raises:
            ConfigurationError: It names none, or the file is wrong.
        """
        self._invocation.config = self._choice.file()
        return self._keeper.again()

    async def _look_first(self) -> None:
        from ..cluster.client import KubeApi

        async with KubeApi(self._kubeconfig, deadline=FIRST) as api:
            try:
                async with asyncio.timeout(FIRST):
                    self._take(await api.node(self._node))
            except (KdpError, TimeoutError) as error:
                self._say(error)

    async def follow(self, reload: Callable[[], None]) -> None:
        """Look again and again, and reload when the choice, or its file, has changed. It does not end."""
        from ..cluster.client import KubeApi

        mark = None if self._choice.problem is not None else self._choice.mark()
        async with KubeApi(self._kubeconfig) as api:
            while True:
                # Pods of a rolling update must not ask in step.
                await asyncio.sleep(PERIOD * random.uniform(0.8, 1.2))  # noqa: S311
                try:
                    self._take(await api.node(self._node))
                except KdpError as error:
                    self._say(error)
                    if mark is None:  # what the label says is still not known
                        continue
                except Exception:
                    logger.exception("looking at the labels of node %s failed; it is asked again", self._node)
                    continue
                if (now := self._choice.mark()) != mark:
                    mark = now
                    self._choice.keep()
                    logger.info("the configuration %s is asked for", self._choice.name)
                    reload()

    def _take(self, node: Mapping[str, Any]) -> None:
        metadata = node.get("metadata")
        labels = cast("dict[str, Any]", metadata).get("labels") if isinstance(metadata, dict) else None
        self._choice.take(cast("dict[str, Any]", labels) if isinstance(labels, dict) else {})
        if self._problem is not None:
            logger.info("the node's labels are read again")
        self._problem = None

    def _say(self, error: Exception) -> None:
        problem = sentence(error) if isinstance(error, KdpError) else f"no answer within {FIRST:g} s"
        if problem != self._problem:
            logger.warning("the labels of node %s are not read (%s); it is asked again", self._node, problem)
        self._problem = problem
