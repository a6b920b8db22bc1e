"""`Evictor`: carries out the decisions of an `EvictionPlanner` with the Eviction API, and describes pods and the Node.

`EvictionRecord` keeps the times of evictions.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from typing import TYPE_CHECKING, Final, NoReturn, final

import anyio

from ..concurrency import threads
from ..concurrency.counts import Tally
from ..errors import printable, sentence
from ..storage.kept_list import KeptList
from . import eviction
from .api import ApiError, OddAnswerError
from .eviction import HOUR, Description, EvictionFacts, EvictionPlanner, Outcome, PodName, Say
from .nodes import is_ready, part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .api import NodeApi, Object
    from .eviction import Device, EvictionPolicy

logger = logging.getLogger(__name__)

LOOK_PAUSE: Final = 2.0
BUSY_PAUSE: Final = 0.25
"""Seconds between two looks: usually, and while a pod is being evicted."""

RESULTS: Final = ("accepted", "dry_run", "gone", "blocked", "failed", "unknown")
"""How a request ended: as `Outcome` says; ``dry_run``: it would have been accepted."""

MOST: Final = 1000
"""Times that are read: the largest limit per hour."""

_MOST_SHOWN: Final = 400
_MIRROR: Final = "kubernetes.io/config.mirror"


@final
class EvictionRecord:
    """The times of one process's evictions, in Unix seconds, so that a restart does not begin a new hour.

    All methods block for the disk.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._record = KeptList(path, "evicted", "a restart begins a new hour for --evict-limit")

    def read(self) -> list[float]:
        """Return the times of the last hour. One that seems to be in the future counts as now: the clock was set."""
        now = time.time()
        try:
            times = [min(now, float(each)) for each in self._record.read()][-MOST:]
        except (ValueError, TypeError) as error:
            self._record.ignored(error)
            return []
        return [at for at in times if now - at < HOUR]

    def write(self, times: Sequence[float]) -> None:
        """Keep these times; a disk that cannot be written is said, and changes nothing else."""
        self._record.write([round(at, 3) for at in times[-MOST:]])


@final
class Evictor:
    """Evicts pods of one node.

    Args:
        node: The node's name.
        policy: When.
        tell: Takes what people should know, beside the log.
        record: Keeps when pods were evicted; None: a restart forgets it.
        counts: Where `RESULTS` are counted; None: nobody reads it.
    """

    def __init__(
        self,
        node: str,
        policy: EvictionPolicy,
        tell: Callable[[Say], object],
        record: EvictionRecord | None = None,
        counts: Tally | None = None,
    ) -> None:
        self._node = node
        self._is_dry = policy.is_dry
        self._record = record
        self._planner = EvictionPlanner(policy)
        self._tell = tell
        self._counts = Tally() if counts is None else counts
        for result in RESULTS:  # so that the first one is seen as a change
            self._counts.add(result, by=0)

    def recovered(self, device: Device) -> None:
        """A device is healthy again."""
        self._planner.recovered(device)

    async def run(
        self, api: NodeApi, facts: Callable[[], EvictionFacts], want_holders: Callable[[], object]
    ) -> NoReturn:
        """Look, decide, and act, until cancelled.

        Args:
            api: The API server.
            facts: Returns the failed devices and their holders as they are now.
            want_holders: Makes the plugin ask the kubelet for the holders soon.
        """
        await self._remember()
        while True:
            self._planner.observe(facts(), time.monotonic())
            is_busy = False
            for command in self._planner.step(time.monotonic()):
                match command:
                    case Say():
                        self._say(command)
                    case eviction.AskHolders():
                        want_holders()
                        is_busy = True
                    case eviction.Describe(pod):
                        await self._describe(api, pod)
                        is_busy = True
                    case eviction.Evict(pod, uid, why):
                        await self._evict(api, pod, uid, why)
            await anyio.sleep(BUSY_PAUSE if is_busy else LOOK_PAUSE)

    async def _describe(self, api: NodeApi, pod: PodName) -> None:
        asked_at = time.monotonic()
        found: Description | str
        try:
            node = await api.node(self._node)
        except ApiError as error:
            found = sentence(error)
        else:
            try:
                found = described(await api.pod(pod.namespace, pod.name), node, self._node)
            except ApiError as error:
                is_gone = error.status == 404 and not isinstance(error, OddAnswerError)
                found = Description(uid="", is_node_ready=True) if is_gone else sentence(error)
        self._planner.described(pod, found, asked_at=asked_at, now=time.monotonic())

    async def _evict(self, api: NodeApi, pod: PodName, uid: str, why: str) -> None:
        outcome: Outcome = "accepted"
        text, wait = "", 0.0
        await self._keep()  # before it is asked: also what a crash interrupts counts
        try:
            await api.evict(pod.namespace, pod.name, uid=uid, is_dry=self._is_dry)
        except ApiError as error:
            outcome, text, wait = outcome_of(error), sentence(error), error.retry_after or 0.0
        self._planner.answered(pod, outcome, text, retry_after=wait, now=time.monotonic())
        self._counts.add("dry_run" if self._is_dry and outcome == "accepted" else outcome)
        if outcome in ("gone", "blocked", "failed"):
            await self._keep()
        if outcome == "accepted":
            reason, done = ("WouldEvict", "would be evicted (dry run)") if self._is_dry else ("Evicted", "evicted")
            self._say(Say(pod, uid, reason, f"{done}, because {why}"))

    async def _remember(self) -> None:
        if self._record is not None:
            began = time.time() - time.monotonic()
            with contextlib.suppress(RuntimeError):  # no thread can be started now
                times = await threads.run(self._record.read, name="kdp-evictions")
                self._planner.remember(at - began for at in times)

    async def _keep(self) -> None:
        if self._record is not None and not self._is_dry:
            began = time.time() - time.monotonic()
            with contextlib.suppress(RuntimeError):  # no thread can be started now
                await threads.run(
                    functools.partial(self._record.write, [began + at for at in self._planner.asked]),
                    name="kdp-evictions",
                )

    def _say(self, say: Say) -> None:
        shown = printable(say.text, _MOST_SHOWN)
        level = logging.WARNING if say.is_warning else logging.INFO
        if say.pod is None:
            logger.log(level, "%s", shown)
        else:
            name = f"{say.pod.namespace}/{say.pod.name}"
            logger.log(level, "pod %s: %s", name, shown, extra={"pod": name})
        if say.reason != "NotEvicted":  # which only explains why nothing happens
            self._tell(say)


def described(pod: Object, node: Object, name: str) -> Description:
    """Return what the API server says of a pod and its node."""
    metadata, obstacle = part(pod, "metadata"), None
    if _MIRROR in part(metadata, "annotations"):
        obstacle = "it is a static pod, which only its file on the node ends"
    elif part(pod, "spec").get("nodeName") != name:
        obstacle = "a pod of that name is on another node"
    elif metadata.get("deletionTimestamp") is not None:
        obstacle = "it ends already"
    elif part(pod, "status").get("phase") in ("Succeeded", "Failed"):
        obstacle = "it has ended already"
    return Description(uid=metadata["uid"], is_node_ready=is_ready(node), obstacle=obstacle)


def outcome_of(error: ApiError) -> Outcome:
    """Return how a request ended that was not accepted."""
    if error.status in (404, 409):
        return "gone"
    if error.status == 429:
        return "blocked"
    return "unknown" if error.status in (0, 504) else "failed"
