"""``kdp manifests``: what is written, from what was given."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kdp.command.app import kdp
from kdp.dra.render import render_device
from kdp.model.devices import Device

ROOT = Path(__file__).parents[4]

SYS = {f"/sys/{name}" for name in ("bus", "class", "dev", "devices", "module")}
"""What is mounted for a class that reads /sys."""

TARGET = """
from pathlib import Path
import kdp
from kdp.hardware import Host

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    def __init__(self, count: int = 1, file: Path | None = None) -> None: self.count = count
    def discover(self):
        return kdp.Device.counted("w", self.count, edits=kdp.ContainerEdits.of_node("/dev/null"))

class Hosted(Widgets):
    def __init__(self, host: Host, file: Path | None = None) -> None: self.host, self.count = host, 1

class Nothing(Widgets):
    def discover(self): return []

class Absent(Nothing):
    def discover(self): raise kdp.NotReady("driver not loaded")
    def needs(self): return kdp.Needs(host_paths=("/sys",), capabilities=("NET_ADMIN",))

class Late(Nothing):
    async def needs(self): return kdp.Needs(host_network=True)

class Wrong(Nothing):
    def needs(self): return {"host_paths": ["/sys"]}

class Relative(Nothing):
    def needs(self): return kdp.Needs(host_paths=("sys",))

class Labelled(Widgets):
    def needs(self): return kdp.Needs(node_labels=("nfd/pci-10de.present=true", "example.com/widget=1"))

class Broken(Nothing):
    def needs(self): raise OSError("no such card")
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "widgets.py").write_text(TARGET)
    return f"{tmp_path}/widgets.py"


