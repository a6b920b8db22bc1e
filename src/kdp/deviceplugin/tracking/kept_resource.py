"""`KeptResource`: what is kept of one resource, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import attrs

from ...model.backend import DeviceBackend
from ...model.devices import Device
from ...startup import shown

if TYPE_CHECKING:
    from pathlib import Path

    from .store import AllocationStore  # noqa: TC004 - no annotation of these classes is looked at


@final
@attrs.frozen(kw_only=True)
class AllocationOwner:
    """What a resource's backend wants to be kept.

    Attributes:
        wants_release: Whether a hook is told of the end of an allocation.
        has_counters: Whether devices share counters, so that the list depends on what pods have.
        scrubs: Whether a device is withheld until the hook has succeeded for the pod that had it.
        place: Returns the id of a replica's device; None: the devices are not shared.
        adopted: Called when it is known what earlier processes gave.
    """

    __repr__ = shown

    backend: DeviceBackend
    wants_release: bool
    has_counters: bool = False
    scrubs: bool = False
    place: Callable[[str], str] | None = None
    adopted: Callable[[], object]


@final
@attrs.define(eq=False)
class KeptResource:
    """What is kept of one resource, also when its plugin is gone.

    Attributes:
        store: Its file; None: nothing was to be saved yet.
        is_adopting: Whether what earlier processes left is being taken over.
        adopted: Set when that is known.
        devices: Its devices as they were at Allocate.
    """

    __repr__ = shown

    name: str
    owner: AllocationOwner
    store: AllocationStore | None = None
    is_adopting: bool = False
    adopted: asyncio.Event = attrs.field(factory=asyncio.Event)
    devices: dict[str, Device] = attrs.field(factory=dict[str, Device])

    def store_in(self, state_dir: Path | None, plugin_dir: Path) -> AllocationStore | None:
        """Return its file in a directory, the same one each time; None: there is no directory."""
        if self.store is None and state_dir is not None:
            from .store import AllocationStore  # as late as it is made

            self.store = AllocationStore(state_dir, self.name, plugin_dir, releases=self.owner.wants_release)
        return self.store
