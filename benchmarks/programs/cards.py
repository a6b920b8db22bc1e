"""A plugin of shared cards with faults on command: ``{"flips": N, "period": S, "devices": CARDS}``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from typing_extensions import override

import kdp

from .orders import obey

if TYPE_CHECKING:
    from collections.abc import Iterable


class Cards(kdp.DeviceBackend):
    """Cards and their replicas.

    Args:
        cards: How many cards.
        replicas: How many replicas of each.
    """

    resource = "example.com/widget"
    health_policy = kdp.HealthPolicy(flaps=None)

    def __init__(self, cards: int, replicas: int) -> None:
        self.cards = [f"card-{card}" for card in range(cards)]
        self.replicas = replicas

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [kdp.Device(id=f"{card}-replica-{i}", unit=card) for card in self.cards for i in range(self.replicas)]

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        def change(card: str, healthy: bool) -> None:
            if healthy:
                report.clear(card, kind="xid")
            else:
                report.fault(card, "ordered", kind="xid")

        await obey(self.cards, change)


def main() -> None:
    """Serve so many cards with so many replicas, as the variables ``KDP_*`` say."""
    kdp.run(Cards(int(sys.argv[1]), int(sys.argv[2])))
