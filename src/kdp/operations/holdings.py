"""`HolderNews`: which pods hold a device that has failed, each told once. Sans-IO.

What the kubelet says of a pod counts if it was asked after the device had failed: before, another pod may have had it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from ..kubelet.podresources import Holder

if TYPE_CHECKING:
    from collections.abc import Mapping

Device = tuple[str, str]
"""Resource and id."""


@final
@attrs.frozen(kw_only=True)
class Holding:
    """A pod's device that has failed, or works again.

    Attributes:
        resource: The device's resource.
        device_id: Its id.
        holder: The container that has it.
        failure: What is wrong; None: it works again.
    """

    resource: str
    device_id: str
    holder: Holder
    failure: str | None


@final
class HolderNews:
    """What is new of failed devices and their holders, for one process."""

    def __init__(self) -> None:
        self._since: dict[Device, float] = {}
        self._told: dict[Device, Holding] = {}

    @property
    def has_told(self) -> bool:
        """Whether a pod was told of a device that has not been said to work again."""
        return bool(self._told)

    def wants_holders(self, asked_at: float | None) -> bool:
        """Return whether a device has failed since the kubelet was asked who holds what."""
        return any(asked_at is None or asked_at < since for since in self._since.values())

    def looked(
        self, failed: Mapping[Device, str], holders: Mapping[Device, Holder], asked_at: float | None, now: float
    ) -> list[Holding]:
        """Return what is new.

        Args:
            failed: The devices that have failed, and why.
            holders: Who holds devices.
            asked_at: When the kubelet was asked that; None: it was not.
            now: The time in seconds on the same clock.
        """
        self._since = {device: self._since.get(device, now) for device in failed}
        found: list[Holding] = []
        for device, since in self._since.items():
            if asked_at is None or asked_at < since:
                continue
            holder, told = holders.get(device), self._told.get(device)
            if holder is None:
                self._told.pop(device, None)
            elif told is None or told.holder != holder:
                resource, device_id = device
                holding = Holding(resource=resource, device_id=device_id, holder=holder, failure=failed[device])
                self._told[device] = holding
                found.append(holding)
        for device in [device for device in self._told if device not in failed]:
            holding = self._told.pop(device)
            if holders.get(device) == holding.holder:
                found.append(attrs.evolve(holding, failure=None))
        return found
