"""The vendor's program on a node that is rolled to another version of kdp. It runs with both versions.

``python rolled_plugin.py JOURNAL COUNT OPTIONS PACE``: the file to which each hook appends a JSON line, the number of
widgets, the options of `kdp.run`, and the pauses of tracking, of which a version takes those that it has.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import attrs
from typing_extensions import override

import kdp
from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocations, tracker

RESOURCE = "example.com/widget"


class Widgets(kdp.DeviceBackend):
    """Widgets whose hooks write down the devices and the state of each allocation."""

    resource = RESOURCE
    poll_interval = 3600.0

    def __init__(self, journal: Path, count: int) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._count = count

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [kdp.Device(id=f"w{number}") for number in range(self._count)]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        number = uuid4().hex
        devices.state.update(number=number, parts={device_id: [number, device_id] for device_id in devices.ids})
        self._say("allocate", devices)
        return kdp.ContainerEdits(env={"NUMBER": number})

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self._say("prepare_container", devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self._say("released", devices)

    def _say(self, hook: str, devices: kdp.Allocation) -> None:
        said = {"hook": hook, "ids": sorted(devices.ids), "state": dict(devices.state), "kdp": kdp.__file__}
        os.write(self._journal, json.dumps(said).encode() + b"\n")


def main() -> None:
    """Run it until it is asked to stop."""
    journal, count, options, pace = sys.argv[1:]
    known = {each.name for each in attrs.fields(Pace)}
    quick = Pace(**{name: seconds for name, seconds in json.loads(pace).items() if name in known})
    for module, name, value in (
        (allocations, "FIRST_LOOK", 0.02),
        (allocations, "LOOK_AGAIN", 0.1),
        (tracker, "Pace", lambda: quick),
    ):
        assert hasattr(module, name), f"{kdp.__file__} has no {module.__name__}.{name}"
        setattr(module, name, value)
    kdp.run(Widgets(Path(journal), int(count)), **json.loads(options))


if __name__ == "__main__":
    main()
