"""Writes deploy/grafana/kdp.json: a dashboard of what kdp exports, for Grafana.

It also writes what Helm charts take with them: the same dashboard on one line, and the alerts of
deploy/prometheus/kdp.rules.yaml. Run it after a change of it, of the series, or of the alerts: ``make dashboard``.
``--check`` writes nothing, and says with exit code 1 that something would change.

Each panel shows one question. Its queries take the targets and resources that the variables name, and keep the labels
that Prometheus gives to a target. What is rare is shown as a count since the start: a counter that begins with 1 has no
increase, so the first failure would not be seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs
from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[1]
PATH: Final = ROOT / "deploy/grafana/kdp.json"
RULES: Final = ROOT / "deploy/prometheus/kdp.rules.yaml"
OF_CHARTS: Final = ROOT / "src/kdp/admin/manifests/monitoring"

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")

OF: Final = 'job=~"$job",instance=~"$instance"'
"""Matches a target."""

OF_RESOURCE: Final = f'{OF},resource_name=~"$resource_name",driver_name=~"$driver_name"'
"""Matches a resource of a device plugin, which has no driver's name, or a driver, which has no resource's."""

QUANTILES: Final = (0.5, 0.9, 0.99)


@attrs.frozen
class Query:
    """One query.

    Attributes:
        expression: The expression.
        legend: How each of its series is named.
    """

    expression: str
    legend: str


@attrs.frozen
class Panel:
    """One panel.

    Attributes:
        title: What it shows.
        queries: Its queries.
        unit: Grafana's name of the unit.
        kind: ``lines``, one ``number``, or a ``table`` of labels.
        bad_from: From which value on a number is shown as bad; None: it is only a figure.
        width: Of 24.
        text: What it means, for who reads it at night.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["lines", "number", "table"] = "lines"
    bad_from: float | None = None
    width: int = 8
    text: str = ""


def number(title: str, expression: str, text: str, *, bad_from: float | None = 1) -> Panel:
    """Return a panel that shows one number."""
    return Panel(title, (Query(expression, ""),), "short", "number", bad_from, 4, text)


def rate(series: str, labels: str) -> str:
    """Return how much a counter grows in a second."""
    return f"rate({series}{{{labels}}}[$__rate_interval])"


