"""The collector, with prometheus-client's own parser, and vendors who choose the worst names."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conditions import condition

import kdp
from kdp.allocation.sharing import base_id
from kdp.cluster import events, evictor
from kdp.cluster.eviction import EvictionPolicy
from kdp.deviceplugin.counts import PluginCounts
from kdp.deviceplugin.status import ResourceStatus
from kdp.deviceplugin.tracking.drift import ResourceView
from kdp.errors import printable
from kdp.kubelet.calls import RESULTS
from kdp.kubelet.podresources import Holder
from kdp.operations.cluster_reporter import ClusterCounts, ClusterReporter, ReportOptions
from kdp.operations.directories import Directories
from kdp.operations.metrics import Metrics
from kdp.operations.plugins import PluginsReader
from kdp.operations.reading import Configuration
from kdp.operations.series import LABELS, SERIES
from kdp.supervision.conditions import KINDS, OwnKind, health_of
from kdp.supervision.measuring import Measured, Measuring
from kdp.supervision.shared_state import SharedState

RESOURCE = "example.com/gpu"


class Manager:
    """What metrics read of a `PluginManager`."""

    kubelet_restarts = 2
    kubelet_problem: str | None = None
    kubelet_sockets: Mapping[str, bool] = {"kubelet": True, "pod-resources": False}
    state_problem: str | None = None

    def __init__(self, *resources: ResourceStatus, problem: str | None = None) -> None:
        self.problem = problem
        self.resources = {each.resource: each for each in resources}
        self.state = SharedState()
        self.supervisor = SimpleNamespace(
            label="Gpus",
            hooks=SimpleNamespace(state=self.state),
            measuring=None,
            discovered_at=time.monotonic() - 7,
            poll_interval=5.0,
            discovery=SimpleNamespace(value=SimpleNamespace(is_absent=False)),
        )
        self.supervisors: list[Any] = [self.supervisor]
        self.held: dict[str, Mapping[str, tuple[Holder, ...]] | None] = {}
        self.views: dict[str, ResourceView] = {}

    def status(self) -> Any:
        return SimpleNamespace(resources=self.resources)

    def problem_of(self, resource: str) -> str | None:
        return self.problem

    def holders(self, resource: str) -> Mapping[str, tuple[Holder, ...]] | None:
        return self.held.get(resource)

    def kubelet_view(self, resource: str) -> ResourceView | None:
        return self.views.get(resource)

    def device_of(self, _: str, device_id: str) -> str:
        return base_id(device_id)

    def releasing(self, resource: str) -> int:
        return 1


HEALTHS = ("healthy", "unhealthy", "withheld")


def status(resource: str = RESOURCE, **changes: Any) -> ResourceStatus:
    return ResourceStatus(
        **{"resource": resource, "state": "connected", "reason": None, "devices": 8, "healthy": 7, **changes}
    )


def metrics(
    manager: Manager | None,
    counts: PluginCounts | None = None,
    *,
    names_pods: bool = False,
    needs_devices: bool = False,
    cluster: ClusterCounts | None = None,
    **more: Any,
) -> Metrics:
    return Metrics(
        version="1.2.3",
        mode="device-plugin",
        service=lambda: cast("Any", manager),
        reader=PluginsReader(
            counts or PluginCounts(), names_pods=names_pods, needs_devices=needs_devices, cluster=cluster
        ),
        **more,
    )


def samples(text: str) -> dict[str, float]:
    """Return the samples by name and labels, but for those of the process."""
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def shown(subject: Metrics) -> dict[str, float]:
    return samples(subject.text(subject.read()))


def busy() -> tuple[Manager, PluginCounts]:
    """Return a manager and counts in which each series has a value."""
    listed = {kind: kdp.Device(id=kind, health=health_of(condition(kind))) for kind in ("xid", "vanished")}
    manager, counts = Manager(status(listed=listed, vanished=1)), PluginCounts()
    manager.state.counts.seconds.add("discover", seconds=0.01)
    manager.state.counts.failures.add("allocate", "refused")
    manager.state.counts.changed(RESOURCE, "unhealthy", ("xid",))
    manager.held[RESOURCE] = {"gpu-0": (Holder("ml", "train-0", "main"),)}
    manager.supervisor.measuring = Measuring("Gpus", (kdp.Measurement("power", unit="watts", help="Of the card."),))
    manager.supervisor.measuring.values = {"gpu-0": Measured(RESOURCE, {"power": 250.0})}
    manager.state_problem = "the disk is full"
    manager.views[RESOURCE] = ResourceView(disagrees=True, foreign=3)
    counts.called("Allocate", RESOURCE, "ok", 0.003)
    counts.sent(RESOURCE, 500)
    counts.registrations.add(RESOURCE, "accepted")
    counts.registering.add(RESOURCE, seconds=0.05)
    return manager, counts


def test_each_series_of_device_plugins_is_exported_with_its_type_and_labels() -> None:
    cluster = ClusterCounts()
    cluster.events.add("created")
    cluster.evictions.add("accepted")
    configuration = Configuration("set: {count: 3}\n")
    subject = metrics(*busy(), names_pods=True, cluster=cluster, configuration=lambda: configuration)
    families = {family.name: family for family in text_string_to_metric_families(subject.text(subject.read()))}
    for each in SERIES:
        if each.modes in ("dra", "driver"):
            continue
        family = families[each.name.removesuffix("_total")]
        assert family.type == each.kind
        assert family.documentation == each.help
        for sample in family.samples:
            assert {*sample.labels} - {"le"} == {*each.labels}
            assert {*sample.labels} - {"le"} <= LABELS.keys()


def test_a_device_that_is_shared_could_not_be_joined_with_what_was_measured_of_it() -> None:
    """The replica's id stood in the one series, and the card's in the other, without the one pod that had it."""
    manager, counts = busy()
    manager.held[RESOURCE] = {
        "gpu-0::0": (Holder("ml", "train-0", "main"),),
        "gpu-0::1": (Holder("ml", "train-0", "main"),),
    }
    of_0 = f"container=main,device=gpu-0,namespace=ml,pod=train-0,resource_name={RESOURCE}"
    found = shown(metrics(manager, counts, names_pods=True))
    assert [found[f"kdp_device_allocation{{{of_0}}}"], found[f"kdp_power_watts{{{of_0}}}"]] == [1, 250]
    manager.held[RESOURCE] = {
        "gpu-0::0": (Holder("ml", "train-0", "main"),),
        "gpu-0::1": (Holder("ml", "train-1", "main"),),
    }
    found = shown(metrics(manager, counts, names_pods=True))
    assert sum(name.startswith("kdp_device_allocation{") for name in found) == 2
    assert found[f"kdp_power_watts{{container=,device=gpu-0,namespace=,pod=,resource_name={RESOURCE}}}"] == 250


def test_devices_that_wait_for_a_scrub_or_for_their_share_are_not_told_as_broken() -> None:
    """Else the alert that no device is healthy fires on a node whose pods have all slots."""
    listed = {kind: kdp.Device(id=kind, health=health_of(condition(kind))) for kind in ("scrub", "share", "xid")}
    found = shown(metrics(Manager(status(devices=3, healthy=0, listed=listed))))
    told = {health: found[f"kdp_devices{{health={health},resource_name={RESOURCE}}}"] for health in HEALTHS}
    assert told == {"healthy": 0, "unhealthy": 1, "withheld": 2}


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
def test_the_table_says_what_is_counted_as_a_fault(own: OwnKind) -> None:
    """A backend's fault is one whatever it is called, and is told apart from kdp's own."""
    ours, theirs = condition(own.name), attrs.evolve(condition(own.name), whose="backend")
    listed = {name: kdp.Device(id=name, health=health_of(each)) for name, each in (("a", ours), ("b", theirs))}
    found = shown(metrics(Manager(status(devices=2, healthy=0, listed=listed))))
    faults = {name: value for name, value in found.items() if name.startswith("kdp_device_faults")}
    label = f"resource_name={RESOURCE}"
    expected = {f"kdp_device_faults{{kind=backend:{own.name},{label}}}": 1.0}
    if not own.is_withheld:
        expected[f"kdp_device_faults{{kind={own.name},{label}}}"] = 1.0
    assert faults == expected
    assert found[f"kdp_devices{{health=withheld,{label}}}"] == own.is_withheld
    assert f"`{own.name}`" in LABELS["health" if own.is_withheld else "kind"]


def test_the_values_are_those_that_were_counted() -> None:
    found = shown(metrics(*busy()))
    gpu = f"resource_name={RESOURCE}"
    assert found["kdp_build_info{mode=device-plugin,version=1.2.3}"] == 1
    assert found[f"kdp_devices{{health=healthy,{gpu}}}"] == 7
    assert found[f"kdp_devices{{health=unhealthy,{gpu}}}"] == 1
    assert found[f"kdp_device_faults{{kind=xid,{gpu}}}"] == 1
    assert found[f"kdp_device_faults{{kind=vanished,{gpu}}}"] == 1
    assert found[f"kdp_device_transitions_total{{kind=xid,{gpu},to=unhealthy}}"] == 1
    assert found["kdp_kubelet_restarts_total{}"] == 2
    assert found["kdp_hook_failures_total{backend=Gpus,hook=allocate,reason=refused}"] == 1
    assert found["kdp_hook_duration_seconds_bucket{backend=Gpus,hook=discover,le=0.005}"] == 0
    assert found["kdp_hook_duration_seconds_bucket{backend=Gpus,hook=discover,le=0.02}"] == 1
    assert found["kdp_hook_duration_seconds_count{backend=Gpus,hook=discover}"] == 1
    assert 7 <= found["kdp_discovery_age_seconds{backend=Gpus}"] < 60
    assert found[f"kdp_allocated_devices{{{gpu}}}"] == 1
    assert found[f"kdp_list_bytes{{{gpu}}}"] == 500
    assert found[f"kdp_power_watts{{device=gpu-0,{gpu}}}"] == 250
    assert not [name for name in found if "train-0" in name]


def test_pods_are_named_only_if_asked_for() -> None:
    found = shown(metrics(*busy(), names_pods=True))
    pod = "container=main,device=gpu-0,namespace=ml,pod=train-0,resource_name=example.com/gpu"
    assert found[f"kdp_device_allocation{{{pod}}}"] == 1
    assert found[f"kdp_power_watts{{{pod}}}"] == 250


@pytest.mark.parametrize(("cause", "expected"), [(None, None), ("list_too_large", "list_too_large")])
def test_each_cause_of_not_being_ready_has_a_value(cause: Any, expected: str | None) -> None:
    found = shown(metrics(Manager(status(cause=cause, state="waiting" if cause else "connected"))))
    causes = {name: value for name, value in found.items() if name.startswith("kdp_not_ready")}
    assert len(causes) == 6
    assert [name for name, value in causes.items() if value] == (
        [f"kdp_not_ready{{cause={expected},resource_name={RESOURCE}}}"] if expected else []
    )
    assert found[f"kdp_registered{{resource_name={RESOURCE}}}"] == (cause is None)


def test_a_node_without_the_hardware_was_said_to_be_registered_and_not_ready() -> None:
    manager = Manager(status(state="no hardware", devices=0, healthy=0), problem="there is no card")
    found = shown(metrics(manager))
    assert not [name for name in found if name.startswith("kdp_registered")]
    assert not any(value for name, value in found.items() if name.startswith("kdp_not_ready"))
    found = shown(metrics(manager, needs_devices=True))
    not_ready = [name for name, value in found.items() if name.startswith("kdp_not_ready") and value]
    assert not_ready == [f"kdp_not_ready{{cause=no_devices,resource_name={RESOURCE}}}"]


def test_what_is_done_in_the_cluster_is_counted_from_0_and_only_if_it_is_done() -> None:
    cluster = ClusterCounts()
    assert not [name for name in shown(metrics(None, cluster=cluster)) if "events" in name or "evictions" in name]
    options = ReportOptions(node="n", events=True, eviction=EvictionPolicy(after=1.0, limit=1))
    ClusterReporter(options, connect=lambda: pytest.fail("nothing is told yet"), counts=cluster)
    cluster.events.add("created", by=2)
    found = shown(metrics(None, cluster=cluster))
    assert {name: value for name, value in found.items() if name.startswith("kdp_events")} == {
        f"kdp_events_total{{result={result}}}": 2.0 * (result == "created") for result in events.RESULTS
    }
    assert {name: value for name, value in found.items() if name.startswith("kdp_evictions")} == {
        f"kdp_evictions_total{{result={result}}}": 0 for result in evictor.RESULTS
    }


def test_the_configuration_that_is_in_force_is_known_by_the_sum_of_its_text() -> None:
    """As `printf 'set: {count: 3}\\n' | sha256sum` prints it."""
    configuration = Configuration("set: {count: 3}\n", is_rejected=True)
    found = shown(metrics(None, configuration=lambda: configuration))
    assert found["kdp_config_info{hash=ade240d390c5}"] == 1
    assert found["kdp_config_rejected{}"] == 1


def test_a_directory_that_has_refused_a_file_is_not_writable_whatever_a_look_at_it_says() -> None:
    manager, counts = Manager(status()), PluginCounts()
    directories = Directories({})
    directories.writable = {"state": True, "cdi": True, "plugins": True}
    subject = metrics(manager, counts, directories=directories)
    writable = {f"kdp_directory_writable{{directory={name}}}" for name in directories.writable}
    assert {name for name, value in shown(subject).items() if value == 1} >= writable
    manager.state_problem = "the disk is full"
    manager.resources[RESOURCE] = status(cdi="/etc/cdi cannot be written")
    found = shown(subject)
    assert {name for name in writable if found[name] == 0} == {
        "kdp_directory_writable{directory=state}",
        "kdp_directory_writable{directory=cdi}",
    }


def test_a_blocked_event_loop_is_said_and_the_values_of_before_are_shown() -> None:
    subject = metrics(*busy())
    assert samples(subject.text(None)) == {"kdp_event_loop_blocked{}": 1}
    before = shown(subject)
    after = samples(subject.text(None))
    assert after.pop("kdp_event_loop_blocked{}") == 1
    assert before.pop("kdp_event_loop_blocked{}") == 0
    assert after == before


@pytest.mark.slow
def test_a_vendor_who_changes_all_names_for_ever_makes_no_more_series() -> None:
    """Also not by names that are long, that do not print, or that break the format of the text."""
    manager, counts = Manager(), PluginCounts()
    subject = metrics(manager, counts, names_pods=True)
    power = kdp.Measurement("power", unit="watts", help="Of the card.")
    sizes: list[int] = []
    for batch in range(8):
        for i in range(200):
            name = f'evil.com/{batch}-{i}"\n\\{{}}\x1b' + "x" * 300
            ill = kdp.Device(id="ill", health=health_of(condition(f"kind {name}")))
            manager.resources = {name: status(name, listed={"ill": ill})}
            manager.views = {name: ResourceView(disagrees=bool(i % 2), foreign=1)}
            manager.state.counts.changed(name, "unhealthy", (f"kind {name}",))
            for result in ("accepted", "failed"):
                counts.registrations.add(counts.resources.of(name), result)
            for method in ("Allocate", "PreStartContainer"):
                for result in RESULTS:
                    counts.called(method, name, result, 0.1)
            counts.sent(name, 5)
            manager.held = {name: {f"{i}-{batch}{name}": (Holder("ml", f"p{i}-{batch}", "main"),)}}
            manager.supervisor.measuring = Measuring("Gpus", (power,))
            manager.supervisor.measuring.values = {f"{i}-{batch}{name}": Measured(name, {"power": 1.0})}
            if i % 50 == 0:
                subject.read()
        sizes.append(len(shown(subject)))
    assert sizes[-1] == sizes[1]
    assert sizes[-1] < 6000
    assert len(counts.lists) <= 65
    assert shown(subject)["kdp_operations_total{operation=Allocate,resource_name=other,result=ok}"] > 1000


EVIL = ('a"b', "a\\b", "a\nb", "a\\nb", '\\"', "\x1b[0m", "\u202e", "x" * 300, "a} 7\nkdp_build_info 7", "")


def test_hostile_names_of_devices_and_pods_break_no_line() -> None:
    manager, counts = busy()
    manager.held[RESOURCE] = {f"{i} {evil}": (Holder(evil, evil, evil),) for i, evil in enumerate(EVIL)}
    measuring = Measuring("Gpus", (kdp.Measurement("power", unit="watts", help='Of \\ "the"\ncard.'),))
    measuring.values = {device_id: Measured(RESOURCE, {"power": 1.5}) for device_id in manager.held[RESOURCE] or ()}
    manager.supervisor.measuring = measuring
    subject = metrics(manager, counts, names_pods=True)
    families = {family.name: family for family in text_string_to_metric_families(subject.text(subject.read()))}
    assert len(families["kdp_build_info"].samples) == 1
    for name, value in (("kdp_device_allocation", 1), ("kdp_power_watts", 1.5)):
        labels = [sample.labels for sample in families[name].samples]
        assert [each["device"] for each in labels] == [printable(f"{i} {evil}", 253) for i, evil in enumerate(EVIL)]
        for key in ("namespace", "pod", "container"):
            assert [each[key] for each in labels] == [printable(evil, 253) for evil in EVIL]
        assert {sample.value for sample in families[name].samples} == {value}
    assert families["kdp_power_watts"].documentation == printable('Of \\ "the"\ncard.', 200)


def test_two_devices_that_are_shown_alike_are_one_line() -> None:
    """A line that is there twice is dropped by Prometheus, one or the other."""
    manager, counts = busy()
    assert manager.supervisor.measuring is not None
    long = "x" * 300
    manager.supervisor.measuring.values = {f"{long}{i}": Measured(RESOURCE, {"power": float(i)}) for i in range(3)}
    subject = metrics(manager, counts)
    lines = [line for line in subject.text(subject.read()).splitlines() if line.startswith("kdp_power_watts{")]
    assert len(lines) == 1
    assert lines[0].endswith(" 2.0")


@pytest.mark.parametrize(
    ("interval", "is_absent", "expected"), [(5.0, False, 5.0), (None, False, None), (5.0, True, None)]
)
def test_how_often_is_discovered_is_said_only_of_a_backend_that_is_polled(
    interval: float | None, is_absent: bool, expected: float | None
) -> None:
    """Else the age of a discovery that nobody repeats would look like a failure."""
    manager, counts = busy()
    manager.supervisor.poll_interval = interval
    manager.supervisor.discovery.value.is_absent = is_absent
    found = shown(metrics(manager, counts))
    assert found.get("kdp_discovery_interval_seconds{backend=Gpus}") == expected
    assert found["kdp_discovery_age_seconds{backend=Gpus}"] >= 7


def test_a_counter_of_calls_begins_with_0() -> None:
    """Prometheus sees no increase in one that begins with 1."""
    found = shown(metrics(Manager(status())))
    assert found[f"kdp_operations_total{{operation=Allocate,resource_name={RESOURCE},result=ok}}"] == 0
    assert found[f"kdp_operation_duration_seconds_count{{operation=Allocate,resource_name={RESOURCE}}}"] == 0
    found = shown(metrics(*busy()))
    assert found[f"kdp_operations_total{{operation=Allocate,resource_name={RESOURCE},result=ok}}"] == 1


def test_a_counter_is_exported_as_one() -> None:
    manager, counts = busy()
    received = kdp.Measurement("received", unit="bytes", help="Of the port.", kind="counter")
    taken = kdp.Measurement("kubelet_restarts", help="With a name of kdp's.", kind="counter")
    manager.supervisor.measuring = Measuring("Gpus", (received, taken))
    values = {"received": 2.0**60, "kubelet_restarts": 7.0}
    manager.supervisor.measuring.values = {"gpu-0": Measured(RESOURCE, values)}
    subject = metrics(manager, counts)
    text = subject.text(subject.read())
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["kdp_received_bytes"].type == "counter"
    assert samples(text)[f"kdp_received_bytes_total{{device=gpu-0,resource_name={RESOURCE}}}"] == 2.0**60
    assert len(families["kdp_kubelet_restarts"].samples) == 1


def test_without_the_library_one_sentence_names_the_extra() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None\nimport kdp.operations.metrics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "kdp.errors.ConfigurationError: --metrics needs prometheus_client, which comes with the extra 'metrics': "
        "pip install 'kdp-sdk[metrics]'"
    )


def test_devices_that_two_pods_hold_are_counted() -> None:
    label = f"{{resource_name={RESOURCE}}}"
    assert shown(metrics(Manager(status())))[f"kdp_devices_given_twice{label}"] == 0
    twice = status(doubles={"gpu-0": "ml/a and ml/b", "gpu-1": "ml/a and ml/b"})
    assert shown(metrics(Manager(twice)))[f"kdp_devices_given_twice{label}"] == 2
    assert twice.details["given_twice"] == (
        "two pods hold one device: gpu-0 by ml/a and ml/b; gpu-1 by ml/a and ml/b; delete one of the two pods"
    )
