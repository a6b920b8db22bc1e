"""`DeviceNodes`: the device nodes and sources of mounts of a backend's devices: what is wrong, and word of changes.

A node is looked at where it is (`Host.node_fault`), as is the source of a mount (`Host.mount_fault`); inotify only says
when to look. A caller that begins to follow them looks again, because inotify does not report earlier changes.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from ..hardware import DirectoryWatch
from .conditions import DEVICE_NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..hardware import Host
    from ..model.conditions import Condition
    from ..model.devices import Device
    from ..model.edits import ContainerEdits


logger = logging.getLogger(__name__)

_FOR_ALL: Final = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
"""Numbers of the device nodes that each container may open, such as that of ``/dev/null``. Source: runc's defaults."""


class DeviceNodes:
    """Looks at them and follows them.

    Args:
        host: Where they are looked for; None: nowhere, as the devices are not those of this node.

    Attributes:
        watch: An async context manager, to be entered for as long as they are followed.
        things: What a container can touch by each node, by its path, as the last `faults` found it; see
            `kdp.hardware.Host.things_of_node`.
    """

    def __init__(self, host: Host | None) -> None:
        self._host = host
        self.watch = DirectoryWatch()
        self.things: Mapping[str, tuple[str, ...]] = {}
        self._nodes: dict[str, set[str]] = {}
        self._mounted: set[str] = set()

    def faults(self, devices: Iterable[Device]) -> dict[str, tuple[Condition, ...]]:
        """Return what is wrong with the nodes and mounts of devices, by device id. May be called in any thread."""
        faults: dict[str, tuple[Condition, ...]] = {}
        if self._host is None:
            return faults
        host = self._host
        things: dict[str, tuple[str, ...]] = {}

        @functools.cache
        def node_fault(path: str) -> str | None:
            things[path] = found = host.things_of_node(path)
            return None if found else host.node_fault(path)

        @functools.cache
        def mount_fault(path: str) -> str | None:
            if path not in self._mounted:
                self._mounted.add(path)
                if (number := host.device_number(path)) is not None and number not in _FOR_ALL:
                    logger.warning(
                        "a device mounts the device node %s, which gives no right to open it; make it a "
                        "kdp.DeviceNode of the device's edits",
                        path,
                    )
            return host.mount_fault(path)

        def fault_of(edits: ContainerEdits) -> str | None:
            """Return what is wrong with the first of them of which something is."""
            looks = itertools.chain(
                (node_fault(node.host_path) for node in edits.device_nodes),
                (mount_fault(mount.host_path) for mount in edits.mounts),
            )
            return next((fault for fault in looks if fault is not None), None)

        of_edits: dict[int, tuple[Condition, ...]] = {}
        for device in (device for device in devices if device.exists):
            key = id(device.edits)  # those of replicas are one object, and a thousand of them are looked at in no time
            if key not in of_edits:
                fault = fault_of(device.edits)
                of_edits[key] = () if fault is None else (DEVICE_NODE.because(fault, time.monotonic()),)
            if found := of_edits[key]:
                faults[device.id] = found
        self.things = things
        return faults

    def follow(self, devices: Iterable[Device]) -> bool:
        """Watch the directories of all that was ever seen: what vanished may come back.

        Returns:
            Whether there is one that was not followed before: what happened to it until now was not told.
        """
        if self._host is None:
            return False
        edits = {id(device.edits): device.edits for device in devices}.values()  # of replicas one object
        paths = {node.host_path for each in edits for node in each.device_nodes}
        is_new = False
        for path in paths | {mount.host_path for each in edits for mount in each.mounts}:
            known = self._nodes.setdefault(os.path.dirname(path), set())
            is_new = is_new or path not in known
            known.add(path)
        for directory in self._nodes:
            self._watch_nearest(self._inside(directory))
        return is_new

    def _inside(self, directory: str) -> str:
        assert self._host is not None  # there is something to follow
        return os.fspath(self._host.path(directory))

    def _watch_nearest(self, directory: str) -> None:
        """Watch a directory, or while it does not exist the nearest one above it that does."""
        while not self.watch.watch(directory) and not self.watch.refused and directory != "/":
            directory = os.path.dirname(directory)

    async def changed(self) -> None:
        """Wait for a change of one of them, or of a directory above one, which is then followed again."""
        while True:
            changes = {os.path.join(directory, name) for directory, name in await self.watch.changes()}
            if any(self._concerns(path.rstrip("/")) for path in changes):
                self.follow(())
                return

    def _concerns(self, changed: str) -> bool:
        for directory, nodes in self._nodes.items():
            inside = self._inside(directory)
            if inside == changed or inside.startswith(f"{changed}/"):
                return True
            if os.path.dirname(changed) == inside and os.path.join(directory, os.path.basename(changed)) in nodes:
                return True
        return False
