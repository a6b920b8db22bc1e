"""What backends measure of their devices, as series whose names they choose."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ..errors import printable
from ..model.measurements import LONGEST_HELP
from . import series
from .devices import MeasuredDevices
from .series import Series

if TYPE_CHECKING:
    from ..model.measurements import Measurement
    from ..supervision.service import Service
    from .reading import Scrape, Vocabulary

logger = logging.getLogger(__name__)

POD: Final = ("namespace", "pod", "container")

_OWN: Final = frozenset(each.name.removesuffix("_total") for each in series.SERIES)


def read_measurements(reading: Scrape, names: Vocabulary, service: Service, resource: str | None = None) -> None:
    """Add what was measured last.

    Args:
        reading: Takes it.
        names: The labels, and the series that are known.
        service: Who knows it.
        resource: What stands for the resource of each; None: its own name.
    """
    for supervisor in service.supervisors:
        measuring = supervisor.measuring
        if measuring is None:
            continue
        found = measuring.values
        resources = {name: names.resources.of(resource or name) for name in {each.resource for each in found.values()}}
        of = {each.name: _series(each, names, has_pods=reading.names_pods) for each in measuring.declared}
        reading.measured.append(MeasuredDevices(of, found, resources))


def _series(measurement: Measurement, names: Vocabulary, *, has_pods: bool) -> Series | None:
    """Return the series of a measurement, which is the same in all scrapes; None: kdp has one of that name."""
    name = measurement.series
    if name not in names.measurements:
        is_taken = name.removesuffix("_total") in _OWN
        if is_taken:
            logger.warning("measurement %r: kdp itself has a series %s; name it otherwise", measurement.name, name)
        labels = ("resource_name", "device", *(POD if has_pods else ()))
        text = printable(measurement.help, LONGEST_HELP)
        names.measurements[name] = None if is_taken else Series(name, measurement.kind, text, labels, "max")
    return names.measurements[name]
