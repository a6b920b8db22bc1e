"""A running plugin of this node: its socket, and its status document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, final

import attrs

from ...operations.status_document import StatusDocument

_POD_VOLUME: Final = re.compile(r"/pods/([0-9a-f-]{36})/volumes/")


@final
@attrs.frozen(kw_only=True)
class Plugin:
    """A process that has, or had, a socket in the state directory, or in its pod.

    Attributes:
        socket: Its socket.
        problem: Why it did not answer with its status. Empty if it did.
        status: Its status. Without an answer, it serves nothing and is not ready.
    """

    socket: Path
    problem: str = ""
    status: StatusDocument = attrs.field(factory=lambda: StatusDocument(is_ready=False, resources=()))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not ready, one text for each cause."""
        reasons = (f"{each.name}: {each.reason}" for each in self.status.resources if each.reason)
        return tuple(filter(None, [self.status.reason, *self.status.backend_problems, *reasons]))

    @property
    def rejected(self) -> str:
        """The fault of the configuration that it has rejected. Empty if there is none."""
        return "" if self.status.configuration is None else self.status.configuration.reason

    def directory(self, purpose: str) -> Path | None:
        """Return one of its directories. `None` if it uses none for this purpose, or is an older version."""
        found = (self.status.directories or {}).get(purpose)
        return Path(found) if found else None

    @property
    def label(self) -> str:
        """How answers call it. In pods, all sockets have one name."""
        pod = pod_of(self.socket)
        return self.socket.name if pod is None else f"{self.socket.name} of pod {pod}"


def pod_of(socket: Path) -> str | None:
    """Return the UID of the pod that has a socket in its volume. `None` if no pod has it."""
    match = _POD_VOLUME.search(str(socket))
    return None if match is None else match[1]


def plugin_of(socket: Path, code: int, text: str) -> Plugin:
    """Return a plugin from the answer to ``/status.json``; ``code`` is 0 if it is one."""
    if code != 0:
        problem = text.strip().partition("\n")[0].removeprefix(f"{socket}: ").partition(";")[0]
        return Plugin(socket=socket, problem=problem or "it closed the connection")
    try:
        return Plugin(socket=socket, status=StatusDocument.parse(text))
    except ValueError as error:
        return Plugin(socket=socket, problem=f"its answer is not a status of kdp ({error})")
