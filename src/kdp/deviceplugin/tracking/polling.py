"""`PodResourcesPoller`: asks the kubelet's pod-resources API, and says how much an answer's silence means.

After a kubelet has started it knows its pods only when it has heard from all its sources, and until then lists none,
while their containers run. So a list's silence counts only if the kubelet's pods API says that all are known (1.37 and
later), or if the list names the pod that this process itself runs in, or if the kubelet is ten minutes old.
"""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, final

import anyio
import attrs

from ...concurrency.backoff import Backoff
from ...concurrency.observable import Observable
from ...errors import PodResourcesError, sentence
from ...kubelet.calls import HangWatch
from ...kubelet.list_guard import ListPostponedError
from ...startup import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...kubelet import KubeletPaths
    from ...kubelet.list_guard import ListGuard
    from ...kubelet.podresources import PodResources, PodResourcesCalls, Report  # noqa: TC004 - late: nobody asks at first
    from ...kubelet.podsapi import PodsWatch
    from ..options import Pace

logger = logging.getLogger(__name__)

FAILURES_BEFORE_WARNING = 3
"""Number of failed rounds in a row that is logged: a kubelet's restart costs one or two."""

FIRST_PAUSE = 1.0
"""Seconds after a failed round, at most; doubled after each further one, up to `LONGEST_PAUSE`."""

LOAD_AGAIN = 1.0
"""Seconds until the client of the pods API is loaded again."""

LONGEST_PAUSE = 30.0
"""Seconds between two rounds while they fail."""

GET_PATIENCE = 1.0
"""Seconds that an Allocate waits for Get: the kubelet takes some milliseconds, and admits no other pod meanwhile."""


@final
@attrs.frozen(kw_only=True)
class ListAnswer:
    """What the kubelet answered.

    Attributes:
        asked_at: When it was asked, on `time.monotonic`'s clock.
        report: The holders. `None` if the round had no List, or if Allocates have postponed it.
        is_complete: Whether the kubelet knows all its pods, so that the report's silence means something.
        allocatable: The devices that the kubelet takes for healthy, by resource; empty if that was not asked.
    """

    __repr__ = shown

    asked_at: float
    report: Report | None
    is_complete: bool
    allocatable: Mapping[str, frozenset[str]]


@final
@attrs.frozen(kw_only=True)
class Unanswered:
    """Why there is no answer, whether that is to be logged now, and whether the kubelet took the question in vain."""

    __repr__ = shown

    problem: str
    is_news: bool
    is_silent: bool


