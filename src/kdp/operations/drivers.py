"""What is read of DRA: a `DraDriver` or a `PoolController`, their slices, claims, and requests to the API server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from ..dra.driver import DraDriver
from . import series
from .devices import Held
from .reading import expect_operations, read_causes, read_measurements, read_operations, read_part, read_transitions

if TYPE_CHECKING:
    from ..dra.controller import PoolController
    from ..kubelet.calls import CallCounts
    from .reading import Scrape, Vocabulary


@final
class DriversReader:
    """Reads drivers.

    Args:
        counts: The kubelet's calls, over all reloads.
        names_pods: Whether each device that a container has is exported with its pod.
    """

    def __init__(self, counts: CallCounts, *, names_pods: bool = False) -> None:
        self._counts = counts
        self._names_pods = names_pods

    def read(self, reading: Scrape, names: Vocabulary, service: DraDriver | PoolController | None) -> None:
        """Add what there is to say now."""
        read_operations(reading, names, self._counts)
        if service is None:
            return
        reading.names_pods = self._names_pods
        now, status = time.monotonic(), service.status()
        has_problem = any(problem is not None for _, problem in status.backends)
        only = next(iter(status.drivers)) if len(status.drivers) == 1 else None
        for name, driver in status.drivers.items():
            label = read_part(reading, names, name, driver)
            causes = {"backend": has_problem, "obstacle": driver.obstacle is not None}
            for directory in driver.unwritable:
                reading.add(series.WRITABLE, 0, directory)
            if driver.serves:
                reading.add(series.REGISTERED, driver.is_registered, label)
                expect_operations(reading, label, ("NodePrepareResources", "NodeUnprepareResources"))
                reading.add(series.CLAIMS_PREPARED, len(driver.claims or ()), label)
                causes["registration"] = not driver.is_registered
                if isinstance(service, DraDriver) and (held := service.holders(name, driver.listed)) is not None:
                    reading.held.append(Held(label, held, str))
            if driver.publishes:
                publication = driver.publication
                behind = publication.behind_since
                reading.add(series.PUBLISHED, publication.devices, label)
                reading.add(series.SLICES, publication.slices, label)
                reading.add(series.PUBLICATION_AGE, 0 if behind is None else now - behind, label)
                causes["publication"] = not driver.is_published
            read_causes(reading, label, causes)
        read_transitions(reading, names, service, only)
        read_measurements(reading, names, service, only)
        for labels, count in service.requests.items():
            reading.add(series.API_REQUESTS, count, *labels)
