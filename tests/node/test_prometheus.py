"""A real Prometheus scrapes real plugins through what the alerts are for, and answers each query.

What promtool finds out without a plugin is here, too: when each alert fires and when not.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from xml.etree import ElementTree

import anyio
import pytest
import yaml
from tests.unit.cluster.http_server import Answer, served

from kdp.testing import SimulatedKubelet

from .nodekit.prometheus import PERIOD, Prometheus
from .nodekit.tools import BIN, Missing, program
from .picture import Chart, drawn, legend_of
from .watched import SCENES, Plugin, Scene, claimed, driving, options_of, running, telling, told

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
RULES: Final = DEPLOY / "prometheus/kdp.rules.yaml"
TESTS: Final = DEPLOY / "prometheus/kdp.rules.test.yaml"
DASHBOARD: Final = DEPLOY / "grafana/kdp.json"

STATE: Final = """
kube_node_status_capacity{node="busy",resource="example_com_gpu",unit="integer"} 8
kube_node_status_allocatable{node="busy",resource="example_com_gpu",unit="integer"} 7
kube_daemonset_status_number_unavailable{namespace="kube-system",daemonset="kdp"} 1
kube_pod_info{namespace="kube-system",pod="kdp-x7k2p",node="dra",created_by_kind="DaemonSet",created_by_name="kdp"} 1
kube_pod_info{namespace="default",pod="train",node="dra",created_by_kind="Job",created_by_name="train"} 1
kube_pod_deletion_timestamp{namespace="default",pod="train"} 1.7e+09
"""
"""What kube-state-metrics would say of such nodes; it is not part of the tests."""

SVG: Final = "{http://www.w3.org/2000/svg}"

ALERTS: Final[list[Any]] = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def _all_panels() -> Iterator[Any]:
    """Return the panels, those of rows as well."""
    todo = json.loads(DASHBOARD.read_text())["panels"]
    while todo:
        panel = todo.pop(0)
        todo += panel.get("panels", [])
        yield panel


QUERIES: Final = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in _all_panels()
    for target in panel.get("targets", ())
}
"""The dashboard's queries, by their panel."""

VARIABLES: Final = {
    "$job": ".+",
    "$instance": ".+",
    "$resource_name": ".*",
    "$driver_name": ".*",
    "$__rate_interval": "10s",
}


def asked(expression: str) -> str:
    """Return an expression as the dashboard asks it, without what stands in for an answer."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression.removesuffix(" or vector(0)")


PICTURED: Final = (
    ("Devices by health", "flapping", "A device flaps until it is in quarantine; then the other one fails."),
    ("Faults by kind", "flapping", "The same: its faults, and the quarantine."),
    ("Why not ready", "lost", "A kubelet is stopped."),
    ("Calls that failed since the start", "busy", "Pods come, and two are refused."),
    ("Time to answer a call", "busy", "One Allocate takes 3 s."),
    ("Registrations and restarts since the start", "busy", "The kubelet is restarted."),
    ("Time since the last discovery", "stale", "The hook discover hangs."),
    ("What the kubelet has that was not sent", "rivalled", "Another plugin registers the same resource."),
    ("Time that the slices are behind", "dra", "The API server goes away, and a device fails."),
)
"""Panels, the plugin that they show, and what happens to it; for `make dashboard-picture`."""


async def _chart(prometheus: Prometheus, title: str, instance: str, scene: str) -> Chart:
    """Return what a panel shows of a plugin."""
    [panel] = [each for each in _all_panels() if each["title"] == title]
    lines: dict[str, list[tuple[float, float]]] = {}
    for target in panel["targets"]:
        for labels, points in (await prometheus.history(asked(target["expr"].replace("$instance", instance)))).items():
            lines[legend_of(target["legendFormat"], dict(labels))] = points
    unit = {"s": "s"}.get(panel["fieldConfig"]["defaults"]["unit"], "")
    return Chart(title, scene, unit, lines)


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return program("promtool", BIN / "prometheus/usr/bin")
    except Missing as missing:
        pytest.skip(str(missing))


class Watched:
    """What Prometheus has seen, and the texts of all alerts that it has shown."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.prometheus = prometheus
        self.texts: dict[str, dict[str, str]] = {}

    async def follow(self) -> None:
        while True:
            for alert in await self.prometheus.alerts():
                self.texts.setdefault(alert["labels"]["alertname"], alert["annotations"])
            await anyio.sleep(0.5)


