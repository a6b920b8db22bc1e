"""The DaemonSet and the kustomize base. A real cluster judges them in tests/node/test_manifests.py."""

from __future__ import annotations

from typing import Any

import pytest

from kdp.admin.manifests.deployment import Deployment, Folder
from kdp.admin.manifests.kubernetes import base, daemon_set
from kdp.admin.manifests.placement import Placement
from kdp.daemon.parsers import Address
from kdp.errors import InvalidValueError
from kdp.model.backend import Needs

PLACEMENT = Placement(image="registry.example.com/widgets:1")
FOLDER = Folder(
    name="device-plugins", path="/var/lib/kubelet/device-plugins", seen_at="/d", writable=True, why="sockets"
)


def deployment(**changes: Any) -> Deployment:
    given: dict[str, Any] = {
        "name": "kdp-widgets",
        "target": "widgets",
        "folders": (FOLDER,),
        "http": Address("", 8080),
    }
    return Deployment(**{**given, **changes})


def placement(**changes: Any) -> Placement:
    return Placement(image="i", **changes)


def kustomization(made: Deployment) -> dict[str, Any]:
    (only,) = base(made, PLACEMENT)["kustomization.yaml"]
    return only


def pod(made: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = made[-1]["spec"]["template"]["spec"]
    return spec


def container(made: list[dict[str, Any]]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = pod(made)["containers"]
    (only,) = containers
    return only


def test_it_has_no_privileges_unless_the_backend_asks() -> None:
    security = container(daemon_set(deployment(), PLACEMENT))["securityContext"]

    assert security == {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"type": "spc_t", "level": "s0"},
    }


def test_kubernetes_takes_nothing_of_an_argument_for_a_variable() -> None:
    made = container(daemon_set(deployment(options=("--set=name=$(HOME) and $$",)), PLACEMENT))

    assert made["args"] == ["run", "widgets", "--set=name=$$(HOME) and $$$$"]


def test_only_to_open_a_node_it_is_privileged_as_the_api_takes_it() -> None:
    security = container(daemon_set(deployment(needs=Needs(opened_nodes=("/dev/hwrng",))), PLACEMENT))[
        "securityContext"
    ]

    assert security == {"runAsUser": 0, "readOnlyRootFilesystem": True, "privileged": True}
    brought = container(daemon_set(deployment(needs=Needs(injected_nodes=("/dev/card",))), PLACEMENT))[
        "securityContext"
    ]
    assert "privileged" not in brought


def test_the_probes_ask_where_it_answers() -> None:
    made = container(daemon_set(deployment(http=Address("127.0.0.1", 9)), PLACEMENT))

    assert made["ports"] == [{"name": "http", "containerPort": 9}]
    assert made["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http", "host": "127.0.0.1"}
    assert made["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "host": "127.0.0.1"}


def test_anybody_in_the_cluster_reached_the_port() -> None:
    policy = daemon_set(deployment(), PLACEMENT)[0]

    assert policy["spec"] == {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kdp-widgets"}},
        "policyTypes": ["Ingress"],
    }
    # It would do nothing there: the port is on loopback.
    in_the_nodes = daemon_set(deployment(needs=Needs(host_network=True)), PLACEMENT)
    assert [each["kind"] for each in in_the_nodes] == ["DaemonSet"]
    assert kustomization(deployment())["resources"] == ["network-policy.yaml", "daemonset.yaml"]
    assert [each["kind"] for each in daemon_set(deployment(), placement(network_policy=False))] == ["DaemonSet"]


def test_prometheus_may_reach_the_port_from_its_namespace() -> None:
    policy = daemon_set(deployment(), placement(metrics_from="monitoring"))[0]

    assert policy["spec"]["ingress"] == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "ports": [{"port": "http", "protocol": "TCP"}],
        }
    ]


