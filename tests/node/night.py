"""A backend for the failures of `test_night`: a file on the node says what is wrong with its hardware."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from typing_extensions import override

import kdp

__all__ = ["FOLDER", "RESOURCE", "Night", "NightOfFile"]

RESOURCE: Final = "example.com/night"
FOLDER: Final = "/run/night"


class Night(kdp.DeviceBackend):
    """Two devices that are /dev/null in a container, and hardware that fails as the file ``wrong`` says."""

    resource = RESOURCE
    poll_interval = 1.0

    def __init__(self, host: kdp.hardware.Host) -> None:
        self._host = host

    @override
    def needs(self) -> kdp.Needs:
        return kdp.Needs(host_paths=[FOLDER])

    @override
    def discover(self) -> Iterable[kdp.Device]:
        wrong = self._wrong()
        if wrong == "driver":
            raise kdp.NotReady("the driver 'night' is not loaded")
        if wrong == "hang":
            threading.Event().wait()
        health = kdp.Health.unhealthy("XID 79: the card has fallen off the bus") if wrong == "sick" else None
        path = "/dev/night0" if wrong == "gone" else "/dev/null"
        edits = kdp.ContainerEdits(device_nodes=[kdp.DeviceNode(host_path=path)])
        return [kdp.Device(id=id_, edits=edits, health=health or kdp.Health.healthy()) for id_ in ("night0", "night1")]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if self._wrong() == "reset":
            raise kdp.AllocationError("the card does not answer to its reset")
        return kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        """Have something to clean up, so that kdp saves what is allocated."""

    def _wrong(self) -> str:
        file = f"{FOLDER}/wrong"
        return self._host.read_bytes(file).decode().strip() if self._host.exists(file) else ""


class NightOfFile(Night):
    """The same with a file that lists the cards."""

    def __init__(self, host: kdp.hardware.Host) -> None:
        super().__init__(host)
        self._cards = self.watched_file(host.path(f"{FOLDER}/cards"), _cards)

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [each for each in super().discover() if each.id in self._cards.current]


def _cards(text: str) -> frozenset[str]:
    found = frozenset(text.split())
    if unknown := sorted(each for each in found if not each.startswith("night")):
        raise ValueError(f"{unknown[0]!r} is no card; for example night0")
    return found