def quantiles(series: str, labels: str, by: str, legend: str) -> tuple[Query, ...]:
    """Return the queries for how long something took."""
    buckets = f"sum by ({by}) ({rate(f'{series}_bucket', labels)})"
    return tuple(
        Query(f"histogram_quantile({quantile}, {buckets})", f"{legend} {quantile:.0%}".strip())
        for quantile in QUANTILES
    )


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "At a glance",
        (
            number("Plugins", f"count(kdp_build_info{{{OF}}})", "Processes that answer.", bad_from=None),
            number(
                "Not registered", f"count(kdp_registered{{{OF_RESOURCE}}} == 0) or vector(0)", "Resources and drivers."
            ),
            number("Unhealthy devices", f'sum(kdp_devices{{{OF_RESOURCE},health="unhealthy"}})', "Of all nodes."),
            number("Hooks that hang", f"sum(kdp_hooks_hanging{{{OF}}})", "They run on after their deadline."),
            number("Bad configurations", f"sum(kdp_config_rejected{{{OF}}})", "The last good one is in force."),
            number(
                "Directories without room",
                f"count(kdp_directory_writable{{{OF}}} == 0) or vector(0)",
                "Directories that take no new file.",
            ),
        ),
    ),
    (
        "Devices",
        (
            Panel(
                "Devices by health",
                (
                    Query(
                        f"sum by (resource_name, driver_name, health) (kdp_devices{{{OF_RESOURCE}}})",
                        "{{resource_name}}{{driver_name}} {{health}}",
                    ),
                ),
            ),
            Panel(
                "Devices in use",
                (
                    Query(
                        f"sum by (resource_name) (kdp_allocated_devices{{{OF_RESOURCE}}})",
                        "{{resource_name}} in use",
                    ),
                    Query(
                        f'sum by (resource_name, driver_name) (kdp_devices{{{OF_RESOURCE},health="healthy"}})',
                        "{{resource_name}}{{driver_name}} healthy",
                    ),
                ),
                text="The kubelet is asked each minute.",
            ),
            Panel(
                "Faults by kind",
                (
                    Query(
                        f"sum by (resource_name, driver_name, kind) (kdp_device_faults{{{OF_RESOURCE}}})",
                        "{{resource_name}}{{driver_name}} {{kind}}",
                    ),
                ),
                text="A device with two kinds of faults counts twice.",
            ),
            Panel(
                "Changes of state since the start",
                (
                    Query(
                        f"sum by (resource_name, driver_name, to) (kdp_device_transitions_total{{{OF_RESOURCE}}})",
                        "{{resource_name}}{{driver_name}} to {{to}}",
                    ),
                ),
            ),
            Panel(
                "Time since the last discovery",
                (
                    Query(
                        f"max by (instance, backend) (kdp_discovery_age_seconds{{{OF}}})", "{{instance}} {{backend}}"
                    ),
                    Query(
                        f"max by (backend) (kdp_discovery_interval_seconds{{{OF}}})", "{{backend}}: between discoveries"
                    ),
                ),
                "s",
            ),
            Panel(
                "Given back, not yet released",
                (
                    Query(
                        f"sum by (resource_name) (kdp_release_pending{{{OF_RESOURCE}}})",
                        "{{resource_name}}",
                    ),
                ),
                text="Allocations that pods gave back and whose released() has not succeeded yet.",
            ),
        ),
    ),
    (
        "The kubelet",
        (
            Panel(
                "Registered",
                (
                    Query(
                        f"min by (instance, resource_name, driver_name) (kdp_registered{{{OF_RESOURCE}}})",
                        "{{instance}} {{resource_name}}{{driver_name}}",
                    ),
                ),
            ),
            Panel(
                "Why not ready",
                (
                    Query(
                        f"sum by (instance, resource_name, driver_name, cause) (kdp_not_ready{{{OF_RESOURCE}}})",
                        "{{instance}} {{resource_name}}{{driver_name}} {{cause}}",
                    ),
                ),
            ),
            Panel(
                "Registrations and restarts since the start",
                (
                    Query(
                        f"sum by (resource_name, result) (kdp_registrations_total{{{OF_RESOURCE}}})",
                        "{{resource_name}} {{result}}",
                    ),
                    Query(
                        f"sum by (instance) (kdp_kubelet_restarts_total{{{OF}}})",
                        "{{instance}}: kubelet restarted",
                    ),
                ),
            ),
            Panel(
                "Calls in a second",
                (
                    Query(
                        f"sum by (operation, result) ({rate('kdp_operations_total', OF_RESOURCE)})",
                        "{{operation}} {{result}}",
                    ),
                ),
                "reqps",
            ),
            Panel(
                "Calls that failed since the start",
                (
                    Query(
                        f'sum by (instance, operation, result) (kdp_operations_total{{{OF_RESOURCE},result!="ok"}})',
                        "{{instance}} {{operation}} {{result}}",
                    ),
                ),
            ),
            Panel(
                "Time to answer a call",
                quantiles("kdp_operation_duration_seconds", OF_RESOURCE, "le, operation", "{{operation}}"),
                "s",
            ),
            Panel("Time to register", quantiles("kdp_registration_duration_seconds", OF, "le", ""), "s"),
            Panel(
                "Lists sent",
                (
                    Query(
                        f"sum by (resource_name) ({rate('kdp_list_updates_total', OF_RESOURCE)})",
                        "{{resource_name}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Size of the list",
                (
                    Query(
                        f"max by (resource_name) (kdp_list_bytes{{{OF_RESOURCE}}})",
                        "{{resource_name}}",
                    ),
                ),
                "bytes",
                text="A kubelet takes 4 MiB.",
            ),
            Panel(
                "Time since the last list",
                (
                    Query(
                        f"time() - max by (resource_name) (kdp_list_last_sent_timestamp_seconds{{{OF_RESOURCE}}})",
                        "{{resource_name}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "What the kubelet has that was not sent",
                (
                    Query(
                        f"max by (instance, resource_name) (kdp_kubelet_disagrees{{{OF_RESOURCE}}})",
                        "{{instance}} {{resource_name}} disagrees",
                    ),
                    Query(f"max by (instance) (kdp_kubelet_frozen{{{OF}}})", "{{instance}} frozen"),
                    Query(
                        f"max by (instance, resource_name) (kdp_contested{{{OF_RESOURCE}}})",
                        "{{instance}} {{resource_name}} contested",
                    ),
                    Query(
                        f"sum by (instance, resource_name) (kdp_devices_given_twice{{{OF_RESOURCE}}})",
                        "{{instance}} {{resource_name}} devices given twice",
                    ),
                    Query(
                        f"sum by (instance, resource_name) (kdp_foreign_devices{{{OF_RESOURCE}}})",
                        "{{instance}} {{resource_name}} foreign devices",
                    ),
                ),
                width=24,
            ),
        ),
    ),
    (
        "The backend's hooks",
        (
            Panel(
                "Time that hooks take",
                quantiles("kdp_hook_duration_seconds", OF, "le, backend, hook", "{{backend}}.{{hook}}"),
                "s",
                width=12,
            ),
            Panel(
                "Hooks that failed since the start",
                (
                    Query(
                        f"sum by (backend, hook, reason) (kdp_hook_failures_total{{{OF}}})",
                        "{{backend}}.{{hook}} {{reason}}",
                    ),
                ),
                width=12,
            ),
        ),
    ),
    (
        "DRA",
        (
            Panel(
                "Prepared claims",
                (
                    Query(
                        f"sum by (driver_name) (kdp_claims_prepared{{{OF_RESOURCE}}})",
                        "{{driver_name}}",
                    ),
                ),
            ),
            Panel(
                "What is published",
                (
                    Query(
                        f"sum by (driver_name) (kdp_published_devices{{{OF_RESOURCE}}})",
                        "{{driver_name}} devices",
                    ),
                    Query(
                        f"sum by (driver_name) (kdp_resource_slices{{{OF_RESOURCE}}})",
                        "{{driver_name}} slices",
                    ),
                ),
            ),
            Panel(
                "Time that the slices are behind",
                (
                    Query(
                        f"max by (instance, driver_name) (kdp_publication_age_seconds{{{OF_RESOURCE}}})",
                        "{{instance}} {{driver_name}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Requests to the API server in a second",
                (
                    Query(
                        f"sum by (method, code) ({rate('rest_client_requests_total', OF)})",
                        "{{method}} {{code}}",
                    ),
                ),
                "reqps",
                width=24,
            ),
        ),
    ),
    (
        "Told to the cluster",
        (
            Panel(
                "Events since the start",
                (Query(f"sum by (instance, result) (kdp_events_total{{{OF}}})", "{{instance}} {{result}}"),),
                width=12,
                text="Only with --events on.",
            ),
            Panel(
                "Evictions since the start",
                (Query(f"sum by (instance, result) (kdp_evictions_total{{{OF}}})", "{{instance}} {{result}}"),),
                width=12,
                text="Only with --on-unhealthy evict.",
            ),
        ),
    ),
    (
        "The process",
        (
            Panel("Memory", (Query(f"process_resident_memory_bytes{{{OF}}}", "{{instance}}"),), "bytes"),
            Panel(
                "Processor",
                (Query(rate("process_cpu_seconds_total", OF), "{{instance}}"),),
                "percentunit",
            ),
            Panel("Open files", (Query(f"process_open_fds{{{OF}}}", "{{instance}}"),)),
            Panel(
                "Event loop blocked",
                (Query(f"max by (instance) (kdp_event_loop_blocked{{{OF}}})", "{{instance}}"),),
                text="1 if a hook of the backend blocks it, so that no call of the kubelet is answered.",
            ),
            Panel(
                "Directories that take files",
                (
                    Query(
                        f"min by (instance, directory) (kdp_directory_writable{{{OF}}})", "{{instance}} {{directory}}"
                    ),
                ),
            ),
            Panel(
                "Version and configuration",
                (
                    Query(
                        f"kdp_build_info{{{OF}}} * on (job, instance) group_left (hash) kdp_config_info{{{OF}}}"
                        f" or (kdp_build_info{{{OF}}} unless on (job, instance) kdp_config_info{{{OF}}})",
                        "",
                    ),
                ),
                kind="table",
                text="Two nodes with the same hash have the same configuration file in force. "
                "A plugin without a file has no hash.",
            ),
        ),
    ),
    (
        "Who holds what",
        (
            Panel(
                "Devices and their pods",
                (Query(f"kdp_device_allocation{{{OF_RESOURCE}}}", ""),),
                kind="table",
                width=24,
                text="Only with --metrics pods.",
            ),
        ),
    ),
)


def dashboard() -> str:
    """Return the dashboard's JSON."""
    built = (
        Dashboard("kdp: device plugins and DRA drivers")
        .uid("kdp")
        .description("What the series of kdp say. Written by scripts/dashboard.py.")
        .tags(["kdp", "kubernetes", "devices"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(variable("job", "label_values(kdp_build_info, job)"))
        .with_variable(variable("instance", 'label_values(kdp_build_info{job=~"$job"}, instance)'))
        .with_variable(variable("resource_name", f"label_values(kdp_devices{{{OF}}}, resource_name)"))
        .with_variable(variable("driver_name", f"label_values(kdp_devices{{{OF}}}, driver_name)"))
    )
    for title, panels in ROWS:
        built = built.with_row(Row(title))
        for panel in panels:
            built = built.with_panel(drawn(panel))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def variable(name: str, query: str) -> QueryVariable:
    """Return a variable whose values a query tells."""
    return (
        QueryVariable(name)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def drawn(panel: Panel) -> timeseries.Panel | stat.Panel | table.Panel:
    """Return a panel as Grafana has it."""
    made: timeseries.Panel | stat.Panel | table.Panel
    if panel.kind == "table":
        made = table.Panel().height(8)
    elif panel.kind == "number":
        made = stat.Panel().height(4)
        if panel.bad_from is not None:
            made = made.thresholds(thresholds(panel.bad_from))
    else:
        made = timeseries.Panel().height(8).fill_opacity(10).show_points(VisibilityMode.NEVER).min(0).legend(legend())
    made = made.title(panel.title).description(panel.text).unit(panel.unit).span(panel.width).datasource(SOURCE)
    for query in queries(panel):
        made = made.with_target(query)
    return made


def queries(panel: Panel) -> Sequence[Dataquery]:
    """Return a panel's queries."""
    found: list[Dataquery] = []
    for place, query in enumerate(panel.queries):
        made = Dataquery().ref_id(chr(ord("A") + place)).expr(query.expression).legend_format(query.legend)
        if panel.kind != "lines":
            made = made.instant()
        found.append(made.format(PromQueryFormat.TABLE) if panel.kind == "table" else made)
    return found


def thresholds(bad_from: float) -> ThresholdsConfig:
    """Return what makes a number red."""
    steps = [Threshold(value=None, color="green"), Threshold(value=bad_from, color="red")]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def legend() -> common.VizLegendOptions:
    """Return the legend of a panel with lines."""
    made = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    return made.show_legend(True)


def main() -> int:
    """Write the dashboard, or check it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    for path, text in files():
        if path.is_file() and path.read_text() == text:
            continue
        name = path.relative_to(ROOT)
        if arguments.check:
            print(f"{name} is not what scripts/dashboard.py writes: run `make dashboard`")
            return 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"{name} written")
    return 0


def files() -> Iterator[tuple[Path, str]]:
    """Return what is written where."""
    text = dashboard()
    yield PATH, text
    yield OF_CHARTS / "dashboard.json", json.dumps(json.loads(text), separators=(",", ":")) + "\n"
    rules = RULES.read_text()
    yield OF_CHARTS / "rules.yaml", rules[rules.index("groups:") :]


if __name__ == "__main__":
    sys.exit(main())
