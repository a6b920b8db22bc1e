"""`Scrape`: all values of one scrape, as plain numbers; and those that are the same for all modes.

A reading is taken in the event loop that owns the numbers, and is not changed afterwards. Text is made of it in another
thread (`kdp.operations.metrics`).
"""

from __future__ import annotations

import hashlib
import logging
import operator
import time
from typing import TYPE_CHECKING, Final, final

import attrs

from ..concurrency.counts import NO_DURATIONS, Distribution, Names
from ..errors import printable
from ..kubelet.calls import RESULTS
from ..model.measurements import LONGEST_HELP
from ..supervision.conditions import is_withheld, labels_of
from ..supervision.hooks import FAILURES
from . import series
from .devices import MeasuredDevices
from .series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..kubelet.calls import CallCounts
    from ..model.measurements import Measurement
    from ..supervision.service import Service, ServicePart
    from .devices import Held

logger = logging.getLogger(__name__)

MOST_RESOURCES: Final = 64
MOST_KINDS: Final = 32
MOST_BACKENDS: Final = 16

MOST_FAULTS: Final = 256
"""Pairs of resource and kind that are remembered, so that a fault that ends becomes 0 and does not vanish."""

HASH_DIGITS: Final = 12

_JOINED: Final[Mapping[str, Callable[[float, float], float]]] = {"sum": operator.add, "max": max, "min": min}

_OWN: Final = frozenset(each.name.removesuffix("_total") for each in series.SERIES)

Labels = tuple[str, ...]


@final
class Vocabulary:
    """The names that vendors choose, as labels; the same in each scrape."""

    def __init__(self) -> None:
        self.resources = Names(MOST_RESOURCES)
        self.kinds = Names(MOST_KINDS)
        self.backends = Names(MOST_BACKENDS)
        self.faults: dict[Labels, None] = {}
        self.measurements: dict[str, Series | None] = {}


