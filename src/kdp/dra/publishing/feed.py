"""`Feed`: hands what is known of a backend's devices to a publisher, whenever it is something new."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, final

import anyio

from ...concurrency.threads import offload
from ...errors import HookError, NotReady, sentence
from ...supervision.change_log import ChangeLog, Transition
from ...supervision.counters import examined
from ...supervision.supervisor import RETRY_AFTER
from ..taints import tainted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...concurrency.history import History
    from ...concurrency.observable import Observable
    from ...model.claims import TaintEffect
    from ...model.devices import AttributeValue, Device
    from ...model.quantities import Amount
    from ...supervision.publisher import Discovery
    from ...supervision.supervisor import Supervisor
    from ..standard_attributes import StandardAttributes
    from .exclusivity import Exclusivity
    from .publisher import Publisher

logger = logging.getLogger(__name__)


@final
class Feed:
    """See the module; one for each publisher.

    Args:
        driver: The driver's name.
        supervisor: The backend.
        publisher: Who writes the slices.
        health_taint: The effect of the taint of an unhealthy device; None: it has none.
        standard: Finds the standard attributes of devices; None: they have none.
        exclusivity: Knows whether a device plugin offers the devices; None: none can.
        discovery: What is offered of the devices; None: what the supervisor says.
        history: Takes the changes of the devices; None: nobody reads it.

    Attributes:
        problem: Why what is known is not published, as a sentence; None: it is, as far as this is concerned.
    """

    def __init__(
        self,
        driver: str,
        supervisor: Supervisor,
        publisher: Publisher,
        *,
        health_taint: TaintEffect | None,
        standard: StandardAttributes | None = None,
        exclusivity: Exclusivity | None = None,
        discovery: Observable[Discovery] | None = None,
        history: History | None = None,
    ) -> None:
        self._driver = driver
        self._supervisor = supervisor
        self._publisher = publisher
        self._health_taint: TaintEffect | None = health_taint
        self._standard = standard
        self._exclusivity = exclusivity
        self._discovery = supervisor.discovery if discovery is None else discovery
        self.problem: str | None = None
        self._log = ChangeLog(driver, gone="gone, and is removed from the slices", history=history)
        self._known: dict[str, Device] = {}

    async def run(self) -> None:
        """Hand over until cancelled."""
        discovery = self._discovery
        published: Any = None
        while True:
            version, found = discovery.version, discovery.value
            if found.devices is not None:
                self._log_changes(found.devices)
                if self._exclusivity is not None and await self._exclusivity.wait(found.devices, report=self._say):
                    self.problem = None
                    continue  # it took a while
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
                        self._publisher.publish(devices, counters=counters, standard=standard)
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
