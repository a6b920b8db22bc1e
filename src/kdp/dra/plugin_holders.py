"""`PluginHolders`: the pods that still hold devices of a device plugin on the node that this driver serves now.

A switch from the device plugin to the driver leaves pods behind: a drain does not evict the pods of DaemonSets. The
kubelet counts their devices for the plugin's resources, and the scheduler, which counts claims, does not know of them.
So the driver asks the kubelet before it publishes, and again until no pod holds a device of these resources. No new
holder can come meanwhile: the kubelet allocates no device of a plugin that has ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

import anyio

from ..errors import PodResourcesError, sentence
from ..kubelet.podresources import PodResources
from ..supervision.given import Given
from ..supervision.holdings import Holding, id_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from ..kubelet.podresources import Holder
    from ..model.devices import Device

logger = logging.getLogger(__name__)

PERIOD = 30.0
"""Seconds between two questions while a pod holds a device: so long after its end at most, the device is free."""


@final
class PluginHolders:
    """Asks one kubelet. Run `run` in a task group.

    Args:
        driver: The driver's name, for the log.
        socket: The kubelet's pod-resources socket.
        replaced: Resources of another plugin, whose ids are not those of the driver's devices.
        changed: Called when other pods hold devices than before.
    """

    def __init__(
        self,
        driver: str,
        socket: Path,
        *,
        replaced: Collection[str] = (),
        changed: Callable[[], object],
    ) -> None:
        self._driver = driver
        self._client = PodResources(socket)
        self._replaced = frozenset(replaced)
        self._changed = changed
        self._resources: frozenset[str] = frozenset()
        self._held: Mapping[tuple[str, str], tuple[Holder, ...]] = {}
        self._has_asked = anyio.Event()

    @property
    def resources(self) -> frozenset[str]:
        """Resources of another plugin that the driver replaces."""
        return self._replaced

    async def obstacle(self, resources: Iterable[str]) -> str | None:
        """Ask which pods hold devices of these resources; return why that is unknown, as a sentence; `None` if known.

        Called when the node no longer offers the resources.
        """
        self._resources |= {*resources, *self._replaced}
        if self._client.made_at() is None:
            text = "so pods that a device plugin gave devices are not seen; mount its directory"
            logger.warning("%s: there is no %s, %s", self._driver, self._client.socket, text)
            return None
        try:
            await self._ask()
        except PodResourcesError as error:
            return f"which pods still hold devices of a device plugin is unknown: {sentence(error)}"
        self._has_asked.set()
        return None

    def holdings(self, devices: Iterable[Device], resource_of: Callable[[Device], str]) -> list[Holding]:
        """Return the devices that pods hold by a device plugin.

        An id that is none of the driver's devices may be any of them, so it withholds all devices of its resource, or
        all devices if the resource is another plugin's.
        """
        found: list[Holding] = []
        known = {device.id: device for device in devices} if self._held else {}
        for (resource, device_id), holders in self._held.items():
            pods = " and ".join(dict.fromkeys(f"{each.namespace}/{each.pod}" for each in holders))
            is_known = device_id in known and resource not in self._replaced
            suspects = [device_id] if is_known else list(known)
            if not is_known and resource not in self._replaced:
                suspects = [each for each, device in known.items() if resource_of(device) == resource]
            reach = {thing: ids for each in suspects for thing, ids in id_alone(each).items()}
            found.append(Holding(name=(resource, device_id), given=Given(reach=reach), holder=pods))
        return found

    async def run(self) -> None:
        """Ask again while pods hold devices; ends when none does."""
        await self._has_asked.wait()
        while self._held:
            await anyio.sleep(PERIOD)
            try:
                await self._ask()
            except PodResourcesError as error:
                logger.debug("%s: %s", self._driver, sentence(error))  # the devices stay withheld, which status shows

    async def _ask(self) -> None:
        async with self._client.connect() as calls:
            report = await calls.list(self._resources)
        before, self._held = self._held, report.holders
        for key in before.keys() - self._held.keys():
            logger.info("%s: no pod holds %s of %s any more", self._driver, key[1], key[0])
        for key in self._held.keys() - before.keys():
            text = "the driver gives it to no claim until that pod has ended"
            logger.warning("%s: %s of %s is held by %s: %s", self._driver, key[1], key[0], self._held[key][0], text)
        if before != self._held:
            self._changed()
