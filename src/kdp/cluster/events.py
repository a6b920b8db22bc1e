"""`EventRecorder`: what a cluster's admin should know of a driver, as Kubernetes Events of its node; each once.

`EventWriter` writes what goes on, as an `EventAggregator` decides.

An Event is a courtesy: the log, the probe and the status say the same. So an API server that is away, slow, or refuses
costs one log line.

Source of its fields: ``k8s.io/kubernetes`` ``pkg/apis/core/validation/events.go``. Events of a Node are in the
namespace ``default``, and have the node's name for its UID, as those of the kubelet.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, final

import anyio

from ..concurrency.backoff import Backoff
from ..concurrency.counts import Tally
from ..concurrency.observable import Observable
from ..errors import printable, sentence
from .api import ApiError
from .event_aggregation import EventAggregator, EventTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from .api import NodeApi, Object
    from .event_aggregation import Notice, Telling

logger = logging.getLogger(__name__)

MOST_TEXT: Final = 1024
"""Bytes of an Event's message."""

MOST_EVENTS: Final = 100
"""So many Events are the most of one process: problems whose texts always differ must not fill the cluster."""

RESULTS: Final = ("created", "repeated", "suppressed", "refused", "unanswered")
"""What comes of what happens: an Event; one more in the count of an Event with the same words; no Event of its own,
because others are told with it or it is no longer so; the API server refuses for good; it does not answer, and is asked
again."""

LONGEST_PAUSE: Final = 60.0
"""Seconds between two tries while the API server does not answer."""


class _Creates(Protocol):
    async def create_event(self, event: Mapping[str, Any]) -> Object: ...


@final
class _Complaints:
    """Says once that no Event can be written."""

    def __init__(self, component: str) -> None:
        self._component = component
        self._is_refused = False

    def failed(self, error: ApiError) -> None:
        if not self._is_refused:
            text = "%s: problems are not reported as Events: %s"
            logger.warning(text, self._component, sentence(error))
        self._is_refused = True

    def worked(self) -> None:
        self._is_refused = False


@final
class EventRecorder:
    """Creates Events for one driver on one node; each once."""

    def __init__(self, api: _Creates, driver: str, node: str) -> None:
        self._api = api
        self._driver = driver
        self._node = node
        self._created: set[tuple[str, str]] = set()
        self._complaints = _Complaints(driver)

    async def warn(self, reason: str, message: str) -> None:
        """Create an Event of type Warning, unless there was the same before. Raises nothing.

        The reason is in CamelCase.
        """
        if (reason, message) in self._created or len(self._created) >= MOST_EVENTS:
            return
        self._created.add((reason, message))
        now = time.time()
        event = event_object(
            EventTarget.of_node(self._node),
            reason=reason,
            message=message,
            is_warning=True,
            component=self._driver,
            node=self._node,
            first=now,
            last=now,
        )
        try:
            await self._api.create_event(event)
        except ApiError as error:
            self._complaints.failed(error)
            if _may_pass(error):
                self._created.discard((reason, message))  # the next call tries again
        except Exception:
            logger.exception("%s: no Event was created for %s", self._driver, reason)
        else:
            self._complaints.worked()


