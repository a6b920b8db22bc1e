from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.admin.cluster.cluster_view import ANYWHERE, ClusterView, PluginCount, PoolRow, ResourceRow, requests_of

GPU = "nvidia.com/gpu"


def container(count: object = None, *, limit: object = None, sidecar: bool = False) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if count is not None:
        resources["requests"] = {GPU: count, "cpu": "1"}
    if limit is not None:
        resources["limits"] = {GPU: limit}
    return {"name": "c", "resources": resources, **({"restartPolicy": "Always"} if sidecar else {})}


@pytest.mark.parametrize(
    ("containers", "init", "count"),
    [
        ([container(limit="2")], [], 2),
        ([container("1k")], [], 1000),
        ([container("many")], [], None),
        ([{"name": "c"}], [], None),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_counts(containers: Any, init: Any, count: int | None) -> None:
    assert requests_of({"containers": containers, "initContainers": init}).get(GPU) == count


@pytest.mark.drawn
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6), st.lists(st.integers(0, 9), max_size=4))
def test_a_pod_never_asks_for_less_than_at_any_moment(init: list[tuple[int, bool]], main: list[int]) -> None:
    sidecars, most = 0, 0
    for count, is_sidecar in init:
        sidecars += count if is_sidecar else 0
        most = max(most, sidecars if is_sidecar else sidecars + count)
    most = max(most, sidecars + sum(main))
    spec = {
        "containers": [container(str(count)) for count in main],
        "initContainers": [container(str(count), sidecar=is_sidecar) for count, is_sidecar in init],
    }
    assert requests_of(spec).get(GPU, 0) == most


def node(name: str, capacity: int, allocatable: int, *, ready: bool = True) -> Any:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    status = {"capacity": {GPU: str(capacity), "cpu": "8"}, "allocatable": {GPU: str(allocatable)}}
    return {"metadata": {"name": name}, "status": {**status, "conditions": conditions}}


def pod(name: str, node: str, count: int = 1, **more: Any) -> Any:
    return {
        "metadata": {"name": name, "namespace": "default", **more},
        "spec": {"nodeName": node, "containers": [container(str(count))]},
    }


def plugin(name: str, node: str, image: str, path: str, **labels: str) -> Any:
    return {
        "metadata": {
            "name": name,
            "namespace": "kube-system",
            "labels": labels,
            "ownerReferences": [{"kind": "DaemonSet", "name": name.rpartition("-")[0]}],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "plugin", "image": image}],
            "volumes": [{"emptyDir": {}}, {"hostPath": {"path": path}}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_a_node_has_a_row_for_each_resource() -> None:
    view = ClusterView()
    view.add_node(node("b", 8, 7, ready=False))
    view.add_node(node("a", 4, 4))
    view.add_pod(pod("p", "b", 2))
    view.add_pod(pod("q", "b", 3))
    assert [*view.resources()] == [
        ResourceRow(
            node="a", resource=GPU, capacity=4, allocatable=4, requested=0, is_node_ready=True, is_unserved=False
        ),
        ResourceRow(
            node="b", resource=GPU, capacity=8, allocatable=7, requested=5, is_node_ready=False, is_unserved=False
        ),
    ]
    assert [row.unhealthy for row in view.resources()] == [0, 1]


@pytest.mark.parametrize(
    ("path", "is_unserved"),
    [
        ("/var/lib/kubelet/device-plugins", False),
        ("/var/lib/kubelet/plugins_registry", True),
        ("/var/log", True),
    ],
)
def test_the_devices_of_an_absent_plugin_counted_as_unhealthy(path: str, is_unserved: bool) -> None:
    """So did those of a node that has a DRA driver now."""
    view = ClusterView()
    view.add_node(node("a", 4, 0))
    view.add_pod(plugin("widgets-x7", "a", "widgets:1", path))
    [row] = view.resources()
    assert (row.is_unserved, row.unhealthy) == (is_unserved, 0 if is_unserved else 4)


def test_plugins_are_counted_by_name_and_version() -> None:
    view = ClusterView()
    for name, image in (("a", "w:1"), ("b", "w:2"), ("c", "w:2")):
        view.add_pod(plugin("w-x7", name, image, "/var/lib/kubelet/device-plugins"))
    away = plugin("w-x8", "d", "w:2", "/var/lib/kubelet/device-plugins")
    away["status"] = {}
    view.add_pod(away)
    assert [*view.plugin_counts()] == [
        PluginCount(owner="w", version="1", nodes=1, ready=1),
        PluginCount(owner="w", version="2", nodes=3, ready=2),
    ]


@pytest.mark.parametrize(
    ("image", "labels", "version"),
    [
        ("registry:5000/widgets", {}, ""),
        ("widgets@sha256:0123456789abcdef0123", {}, "sha256:0123456789ab"),
        ("widgets:latest", {"app.kubernetes.io/version": "3"}, "3"),
    ],
)
def test_the_version_of_a_plugin_is_its_label_or_its_images_tag(
    image: str, labels: dict[str, str], version: str
) -> None:
    view = ClusterView()
    view.add_node(node("a", 1, 1))
    view.add_pod(plugin("widgets-x7", "a", image, "/var/lib/kubelet/device-plugins/", **labels))
    [found] = view.plugins("a")
    assert (found.owner, found.version, found.is_ready) == ("widgets", version, True)
    assert found.title == (f"widgets:{version}" if version else "widgets")


def test_a_pod_that_mounts_no_directory_for_plugins_is_none() -> None:
    view = ClusterView()
    view.add_pod(plugin("logs-x7", "a", "logs:1", "/var/log"))
    view.add_pod(plugin("dra-x7", "a", "dra:1", "/var/lib/kubelet/plugins_registry"))
    assert [each.owner for each in view.plugins("a")] == ["dra"]


def test_pools_are_counted_by_node_and_driver() -> None:
    view = ClusterView()
    for devices in ([{"name": "g0"}, {"name": "g1", "taints": [{"key": "k", "effect": "NoSchedule"}]}], [], None):
        view.add_slice(
            {"spec": {"nodeName": "a", "driver": "gpu.nvidia.com", "pool": {"name": "a"}, "devices": devices}}
        )
    view.add_slice({"spec": {"allNodes": True, "driver": "net.example.com", "pool": {"name": "fabric"}}})
    assert [*view.pools()] == [
        PoolRow(node=ANYWHERE, driver="net.example.com", pool="fabric", slices=1, devices=0, tainted=0),
        PoolRow(node="a", driver="gpu.nvidia.com", pool="a", slices=3, devices=2, tainted=1),
    ]