def test_what_is_read_only_is_so_below_mounts_too() -> None:
    read = Folder(name="node-dev", path="/dev", seen_at="/host/dev", why="look at device nodes")
    mounts = {
        each["name"]: each
        for each in container(daemon_set(deployment(folders=(FOLDER, read)), PLACEMENT))["volumeMounts"]
    }

    assert mounts["node-dev"]["readOnly"] is True
    assert mounts["node-dev"]["recursiveReadOnly"] == "IfPossible"
    assert not {"readOnly", "recursiveReadOnly"} & mounts["device-plugins"].keys()
    assert not any("mountPropagation" in mount for mount in mounts.values())


def test_a_directory_of_which_later_mounts_are_seen_is_not_read_only_below_them() -> None:
    """The API server refuses both at once."""
    read = Folder(name="node-run", path="/run/nvidia", seen_at="/host/run/nvidia", why="the driver")
    made = daemon_set(deployment(folders=(FOLDER, read)), placement(propagation="host-to-container"))

    mounts = {each["name"]: each for each in container(made)["volumeMounts"]}
    assert mounts["node-run"] == {
        "name": "node-run",
        "mountPath": "/host/run/nvidia",
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }
    assert mounts["device-plugins"] == {"name": "device-plugins", "mountPath": "/d"}


@pytest.mark.parametrize("probing", ["http", "exec"])
def test_each_probe_has_a_timeout_and_liveness_waits_for_the_start(probing: Any) -> None:
    made = container(daemon_set(deployment(probing=probing), PLACEMENT))

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert made[probe]["timeoutSeconds"] == 5
    startup, liveness = made["startupProbe"], made["livenessProbe"]
    asks = "httpGet" if probing == "http" else "exec"
    assert startup[asks] == liveness[asks]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 120


def test_a_charts_constraints_of_openshift_had_their_labels_twice() -> None:
    """The account and the constraints shared one object, and the chart adds its labels to the object of each."""
    account, constraints = daemon_set(deployment(), placement(openshift=True, network_policy=False))[:2]
    assert account["metadata"]["labels"] is not constraints["metadata"]["labels"]


def test_openshift_gives_the_pod_what_it_has_and_no_more() -> None:
    account, constraints = daemon_set(deployment(), placement(openshift=True, network_policy=False))[:2]

    assert account["kind"] == "ServiceAccount"
    assert account["automountServiceAccountToken"] is False
    assert pod(daemon_set(deployment(), placement(openshift=True)))["serviceAccountName"] == "kdp-widgets"
    assert constraints["users"] == ["system:serviceaccount:kube-system:kdp-widgets"]
    assert constraints["allowHostDirVolumePlugin"] is True
    assert constraints["seLinuxContext"]["seLinuxOptions"] == {"type": "spc_t", "level": "s0"}
    denied = ("allowHostNetwork", "allowHostPID", "allowHostPorts", "allowPrivilegedContainer", "allowHostIPC")
    assert not any(constraints[each] for each in denied)
    needs = Needs(host_network=True, capabilities=("NET_ADMIN",))
    wide = daemon_set(deployment(needs=needs), placement(openshift=True))[1]
    assert wide["allowHostNetwork"] is True
    assert wide["allowedCapabilities"] == ["NET_ADMIN"]
    opens = daemon_set(deployment(needs=Needs(opened_nodes=("/dev/hwrng",))), placement(openshift=True))[1]
    assert opens["allowPrivilegedContainer"] is True
    assert "openshift.yaml" in base(deployment(), placement(openshift=True))


@pytest.mark.parametrize(
    ("name", "namespace", "image", "sentence"),
    [
        ("Kdp_Widgets", "a", "i", "name 'Kdp_Widgets': must be at most 63 small letters"),
        ("kdp", "a", "my image", "image 'my image': must be a reference without spaces"),
    ],
)
def test_what_the_api_would_refuse_is_refused_here(name: str, namespace: str, image: str, sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        daemon_set(deployment(name=name), Placement(image=image, namespace=namespace))
