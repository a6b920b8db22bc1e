"""A plugin whose devices flip on command: ``{"flips": N, "period": S, "devices": K}`` on stdin."""

from __future__ import annotations

import sys

from typing_extensions import override

import kdp

from .orders import obey
from .widgets import Widgets


class Driven(Widgets):
    """Widgets whose health is ordered, and told as it is: what flaps is not quarantined."""

    health_policy = kdp.HealthPolicy(flaps=None)

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        def change(device_id: str, healthy: bool) -> None:
            if healthy:
                report.clear(device_id)
            else:
                report.fault(device_id, "ordered")

        await obey([device.id for device in self.discover()], change)


def main() -> None:
    """Serve so many devices, as the variables ``KDP_*`` say."""
    kdp.run(Driven(int(sys.argv[1])))
