"""`ClusterCounts`: how often a process has written Events and asked for evictions, and what came of it.

The counts outlive a reload of the configuration. A process that writes no Events counts none, so it has no series of
them; the same holds for evictions.
"""

from __future__ import annotations

from typing import final

from ..concurrency.counts import Tally


@final
class ClusterCounts:
    """What a device plugin's process counts in the cluster.

    Attributes:
        events: By result, one of `kdp.cluster.events.RESULTS`.
        evictions: By result, one of `kdp.operations.evictor.RESULTS`.
    """

    def __init__(self) -> None:
        self.events = Tally()
        self.evictions = Tally()
