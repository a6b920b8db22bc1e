"""The vendor's DRA driver under chaos: the toys of `tests.chaos.plugin`, as devices of claims.

``python -m tests.chaos.dra.driver HARDWARE JOURNAL CHANNEL OPTIONS PORT``: the arguments are those of
`tests.chaos.plugin`. The channel is not used: a driver keeps nothing of a claim in memory.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import attrs
from tests.chaos.disk import DISK, FaultyDisk
from tests.chaos.plugin import Toys, let_clock_be_stepped
from typing_extensions import override

import kdp
from kdp.cluster import client
from kdp.concurrency.backoff import Backoff
from kdp.dra import driver, plugin
from kdp.dra.claims import lifecycle, releases
from kdp.dra.options import DriverOptions
from kdp.dra.publishing import feed, pacing
from kdp.storage import files

DRIVER = "toy.example.com"
CLAIM_GRACE = 1.0
"""Seconds after which a claim that is gone is undone."""

DRAFT_SECONDS = 5.0
MOST_PAUSE = 1.0
PAUSES = (
    (plugin, "LOOK_PAUSE", 0.2),
    (plugin, "UNREGISTERED_SECONDS", 1.5),
    (plugin, "EVENT_PAUSE", 0.5),
    (plugin, "PATIENCE", 1.0),
    (feed, "LOOK_PAUSE", 0.3),
    (lifecycle, "FETCH_SECONDS", 1.5),
)
"""What a driver waits for that is longer than a peace."""


def link_of(card: int) -> str:
    """Return the link to the device node of a card."""
    return f"/dev/card{card}"


class DraToys(Toys):
    """Each toy has a link to its card's node, and a variable of its own; the first of a request also has its number.

    Args:
        hardware: The directory of the toys.
        journal: The descriptor to which the hooks speak.
        claims: The directory of the driver's records.
    """

    def __init__(self, hardware: Path, journal: int, claims: Path) -> None:
        super().__init__(hardware, journal)
        self._claims = claims
        self._left: dict[str, dict[str, str]] = {}

    @override
    def discover(self) -> Iterator[kdp.Device]:
        for device in super().discover():
            named = kdp.ContainerEdits(env={f"TOY_{device.id.upper()}": device.id})
            link = kdp.ContainerEdits.of_node(link_of(int(str(device.identity).split()[1])))
            yield attrs.evolve(device, edits=kdp.ContainerEdits.merge([(device.id, named), (device.id, link)]))

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        assert devices.claim is not None
        left = self._left.setdefault(devices.claim.uid, {})
        if devices.request in left:
            left.clear()  # Prepare has begun again
        is_recorded = self._is_started(devices.claim.uid, left.values())
        self._obey_for("allocate", devices)
        number = left[devices.request] = devices.state.setdefault("number", uuid4().hex)
        devices.state.setdefault("calls", 0)
        self.say({**self._about("allocate", devices), "is_recorded": is_recorded})
        merged = kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)
        return attrs.evolve(merged, env={**merged.env, f"NUMBER_{devices.request.upper()}": number})

    @override
    def _obey_for(self, hook: str, devices: kdp.Allocation) -> None:
        super()._obey_for(hook, devices)
        self.obey(f"{hook} {devices.request}")

    def _is_started(self, uid: str, numbers: Iterable[str]) -> bool:
        """Return whether the disk says that a claim is started, and has what earlier requests have left."""
        try:
            text = (self._claims / f"{uid}.json").read_text()
        except OSError:
            return False
        is_started = uid in text and re.search(r'"is_complete":\s*false', text) is not None
        return is_started and all(number in text for number in numbers)

    @override
    def _about(self, hook: str, devices: kdp.Allocation) -> dict[str, object]:
        assert devices.claim is not None
        return {
            "hook": hook,
            "claim": devices.claim.uid,
            "request": devices.request,
            **{name: devices.state.get(name) for name in ("number", "calls")},
            "ids": [*devices.ids],
        }


def _be_quick() -> None:
    """Shorten the pauses of the driver, so that an hour holds many of them."""
    for module, name, value in PAUSES:
        setattr(module, name, value)

    class Short(Backoff):
        def __init__(self, *, first: float = 0.1, most: float = MOST_PAUSE, rng: Any = None) -> None:
            super().__init__(first=first, most=min(most, MOST_PAUSE), rng=rng)

    def served(self: driver.DraDriver, backends: Any, options: DriverOptions, **more: Any) -> None:
        begin(self, backends, attrs.evolve(options, claim_grace=CLAIM_GRACE), **more)

    begin = driver.DraDriver.__init__
    for module in (pacing, plugin, releases):
        setattr(module, "Backoff", Short)  # noqa: B010 - types know no change of a module
    setattr(driver.DraDriver, "__init__", served)  # noqa: B010 - nor of a class
    for function, name, value in (
        (client.KubeApi.__init__, "deadline", 2.0),
        (files.remove_drafts, "older_than", DRAFT_SECONDS),
    ):
        assert function.__kwdefaults__ is not None
        function.__kwdefaults__[name] = value


def main() -> None:
    """Run it until it is asked to stop."""
    hardware, journal, _, options, port = sys.argv[1:]
    settings = json.loads(options)
    plugins = Path(settings["kubelet_root"]) / "plugins"
    FaultyDisk(Path(hardware) / DISK, [settings["state_dir"], settings["cdi_dir"], str(plugins)]).install()
    # The ages of files are told by the machine's clock, which is not stepped.
    setattr(files, "time", SimpleNamespace(time=time.time))  # noqa: B010 - types know no change of a module
    let_clock_be_stepped(Path(hardware))
    _be_quick()
    toys = DraToys(Path(hardware), int(journal), plugins / DRIVER / "claims")
    kdp.run(toys, mode="dra", http=f"127.0.0.1:{port}", **settings)


if __name__ == "__main__":
    main()
