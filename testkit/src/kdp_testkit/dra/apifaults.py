"""How the simulated API server misbehaves on command: named methods of ``server.faults``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from ..protocol.pods import ScenarioError
from .status import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from .api import Api, Request


class ApiFaults:
    """The faults of one server. Those that meet requests meet the next ones, ``times`` of them (None: all).

    Attributes:
        met: How many requests met a fault.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._armed: list[tuple[Callable[[], ApiRefused], str, str, float]] = []
        self.met = 0
        self.is_away = False
        self.delay = 0.0
        self.dropped = anyio.Event()

    def clear(self) -> None:
        """End all faults."""
        self._armed.clear()
        self.is_away = False
        self.delay = 0.0

    def meet(self, request: Request, *, is_own: bool = False) -> None:
        """Refuse a request that a fault meets.

        Args:
            request: The request.
            is_own: Whether it does not come over the network, so that no proxy can answer it.

        Raises:
            ApiRefused: One does.
        """
        for index, (make, method, path, left) in enumerate(self._armed):
            refusal = make()
            if is_own and refusal.content is not None:
                continue
            if method in ("", request.method) and request.path.endswith(path):
                self.met += 1
                if left <= 1:
                    del self._armed[index]
                else:
                    self._armed[index] = make, method, path, left - 1
                raise refusal

    def too_many_requests(self, retry_after: int = 1, *, method: str = "", times: int | None = 1) -> None:
        """429 with Retry-After, as priority and fairness answers. A good client waits so long."""
        text = "the server has received too many requests and has asked us to try again later"
        self._arm(lambda: ApiRefused(429, text, retry_after=retry_after), method, times)

    def internal_error(
        self, text: str = "etcdserver: request timed out", *, method: str = "", times: int | None = 1
    ) -> None:
        """500. A good client tries again, with growing pauses."""
        self._arm(lambda: ApiRefused(500, text), method, times)

    def unavailable(self, *, method: str = "", times: int | None = 1) -> None:
        """503, as while a server starts or ends. A good client tries again."""
        self._arm(lambda: ApiRefused(503, "apiserver is shutting down"), method, times)

    def refused(self, status: int, text: str, *, method: str = "", path: str = "", times: int | None = 1) -> None:
        """Any other refusal; with ``path`` only of requests whose path ends so."""
        self._arm(lambda: ApiRefused(status, text), method, times, path)

    def odd_answer(
        self, content: bytes, *, status: int = 200, method: str = "", path: str = "", times: int | None = 1
    ) -> None:
        """These bytes, as a proxy sends a page of its own. A good client takes them for nothing, and asks again."""
        self._arm(lambda: ApiRefused(status, "", content=content), method, times, path)

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

    def rotate_token(self, old: str, new: str) -> None:
        """A token is replaced; who uses the old one is told 401. A good client reads its file again.

        Raises:
            ScenarioError: There is no such token.
        """
        if old not in self._api.accounts:
            raise ScenarioError(f"there is no token {old!r} to rotate")
        self._api.accounts[new] = self._api.accounts.pop(old)

    def _arm(self, make: Callable[[], ApiRefused], method: str, times: int | None, path: str = "") -> None:
        if times is not None and times < 1:
            raise ScenarioError(f"a fault cannot meet {times} requests")
        self._armed.append((make, method, path, math.inf if times is None else times))