class PodResourcesPoller:
    """Asks one kubelet.

    Attributes:
        not_before: When the next round may be, on `time.monotonic`'s clock.
        pod_changed_at: Time of the first pod's end since the last round. `None` if the kubelet reports no end.
        pod_changes: Changes with ``pod_changed_at``.
        hang: Whether the kubelet seems to hang.
        is_there: Whether the API has a socket; `None` before the first question.
    """

    def __init__(self, paths: KubeletPaths, pace: Pace, guard: ListGuard) -> None:
        self.not_before = float("-inf")
        self.pod_changed_at: float | None = None
        self.pod_changes: Observable[None] = Observable(None)
        self._paths = paths
        self._guard = guard
        self._is_postponed = False
        self._settling = pace.settling
        self._pods: PodsWatch | None = None
        self._own_name = socket.gethostname()
        self._asked_early = float("-inf")
        self._made_at = self._up_since = float("-inf")
        self._absence = Backoff(first=1.0, most=pace.absent)
        self._backoff = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
        self._problem: str | None = None
        self.hang = HangWatch()
        self.is_there: bool | None = None

    @functools.cached_property
    def _client(self) -> PodResources:
        from ...kubelet.podresources import PodResources  # nobody asks before the kubelet has had our list for seconds

        return PodResources(self._paths.pod_resources_socket, self._guard)

    async def watch_pods(self, is_wanted: Callable[[], bool], news: Observable[None]) -> None:
        """Follow the kubelet's pods API while that is of use; ``news`` changes when it may have become so."""
        async with anyio.create_task_group() as tasks:
            while True:
                while not is_wanted():
                    await news.after(news.version)
                if self._pods is None:
                    try:
                        from ...kubelet.podsapi import PodsWatch
                    except (OSError, ImportError):  # to load it takes a descriptor
                        await anyio.sleep(LOAD_AGAIN)
                        continue
                    self._pods = PodsWatch(self._paths.pods_api_socket)
                    tasks.start_soon(self._follow_pods, self._pods)
                await self._pods.run(is_wanted)

    async def _follow_pods(self, pods: PodsWatch) -> None:
        version = pods.changes.version
        while True:
            await pods.changes.after(version)
            version = pods.changes.version
            if self.pod_changed_at is None:
                self.pod_changed_at = time.monotonic()
                self.pod_changes.set(None)

    @property
    def running(self) -> Mapping[tuple[str, str], str] | None:
        """Namespace and name of each pod that runs, with its UID. `None` without a synced pods API."""
        return self._pods.running if self._pods is not None and self._pods.is_synced else None

    @property
    def _is_synced(self) -> bool:
        return self._pods is not None and self._pods.is_synced

    def retry(self) -> None:
        """A kubelet is there: its arrival ends the pause after a failure."""
        self.not_before = float("-inf")
        self._absence.reset()
        self._backoff.reset()

    async def ask(
        self, resources: Collection[str], *, wants_list: bool, wants_settled_list: bool, wants_allocatable: bool
    ) -> ListAnswer | Unanswered:
        """Ask one round of questions about these resources.

        Args:
            resources: The resources in question.
            wants_list: Whether List is needed now.
            wants_settled_list: Whether List is needed once for each kubelet, and again when it must know all its pods.
            wants_allocatable: Whether GetAllocatableResources is needed.
        """
        changed_at, self.pod_changed_at = self.pod_changed_at, None
        try:
            made_at = self._client.made_at()
        except (OSError, ImportError) as error:  # to load it takes a descriptor
            problem = f"it cannot be asked: {sentence(error)}"
            return self._failed(problem, after=self._backoff.next(), is_worth_logging=True)
        self.is_there = made_at is not None
        if made_at is None:
            problem = f"there is no {self._client.socket}"
            return self._failed(problem, after=self._absence.next(), is_worth_logging=True)
        now = time.monotonic()
        was_synced = self._is_synced
        settled = self._age(made_at) >= self._settling
        wants_settled_list = wants_settled_list and (settled or made_at != self._asked_early)
        report = None
        allocatable: Mapping[str, frozenset[str]] = {}
        try:
            async with self._client.connect() as calls:
                if wants_list or wants_settled_list:
                    report = await self._list(calls, resources)
                    if report is None and self.pod_changed_at is None:
                        self.pod_changed_at = changed_at
                if wants_allocatable:
                    allocatable = await calls.allocatable()
        except PodResourcesError as error:
            from ...kubelet.podresources import SilentKubeletError

            after = self._backoff.next()
            is_silent = isinstance(error, SilentKubeletError)
            self.hang.note(is_silent=is_silent)
            is_lasting = self._backoff.failures >= FAILURES_BEFORE_WARNING
            return self._failed(sentence(error), after=after, is_worth_logging=is_lasting, is_silent=is_silent)
        self.hang.note(is_silent=False)
        self._absence.reset()
        self._backoff.reset()
        if self._problem is not None:
            logger.info("the kubelet's pod-resources API answers again")
            self._problem = None
        is_complete = False
        if report is not None:
            self._asked_early = made_at
            same = self._client.made_at() == made_at
            here = any(name == self._own_name for _, name in report.pods)
            synced = was_synced and self._is_synced
            is_complete = same and (settled or here or synced)
        return ListAnswer(asked_at=now, report=report, is_complete=is_complete, allocatable=allocatable)

    async def devices_of(self, pods: Iterable[tuple[str, str]]) -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
        """Ask which devices these pods have. A pod is missing if the kubelet does not know the pod, or is silent."""
        found: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
        with anyio.move_on_after(GET_PATIENCE):
            async with self._client.connect() as calls:
                for pod in pods:
                    with suppress(PodResourcesError):
                        found[pod] = await calls.devices_of(*pod)
        return found

    async def _list(self, calls: PodResourcesCalls, resources: Collection[str]) -> Report | None:
        """Return the kubelet's list. `None` if Allocates run without a pause; the next round tries again."""
        try:
            report = await calls.list(resources)
        except ListPostponedError as error:
            if not self._is_postponed:
                logger.warning("%s; kdp tries again each second", sentence(error))
            self._is_postponed = True
            return None
        if self._is_postponed:
            logger.info("the pods' devices are listed again")
            self._is_postponed = False
        return report

    def _age(self, made_at: float) -> float:
        """Return for how many seconds a kubelet has been up. Somebody may set the wall clock, so it is asked once."""
        now = time.monotonic()
        if made_at != self._made_at:
            self._made_at, self._up_since = made_at, now - max(0.0, time.time() - made_at)
        return now - self._up_since

    def _failed(self, problem: str, *, after: float, is_worth_logging: bool, is_silent: bool = False) -> Unanswered:
        self.not_before = time.monotonic() + after
        is_news = is_worth_logging and self._problem is None
        if is_news:
            self._problem = problem
        return Unanswered(problem=problem, is_news=is_news, is_silent=is_silent)
