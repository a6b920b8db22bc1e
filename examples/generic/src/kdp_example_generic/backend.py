"""`Generic`: the backend that joins the parts.

``discover`` says what is there now; ``watch`` waits until it would say something else. ``watch`` changes nothing
itself: it asks for a discovery, so that there is one place that looks and one that decides.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from pathlib import Path  # noqa: TC003 - kdp converts the option by this annotation
from typing import TYPE_CHECKING

from typing_extensions import override

import kdp
import kdp.hardware

from .amdgpu import read_partitions
from .config import Config, Resource, UsbMember, is_exclusive_node, read
from .devices import build, expanded
from .match import Pairing
from .usb import NODES, UsbDevice, scan

if TYPE_CHECKING:
    from .pattern import Found, Part

logger = logging.getLogger(__name__)


class Generic(kdp.DeviceBackend):
    """Devices from a YAML file (see the README), of as many resources as it names."""

    def __init__(self, config: Path, host: kdp.hardware.Host) -> None:
        """Read the configuration.

        Args:
            config: The YAML file, in the plugin's own file system.
            host: The node's files.

        Raises:
            kdp.ConfigurationError: The file cannot be read or is not valid.
        """
        self.host = host
        self._file = self.watched_file(config, functools.partial(read, file=str(config)))
        self.resources = [resource.name for resource in self._file.current.resources]
        self._config: Config | None = None
        self._pairings: list[tuple[Resource, Pairing]] = []
        self._complaints: set[str] = set()

    @override
    def discover(self) -> list[kdp.Device]:
        config = self._file.current
        if config is not self._config:
            self._apply(config)
        usb: list[UsbDevice] | None = None
        found: dict[str, kdp.Device] = {}
        complaints: set[str] = set()
        owners: dict[str, str] = {}
        partitions = read_partitions(self.host)
        groups = functools.cache(self.host.iommu_groups)  # for this look
        now = time.monotonic()
        for resource, pairing in self._pairings:
            group = pairing.group
            members: list[list[Found]] = []
            for member in group.members:
                if isinstance(member, UsbMember):
                    usb = scan(self.host) if usb is None else usb
                    members.append([device.found for device in usb if _is_meant(member, device)])
                else:
                    paths = member.pattern.find(self.host)
                    if member.type == "Device" and not member.pattern.is_plain:
                        paths = [path for path in paths if not self._is_directory(path.path)]
                    members.append([path for path in paths if path.path not in partitions.idle])
            for bundle in pairing.bundles(members, now):
                bundle = expanded(self.host, bundle)
                own = {
                    thing: name
                    for member, each in bundle.members
                    if is_exclusive_node(member, group.count)
                    for thing, name in self._things(each.path).items()
                }
                taken = {name: owners[thing] for thing, name in own.items() if thing in owners}
                for device in build(self.host, resource, group, bundle, taken, partitions, groups):
                    first = found.setdefault(device.id, device)
                    if first is not device:
                        complaints.add(
                            f"{group.where} ({resource.name}) makes a second device {device.id!r} of "
                            f"{bundle.anchor.path}, the first is of {first.resource}: it is left out; give the group "
                            "an id of its own, as id: '{resource}-{node}'"
                        )
                        continue
                    for thing in own:  # an earlier device that has it for itself keeps it
                        owners.setdefault(thing, f"{device.id!r} of {resource.name}")
        for complaint in sorted(complaints - self._complaints):
            logger.error("%s: %s", self._file.path, complaint)
        self._complaints = complaints
        return list(found.values())

    def _things(self, path: str) -> dict[str, str]:
        """Return the things behind a node, each with its name for messages. The thing of a missing node is its path."""
        things = self.host.things_of_node(path)
        return {thing: path if number == 0 else f"{thing} of {path}" for number, thing in enumerate(things)} or {
            path: path
        }

    def _is_directory(self, path: str) -> bool:
        return self.host.is_directory(path)

    def _apply(self, config: Config) -> None:
        """Put a configuration in force; groups that are as before keep their pairs, because pods may use them."""
        old = {(resource.name, i): pairing for i, (resource, pairing) in enumerate(self._pairings)}
        pairings: list[tuple[Resource, Pairing]] = []
        for resource in config.resources:
            for group in resource.groups:
                same = [key for key, pairing in old.items() if key[0] == resource.name and pairing.group == group]
                pairings.append((resource, old.pop(same[0]) if same else Pairing(group)))
        self._config, self._pairings, self.joined_env = config, pairings, config.joined_env
        self.resources = [resource.name for resource in config.resources]

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        async with kdp.hardware.DirectoryWatch() as watch:
            refused: str | None = None
            while True:
                # What is needed depends on what exists, so look again until nothing is new: a node that came before
                # its directory was watched is found by the discovery, one that comes later by its event.
                while True:
                    needed, files = await asyncio.to_thread(self._directories)
                    for directory in watch.directories - needed.keys() - files:
                        watch.unwatch(directory)
                    new = {directory for directory in needed.keys() | files if directory not in watch.directories}
                    if not {directory for directory in new if watch.watch(directory, writes=directory in files)}:
                        break
                if watch.refused is not None and watch.refused != refused:
                    logger.warning("%s; new nodes are seen every %s s", watch.refused, self.poll_interval)
                    refused = watch.refused
                report.rescan()
                while True:
                    changes = await watch.changes()
                    if any(directory in files or not name for directory, name in changes):
                        break
                    if any(part.matches(name) for directory, name in changes for part in needed.get(directory, ())):
                        break

    def _directories(self) -> tuple[dict[str, set[Part]], set[str]]:
        """Return the directories to watch as this process sees them: of devices with what matters, and of the file."""
        needed: dict[str, set[Part]] = {}
        for resource in self._file.current.resources:
            for member in (member for group in resource.groups for member in group.members):
                pattern = NODES if isinstance(member, UsbMember) else member.pattern
                for directory, parts in pattern.directories(self.host).items():
                    needed.setdefault(os.path.realpath(self.host.path(directory)), set()).update(parts)
        return needed, self._file.directories()

    @override
    def needs(self) -> kdp.Needs:
        paths = {"/sys"}
        for resource in self._file.current.resources:
            for member in (member for group in resource.groups for member in group.members):
                paths.add("/dev/bus/usb" if isinstance(member, UsbMember) else member.pattern.base)
        return kdp.Needs(host_paths=tuple(sorted(paths)))


def _is_meant(member: UsbMember, device: UsbDevice) -> bool:
    return (
        device.vendor == member.vendor
        and member.product in (None, device.product)
        and member.serial in (None, device.serial)
        and member.port in (None, device.port)
    )