@final
class Scrape:
    """The values of one scrape.

    Args:
        mode: The process's, as ``dra``.

    Attributes:
        mode: As given.
        values: By series and labels; of counters and gauges.
        durations: The same of histograms.
        names_pods: Whether each device is exported with the pod that holds it.
        measured: What backends measured.
        held: The devices that pods hold.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.values: dict[Series, dict[Labels, float]] = {}
        self.durations: dict[Series, dict[Labels, Distribution]] = {}
        self.names_pods = False
        self.measured: list[MeasuredDevices] = []
        self.held: list[Held] = []

    def add(self, of: Series, value: float, *labels: str) -> None:
        """Add a value; what has the same labels is joined."""
        known = self.values.setdefault(of, {})
        before = known.get(labels)
        known[labels] = value if before is None else _JOINED[of.joins](before, value)

    def add_durations(self, of: Series, value: Distribution, *labels: str) -> None:
        """Add a distribution; those with the same labels are joined."""
        known = self.durations.setdefault(of, {})
        known[labels] = known[labels].plus(value) if labels in known else value


@final
@attrs.frozen
class Configuration:
    """The configuration of the process.

    Attributes:
        text: The text of the file that is in force; None: there is no file.
        is_rejected: Whether the file is bad, so that an earlier one is in force.
    """

    text: str | None = None
    is_rejected: bool = False


def read_configuration(reading: Scrape, configuration: Configuration) -> None:
    """Add which configuration is in force."""
    reading.add(series.CONFIG_REJECTED, configuration.is_rejected)
    if configuration.text is not None:
        digest = hashlib.sha256(configuration.text.encode(errors="surrogatepass")).hexdigest()
        reading.add(series.CONFIG, 1, digest[:HASH_DIGITS])


def read_backends(reading: Scrape, names: Vocabulary, service: Service) -> None:
    """Add what supervision knows of each backend."""
    now, hanging = time.monotonic(), 0
    for supervisor in service.supervisors:
        backend, state = names.backends.of(supervisor.label), supervisor.hooks.state
        hanging += state.hanging
        for (hook,), took in state.counts.seconds.counts.items():
            reading.add_durations(series.HOOK_SECONDS, took, backend, hook)
            for reason in FAILURES:
                reading.add(series.HOOK_FAILURES, 0, backend, hook, reason)
        for (hook, reason), count in state.counts.failures.counts.items():
            reading.add(series.HOOK_FAILURES, count, backend, hook, reason)
        if supervisor.discovered_at is not None:
            reading.add(series.DISCOVERY_AGE, now - supervisor.discovered_at, backend)
            if supervisor.poll_interval is not None and not supervisor.discovery.value.is_absent:
                reading.add(series.DISCOVERY_INTERVAL, supervisor.poll_interval, backend)
    reading.add(series.HOOKS_HANGING, hanging)


def read_transitions(reading: Scrape, names: Vocabulary, service: Service, resource: str | None = None) -> None:
    """Add the changes of devices' states.

    Args:
        reading: Takes them.
        names: The labels.
        service: Who knows them.
        resource: What stands for the resource of each; None: its own name.
    """
    for supervisor in service.supervisors:
        for (name, state, kind), count in supervisor.hooks.state.counts.transitions.counts.items():
            label = names.resources.of(name if resource is None else resource)
            reading.add(series.TRANSITIONS, count, label, state, names.kinds.of(kind))


def read_part(reading: Scrape, names: Vocabulary, name: str, part: ServicePart) -> str:
    """Add what a resource and a driver have in common, and return its label."""
    label = names.resources.of(name)
    reading.add(series.DEVICES, part.healthy, label, "healthy")
    withheld = 0
    kinds: dict[str, int] = {}
    if part.healthy < part.devices:
        for device in part.listed.values():
            if is_withheld(device.health.conditions):
                withheld += 1
            elif not device.health.is_healthy:
                for kind in labels_of(each for each in device.health.conditions if not is_withheld((each,))):
                    kinds[kind] = kinds.get(kind, 0) + 1
    reading.add(series.DEVICES, withheld, label, "withheld")
    reading.add(series.DEVICES, part.devices - part.healthy - withheld, label, "unhealthy")
    for kind in kinds:
        if len(names.faults) < MOST_FAULTS:
            names.faults[(label, names.kinds.of(kind))] = None
    for known in names.faults:
        if known[0] == label:
            reading.add(series.FAULTS, 0, *known)
    for kind, count in kinds.items():
        reading.add(series.FAULTS, count, label, names.kinds.of(kind))
    return label


def read_causes(reading: Scrape, label: str, causes: Mapping[str, bool]) -> None:
    """Add why something is not ready; each cause has a value, so that one that ends becomes 0."""
    for cause, is_one in causes.items():
        reading.add(series.NOT_READY, is_one, label, cause)


def expect_operations(reading: Scrape, label: str, operations: Iterable[str]) -> None:
    """Add that there was no call yet: Prometheus sees no increase in a counter that begins with 1."""
    for operation in operations:
        for result in RESULTS:
            reading.add(series.OPERATIONS, 0, operation, label, result)
        reading.add_durations(series.OPERATION_SECONDS, NO_DURATIONS, operation, label)


def read_operations(reading: Scrape, names: Vocabulary, counts: CallCounts) -> None:
    """Add the kubelet's calls."""
    for (operation, resource, result), count in counts.calls.counts.items():
        reading.add(series.OPERATIONS, count, operation, names.resources.of(resource), result)
    for (operation, resource), took in counts.seconds.counts.items():
        reading.add_durations(series.OPERATION_SECONDS, took, operation, names.resources.of(resource))


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
        labels = ("resource_name", "device", *(("namespace", "pod", "container") if has_pods else ()))
        text = printable(measurement.help, LONGEST_HELP)
        names.measurements[name] = None if is_taken else Series(name, measurement.kind, text, labels, "max")
    return names.measurements[name]
