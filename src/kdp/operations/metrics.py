"""`Metrics`: kdp's numbers as Prometheus reads them. It comes with the extra ``metrics``.

Two steps, in two threads. `Metrics.read` runs in the watched event loop, where the numbers are, and copies them.
`Metrics.text` runs in the thread that answers probes, and makes text of the copy with prometheus-client. If the event
loop is blocked, the text is that of the copy before, and ``kdp_event_loop_blocked`` is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, final

from typing_extensions import override

from ..concurrency.counts import BUCKETS
from ..errors import ConfigurationError
from . import series
from .devices import text_of_devices
from .reading import Configuration, Scrape, Vocabulary, read_backends, read_configuration

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise ConfigurationError(
        f"--metrics needs {missing.name}, which comes with the extra 'metrics': pip install 'kdp-sdk[metrics]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..supervision.service import Service
    from .directories import Directories

CONTENT_TYPE: Final = "text/plain; version=0.0.4"
"""The media type of Prometheus's text format, without its charset."""


class Reader(Protocol):
    """Reads what is particular to a mode; `PluginsReader` or `DriversReader`."""

    def read(self, reading: Scrape, names: Vocabulary, service: Any, /) -> None:
        """Add what there is to say now; None: nothing serves."""
        ...


_FAMILIES: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


@final
class Metrics:
    """The metrics of one process; they outlive a reload of its configuration.

    Args:
        version: kdp's version.
        mode: The mode.
        service: Returns what serves now; None: nothing does.
        reader: Reads what is particular to the mode.
        directories: Says which directories take files; None: nobody has looked.
        configuration: Returns which configuration is in force.

    Attributes:
        content_type: The media type of the text, without its charset.
    """

    content_type: Final = CONTENT_TYPE

    def __init__(
        self,
        *,
        version: str,
        mode: str,
        service: Callable[[], Service | None],
        reader: Reader,
        directories: Directories | None = None,
        configuration: Callable[[], Configuration] = Configuration,
    ) -> None:
        self._build = version, mode
        self._service = service
        self._reader = reader
        self._directories = directories
        self._configuration = configuration
        self._names = Vocabulary()
        self._last = Scrape(mode)
        self._rendered: tuple[Scrape | None, str] | None = None
        self._registry = CollectorRegistry()
        self._collector = _Collector(self._last)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)

    def read(self) -> Scrape:
        """Return what there is to say now. Called in the event loop that owns the numbers."""
        reading = Scrape(self._build[1])
        reading.add(series.BUILD, 1, *self._build)
        read_configuration(reading, self._configuration())
        for directory, is_writable in ({} if self._directories is None else self._directories.writable).items():
            reading.add(series.WRITABLE, is_writable, directory)
        service = self._service()
        self._reader.read(reading, self._names, service)
        if service is not None:
            read_backends(reading, self._names, service)
        return reading

    def text(self, reading: Scrape | None) -> str:
        """Return what is exposed of a reading; None: the event loop is blocked, and the reading before counts."""
        if self._rendered is not None and self._rendered[0] is reading is not None:
            return self._rendered[1]  # many clients asked together
        self._last = reading or self._last
        self._collector.reading, self._collector.is_blocked = self._last, reading is None
        text = generate_latest(self._registry).decode() + text_of_devices(
            self._last.measured, self._last.held, names_pods=self._last.names_pods, mode=self._last.mode
        )
        self._rendered = reading, text
        return text


@final
class _Collector(Collector):
    """Gives prometheus-client a reading."""

    def __init__(self, reading: Scrape) -> None:
        self.reading = reading
        self.is_blocked = False

    def describe(self) -> list[Metric]:
        """Return nothing: the registry needs no names beforehand."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        blocked = GaugeMetricFamily(series.BLOCKED.name, series.BLOCKED.help)
        blocked.add_metric([], self.is_blocked)
        yield blocked
        for of in series.SERIES:
            if found := self.reading.values.get(of):
                family = _FAMILIES[of.kind](of.name, of.help, labels=of.labels_in(self.reading.mode))
                for labels, value in found.items():
                    family.add_metric(labels, value)
                yield family
            elif spread := self.reading.durations.get(of):
                histogram = HistogramMetricFamily(of.name, of.help, labels=of.labels_in(self.reading.mode))
                for labels, each in spread.items():
                    histogram.add_metric(labels, _cumulated(each.buckets), each.total)
                yield histogram


def _cumulated(counts: tuple[int, ...]) -> list[tuple[str, float]]:
    total, found = 0, list[tuple[str, float]]()
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
