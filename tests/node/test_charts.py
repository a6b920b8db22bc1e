"""Charts of `kdp manifests --format helm`, judged by real Helm without a cluster: lint, templates, refused values."""

from __future__ import annotations

import gzip
import json
import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import attrs
import pytest
import yaml

from kdp.command.invocation import Invocation
from kdp.daemon import settings as kdp_settings

from .nodekit import Missing
from .nodekit.tools import tool
from .test_manifests import EXAMPLES, render

ROOT: Final = Path(__file__).parents[2]
COMMITTED: Final = sorted(path.parent for path in ROOT.glob("deploy/charts/*/Chart.yaml"))
IMAGE: Final = "registry.example.com/widgets:1.2.3"
NAMESPACE: Final = "widgets"
HELMS: Final = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
"""Labels that Helm's objects have besides."""

Object = dict[str, Any]


@pytest.fixture(scope="session")
def helm() -> Path:
    """The command."""
    try:
        return tool("helm")
    except Missing as missing:
        pytest.skip(str(missing))


def run(helm: Path, *arguments: str | Path) -> str:
    done = subprocess.run([helm, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(helm: Path, *arguments: str | Path) -> str:
    done = subprocess.run([helm, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def write(folder: Path, *arguments: str | Path) -> Path:
    """Write a chart, and return where."""
    render(*arguments, f"--image={IMAGE}", f"--namespace={NAMESPACE}", "--format=helm", "-o", folder)
    return folder


def by_name(documents: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def templated(helm: Path, chart: Path, *arguments: str | Path) -> dict[tuple[str, str], Object]:
    """Return the objects of a chart without what Helm itself adds."""
    name = yaml.safe_load((chart / "Chart.yaml").read_text())["name"]
    text = run(helm, "template", name, chart, f"--namespace={NAMESPACE}", "--skip-tests", *arguments)
    documents = [each for each in yaml.safe_load_all(text) if each]
    for document in documents:
        for label in HELMS:
            assert document["metadata"]["labels"].pop(label)
    return by_name(documents)


def plain(*arguments: str | Path) -> dict[tuple[str, str], Object]:
    """Return the objects of the default format."""
    text = render(*arguments, f"--image={IMAGE}", f"--namespace={NAMESPACE}")
    return by_name(list(yaml.safe_load_all(text)))


CONFIGS: Final = Path(__file__).parent / "configs"
"""Configurations that a label names."""

DEFAULTS: Final[dict[str, tuple[str, ...]]] = {
    "minimal": ("minimal",),
    "a file": ("generic", f"--set=config={EXAMPLES}/generic/configs/fuse-tun.yaml"),
    "opens nodes": ("hwrng", "--set=count=2"),
    "gpu": ("nvidia-gpu", "--runtime-class=nvidia"),
    "fpga": ("fpga",),
    "the node's network": ("rdma", "--set=mode=hca", "--set=slots=4"),
    "Events and a taint": ("minimal", "--events=on", "--startup-taint=example.com/starting", "--labels=nfd"),
    "eviction": ("minimal", "--on-unhealthy=evict", "--evict-limit=3"),
    "a label": ("minimal", f"--config={CONFIGS}", "--config-label=example.com/kdp", "--log-level=debug"),
    "driver": ("minimal", "--mode=dra"),
    "driver with a label": ("minimal", "--mode=dra", f"--config={CONFIGS}", "--config-label=example.com/kdp"),
    "driver of a pool with a label": (
        *("minimal", "--mode=dra", "--pool=fabric", f"--config={CONFIGS}", "--config-label=example.com/kdp"),
    ),
    "driver in the node's network": ("rdma", "--mode=dra", "--driver-name=rdma.example.com"),
    "driver with a host": ("nvidia-gpu", "--mode=dra", "--health-taint=NoExecute"),
    "driver that writes status": ("minimal", "--mode=dra", "--device-status=on", "--extended-resource"),
    "driver whose metrics name pods": ("minimal", "--mode=dra", "--metrics=pods"),
    "driver of a pool": ("minimal", "--mode=dra", "--pool=fabric"),
    "controller": ("minimal", "--mode=dra-controller", "--pool=fabric", "--pool-nodes=a=b"),
}


@pytest.mark.parametrize("arguments", DEFAULTS.values(), ids=DEFAULTS.keys())
def test_with_default_values_a_chart_is_what_the_default_format_is(
    helm: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    chart = write(tmp_path / "chart", *arguments)

    run(helm, "lint", "--strict", chart)
    assert templated(helm, chart) == plain(*arguments)


@attrs.frozen
class Choice:
    """Something that is chosen as an option of the command, or as a value of the chart.

    Attributes:
        options: The command's.
        values: The chart's.
    """

    options: tuple[str, ...]
    values: Object


CHOICES: Final = {
    "a parameter": Choice(("--set=count=3",), {"config": {"set": {"count": 3}}}),
    "CDI": Choice(("--cdi=beside",), {"config": {"cdi": "beside"}}),
    "CDI elsewhere": Choice(("--cdi=only", "--cdi-dir=/etc/cdi"), {"config": {"cdi": "only", "cdi-dir": "/etc/cdi"}}),
    "the plugin watcher": Choice(("--registration=watcher",), {"config": {"registration": "watcher"}}),
    "a kubelet elsewhere": Choice(("--kubelet-root=/data/kubelet",), {"config": {"kubelet-root": "/data/kubelet"}}),
    "directories elsewhere": Choice(
        ("--device-plugin-dir=/a", "--pod-resources-dir=/b", "--pods-api-dir=/c"),
        {"config": {"device-plugin-dir": "/a", "pod-resources-dir": "/b", "pods-api-dir": "/c"}},
    ),
    "no state": Choice(("--state-dir=none",), {"config": {"state-dir": "none"}}),
    "state elsewhere": Choice(("--state-dir=/srv/kdp",), {"config": {"state-dir": "/srv/kdp"}}),
    "numbers": Choice(
        ("--poll-interval=7.5", "--replicas=4", "--replica-limit=1000000"),
        {"config": {"poll-interval": 7.5, "replicas": 4, "replica-limit": 1000000}},
    ),
    "words": Choice(
        ("--poll-interval=none", "--health-policy=failures=2,hold_down=30", "--log-level=debug", "--metrics=on"),
        {
            "config": {
                "poll-interval": "none",
                "health-policy": "failures=2,hold_down=30",
                "log-level": "debug",
                "metrics": True,
            }
        },
    ),
    "what looks like a variable": Choice(("--replicas-for=$(A)*=2",), {"config": {"replicas-for": "$(A)*=2"}}),
    "labels for NFD": Choice(
        ("--labels=nfd", "--labels-dir=/srv/features.d"),
        {"config": {"labels": "nfd", "labels-dir": "/srv/features.d"}},
    ),
    "an address": Choice(("--http=0.0.0.0:9",), {"config": {"http": "0.0.0.0:9"}}),
    "an IPv6 address": Choice(("--http=[::]:9",), {"config": {"http": "[::]:9"}}),
    "exec probes": Choice(("--probes=exec",), {"probes": "exec"}),
    "exec probes beside a port": Choice(("--probes=exec", "--http=:9"), {"probes": "exec", "config": {"http": ":9"}}),
    "labels": Choice(
        ("--node-selector=pool=gpu", "--node-selector=!canary"),
        {
            "nodeSelector": {"pool": "gpu"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}]},
                        ]
                    }
                }
            },
        },
    ),
    "tolerations": Choice(
        ("--toleration=gpu:NoSchedule",),
        {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]},
    ),
    "no tolerations": Choice(("--toleration=none",), {"tolerations": []}),
    "classes": Choice(
        ("--priority-class=none", "--runtime-class=nvidia", "--selinux-type=none"),
        {"priorityClassName": "", "runtimeClassName": "nvidia", "selinuxType": ""},
    ),
    "pull secrets": Choice(("--image-pull-secret=one", "--image-pull-secret=two"), {"pullSecrets": ["one", "two"]}),
    "mounts": Choice(("--mount-propagation=host-to-container",), {"mountPropagation": "host-to-container"}),
    "memory": Choice(("--memory-limit=200Mi",), {"resources": {"limits": {"memory": "200Mi"}}}),
    "no policy": Choice(("--no-network-policy",), {"networkPolicy": {"enabled": False}}),
    "scraped": Choice(("--metrics-from=monitoring",), {"networkPolicy": {"metricsFrom": "monitoring"}}),
    "Events": Choice(("--events=on",), {"config": {"events": True}}),
    "eviction": Choice(
        ("--on-unhealthy=evict", "--evict-after=10m", "--evict-limit=5"),
        {"config": {"on-unhealthy": "evict", "evict-after": "10m", "evict-limit": 5}},
    ),
    "a startup taint": Choice(
        ("--startup-taint=example.com/starting",), {"config": {"startup-taint": "example.com/starting"}}
    ),
    "a startup taint beside a toleration": Choice(
        ("--startup-taint=a.b/c", "--toleration=gpu"),
        {"config": {"startup-taint": "a.b/c"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    ),
    "a startup taint and no toleration": Choice(
        ("--startup-taint=a.b/c", "--toleration=none"), {"config": {"startup-taint": "a.b/c"}, "tolerations": []}
    ),
    "all that asks the API server": Choice(
        ("--events=on", "--on-unhealthy=evict", "--startup-taint=a.b/c", "--openshift"),
        {"config": {"events": "on", "on-unhealthy": "evict", "startup-taint": "a.b/c"}, "openshift": True},
    ),
    "OpenShift": Choice(("--openshift",), {"openshift": True}),
    "OpenShift without a type": Choice(("--openshift", "--selinux-type=none"), {"openshift": True, "selinuxType": ""}),
}


@pytest.fixture(scope="session")
def minimal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart of the smallest example, with nothing chosen."""
    return write(tmp_path_factory.mktemp("minimal") / "chart", "minimal")


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_is_the_same_as_an_option_and_as_a_value(
    helm: Path, minimal: Path, tmp_path: Path, choice: Choice
) -> None:
    expected = plain("minimal", *choice.options)
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(choice.values))

    assert templated(helm, minimal, "--values", tmp_path / "values.yaml") == expected
    assert templated(helm, write(tmp_path / "chart", "minimal", *choice.options)) == expected


# -- what the process sees ---------------------------------------------------------------------------------------------

SETTINGS_GIVEN: Final[dict[str, Object]] = {
    "places": {
        "kubelet-root": "/data/kubelet",
        "device-plugin-dir": "/a",
        "pod-resources-dir": "/b",
        "pods-api-dir": "/c",
        "state-dir": "/srv/kdp",
        "log-format": "json",
        "log-level": "debug",
        "when-no-devices": "not-ready",
    },
    "nothing": {"poll-interval": None, "state-dir": None},
    "the watcher": {"registration": "watcher", "plugins-registry-dir": "/data/registry", "driver-name": "a.example"},
    "CDI": {"cdi": "only", "cdi-dir": "/etc/cdi", "cdi-names": "both"},
    "measures": {"http": ":9", "http-details": "all", "metrics": "pods"},
    "Events": {"events": "on", "startup-taint": "example.com/starting"},
    "eviction": {"on-unhealthy": "evict", "evict-after": "10m", "evict-limit": 5, "evict-dry-run": "on"},
    "labels": {"labels": "nfd", "labels-dir": "/srv/features.d"},
    "health": {"poll-interval": 7.5, "health-policy": {"failures": 2, "hold_down": 30}, "policy": "spread"},
    "sharing": {
        "replicas": 4,
        "replicas-for": {"model=A*": 8, "b": 1},
        "replica-placement": "packed",
        "replica-limit": 1,
        "replica-resource": "shared",
        "release-policy": "scrub",
    },
    "a driver": {
        "mode": "dra",
        "driver-name": "a.example",
        "health-taint": "off",
        "replaces": "example.com/other",
        "device-status": "on",
        "device-metadata": "on",
    },
    "a pool's driver": {"mode": "dra", "pool": "fabric"},
    "a controller": {"mode": "dra-controller", "pool": "fabric", "pool-nodes": {"a": "b", "c": "d"}},
}
"""Settings as a file has them; with one of a mode, the mode."""


def shown(value: object) -> str:
    """Return a setting's value as a flag has it."""
    if isinstance(value, dict):
        return ",".join(f"{key}={shown(each)}" for key, each in cast("dict[str, object]", value).items())
    return "none" if value is None else str(value)


def seen(arguments: list[str], files: dict[str, str], tmp_path: Path) -> kdp_settings.Settings:
    """Return the settings that a process has, started with these arguments, with these files in /etc/kdp."""
    assert arguments[:2] == ["run", "minimal"]
    flags: dict[str, str] = dict(each[2:].replace("$$", "$").split("=", 1) for each in arguments[2:])
    config = None
    if "config" in flags:
        config = tmp_path / Path(flags.pop("config")).name
        config.write_text(files[config.name])
    flags.pop("http", None)
    given = {"node_name": "node0"} | {key.replace("-", "_"): text for key, text in flags.items()}
    made = Invocation(targets=(), assignments=(), config=config, flags=given, checks_needs=False).settings()
    return attrs.evolve(made, http=None)  # a pod has one in any case


def in_pod(objects: dict[tuple[str, str], Object], tmp_path: Path) -> kdp_settings.Settings:
    files: dict[str, str] = {}
    arguments: list[str] = []
    for (kind, _), held in objects.items():
        if kind == "ConfigMap":
            files |= held["data"]
        elif kind in ("DaemonSet", "Deployment"):
            arguments = held["spec"]["template"]["spec"]["containers"][0]["args"]
    return seen(arguments, files, tmp_path)


def test_every_setting_is_given() -> None:
    given = {key for held in SETTINGS_GIVEN.values() for key in held}

    assert given == {setting.key for setting in kdp_settings.SETTINGS.values() if not setting.of_place}


@pytest.mark.parametrize("given", SETTINGS_GIVEN.values(), ids=SETTINGS_GIVEN.keys())
def test_a_chart_dropped_options_that_were_in_the_configuration_file(helm: Path, tmp_path: Path, given: Object) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    flags = [f"--{key}={shown(value)}" for key, value in given.items()]
    named = {"node_name": "node0"}
    read = Invocation(targets=(), assignments=(), config=file, flags=named, checks_needs=False).settings()
    expected = attrs.evolve(read, http=None)

    for number, source in enumerate((flags, [f"--config={file}"])):
        (tmp_path / str(number)).mkdir()
        assert in_pod(plain("minimal", *source), tmp_path / str(number)) == expected
        assert in_pod(templated(helm, write(tmp_path / f"chart-{number}", "minimal", *source)), tmp_path) == expected
    fixed = [f"--{key}={given[key]}" for key in ("mode", "driver-name", "pool", "device-status") if key in given]
    values = {key: shown(value) for key, value in given.items() if f"--{key}={value}" not in fixed}
    numbers = {key: given[key] for key in values if isinstance(given[key], (int, float))}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"config": values | numbers}))
    chart = write(tmp_path / "by-value", "minimal", *fixed)
    assert in_pod(templated(helm, chart, "--values", tmp_path / "values.yaml"), tmp_path) == expected


