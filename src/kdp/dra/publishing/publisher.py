"""`Publisher`: keeps a pool's ResourceSlices in the API server as they were published last, whatever happens to them.

What to do is decided in `kdp.dra.publishing.planner`; here it is done: one request after the other, beside them one
watch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, final

import anyio
import attrs

from ...cluster.api import ApiError
from ...concurrency.backoff import Backoff
from ...concurrency.observable import Observable
from ...errors import sentence
from .actions import Check, Create, Delete, ReadOwner, ReadSlices, ReadVersion, Update, Wait, Watch
from .planner import Planner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...cluster.api import ClusterApi
    from ...model.devices import AttributeValue, Device
    from ...model.quantities import Amount
    from .actions import Action
    from .slices import Pool

logger = logging.getLogger(__name__)

_STRANGE = "an answer of the API server was not understood"

REMOVE_FOR = 30.0
"""Seconds for which `Publisher.remove` tries again."""


@final
class Publisher:
    """Publishes the devices of one pool. Run `run` in a task group; call `publish` whenever there is something new.

    Only one publisher may serve a pool at a time.

    Args:
        api: The API server.
        pool: The pool.
        owner: The name of the node that owns the slices, so that they vanish with it; None: nobody does, as with
            devices that are not a node's, and `remove` must take them away.

    Attributes:
        status: The newest `PublisherStatus`.
    """

    def __init__(self, api: ClusterApi, pool: Pool, *, owner: str | None = None) -> None:
        self._api = api
        self._pool = pool
        self._core = Planner(pool, owner=owner)
        self._wake = asyncio.Event()
        self.status = Observable(attrs.evolve(self._core.status, behind_since=time.monotonic()))

    def publish(
        self,
        devices: Sequence[Device],
        *,
        counters: Mapping[str, Mapping[str, Amount]] | None = None,
        standard: Mapping[str, Mapping[str, AttributeValue]] | None = None,
    ) -> None:
        """Say what the pool has from now on; returns at once, and the newest call wins.

        What the server would refuse is not sent: what was published before stays, and ``status.value.problem`` says
        what is wrong.

        Args:
            devices: All devices of the pool, those to be preferred first.
            counters: What there is, by counter set and counter.
            standard: The standard attributes of the devices, by their ids.
        """
        self._core.want(tuple(devices), dict(counters or {}), dict(standard or {}))
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled. The slices stay then: the next version of the driver takes them over."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._wake.clear()
                    step = self._core.next(time.monotonic())
                    self._tell()
                    match step:
                        case Wait(until):
                            with anyio.move_on_after(None if until is None else max(0.0, until - time.monotonic())):
                                await self._wake.wait()
                        case Watch(resource_version):
                            tasks.start_soon(self._follow, resource_version)
                        case _:
                            await self._do(step)
        finally:
            self._core.restart()

    async def remove(self) -> int:
        """Delete all slices of the pool, at uninstall; not while `run` runs.

        Returns:
            How many there were.

        Raises:
            ApiError: The server did not do so, for half a minute.
        """
        backoff = Backoff()
        deadline = time.monotonic() + REMOVE_FOR
        removed: set[str] = set()
        while True:
            try:
                found = await self._api.slices(driver=self._pool.driver, node=self._node)
                ours = [
                    item
                    for item in found.items
                    if item["spec"]["pool"]["name"] == self._pool.name and item["spec"].get("nodeName") == self._node
                ]
                if not ours:
                    return len(removed)
                for item in ours:
                    removed.add(item["metadata"]["name"])
                    try:
                        await self._api.delete_slice(item)
                    except ApiError as error:
                        if error.status != 404:  # somebody else removes them, too
                            raise
            except ApiError as error:
                if time.monotonic() > deadline or error.status in (401, 403):
                    raise
                await anyio.sleep(max(error.retry_after or 0.0, backoff.next()))

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def _node(self) -> str | None:
        node: str | None = self._pool.nodes.get("nodeName")
        return node

    async def _do(self, step: Action) -> None:
        try:
            result = await self._take(step)
            self._core.done(step, result, time.monotonic())
        except ApiError as error:
            self._core.failed(step, error, time.monotonic())
        except Exception as error:
            logger.exception("pool %s: %s", self._pool.name, _STRANGE)
            self._core.failed(step, ApiError(f"{_STRANGE}: {sentence(error)}"), time.monotonic())

    async def _take(self, step: Action) -> Any:
        match step:
            case ReadVersion():
                return await self._api.version()
            case ReadOwner(node):
                return await self._api.node(node)
            case ReadSlices():
                return await self._api.slices(driver=self._pool.driver, node=self._node)
            case Create(item):
                return await self._api.create_slice(item)
            case Update(item):
                return await self._api.update_slice(item)
            case Check(write):
                judge = self._api.create_slice if isinstance(write, Create) else self._api.update_slice
                return await judge(write.item, dry_run=True)
            case Delete(item):
                return await self._api.delete_slice(item)
            case Watch() | Wait():
                raise AssertionError(step)  # run does these

    async def _follow(self, resource_version: str) -> None:
        """Tell the core what the watch brings, until it ends."""
        ended: ApiError | None = None
        try:
            watch = self._api.watch_slices(driver=self._pool.driver, node=self._node, resource_version=resource_version)
            async with aclosing(watch) as events:
                async for event in events:
                    self._core.observed(event, time.monotonic())
                    self._wake.set()
        except ApiError as error:
            ended = error
        except Exception as error:
            logger.exception("pool %s: %s", self._pool.name, _STRANGE)
            ended = ApiError(f"{_STRANGE}: {sentence(error)}")
        self._core.watch_ended(ended, time.monotonic())
        self._wake.set()

    def _tell(self) -> None:
        before, status = self.status.value, self._core.status
        if status == before:
            return
        if status.problem != before.problem:
            if status.problem is not None:
                logger.warning("pool %s: %s", self._pool.name, status.problem)
            else:
                logger.info("pool %s: the problem is solved", self._pool.name)
        if status.withheld != before.withheld and status.withheld:
            gates = ", ".join(sorted(set(status.withheld.values())))
            logger.warning(
                "pool %s: %d devices are not published, because the API server has feature gates off: %s",
                self._pool.name,
                len(status.withheld),
                gates,
            )
        for field in status.dropped:
            if field not in before.dropped:
                why = f"feature gate {field.gate} is off" if field.gate else "nobody knows why"
                logger.warning("pool %s: the API server left out %s: %s", self._pool.name, field.path, why)
        since = None if status.is_current else before.behind_since or time.monotonic()
        self.status.set(attrs.evolve(status, behind_since=since))
