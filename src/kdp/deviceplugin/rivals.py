"""`Rivals`: other processes that serve the same resource, found by their sockets beside ours.

The kubelet keeps one plugin for each resource, the one that registered last. So two take the resource from each other
in turn. In an update that is over soon; two DaemonSets go on for ever. Readiness stays as it is: it would restart one
that is fine.

A plugin that is not made with kdp has no such socket. It is found by ids that the kubelet knows and we do not
(`kdp.deviceplugin.tracking.tracker`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

from ..kubelet.sockets import answered_by_others

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_PAUSE: Final = 10.0
"""Seconds between two looks while there is a rival: one that is killed leaves its socket, and no event."""


@final
class Rivals:
    """The processes beside this one that answer for a resource. `look` blocks for a few system calls.

    Args:
        resource: The resource.
        directory: Where plugins have their sockets.
        is_ours: Whether a socket of this name serves the resource, in any process.
    """

    def __init__(self, resource: str, directory: Path, is_ours: Callable[[str], object]) -> None:
        self._resource = resource
        self._directory = directory
        self._is_ours = is_ours
        self._found: Mapping[int, str] = {}

    def look(self) -> None:
        """Look who is there, and log who has come and who has gone."""
        found = {pid: name for name, pid in answered_by_others(self._directory, self._is_ours).items()}
        extra = {"resource": self._resource}
        for pid in found.keys() - self._found.keys():
            text = f"{_who(pid)} serves this resource as well, at {found[pid]}; the kubelet uses whichever registered"
            advice = "last: unless this is an update, stop one of them"
            logger.warning("%s: %s %s", self._resource, text, advice, extra=extra)
        for pid in self._found.keys() - found.keys():
            logger.info("%s: %s no longer serves this resource", self._resource, _who(pid), extra=extra)
        self._found = found

    @property
    def problem(self) -> str | None:
        """Who else serves the resource; None: nobody that is known."""
        for pid, name in self._found.items():
            return f"{_who(pid)} serves this resource as well, at {name}; unless this is an update, stop one of them"
        return None


def _who(pid: int) -> str:
    return f"process {pid}" if pid else "a process of another container"
