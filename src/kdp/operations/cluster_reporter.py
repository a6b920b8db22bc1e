"""`ClusterReporter`: gives `kdp.cluster` the news and the facts of a device plugin: Events, evictions, start-up taint.

It reads the state of the plugins. The API server may be away, slow, or refuse: that costs a log
line, and the plugin serves on.
"""

from __future__ import annotations

import importlib
import logging
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, final

import anyio
import attrs

from ..cluster.api import ApiError, OddAnswerError
from ..cluster.event_aggregation import COMPONENT, EventTarget, Notice
from ..cluster.events import EventWriter
from ..cluster.eviction import EvictionFacts, EvictionPolicy, PodName
from ..cluster.evictor import EvictionRecord, Evictor
from ..cluster.startup_taint import remove_startup_taint
from ..concurrency import threads
from ..concurrency.backoff import Backoff
from ..concurrency.counts import Tally
from ..errors import ConfigurationError, sentence
from ..storage.kept_list import KeptList
from .news import HeldDevice, HolderNews, PluginNews

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from ..cluster.api import NodeApi
    from ..cluster.eviction import Say
    from ..deviceplugin.manager import PluginManager
    from ..kubelet.podresources import Holder
    from ..supervision.health import HealthChange
    from .news import Device

logger = logging.getLogger(__name__)

LOOK_PAUSE: Final = 2.0
"""Seconds between two looks at the plugins."""

CALM: Final = 5.0
"""Seconds after a start until which the client's library is loaded at the latest: registration comes first."""

CONNECT_PAUSE: Final = 60.0
"""Seconds between two tries while there is no account."""

MOST_TOLD: Final = 500
"""Failed devices that are remembered: they fit the file whatever their names are."""

MOST_HOLDINGS: Final = 64
"""Pods that wait for their Events."""

_CLIENT: Final = "kdp.cluster.client"


@final
class ClusterCounts:
    """What a device plugin's process counts in the cluster. The counts outlive a reload of the configuration.

    A process that writes no Events counts none, so it has no series of them; the same holds for evictions.

    Attributes:
        events: By result, one of `kdp.cluster.events.RESULTS`.
        evictions: By result, one of `kdp.cluster.evictor.RESULTS`.
    """

    def __init__(self) -> None:
        self.events = Tally()
        self.evictions = Tally()


@final
@attrs.frozen(kw_only=True)
class ReportOptions:
    """What is done in the cluster.

    Attributes:
        node: The node's name.
        events: Whether Events are written.
        eviction: When pods are evicted; None: they are not.
        startup_taint: The key of the taint that is removed; None: none is.
        record: Where it is kept when pods were evicted; None: nowhere.
        told: The file that keeps which failures Events have told. `None` if nothing keeps it.
    """

    node: str
    events: bool = False
    eviction: EvictionPolicy | None = None
    startup_taint: str | None = None
    record: Path | None = None
    told: Path | None = None