@pytest.fixture(scope="module")
async def watched(promtool: Path) -> AsyncIterator[Watched]:
    """Play all scenes side by side, each with a plugin and a kubelet of its own."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kdp-")))
        kubelets: dict[str, SimulatedKubelet] = {}
        plugins: dict[str, Plugin] = {}
        for name in SCENES:
            (folder / name).mkdir()
            kubelets[name] = await stack.enter_async_context(SimulatedKubelet())
            options = options_of(name, folder / name, kubelets[name])
            plugins[name] = await stack.enter_async_context(running(folder / name, *options))
        (folder / "dra").mkdir()
        driver = await stack.enter_async_context(driving(folder / "dra"))
        (folder / "told").mkdir()
        kubelet = await stack.enter_async_context(SimulatedKubelet())
        plugin, cluster = await stack.enter_async_context(telling(folder / "told", kubelet))
        targets = {name: plugin.port for name, plugin in {**plugins, "told": plugin}.items()}
        state = await stack.enter_async_context(served())
        state.reply = lambda _: Answer(body=STATE.encode())
        others = {"ksm": int(state.url.rpartition(":")[2])}
        prometheus = await stack.enter_async_context(
            Prometheus({**targets, "dra": driver.plugin.port}, [RULES], others=others)
        )
        found = Watched(prometheus)
        failures: list[str] = []

        async def play(name: str, plugin: Plugin, scene: Awaitable[None]) -> None:
            try:
                await scene
            except Exception as error:  # noqa: BLE001 - the other scenes go on
                failures.append(f"{name}: {type(error).__name__}: {error}\n{plugin.says()[-3000:]}")

        async with anyio.create_task_group() as following:
            following.start_soon(found.follow)
            async with anyio.create_task_group() as tasks:
                for name, scene in SCENES.items():
                    place = Scene(plugins[name], kubelets[name], f'instance="{name}"', prometheus)
                    tasks.start_soon(play, name, plugins[name], scene(place))
                place = Scene(plugin, kubelet, 'instance="told"', prometheus)
                tasks.start_soon(play, "told", plugin, told(place, cluster))
                tasks.start_soon(play, "dra", driver.plugin, claimed(driver, prometheus))
            await anyio.sleep(3 * PERIOD)  # what came last is evaluated
            following.cancel_scope.cancel()
        assert not failures, "\n\n".join(failures)
        yield found


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
async def test_each_alert_is_raised_by_what_it_is_for(watched: Watched, rule: Any) -> None:
    assert await watched.prometheus.history(rule["expr"])
    assert await watched.prometheus.history(f'ALERTS{{alertname="{rule["alert"]}"}}')
    for text in watched.texts[rule["alert"]].values():
        assert "{{" not in text
        assert "<no value>" not in text
        assert "<error" not in text


@pytest.mark.parametrize("panel", QUERIES)
async def test_each_query_of_the_dashboard_is_answered(watched: Watched, panel: str) -> None:
    found = await watched.prometheus.history(asked(QUERIES[panel]))
    values = [value for series in found.values() for _, value in series]
    assert not all(map(math.isnan, values)), QUERIES[panel]  # a quantile of no call is NaN


async def test_the_lists_of_the_dashboard_have_values(watched: Watched) -> None:
    """A variable is a list of a label's values, which Grafana asks for as series."""
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert match is not None
            series = await watched.prometheus.ask("series", **{"match[]": asked(match[1])})
            assert any(match[2] in each for each in series)


async def test_a_pods_labels_were_those_of_the_plugins_own_pod(watched: Watched) -> None:
    """The operator gives each target such labels; honorLabels keeps them from a series that has its own, or none."""
    found = await watched.prometheus.history('kdp_power_watts{instance="busy"}')
    assert {dict(labels).get("pod") for labels in found} >= {None}
    assert "kdp-x7k2p" not in {dict(labels).get("pod") for labels in found}
    held = await watched.prometheus.history('kdp_device_allocation{instance="busy"}')
    assert held
    assert not {"kdp-x7k2p", None} & {dict(labels).get("pod") for labels in held}


async def test_the_picture_of_the_dashboard_can_be_drawn(watched: Watched) -> None:
    charts = [await _chart(watched.prometheus, *each) for each in PICTURED]
    picture = drawn(charts)
    texts = {each.text for each in ElementTree.fromstring(picture).iter(f"{SVG}text")}  # noqa: S314 - our own
    assert texts >= {title for title, _, _ in PICTURED}
    assert texts >= {"example.com/gpu unhealthy", "Allocate 90%", "rivalled example.com/gpu foreign devices"}
    for chart in charts:  # something happened in each
        assert any(len({value for _, value in points}) > 1 for points in chart.lines.values()), chart.title
    if (path := os.environ.get("DASHBOARD_PICTURE")) is not None:
        await anyio.Path(path).write_text(picture)


async def test_prometheus_has_no_complaint_about_what_it_scrapes(watched: Watched, promtool: Path) -> None:
    text = await watched.prometheus.scraped("busy")
    done = await anyio.run_process([str(promtool), "check", "metrics"], input=text.encode(), check=False)
    assert not [line for line in done.stderr.decode().splitlines() if not line.startswith("process_")]
    assert "kdp_power_watts" in text
    assert not re.search(r"(duplicate|out of order|out of bounds)", watched.prometheus.story())


# -- what promtool finds out -------------------------------------------------------------------------------------------


def _tested(promtool: Path, folder: Path, rules: object) -> subprocess.CompletedProcess[str]:
    (folder / RULES.name).write_text(yaml.safe_dump(rules))
    (folder / TESTS.name).write_text(TESTS.read_text())
    command = [str(promtool), "test", "rules", TESTS.name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)


def test_promtool_takes_the_rules(promtool: Path, tmp_path: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout
    done = _tested(promtool, tmp_path, yaml.safe_load(RULES.read_text()))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", ["never fires", "always fires"])
def test_a_rule_that_does_not_tell_fails_its_test(promtool: Path, tmp_path: Path, way: str) -> None:
    """Each alert has a test in which it fires, and one in which it does not."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("for", None)
        rule["expr"] = "vector(1) == 0" if way == "never fires" else f"vector(1) or ({rule['expr']})"
    done = _tested(promtool, tmp_path, rules)
    assert done.returncode == 1
    failed = set(re.findall(r'expr: "ALERTS\{alertname=\\"(\w+)\\"', done.stdout + done.stderr))
    assert failed == {rule["alert"] for rule in ALERTS}, done.stdout + done.stderr
