"""Whether a node still offers a driver's devices by a device plugin; they are not published as long as it does.

The scheduler keeps account of the two ways apart, so that one device would be given away twice. The node object says
what any plugin offers: one of kdp or another, alive or just killed. It does not show pods that still have devices of a
plugin that is gone, so the administrator drains the node before a change from one way to the other.

Source: DRA contract section 3.7.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, final

import anyio

from ...cluster.api import ApiError
from ...errors import InvalidValueError
from ...model.quantities import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ...cluster.api import ClusterApi
    from ...model.backend import DeviceBackend
    from ...model.devices import Device

LOOK_PAUSE = 3.0
"""Seconds between two looks at the node."""


def offered(node: Mapping[str, Any], resources: Iterable[str]) -> dict[str, str]:
    """Return which of the resources a Node still has to give, and how much.

    Args:
        node: The Node; what it says that is no quantity counts as offered.
        resources: Names of extended resources.
    """
    status: Mapping[str, Any] = node.get("status") or {}
    allocatable: Mapping[str, Any] = status.get("allocatable") or {}
    return {name: str(allocatable[name]) for name in sorted(set(resources)) if _is_some(allocatable.get(name, "0"))}


@final
class Exclusivity:
    """Which resources of a backend a node was seen not to offer by a device plugin.

    Args:
        api: The API server.
        node: The node's name.
        backend: The backend.
    """

    def __init__(self, api: ClusterApi, node: str, backend: DeviceBackend) -> None:
        self._api = api
        self._node = node
        self._names = {name for name in (backend.resource, *backend.resources) if name is not None}
        self._exclusive: set[str] = set()

    async def wait(self, devices: Sequence[Device], *, report: Callable[[str], object]) -> bool:
        """Wait until no device plugin offers these devices; returns whether anything was to be asked.

        Args:
            devices: The devices.
            report: Called with a sentence after each look that does not end the wait; must not block.
        """
        named = {device.resource for device in devices if device.resource is not None}
        names = (self._names | named) - self._exclusive
        while names:
            pause = LOOK_PAUSE
            try:
                found = offered(await self._api.node(self._node), names)
            except ApiError as error:
                report(f"whether a device plugin still offers {', '.join(sorted(names))} is not known: {error}")
                pause = max(pause, error.retry_after or 0.0)
            else:
                if not found:
                    self._exclusive |= names
                    return True
                what = " and ".join(f"{amount} of {name}" for name, amount in found.items())
                report(
                    f"node {self._node} still offers {what} by a device plugin, and a node must offer devices in one "
                    "way only; drain the node of pods that use them, and end the plugin, for example by deleting its "
                    "DaemonSet; the slices are published as soon as the node shows 0"
                )
            await anyio.sleep(pause * random.uniform(0.8, 1.0))  # noqa: S311 - not all nodes at once
        return False


def _is_some(amount: object) -> bool:
    try:
        return Quantity(str(amount)).value > 0
    except InvalidValueError:
        return True
