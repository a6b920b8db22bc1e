"""How the simulated API server misbehaves on command: named methods of ``server.faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from ..armed_faults import Countdown
from .status import ApiRefused

if TYPE_CHECKING:
    from .api import Api, Request

_Armed = tuple[dict[str, Any], str, str]
"""What an `ApiRefused` is made with, and of which requests: the method ("": any), and how the path ends."""


class ApiFaults:
    """The faults of one server. Those that meet requests meet the next ones, ``times`` of them (None: all).

    Attributes:
        met: How many requests met a fault.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._armed: Countdown[_Armed] = Countdown("requests")
        self.met = 0
        self.is_away = False
        self.delay = 0.0
        self.dropped = anyio.Event()

    def clear(self) -> None:
        """End all faults."""
        self._armed.clear()
        self.is_away = False
        self.delay = 0.0

    def meet(self, request: Request) -> None:
        """Refuse a request that a fault meets; what does not come over the network no proxy can answer.

        Raises:
            ApiRefused: One does.
        """

        def is_met(armed: _Armed) -> bool:
            refusal, method, path = armed
            if refusal["content"] is not None and request.token is None:
                return False
            return method in ("", request.method) and request.path.endswith(path)

        for refusal, _, _ in self._armed.meeting(is_met):
            self.met += 1
            raise ApiRefused(**refusal)

    def refused(
        self,
        status: int,
        text: str = "",
        *,
        retry_after: int | None = None,
        content: bytes | None = None,
        method: str = "",
        path: str = "",
        times: int | None = 1,
    ) -> None:
        """A refusal; with ``path`` only of requests whose path ends so. A good client tries again, with growing pauses.

        With ``retry_after`` it says how many seconds to wait, as priority and fairness do (429); a good client does.
        With ``content`` these bytes are the answer, as a proxy sends a page of its own; a good client takes them for
        nothing, and asks again.
        """
        refusal = {"status": status, "message": text, "retry_after": retry_after, "content": content}
        self._armed.arm((refusal, method, path), times)

    def internal_error(self, *, method: str = "", times: int | None = 1) -> None:
        """500. A good client tries again, with growing pauses."""
        self.refused(500, "etcdserver: request timed out", method=method, times=times)

    def away(self) -> None:
        """The server is gone: connections are refused or break, watches end abruptly. `back` ends it.

        A good driver goes on with what it knows, and asks no more often than every few seconds.
        """
        self.is_away = True
        self.drop_watches()

    def back(self) -> None:
        """It answers again, with the objects that it had."""
        self.is_away = False

    def slow(self, seconds: float) -> None:
        """Every answer takes so long. A good driver's Prepare fails before the kubelet's 45 s."""
        self.delay = seconds

    def drop_watches(self) -> None:
        """All open watches break abruptly. A good client goes on from its last version."""
        dropped, self.dropped = self.dropped, anyio.Event()
        dropped.set()

    def expire_watches(self) -> None:
        """What changed until now is forgotten and all watches break: the next one is answered with 410.

        A good client lists again.
        """
        self._api.store.compact()
        self.drop_watches()