def invoke(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(kdp, ["manifests", *map(str, arguments)], env=environment)


def made(*arguments: str | Path, **environment: str) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--image=i", **environment)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = documents[-1]["spec"]["template"]["spec"]["containers"]
    (only,) = containers
    return only


def mounts(documents: list[dict[str, Any]]) -> set[str]:
    own = {"device-plugins", "driver", "pod-resources", "state", "config", "run"}
    return {each["mountPath"] for each in container(documents)["volumeMounts"] if each["name"] not in own}


def test_all_that_was_given_reaches_the_process(target: str) -> None:
    documents = made(f"{target}:Widgets", "--set=count=3", "--cdi=beside", "--replicas=4", KDP_LOG_LEVEL="debug")

    assert container(documents)["command"] == ["kdp"]
    assert container(documents)["args"] == [
        "run",
        f"{target}:Widgets",
        "--set=count=3",
        "--cdi=beside",
        "--log-level=debug",
        "--replicas=4",
        "--http=:8080",
    ]
    assert "/var/run/cdi" in mounts(documents)


def test_the_nodes_of_what_it_discovers_are_found_where_it_looks(target: str) -> None:
    assert mounts(made(f"{target}:Widgets")) == {"/dev"}
    documents = made(f"{target}:Hosted")
    assert mounts(documents) == {"/host/dev"}
    assert "--host-root=/host" in container(documents)["args"]


def test_without_the_vendors_library_the_manifest_had_no_dev(target: str) -> None:
    result = invoke(f"{target}:Absent", "--image=i")

    assert result.exit_code == 0
    assert "driver not loaded; what its devices need is not known" in result.stderr
    assert "Absent discovers no device here and declares nothing below /dev in 'needs', so it is given" in result.stderr
    documents = list(yaml.safe_load_all(result.stdout))
    assert mounts(documents) == {"/dev", *SYS}
    assert container(documents)["securityContext"]["capabilities"]["add"] == ["NET_ADMIN"]


@pytest.mark.parametrize("path", ["/dev", "/dev/cards"])
def test_what_a_class_declares_of_dev_is_taken_if_its_hardware_is_not_here(tmp_path: Path, path: str) -> None:
    program = tmp_path / "cards.py"
    program.write_text(f"""
import kdp

class Cards(kdp.DeviceBackend):
    resource = "example.com/card"

    def discover(self):
        return []

    def needs(self):
        return kdp.Needs(host_paths=[{path!r}])
""")
    result = invoke(f"{program}:Cards", "--image=i")
    assert mounts(list(yaml.safe_load_all(result.stdout))) == {"/dev"}
    assert "discovers no device" not in result.stderr


def pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = documents[-1]["spec"]["template"]["spec"]
    return spec


def labels(documents: list[dict[str, Any]]) -> list[list[str]]:
    required = pod(documents)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [[each["key"] for each in term["matchExpressions"]] for term in required["nodeSelectorTerms"]]


def test_a_class_that_names_labels_runs_where_one_is_unless_told_otherwise(target: str) -> None:
    """On nodes without the hardware its pods would never be ready, and stall a rolling update."""
    target += ":Labelled"

    assert labels(made(target)) == [["nfd/pci-10de.present"], ["example.com/widget"]]
    assert labels(made(target, "--node-selector=!canary")) == [
        ["nfd/pci-10de.present", "canary"],
        ["example.com/widget", "canary"],
    ]
    assert "affinity" not in pod(made(target, "--node-selector=none"))
    chosen = pod(made(target, "--node-selector=none", "--node-selector=pool=a"))
    assert (chosen["nodeSelector"], "affinity" in chosen) == ({"kubernetes.io/os": "linux", "pool": "a"}, False)
    # The controller of a pool runs anywhere.
    controller = made(target, "--mode=dra-controller", "--pool=fabric")
    assert "affinity" not in pod(controller)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, count in (("default", 2), ("many", 5)):
        (folder / f"{name}.yaml").write_text(f"set: {{count: {count}}}\n")
    return folder


def test_a_label_names_one_of_the_configurations(target: str, configs: Path) -> None:
    written = made(f"{target}:Widgets", f"--config={configs}", "--config-label=example.com/kdp", "--openshift")

    assert container(written)["args"][2:4] == ["--config=/etc/kdp", "--config-label=example.com/kdp"]
    by_kind = {each["kind"]: each for each in written}
    assert by_kind["ConfigMap"]["data"] == {
        "default.yaml": "set: {count: 2}\n",
        "many.yaml": "set: {count: 5}\n",
    }
    # One right, and a token for it.
    assert by_kind["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert by_kind["ClusterRoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "kdp-widgets", "namespace": "kube-system"}
    ]
    assert [each["kind"] for each in written].count("ServiceAccount") == 1
    assert pod(written)["serviceAccountName"] == "kdp-widgets"
    assert pod(written)["automountServiceAccountToken"] is True
    assert {"name": "KDP_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in container(written)[
        "env"
    ]
    assert "annotations" not in written[-1]["spec"]["template"]["metadata"]


def test_files_go_into_a_config_map(target: str, tmp_path: Path) -> None:
    (tmp_path / "kdp.yaml").write_text("poll-interval: 60\nhost-root: /node\nset: {count: 2}\n")
    (tmp_path / "a b.json").write_text("{}")

    *_, config, daemon_set = made(
        f"{target}:Widgets", f"--config={tmp_path}/kdp.yaml", f"--set=file={tmp_path}/a b.json"
    )

    assert config["data"] == {"a-b.json": "{}", "kdp.yaml": "poll-interval: 60\nhost-root: /node\nset: {count: 2}\n"}
    assert container([daemon_set])["args"][2:] == [
        "--set=file=/etc/kdp/a-b.json",
        "--config=/etc/kdp/kdp.yaml",
        "--http=:8080",
    ]
    marks = daemon_set["spec"]["template"]["metadata"]["annotations"]
    (tmp_path / "kdp.yaml").write_text("poll-interval: 61\n")
    *_, changed = made(f"{target}:Widgets", f"--config={tmp_path}/kdp.yaml")
    assert changed["spec"]["template"]["metadata"]["annotations"] != marks


