"""``kdp run --config-label``: joins what the node's label names, and what makes plans of a configuration file."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, final

from ..daemon import parsers
from ..daemon.readiness import Rejection
from ..daemon.settings import DEFAULT_STATE_DIR, SETTINGS
from ..errors import ConfigurationError
from .chosen_config import ConfigChoice, LabelReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..daemon.plan import ServingPlan
    from .invocation import Invocation
    from .kept_config import ConfigKeeper


def _state_dir(invocation: Invocation) -> Path | None:
    """Return the state directory that flags and variables name, else the default one; None: nowhere."""
    setting = SETTINGS["state_dir"]
    given = invocation.flags.get(setting.name) or os.environ.get(setting.variable)
    try:
        return parsers.path_or_none(given) if given else DEFAULT_STATE_DIR
    except parsers.Unacceptable:  # it is refused where the settings are resolved
        return None


@final
class LabelledConfig:
    """Makes the plans of an invocation whose configuration a label names.

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
        node = self._given("node_name")
        if node is None:
            raise ConfigurationError(
                "--config-label: --node-name is missing; expected the node's name, as the API server has it"
            )
        self._choice = ConfigChoice(invocation.config, key, state_dir=_state_dir(invocation))
        self._reader = LabelReader(self._choice, node=node, kubeconfig=self._given("kubeconfig"))

    def first(self) -> ServingPlan:
        """Return the plan to start with.

        Raises:
            ConfigurationError: Nothing that was given can be used.
        """
        import anyio

        anyio.run(self._reader.look_first)
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

    async def follow(self, reload: Callable[[], None]) -> None:
        """Look at the label again and again, and reload when it has changed. It does not end."""
        await self._reader.follow(reload)

    def _given(self, name: str) -> str | None:
        return self._invocation.flags.get(name) or os.environ.get(SETTINGS[name].variable) or None