def test_a_list_and_a_mapping_reach_the_class(helm: Path, tmp_path: Path) -> None:
    chart = write(tmp_path / "chart", "rdma", "--set=mode=hca")

    (daemon_set,) = templated(helm, chart, '--set-json=config.set.drivers=["mlx5_core","a,b"]').values()

    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert '--set=drivers=["mlx5_core","a,b"]' in container["args"]


@pytest.mark.parametrize(
    ("given", "sentences"),
    [
        ("config.poll-interval=0", ["poll-interval", "exclusiveMinimum", "0"]),
        ("config.cdi=sometimes", ["cdi", "off", "beside", "only"]),
        ("config.replicas=many", ["replicas", "want integer"]),
        ("config.replicas=0", ["replicas", "minimum"]),
        ("config.pol-interval=5", ["config", "additional properties 'pol-interval' not allowed"]),
        ("config.set.count=many", ["/config/set/count", "want integer"]),
        ("config.set.cuont=1", ["/config/set", "additional properties 'cuont' not allowed"]),
        ("tolerations=all", ["/tolerations", "want array"]),
        ("networkPolicy.metricsFrom=a/b", ["/networkPolicy/metricsFrom"]),
        ("image.pullPolicy=Sometimes", ["/image/pullPolicy", "Always", "IfNotPresent"]),
        ("colour=blue", ["additional properties 'colour' not allowed"]),
        ("podMonitor.enabled=true", ["podMonitor.enabled: there is nothing to scrape; set config.metrics to on"]),
        (
            "serviceMonitor.enabled=true",
            ["serviceMonitor.enabled: there is nothing to scrape; set config.metrics to on"],
        ),
        (
            "podMonitor.enabled=true,serviceMonitor.enabled=true",
            ["serviceMonitor.enabled: podMonitor.enabled is on, too", "choose one"],
        ),
        ("serviceMonitor.interval=often", ["/serviceMonitor/interval"]),
        ("dashboard.labels=grafana", ["/dashboard/labels", "want object"]),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(helm: Path, minimal: Path, given: str, sentences: list[str]) -> None:
    said = refused(helm, "template", "a", minimal, f"--set={given}")

    for sentence in sentences:
        assert sentence in said, said


def test_a_parameter_that_takes_other_rights_is_refused(helm: Path) -> None:
    chart = ROOT / "deploy/charts/kdp-nvidia-gpu"

    assert "/config/set/power_limits" in refused(helm, "template", "a", chart, "--set=config.set.power_limits=true")
    assert "/config/set/mig" in refused(helm, "template", "a", chart, "--set=config.set.mig=dynamic")
    assert run(helm, "template", "a", chart, "--set=config.set.mig=mixed")


MONITORED: Final[Object] = {
    "port": "http",
    "honorLabels": True,
    "interval": "30s",
    "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
}
"""What a monitor says of the pods' port: each series gets the name of its node."""


def test_a_pod_monitor_selects_the_pods_by_their_port(helm: Path, minimal: Path) -> None:
    objects = templated(helm, minimal, "--set=config.metrics=on,podMonitor.enabled=true,podMonitor.labels.team=a")

    monitor = objects["PodMonitor", "kdp-minimal"]
    daemon_set = objects["DaemonSet", "kdp-minimal"]
    pod = daemon_set["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert port["name"] == MONITORED["port"]
    assert monitor["spec"]["podMetricsEndpoints"] == [MONITORED]
    assert monitor["metadata"]["labels"]["team"] == "a"
    said = refused(
        helm, "template", "a", minimal, "--set=config.metrics=on,podMonitor.enabled=true,config.http=127.0.0.1:9"
    )
    assert 'only the node itself reaches the port "127.0.0.1:9"' in said


def test_a_service_monitor_selects_a_service_that_selects_the_pods(helm: Path, minimal: Path) -> None:
    objects = templated(
        helm, minimal, "--set=config.metrics=on,serviceMonitor.enabled=true,serviceMonitor.labels.team=a,config.http=:9"
    )

    assert not [kind for kind, _ in objects if kind == "PodMonitor"]
    monitor, service = objects["ServiceMonitor", "kdp-minimal"], objects["Service", "kdp-minimal"]
    pod = objects["DaemonSet", "kdp-minimal"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (of_pod,) = pod["spec"]["containers"][0]["ports"]
    assert (port["targetPort"], port["port"]) == (of_pod["name"], of_pod["containerPort"]) == ("http", 9)
    assert monitor["spec"]["endpoints"] == [MONITORED]
    assert monitor["metadata"]["labels"]["team"] == "a"
    assert service["spec"]["publishNotReadyAddresses"] is True
    said = refused(
        helm, "template", "a", minimal, "--set=config.metrics=on,serviceMonitor.enabled=true,config.http=127.0.0.1:9"
    )
    assert 'serviceMonitor.enabled: only the node itself reaches the port "127.0.0.1:9"' in said


def test_the_dashboard_and_the_alerts_are_in_a_release_as_they_are_committed(helm: Path, minimal: Path) -> None:
    """Queries, legends and texts are full of braces, which are Helm's own marks as well."""
    chosen = "dashboard.enabled=true,rules.enabled=true,rules.labels.team=a,dashboard.annotations.grafana_folder=Nodes"
    objects = templated(helm, minimal, f"--set={chosen}")

    held = objects["ConfigMap", "kdp-minimal-dashboard"]
    assert json.loads(held["data"]["kdp.json"]) == json.loads((ROOT / "deploy/grafana/kdp.json").read_text())
    assert "{{resource_name}}" in held["data"]["kdp.json"]
    assert held["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert held["metadata"]["annotations"] == {"grafana_folder": "Nodes"}
    rule = objects["PrometheusRule", "kdp-minimal"]
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/kdp.rules.yaml").read_text())
    assert rule["metadata"]["labels"]["team"] == "a"
    other = "dashboard.enabled=true,dashboard.labels.grafana_dashboard=null"
    labels = templated(helm, minimal, f"--set={other}", "--set-string=dashboard.labels.shown=yes")
    found = labels["ConfigMap", "kdp-minimal-dashboard"]["metadata"]["labels"]
    assert (found["shown"], "grafana_dashboard" in found) == ("yes", False)


@pytest.mark.parametrize("chart", COMMITTED, ids=lambda path: path.name)
def test_a_release_with_all_of_it_is_far_below_what_helm_can_store(
    helm: Path, chart: Path, figure: Callable[[str, float, str], None]
) -> None:
    """Helm keeps a chart and what it made of it in a Secret, compressed, then as base64 two times: 1 MiB at most."""
    chosen = "config.metrics=on,config.http=:9400,serviceMonitor.enabled=true,dashboard.enabled=true,rules.enabled=true"
    manifest = run(helm, "template", "a", chart, f"--set={chosen}")
    files = {str(path): path.read_bytes() for path in chart.rglob("*") if path.is_file()}
    release = json.dumps({"files": {name: b64encode(text).decode() for name, text in files.items()}, "text": manifest})
    stored = len(b64encode(b64encode(gzip.compress(release.encode()))))
    figure(f"a release of {chart.name} with all monitoring", stored / 1024, "KiB")
    assert stored < 200 * 1024


@pytest.mark.parametrize("chart", COMMITTED, ids=lambda path: path.name)
def test_a_committed_chart_passes_and_takes_any_release(helm: Path, chart: Path) -> None:
    run(helm, "lint", "--strict", chart)

    text = run(helm, "template", "canary", chart, "--set-string=image.tag=9,image.digest=sha256:0a")

    (daemon_set,) = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "DaemonSet"]
    assert daemon_set["metadata"]["name"] == f"canary-{chart.name}"
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/{chart.name}:9@sha256:0a"


def test_a_release_adds_what_good_charts_let_add(helm: Path, minimal: Path, tmp_path: Path) -> None:
    values: Object = {
        "config": {"events": "on"},
        "podLabels": {"team": "a"},
        "podAnnotations": {"example.com/a": "b"},
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "serviceAccount": {"name": "widgets", "annotations": {"example.com/role": "r"}},
        "test": {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "9Mi"}}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    objects = templated(helm, minimal, "--values", file)
    daemon_set = objects["DaemonSet", "kdp-minimal"]
    metadata, pod = (daemon_set["spec"]["template"][name] for name in ("metadata", "spec"))
    assert metadata["labels"] == {"app.kubernetes.io/name": "kdp-minimal", "team": "a"}
    assert metadata["annotations"] == values["podAnnotations"]
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    (container,) = pod["containers"]
    assert container["env"][-1] == values["extraEnv"][0]
    assert pod["volumes"][-1] == values["extraVolumes"][0]
    assert container["volumeMounts"][-1] == values["extraVolumeMounts"][0]
    assert objects["ServiceAccount", "widgets"]["metadata"]["annotations"] == {"example.com/role": "r"}
    assert pod["serviceAccountName"] == "widgets"
    (subject,) = objects["ClusterRoleBinding", "kdp-minimal"]["subjects"]
    assert subject["name"] == "widgets"
    (condition,) = objects["ValidatingAdmissionPolicy", "kdp-minimal-events"]["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{NAMESPACE}:widgets'" in condition["expression"]

    again = templated(helm, minimal, "--values", file, "--set=serviceAccount.create=false")
    assert {*objects} - {*again} == {("ServiceAccount", "widgets")}
    tested = yaml.safe_load(run(helm, "template", "a", minimal, "--values", file, "-s", "templates/tests/device.yaml"))
    (container,) = tested["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"memory": "9Mi", "example.com/fuse": 1},
    }


def test_a_pod_waited_for_ever_for_a_directory_that_only_some_nodes_have(helm: Path) -> None:
    """Nodes with a read-only system let nobody make it, and on the others an empty one was left."""
    chart = ROOT / "deploy/charts/kdp-nvidia-gpu"

    def given(*arguments: str) -> dict[str, str]:
        (daemon_set,) = (each for (kind, _), each in templated(helm, chart, *arguments).items() if kind == "DaemonSet")
        volumes = daemon_set["spec"]["template"]["spec"]["volumes"]
        return {each["hostPath"]["path"]: each["hostPath"]["type"] for each in volumes if "hostPath" in each}

    usual = given()
    assert [path for path, kind in usual.items() if kind != "Directory" and not path.startswith("/var/")] == []
    assert not [path for path in usual if path.startswith(("/usr", "/opt", "/etc"))]
    chosen = given("--set=optionalPaths={/etc/containerd,/opt/nvidia-container}")
    assert chosen == {**usual, "/etc/containerd": "Directory", "/opt/nvidia-container": "Directory"}
    assert "/optionalPaths/0" in refused(helm, "template", "a", chart, "--set=optionalPaths={/etc/shadow}")
    options = ("--optional-path=/etc/containerd", "--optional-path=/opt/nvidia-container")
    (plainly,) = (each for (kind, _), each in plain("nvidia-gpu", *options).items() if kind == "DaemonSet")
    volumes = plainly["spec"]["template"]["spec"]["volumes"]
    assert {each["hostPath"]["path"]: each["hostPath"]["type"] for each in volumes if "hostPath" in each} == chosen


def test_a_chart_that_cleans_up_asks_for_no_device_and_is_ready_when_nothing_is_left(
    helm: Path, tmp_path: Path
) -> None:
    chart = write(tmp_path / "chart", "minimal", "--mode=dra", "--set=count=2")

    objects = templated(helm, chart, "--set=cleanup=true,config.state-dir=/srv/kdp")

    daemon_set = objects["DaemonSet", "kdp-minimal"]
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%", "maxSurge": 0}
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    uninstall = ["uninstall", "minimal", "--driver-name=fuse.example.com", "--set=count=2", "--state-dir=/srv/kdp"]
    assert container["args"] == [*uninstall, "--stay"]
    assert container["readinessProbe"]["exec"]["command"] == ["kdp", *uninstall, "--dry-run"]
    assert "livenessProbe" not in container


def test_the_schema_says_what_each_value_is(minimal: Path) -> None:
    schema = json.loads((minimal / "values.schema.json").read_text())

    def undescribed(each: Object, path: str) -> list[str]:
        found = [] if each.get("description") or not path.startswith("/config/") else [path]
        for name, inner in each.get("properties", {}).items():
            found += undescribed(inner, f"{path}/{name}")
        return found

    assert undescribed(schema, "") == []


EVERYTHING: Final[Object] = {
    "config": {"metrics": "on", "http": ":9400", "events": "on", "startup-taint": "example.com/starting"},
    "podMonitor": {"enabled": True},
    "dashboard": {"enabled": True},
    "rules": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "openshift": True,
    "test": {"enabled": True, "resource": "example.com/widget"},
}
"""Values with which a chart has all of its objects."""

BREAKS_OUT: Final = (
    "a\n      hostPID: true\n      x: y",
    'a"\n      hostPID: true\n      x: "y',
    "a: b # c",
    "007",
)
"""Texts that YAML takes for more than one text, if they are not quoted, or for no text."""


def text_values(schema: Object, place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the places of a chart's values that may hold a text; a list's first item has the name ``0``."""
    kinds = schema.get("type", [])
    found = [place] if "string" in kinds or "anyOf" in schema or "enum" in schema or not kinds else []
    for name, each in schema.get("properties", {}).items():
        found += text_values(each, (*place, name))
    for name, inner in (("0", schema.get("items")), ("example.com/key", schema.get("additionalProperties"))):
        if isinstance(inner, dict):
            found += text_values(inner, (*place, name))
    return found


def with_value(values: Object, place: tuple[str, ...], text: str) -> Object:
    """Return values with a text at a place."""
    name, *rest = place
    held: Any = text if not rest else [text] if rest == ["0"] else with_value(values.get(name) or {}, (*rest,), text)
    return {**values, name: held}


def told(found: Any) -> tuple[set[str], list[Any]]:
    """Return the keys of objects, and their values that are neither objects nor lists."""
    if isinstance(found, dict):
        parts = [told(each) for each in found.values()]
        return set(found).union(*(keys for keys, _ in parts)), [each for _, held in parts for each in held]
    if isinstance(found, list):
        parts = [told(each) for each in found]
        return set[str]().union(*(keys for keys, _ in parts)), [each for _, held in parts for each in held]
    return set(), [found]


@pytest.mark.parametrize("text", BREAKS_OUT)
@pytest.mark.parametrize("checks", [(), ("--skip-schema-validation",)], ids=["as it is", "without its schema"])
def test_a_value_stays_in_its_place(
    helm: Path, minimal: Path, tmp_path: Path, text: str, checks: tuple[str, ...]
) -> None:
    """The SELinux type, the classes, and the pull secrets could make the pod privileged."""
    schema = json.loads((minimal / "values.schema.json").read_text())
    places = text_values(schema)
    # Helm's own, and what decides between branches, has no other defence than the schema.
    guarded = ("fullnameOverride", "global", "image", "config", "probes", "mountPropagation", "files")
    if checks:
        places = [place for place in places if place[0] not in guarded]
    assert {("selinuxType",), ("pullSecrets", "0"), ("runtimeClassName",), ("priorityClassName",)} <= {*places}
    values = tmp_path / "values.json"
    taken = 0
    for place in places:
        values.write_text(json.dumps(with_value(EVERYTHING, place, text)))
        command = [helm, "template", "a", minimal, *checks, "--values", values]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            assert "YAML parse error" not in done.stderr, (place, done.stderr)
            assert "values don't meet the specifications" in done.stderr or checks, (place, done.stderr)
            continue
        taken += 1
        keys, held = told(list(yaml.safe_load_all(done.stdout)))
        assert "hostPID" not in keys, place
        if text == "007":
            assert 7 not in held, place
    assert taken