@final
class ClusterReporter:
    """Does it for one `PluginManager`. asyncio only.

    Args:
        options: What is done.
        connect: Makes the connection; called when the client's library is loaded.
        rejection: Returns why the configuration is not in force; None: it is.
        counts: Where it is counted; None: nobody reads it.
    """

    def __init__(
        self,
        options: ReportOptions,
        *,
        connect: Callable[[], AbstractAsyncContextManager[NodeApi]],
        rejection: Callable[[], str | None] = lambda: None,
        counts: ClusterCounts | None = None,
    ) -> None:
        self._options = options
        self._connect = connect
        self._rejection = rejection
        self._target = EventTarget.of_node(options.node)
        counts = counts or ClusterCounts()
        self._writer = EventWriter(COMPONENT, options.node, counts.events) if options.events else None
        self._news = PluginNews(self._target)
        restart = "a device that recovers while its plugin restarts gets no Event of that"
        self._told = None if options.told is None or self._writer is None else KeptList(options.told, "failed", restart)
        self._kept: frozenset[Device] = frozenset()
        self._evictor: Evictor | None = None
        if options.eviction is not None:
            record = None if options.record is None else EvictionRecord(options.record)
            self._evictor = Evictor(options.node, options.eviction, self._tell, record, counts.evictions)

    def changed(self, change: HealthChange) -> None:
        """Take a change of a device's health; see `ManagerOptions.observe`."""
        if self._writer is not None and (notice := self._news.changed(change)) is not None:
            self._writer.tell([notice])
        if self._evictor is not None and change.resource is not None and change.health.state.is_listed_healthy:
            self._evictor.recovered((change.resource, change.device.id))

    async def run(self, manager: PluginManager) -> NoReturn:
        """Do it until cancelled."""
        with anyio.move_on_after(CALM):
            while not manager.is_ready:  # noqa: ASYNC110 - it is a status, which nobody tells
                await anyio.sleep(0.1)
        with suppress(Exception):  # said where it is used; in a thread, so that the event loop goes on meanwhile
            await threads.run(partial(importlib.import_module, _CLIENT), name="kdp-load")
        is_logged = False
        while True:
            try:
                async with self._connect() as api:
                    await self._work(api, manager)
            except ConfigurationError as error:
                if not is_logged:
                    logger.error("nothing is reported to Kubernetes: %s", sentence(error))
                is_logged = True
            except Exception:
                logger.exception("reporting to Kubernetes failed, which is a bug of kdp; it starts again")
            await anyio.sleep(CONNECT_PAUSE)

    async def _work(self, api: NodeApi, manager: PluginManager) -> NoReturn:
        async with anyio.create_task_group() as tasks:
            if self._writer is not None:
                tasks.start_soon(self._writer.run, api)
                tasks.start_soon(self._look, api, manager, self._writer)
            if self._evictor is not None:
                tasks.start_soon(self._evictor.run, api, partial(eviction_facts, manager), manager.want_holders)
            if (taint := self._options.startup_taint) is not None:
                tasks.start_soon(remove_startup_taint, api, self._options.node, taint, partial(_offered, manager))
            await anyio.sleep_forever()
        raise AssertionError

    # -- Events --------------------------------------------------------------------------------------------------------

    async def _look(self, api: NodeApi, manager: PluginManager, writer: EventWriter) -> None:
        pods, waiting = HolderNews(), list[HeldDevice]()
        await self._recall()
        backoff = Backoff(first=LOOK_PAUSE, most=60.0)
        try_at = float("-inf")
        while True:
            now, status = time.monotonic(), manager.status()
            writer.tell(self._news.looked(status.resources, self._rejection(), now))
            await self._keep()
            waiting += self._look_at_pods(pods, manager, list(status.resources), now)
            del waiting[:-MOST_HOLDINGS]
            while waiting and time.monotonic() >= try_at:
                holding = waiting[0]
                try:
                    pod = await api.pod(holding.holder.namespace, holding.holder.pod)
                except ApiError as error:
                    if error.status != 404 or isinstance(error, OddAnswerError):
                        try_at = time.monotonic() + backoff.next()
                        if backoff.failures == 1:
                            text = "no Events are created for pods that hold failed devices: %s"
                            logger.warning(text, sentence(error))
                        break
                else:
                    writer.tell([_of_pod(holding, pod["metadata"]["uid"])])
                    backoff.reset()
                waiting.pop(0)
            await anyio.sleep(LOOK_PAUSE)

    async def _recall(self) -> None:
        if self._told is not None:
            with suppress(RuntimeError):  # no thread can be started now
                kept = await threads.run(self._told.read, name="kdp-told")
                self._kept = frozenset((str(each[0]), str(each[1])) for each in kept if _is_device(each))
                self._news.recall(self._kept)

    async def _keep(self) -> None:
        bad = self._news.bad
        if self._told is not None and bad != self._kept:
            # If the disk refuses the list, or the system a thread, the next look tries again.
            with suppress(RuntimeError):
                if await threads.run(partial(self._told.write, sorted(bad)[:MOST_TOLD]), name="kdp-told"):
                    self._kept = bad

    @staticmethod
    def _look_at_pods(pods: HolderNews, manager: PluginManager, resources: list[str], now: float) -> list[HeldDevice]:
        failed: dict[Device, str] = {}
        holders: dict[Device, tuple[Holder, ...]] = {}
        for name in resources:
            if failures := manager.failures(name):
                failed |= {(name, device_id): why for device_id, why in failures.items()}
        for name in resources if failed or pods.has_told else ():
            holders |= {(name, device_id): who for device_id, who in (manager.holders(name) or {}).items()}
        found = pods.looked(failed, holders, manager.holders_asked_at, now)
        if pods.wants_holders(manager.holders_asked_at):
            manager.want_holders()
        return found

    def _tell(self, say: Say) -> None:
        if self._writer is None:
            return
        target = self._target
        if say.pod is not None and say.uid:
            target = EventTarget.of_pod(say.pod.namespace, say.pod.name, say.uid)
        text = say.text if say.pod is None or say.uid else f"pod {say.pod.namespace}/{say.pod.name}: {say.text}"
        notice = Notice(
            target=target,
            subject="eviction",
            reason=say.reason,
            message=text,
            together="{number} evictions",
            is_warning=say.is_warning,
        )
        self._writer.tell([notice])


def _is_device(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2  # pyright: ignore[reportUnknownArgumentType]


def eviction_facts(manager: PluginManager) -> EvictionFacts:
    """Return the failed devices of a process and their holders, for an `Evictor`."""
    failed: dict[Device, str] = {}
    holders: dict[Device, PodName] = {}
    connected: set[str] = set()
    for name, status in manager.status().resources.items():
        if status.state == "connected" and status.kubelet is None:
            connected.add(name)
        failures = manager.failures(name)
        if not failures:
            continue
        failed |= {(name, device_id): why for device_id, why in failures.items()}
        for device_id, (holder, *_) in (manager.holders(name) or {}).items():  # of two pods one after the other
            holders[name, device_id] = PodName(holder.namespace, holder.pod)
    return EvictionFacts(
        failed=failed, connected=frozenset(connected), holders=holders, asked_at=manager.holders_asked_at
    )


def _offered(manager: PluginManager) -> tuple[str, ...] | None:
    """Return the resources with healthy devices. `None` until all resources are registered."""
    status = manager.status()
    return tuple(name for name, each in status.resources.items() if each.healthy) if status.is_ready else None


def _of_pod(holding: HeldDevice, uid: str) -> Notice:
    holder, device, resource = holding.holder, holding.device_id, holding.resource
    has_failed = holding.failure is not None
    text = f"has failed: {holding.failure}" if has_failed else "works again"
    many = "have failed" if has_failed else "work again"
    return Notice(
        target=EventTarget.of_pod(holder.namespace, holder.pod, uid),
        subject=f"{resource} {device}",
        reason="DeviceFailed" if has_failed else "DeviceRecovered",
        message=f"device {device} of {resource}, which container {holder.container} has, {text}",
        together=f"{{number}} devices of {resource}, which container {holder.container} has, {many}: {{names}}",
        name=device,
        is_warning=has_failed,
    )