@final
class EventWriter:
    """Writes what an `EventAggregator` decides. asyncio only; use it from one loop.

    Args:
        component: Who says so.
        node: On which node that is.
        counts: Where `RESULTS` are counted; None: nobody reads it.
    """

    def __init__(self, component: str, node: str, counts: Tally | None = None) -> None:
        self._component = component
        self._node = node
        self._aggregator = EventAggregator()
        self._news: Observable[None] = Observable(None)
        self._complaints = _Complaints(component)
        self._counts = Tally() if counts is None else counts
        for result in RESULTS:  # so that the first one is seen as a change
            self._counts.add(result, by=0)

    def tell(self, notices: Iterable[Notice]) -> None:
        """Take notices. Blocks nobody: they are written by `run`."""
        now = time.monotonic()
        for notice in notices:
            self._aggregator.add(notice, now)
            self._news.set(None)

    async def run(self, api: NodeApi) -> NoReturn:
        """Write until cancelled. What an API server that is away does not take is written when it is back."""
        backoff = Backoff(first=1.0, most=LONGEST_PAUSE)
        while True:
            version = self._news.version
            tellings = deque(self._aggregator.due(time.monotonic()))
            while tellings:
                try:
                    await self._write(api, tellings[0])
                except ApiError as error:
                    self._complaints.failed(error)
                    if _may_pass(error):
                        self._counts.add("unanswered")
                        for telling in tellings:
                            self._aggregator.returned(telling)
                        await anyio.sleep(max(backoff.next(), error.retry_after or 0.0))
                        break
                    self._count_all("refused", tellings[0])
                except Exception:
                    logger.exception("%s: no Event was created for %s", self._component, tellings[0].reason)
                    self._count_all("refused", tellings[0])
                else:
                    self._complaints.worked()
                    backoff.reset()
                tellings.popleft()
            deadline = self._aggregator.deadline
            with anyio.move_on_after(float("inf") if deadline is None else max(0.01, deadline - time.monotonic())):
                await self._news.after(version)

    async def _write(self, api: NodeApi, telling: Telling) -> None:
        began = time.time() - time.monotonic()
        if telling.event is not None:
            try:
                patch = counted(telling.count, began + telling.last)
                await api.patch_event(telling.target.namespace, telling.event, patch)
            except ApiError as error:
                if error.status != 404:
                    raise
                self._aggregator.forget(telling.event)  # it has expired; so it is written anew
            else:
                self._aggregator.written(telling, telling.event)
                self._count_all("repeated", telling)
                return
        event = event_object(
            telling.target,
            reason=telling.reason,
            message=telling.message,
            is_warning=telling.is_warning,
            component=self._component,
            node=self._node,
            first=began + telling.first,
            last=began + telling.last,
            count=telling.count,
        )
        made = await api.create_event(event)
        self._aggregator.written(telling, made["metadata"]["name"])
        self._count_all("created", telling)

    def _count_all(self, result: str, telling: Telling) -> None:
        """Count what came of a telling, and of the notices that are told with it."""
        self._counts.add(result)
        self._counts.add("suppressed", by=telling.notices - 1)


def _may_pass(error: ApiError) -> bool:
    """Return whether it may work later, as it is: the server is away or busy. A refusal is for good."""
    return error.status in (0, 429) or error.status >= 500


def event_object(
    target: EventTarget,
    *,
    reason: str,
    message: str,
    is_warning: bool,
    component: str,
    node: str,
    first: float,
    last: float,
    count: int = 1,
) -> Object:
    """Return a new Event.

    Args:
        target: What it is about.
        reason: Why, in CamelCase.
        message: A sentence; what does not print is escaped, and what is too long is cut.
        is_warning: Whether its type is Warning, or else Normal.
        component: Who says so.
        node: On which node that is.
        first: When it was first so, in Unix seconds.
        last: When it was last so.
        count: How often it was so.
    """
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{target.name}.", "namespace": target.namespace},
        "involvedObject": target.reference,
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": cut(message),
        "source": {"component": component, "host": node},
        "reportingComponent": component,
        "reportingInstance": node,
        "firstTimestamp": _moment(first),
        **counted(count, last),
    }


def counted(count: int, last: float) -> dict[str, Any]:
    """Return the merge patch by which an Event that is there counts a repetition."""
    return {"lastTimestamp": _moment(last), "count": count}


def cut(message: str) -> str:
    """Return a message as it can be shown, with at most `MOST_TEXT` bytes."""
    return printable(message, MOST_TEXT).encode()[:MOST_TEXT].decode(errors="ignore")


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime  # late: a start does not need it

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