def test_a_file_that_the_configuration_file_names_goes_along(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was named as before, where the container has nothing."""
    (tmp_path / "kdp.yaml").write_text("set: {file: f.json, count: 2}\n")
    (tmp_path / "f.json").write_text("{}")
    monkeypatch.chdir(tmp_path)

    *_, config, daemon_set = made(f"{target}:Widgets", "--config=kdp.yaml")

    assert config["data"].keys() == {"kdp.yaml", "f.json"}
    assert container([daemon_set])["args"][2:4] == ["--set=file=/etc/kdp/f.json", "--config=/etc/kdp/kdp.yaml"]
    result = invoke("widgets.py:Widgets", "--format=systemd", "--config=kdp.yaml", "--executable=/opt/kdp")
    assert f" --set=file={tmp_path}/f.json --config={tmp_path}/kdp.yaml\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([":Widgets"], "--image is missing; expected the container's image"),
        (
            [":Widgets", "--image=i", "--format=kustomize"],
            "--format kustomize writes several files; name a directory",
        ),
        (
            [":Widgets", "--image=i", "--node-selector=wid get"],
            "--node-selector: 'wid get' must be LABEL=VALUE, LABEL!=VALUE",
        ),
        ([":Widgets", "--image=i", "--set=cuont=1"], "--set cuont: there is no parameter 'cuont'"),
        ([":Widgets", "--image=i", "--set=file={}/broken"], "broken: cannot be put into a ConfigMap"),
        (
            [":Widgets", "--image=i", "--set=file={}/pipe"],
            "pipe: it is a pipe, which only this command can read; give a",
        ),
        ([":Widgets", "--image=i", "--set=file={}/huge"], "files of more than 900000 bytes fit in no ConfigMap: huge"),
        ([":Widgets", "--image=i", "-o", "{}/none/at.yaml"], "at.yaml: cannot be written (No such file or directory)"),
        ([":Wrong", "--image=i"], "Wrong.needs returned {'host_paths': ['/sys']}; expected a kdp.Needs"),
        ([":Broken", "--image=i"], "Broken.needs raised OSError: no such card; expected a kdp.Needs"),
    ],
)
def test_what_is_given_wrong_is_one_sentence(target: str, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "broken").write_bytes(b"\xff\xfe")
    (tmp_path / "huge").write_text("x" * 900_001)
    os.mkfifo(tmp_path / "pipe")

    result = invoke(f"{target}{arguments[0]}", *(each.replace("{}", str(tmp_path)) for each in arguments[1:]))

    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if "kdp manifests: warning: " not in line]
    assert line.startswith("kdp manifests: ")
    assert sentence in line


def test_its_head_says_how_it_was_made_but_not_where_it_was_put(target: str, tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    result = invoke(f"{target}:Widgets", "--output", out, "--image", "i", "--set", "count=2")

    assert result.exit_code == 0, result.output
    head = out.read_text().splitlines()[0]
    assert head == f"# Written by: kdp manifests {target}:Widgets --image i --set count=2"


@pytest.mark.parametrize("kind", ["yaml", "systemd"])
def test_a_newline_in_an_argument_does_not_leave_the_head(target: str, kind: str) -> None:
    given = "--set=file=/a\nb\x85c\u2028d'\\"

    result = invoke(f"{target}:Widgets", "--image=i", f"--format={kind}", given)

    assert result.exit_code == 0, result.output
    head, *rest = result.stdout.splitlines()
    assert head.endswith(rf"--format={kind} $'--set=file=/a\x0ab\xc2\x85c\xe2\x80\xa8d\'\\'")
    assert rest[0] == "# The process is given:"
    words = head.removeprefix("# Written by: kdp manifests ")
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    assert os.fsdecode(done.stdout).split("\0")[-2] == given
    if kind == "yaml":
        assert given in container(list(yaml.safe_load_all(result.stdout)))["args"]


GOLDEN = sorted(path for path in ROOT.glob("examples/*/manifests/*") if path.is_file())


@pytest.mark.repository
@pytest.mark.parametrize("file", GOLDEN, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_what_an_example_ships_is_what_its_first_line_writes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KDP_WRITE_MANIFESTS=1 writes them anew."""
    monkeypatch.chdir(file.parents[1])
    command = file.read_text().splitlines()[0].removeprefix("# Written by: kdp ")

    result = CliRunner().invoke(kdp, shlex.split(command))

    assert result.exit_code == 0, result.output
    if os.environ.get("KDP_WRITE_MANIFESTS"):
        file.write_text(result.stdout)
    assert file.read_text() == result.stdout


# -- a device plugin that speaks to the API server ---------------------------------------------------------------------


def rights(documents: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    [role] = [each for each in documents if each["kind"] == "ClusterRole"]
    return {(each["resources"][0], *each["verbs"]) for each in role["rules"]}


@pytest.mark.parametrize(
    ("arguments", "expected", "policies"),
    [
        (("--events=on",), {("events", "create", "patch"), ("pods", "get")}, ["kdp-widgets-events"]),
        (("--on-unhealthy=evict",), {("pods", "get"), ("pods/eviction", "create"), ("nodes", "get")}, []),
        (("--startup-taint=a/b",), {("nodes", "get", "patch")}, ["kdp-widgets-node"]),
    ],
)
def test_a_plugin_has_the_rights_that_its_settings_need(
    target: str, arguments: tuple[str, ...], expected: set[tuple[str, ...]], policies: list[str]
) -> None:
    documents = made(f"{target}:Widgets", *arguments)
    kinds = [each["kind"] for each in documents]
    assert rights(documents) == expected
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy"] == policies
    assert kinds.index("ServiceAccount") < kinds.index("ClusterRole"), "the rights come after what narrows them"
    spec = documents[-1]["spec"]
    pod = spec["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("kdp-widgets", True)
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%", "maxSurge": 0}
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container(documents)["env"][1:]}
    assert fields == {"POD_NAMESPACE": "metadata.namespace", "KDP_NODE_NAME": "spec.nodeName"}


# -- DRA ---------------------------------------------------------------------------------------------------------------

RIGHTS = (
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
)
"""What a driver's account is, and what it may write."""


def test_a_driver_has_an_account_its_policy_and_a_class(target: str) -> None:
    documents = made(f"{target}:Widgets", "--mode=dra", "--namespace=devices")

    assert [each["kind"] for each in documents] == [
        *RIGHTS[:3],
        *RIGHTS[1:],
        "DeviceClass",
        "NetworkPolicy",
        "DaemonSet",
    ]
    assert documents[7]["metadata"]["name"] == "widget.example.com"
    assert "extendedResourceName" not in documents[7]["spec"]
    rights = {(each["resources"][0], *each["verbs"]) for each in documents[5]["rules"]}
    assert rights == {
        ("resourceslices", "list", "watch", "create", "update", "delete"),
        ("resourceclaims", "get"),
        ("nodes", "get"),
        ("events", "create"),
    }
    pod = documents[-1]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == documents[0]["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is True
    assert documents[-1]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": "10%"}
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container(documents)["env"][1:]}
    assert fields == {
        "POD_NAMESPACE": "metadata.namespace",
        "KDP_NODE_NAME": "spec.nodeName",
        "KDP_POD_UID": "metadata.uid",
    }
    assert "--mode=dra" in container(documents)["args"]
    assert not [each for each in container(documents)["args"] if "node-name" in each]


@pytest.mark.parametrize(
    ("options", "policies"),
    [
        ((), ["kdp-widgets", "kdp-widgets-events"]),
        (("--device-status=on",), ["kdp-widgets", "kdp-widgets-events", "kdp-widgets-claims"]),
        (("--pool=fabric", "--device-status=on"), ["kdp-widgets-events", "kdp-widgets-claims"]),
    ],
)
def test_whatever_a_driver_may_write_has_a_policy(target: str, options: tuple[str, ...], policies: list[str]) -> None:
    documents = made(f"{target}:Widgets", "--mode=dra", *options)
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy"] == policies


@pytest.mark.parametrize(
    ("options", "is_mounted"),
    [((), True), (("--pool=fabric",), False), (("--pool=fabric", "--metrics=pods"), True)],
)
def test_a_driver_of_a_node_asks_which_pods_a_device_plugin_left(
    target: str, options: tuple[str, ...], is_mounted: bool
) -> None:
    """A drain leaves the pods of DaemonSets, and the driver gave their devices to claims. A pool had no plugin."""
    documents = made(f"{target}:Widgets", "--mode=dra", *options)

    mounted = {each["mountPath"]: each for each in container(documents)["volumeMounts"]}
    assert ("/var/lib/kubelet/pod-resources" in mounted) == is_mounted
    assert mounted.get("/var/lib/kubelet/pod-resources", {"readOnly": True})["readOnly"] is True


def test_a_driver_is_given_the_resource_that_it_replaces(target: str) -> None:
    documents = made(f"{target}:Widgets", "--mode=dra", "--replaces=other.com/card")
    assert "--replaces=other.com/card" in container(documents)["args"]


def test_a_pools_controller_is_one_pod_that_may_write_slices_of_no_node(target: str) -> None:
    documents = made(f"{target}:Widgets", "--mode=dra-controller", "--pool=fabric", "--pool-nodes=example.com/fabric=a")

    assert [each["kind"] for each in documents] == [
        *RIGHTS,
        "NetworkPolicy",
        "Deployment",
    ]
    assert {each["metadata"]["name"] for each in documents} == {"kdp-widgets-controller"}
    [rule] = documents[3]["rules"]
    assert (rule["resources"], rule["verbs"]) == (
        ["resourceslices"],
        ["list", "watch", "create", "update", "delete"],
    )
    expressions = [each["expression"] for each in documents[1]["spec"]["validations"]]
    assert expressions == [
        "variables.sliceNode == ''",
        "variables.slicePool == 'fabric'",
        "variables.sliceDriver == 'widget.example.com'",
    ]
    spec = documents[-1]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    assert [each["name"] for each in pod["volumes"]] == ["run"]
    assert "tolerations" not in pod
    assert container(documents)["securityContext"]["runAsNonRoot"] is True
    assert [each["name"] for each in container(documents)["env"]] == ["KDP_SOCKET"]
    assert {"--mode=dra-controller", "--pool=fabric", "--pool-nodes=example.com/fabric=a"} <= {
        *container(documents)["args"]
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--mode=dra-controller",), "--mode dra-controller needs the pool's name; give one, as --pool fabric"),
        (("--mode=dra", "--pool=a", "--pool-nodes=b=c"), "--pool-nodes: only a pool's controller has it"),
        (("--pool=a",), "--pool: only a DRA driver has it"),
        (("--extended-resource",), "a device plugin's resource is one already; leave it out, or say --mode dra"),
        (
            ("--mode=dra", "--format=systemd"),
            "known to the API server by its pod's account; expected yaml or kustomize",
        ),
    ],
)
def test_what_makes_no_sense_with_the_mode_is_refused(target: str, arguments: tuple[str, ...], sentence: str) -> None:
    result = invoke(f"{target}:Widgets", "--image=i", *arguments)

    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_unit_whose_configuration_a_label_names_never_started(target: str, tmp_path: Path) -> None:
    """Nothing gave it the node's name, and it has no account to read labels with."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/default.yaml").write_text("set: {count: 1}\n")
    given = (f"--config={tmp_path}/configs", "--config-label=example.com/kdp", "--format=systemd")
    result = invoke(f"{target}:Widgets", *given)
    assert result.exit_code == 2
    assert "--format systemd: --config-label reads the node's labels by its pod's account" in result.stderr


@pytest.mark.parametrize("kind", ["kustomize", "helm"])
def test_a_directory_of_other_files_was_written_into_silently(target: str, tmp_path: Path, kind: str) -> None:
    base = tmp_path / "base"
    words = (f"{target}:Widgets", "--image=i", f"--format={kind}", "-o", base)
    base.mkdir()
    assert invoke(*words).exit_code == 0
    assert invoke(*words).exit_code == 0, "what it wrote itself may be renewed"

    refused = invoke(*words[:-1], tmp_path)
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"kdp manifests: --output {tmp_path}: the directory has files that kdp manifests did not write; "
        "name a new directory\n"
    )
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".yaml"] == []


@pytest.mark.parametrize(("kind", "warns"), [("yaml", True), ("systemd", False)])
def test_an_image_must_have_the_file_that_a_target_names(target: str, kind: str, warns: bool) -> None:
    result = invoke(f"{target}:Widgets", "--image=i", f"--format={kind}")
    assert result.exit_code == 0
    warning = (
        f"kdp manifests: warning: {target}:Widgets names a file, so the image must have it at this path, seen from its "
        "working directory; see 'An image of your own plugin' in docs/how-to/deploy.md\n"
    )
    assert result.stderr == (warning if warns else "")


TWO = """
import os
from pathlib import Path
import kdp

HERE = Path(__file__).parent

class Cards(kdp.DeviceBackend):
    resource = "acme.example/card"
    resources = ("acme.example/slot",)
    def __init__(self, root: Path | None = None) -> None: self.root = root
    def discover(self):
        return [kdp.Device(id="c0"), kdp.Device(id="s0", resource="acme.example/slot")]

class Named(kdp.DeviceBackend):
    def discover(self):
        return [kdp.Device(id=name, resource=f"acme.example/{name}") for name in ("a", "b")]

class Linked(Cards):
    def discover(self):
        return [kdp.Device(id="l0", edits=kdp.ContainerEdits.of_node(HERE / "run" / "dsp0"))]
"""


@pytest.fixture
def two(tmp_path: Path) -> str:
    (tmp_path / "two.py").write_text(TWO)
    return f"{tmp_path}/two.py"


def device_classes(*arguments: str | Path) -> dict[str, dict[str, Any]]:
    documents = made(*arguments, "--mode", "dra")
    return {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "DeviceClass"}


def test_a_pod_that_asked_for_a_card_by_a_claim_could_get_a_slot(two: str) -> None:
    """There was one DeviceClass for both resources, with a selector on the driver only."""
    found = device_classes(f"{two}:Cards", "--extended-resource")
    attributes = "device.attributes['card.acme.example']"
    has, driver = f"'resource' in {attributes}", "device.driver == 'card.acme.example'"
    assert found == {
        "card.acme.example": {
            "selectors": [
                {"cel": {"expression": f"{driver} && (!({has}) || {attributes}.resource == 'acme.example/card')"}}
            ],
            "extendedResourceName": "acme.example/card",
        },
        "slot.acme.example": {
            "selectors": [
                {"cel": {"expression": f"{driver} && {has} && {attributes}.resource == 'acme.example/slot'"}}
            ],
            "extendedResourceName": "acme.example/slot",
        },
    }


def test_a_driver_of_one_resource_has_one_class(target: str) -> None:
    assert device_classes(f"{target}:Widgets") == {
        "widget.example.com": {"selectors": [{"cel": {"expression": "device.driver == 'widget.example.com'"}}]}
    }


def test_a_class_whose_devices_all_name_their_resources_has_a_device_class_for_each(two: str) -> None:
    assert list(device_classes(f"{two}:Named", "--driver-name=acme.example")) == ["a.acme.example", "b.acme.example"]


def test_a_chart_has_each_device_class(two: str, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    assert invoke(f"{two}:Cards", "--image=i", "--mode=dra", "--format=helm", "-o", chart).exit_code == 0
    texts = [path.read_text() for path in sorted((chart / "templates").glob("deviceclass*.yaml"))]
    assert ["card.acme.example" in text.split("spec:")[0] for text in texts].count(True) == 1
    assert len(texts) == 2
    assert all(".Values.deviceClass.create" in text for text in texts)


def test_the_target_of_a_link_was_not_mounted(two: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "acme-dsp-0").touch()
    (tmp_path / "run" / "dsp0").symlink_to(tmp_path / "real" / "acme-dsp-0")
    assert mounts(made(f"{two}:Linked")) == {str(tmp_path / "run"), str(tmp_path / "real")}


def test_a_link_that_leads_round_in_a_circle_ended_in_a_traceback(two: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dsp0").symlink_to("dsp0")
    assert mounts(made(f"{two}:Linked")) == {str(tmp_path / "run")}


def test_a_directory_that_a_parameter_names_was_not_mounted(two: str, tmp_path: Path) -> None:
    (tmp_path / "cards").mkdir()
    assert str(tmp_path / "cards") in mounts(made(f"{two}:Cards", f"--set=root={tmp_path}/cards"))
    done = invoke(f"{two}:Cards", "--image=i", f"--set=root={tmp_path}/none")
    assert f"root={tmp_path}/none: nothing is there on this machine; the pod gets it as a directory" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_probes_at_loopback_restarted_the_pod_for_ever(target: str, host: str) -> None:
    done = invoke(f"{target}:Widgets", "--image=i", "--http", f"{host}:8080")
    assert done.exit_code == 2
    assert "the kubelet would restart the pod for ever; give :8080, or choose --probes exec" in done.stderr
    made(f"{target}:Late", "--http", f"{host}:8080")
    made(f"{target}:Widgets", "--http", f"{host}:8080", "--probes", "exec")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])  # noqa: S104
def test_an_address_that_listens_everywhere_had_the_kubelet_ask_its_own_machine(target: str, host: str) -> None:
    """The startup probe never succeeded, and the pod was restarted for ever."""
    probes = container(made(f"{target}:Widgets", "--http", f"{host}:8080"))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "host" not in probes[name]["httpGet"]


def test_a_startup_taint_kept_the_pods_away_that_remove_it(target: str) -> None:
    """Its node stayed closed, and nobody said so."""
    taint = "--startup-taint=example.com/starting"

    def tolerations(*more: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = made(f"{target}:Widgets", taint, *more)[-1]["spec"]["template"]["spec"][
            "tolerations"
        ]
        return found

    starting = {"key": "example.com/starting", "operator": "Exists"}
    assert tolerations("--toleration=example.com/gpu")[1:] == [starting]
    assert tolerations("--toleration=none") == [starting]
    assert tolerations("--toleration=example.com/starting") == [starting]
    assert tolerations() == [{"operator": "Exists"}]


def test_a_resource_that_is_too_long_for_an_attribute_is_selected_without_its_domain(two: str) -> None:
    """What kdp publishes and what the DeviceClass asks for is one and the same."""
    long = "acme.example/" + "a" * 60
    (Path(two.partition(":")[0]).parent / "long.py").write_text(TWO.replace("acme.example/slot", long))
    spec = device_classes(f"{Path(two).parent}/long.py:Cards")[f"{'a' * 60}.acme.example"]
    assert f".resource == '{'a' * 60}'" in spec["selectors"][0]["cel"]["expression"]
    rendered = render_device(Device(id="s", resource=long), {})
    assert rendered["attributes"]["resource"] == {"string": "a" * 60}


def test_without_needs_a_class_that_reads_sys_saw_none_on_the_node(tmp_path: Path) -> None:
    """Its devices have nodes, so that the pod got /dev, and found nothing there."""
    (tmp_path / "cards.py").write_text(
        """
import kdp
from kdp.hardware import Host

class Cards(kdp.DeviceBackend):
    resource = "example.com/card"
    def __init__(self, host: Host) -> None: self.host = host
    def discover(self):
        assert self.host.directory("/sys/class/mem/null").exists
        return [kdp.Device(id="a", edits=kdp.ContainerEdits.of_node("/dev/null"))]
"""
    )
    done = invoke(f"{tmp_path}/cards.py:Cards", "--image=i")
    assert done.exit_code == 0, done.output
    assert "Cards reads /sys, and does not declare it in 'needs'; the pod is given it to read" in done.output
    assert "path: /sys/class" in done.stdout
