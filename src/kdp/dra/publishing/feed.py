"""`Feed`: hands what is known of a backend's devices to a publisher, whenever it is something new.

Nothing is handed over while the node still offers the devices by a device plugin (`Exclusivity`): the scheduler keeps
account of the two ways apart, so that one device would be given away twice. The node object says what any plugin
offers: one of kdp or another, alive or just killed. It does not show pods that still have devices of a plugin that is
gone, so the administrator drains the node before a change from one way to the other.

Source: DRA contract section 3.7.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, final

import anyio

from ...cluster.api import ApiError
from ...concurrency.threads import offload
from ...errors import HookError, InvalidValueError, NotReady, sentence
from ...model.quantities import Quantity
from ...supervision.change_log import ChangeLog, Transition
from ...supervision.counters import examined
from ...supervision.supervisor import RETRY_AFTER
from ..render import tainted
from ..standard_attributes import StandardAttributes
from .publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...cluster.api import ClusterApi
    from ...concurrency.observable import Observable
    from ...hardware import Host
    from ...model.backend import DeviceBackend
    from ...model.claims import TaintEffect
    from ...model.devices import AttributeValue, Device
    from ...model.quantities import Amount
    from ...supervision.publisher import Discovery
    from ...supervision.supervisor import Supervisor
    from ..options import BaseOptions
    from ..plugin_holders import PluginHolders
    from .slices import Pool

logger = logging.getLogger(__name__)

LOOK_PAUSE = 3.0
"""Seconds between two looks at the node."""


@final
class Feed:
    """See the module; one for each publisher.

    Args:
        supervisor: The backend.
        pool: The pool.
        options: Those of the driver or the controller.
        host: The node's files, if the pool is the node's own: then devices have standard attributes, the node owns the
            slices, and it must not offer the devices by a device plugin, too.
        discovery: What is offered of the devices; None: what the supervisor says.
        holders: Asks which pods still hold devices of a device plugin; `None`: the devices are no node's own.

    Attributes:
        publisher: Who writes the slices; it runs while the feed does.
        problem: Why what is known is not published, as a sentence; None: it is, as far as this is concerned.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        pool: Pool,
        options: BaseOptions,
        *,
        host: Host | None = None,
        discovery: Observable[Discovery] | None = None,
        holders: PluginHolders | None = None,
    ) -> None:
        self._driver = pool.driver
        self._supervisor = supervisor
        self._health_taint: TaintEffect | None = options.health_taint
        self._standard: StandardAttributes | None = None
        self._exclusivity: Exclusivity | None = None
        owner: str | None = None
        if host is not None:
            owner = pool.name
            self._standard = StandardAttributes(host)
            self._exclusivity = Exclusivity(options.api, pool.name, supervisor.backend, holders)
        self.publisher = Publisher(options.api, pool, owner=owner)
        self._discovery = supervisor.discovery if discovery is None else discovery
        self.problem: str | None = None
        self._log = ChangeLog(pool.driver, gone="gone, and is removed from the slices", history=options.history)
        self._known: dict[str, Device] = {}

    @property
    def trouble(self) -> str | None:
        """Why the slices are not as they should be, as a sentence; None: they are."""
        return self.problem or self.publisher.status.value.problem

    async def run(self, begins: anyio.Event | None = None) -> None:
        """Hand over until cancelled, as soon as an event is set."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.publisher.run)
            if begins is not None:
                await begins.wait()
            await self._hand_over()

    async def _hand_over(self) -> None:
        discovery = self._discovery
        published: Any = None
        has_waited = False
        while True:
            version, found = discovery.version, discovery.value
            if found.devices is not None:
                self._log_changes(found.devices)
                if self._exclusivity is not None and (why := await self._exclusivity.obstacle(found.devices)):
                    self._say(why)
                    has_waited = True
                    # Not all nodes at once.
                    await anyio.sleep(self._exclusivity.pause * random.uniform(0.8, 1.0))  # noqa: S311
                    continue
                if has_waited or discovery.version != version:  # the devices may be others by now
                    has_waited, self.problem = False, None
                    continue
                try:
                    counters = await self._counters()
                except (HookError, NotReady) as error:
                    self._say(f"{sentence(error)}; the slices stay as they are")
                else:
                    self.problem = None
                    devices = tainted(found.devices, self._driver, self._health_taint, found.health)
                    standard = await self._standard_of(devices)
                    if (devices, counters, standard) != published:
                        published = devices, counters, standard
                        self.publisher.publish(devices, counters=counters, standard=standard)
            # A backend that is not polled would not be asked for its counters again.
            with anyio.move_on_after(RETRY_AFTER if self.problem else None):
                await discovery.after(version)

    def _say(self, problem: str) -> None:
        """Log why what is known of the devices is not published, once."""
        if problem != self.problem:
            self.problem = problem
            logger.warning("%s: %s", self._driver, problem, extra={"driver": self._driver})

    def _log_changes(self, devices: Sequence[Device]) -> None:
        """Log whose health has changed, and who has gone, since the last call."""
        before, self._known = self._known, {device.id: device for device in devices}
        changed = (each for each in devices if before.get(each.id) is not each)
        pairs = ((each, before.get(each.id)) for each in changed)
        self._log.changed(
            [
                Transition(device=device, before=None if old is None else old.health)
                for device, old in pairs
                if old is None or old.health != device.health
            ],
            [device_id for device_id in before if device_id not in self._known],
        )

    async def _standard_of(self, devices: Sequence[Device]) -> Mapping[str, Mapping[str, AttributeValue]]:
        standard = self._standard
        if standard is None:
            return {}
        started = time.monotonic()
        found = await offload(lambda: standard.of(devices))
        if (took := time.monotonic() - started) > 1.0:
            logger.info("%s: the standard attributes of %d devices took %.1f s", self._driver, len(devices), took)
        return found

    async def _counters(self) -> Mapping[str, Mapping[str, Amount]]:
        if not self._supervisor.hooks.overridden("counters"):
            return {}

        found: Mapping[str, Mapping[str, Amount]] = await self._supervisor.call(
            "counters", deadline=self._supervisor.deadlines.counters, then=examined
        )
        return found


@final
class Exclusivity:
    """Which resources of a backend a node was seen not to offer by a device plugin.

    Args:
        api: The API server.
        node: The node's name.
        backend: The backend.
        holders: Asks which pods still hold devices of a device plugin; `None` in a test.

    Attributes:
        pause: Seconds until the next look.
    """

    def __init__(
        self, api: ClusterApi, node: str, backend: DeviceBackend, holders: PluginHolders | None = None
    ) -> None:
        self._api = api
        self._node = node
        self._holders = holders
        self._names = {name for name in (backend.resource, *backend.resources) if name is not None}
        self._exclusive: set[str] = set()
        self.pause = LOOK_PAUSE

    async def obstacle(self, devices: Sequence[Device]) -> str | None:
        """Return why these devices must not be published yet, as a sentence; None: no device plugin offers them."""
        named = {device.resource for device in devices if device.resource is not None}
        replaced = frozenset[str]() if self._holders is None else self._holders.resources
        names = (self._names | named | replaced) - self._exclusive
        if not names:
            return None
        self.pause = LOOK_PAUSE
        try:
            found = offered(await self._api.node(self._node), names)
        except ApiError as error:
            self.pause = max(LOOK_PAUSE, error.retry_after or 0.0)
            return f"whether a device plugin still offers {', '.join(sorted(names))} is not known: {error}"
        if not found:
            if self._holders is not None and (why := await self._holders.obstacle(names)) is not None:
                return why
            self._exclusive |= names
            return None
        what = " and ".join(f"{amount} of {name}" for name, amount in found.items())
        return (
            f"node {self._node} still offers {what} by a device plugin, and a node must offer devices in one way only; "
            "drain the node of pods that use them, and end the plugin, for example by deleting its DaemonSet; the "
            "slices are published as soon as the node shows 0"
        )


def offered(node: Mapping[str, Any], resources: Iterable[str]) -> dict[str, str]:
    """Return which of the resources a Node still has to give, and how much.

    Args:
        node: The Node; what it says that is no quantity counts as offered.
        resources: Names of extended resources.
    """
    status: Mapping[str, Any] = node.get("status") or {}
    allocatable: Mapping[str, Any] = status.get("allocatable") or {}
    return {name: str(allocatable[name]) for name in sorted(set(resources)) if _is_some(allocatable.get(name, "0"))}


def _is_some(amount: object) -> bool:
    try:
        return Quantity(str(amount)).value > 0
    except InvalidValueError:
        return True
