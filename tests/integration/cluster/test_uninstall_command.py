"""``kdp uninstall --node-name`` and ``--nodes`` against a simulated API server; a real one is in tests/node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from kdp.daemon.mode_lock import mark_of
from kdp_testkit.dra import objects
from kdp_testkit.dra.server import SimulatedApiServer

from .conftest import Kdp

WIDGET: Final = "example.com/widget"
DRIVER: Final = "widget.example.com"
TAINT: Final = "example.com/starting"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"

PROGRAM: Final = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self):
        return [kdp.Device(id=f"w{i}") for i in range(2)]

class Others(Widgets):
    resource = "example.com/other"
"""


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's directories, short enough for sockets."""
    root = tmp_path_factory.mktemp("n")
    for name in ("kubelet/device-plugins", "cdi", "kdp", "features"):
        (root / name).mkdir(parents=True)
    (root / "widgets.py").write_text(PROGRAM)
    return root


@pytest.fixture
def uninstall(run: Kdp, place: Path) -> Kdp:
    """Run ``kdp uninstall`` on this node."""
    places = (("cdi-dir", "cdi"), ("labels-dir", "features"), ("state-dir", "kdp"))
    kubelet = (("kubelet-root", "kubelet"), ("device-plugin-dir", "kubelet/device-plugins"))
    options = [f"--{name}={place}/{folder}" for name, folder in (*kubelet, *places)]

    async def uninstall(*words: str, code: int = 0) -> str:
        return await run("uninstall", *options, *words, code=code)

    return uninstall


def target(place: Path, name: str = "Widgets") -> str:
    return f"{place}/widgets.py:{name}"


async def make_node(server: SimulatedApiServer, name: str = "node0", number: str = "0", **labels: str) -> None:
    """Make a node as a plugin leaves it: with a resource of the kubelet, and the start-up taint."""
    node = objects.node(name)
    node["metadata"]["labels"] = {"kubernetes.io/hostname": name, **labels}
    node["spec"] = {
        "taints": [{"key": "example.com/keeps", "effect": "NoSchedule"}, {"key": TAINT, "effect": "NoExecute"}]
    }
    amounts = {WIDGET: number, "example.com/served": "0", "cpu": "4"}
    node["status"] = {"capacity": dict(amounts), "allocatable": dict(amounts)}
    fields: dict[str, Any] = {"f:status": {"f:capacity": {f"f:{name}": {} for name in amounts}}}
    node["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}]
    await server.ask("POST", "/api/v1/nodes", node)


async def make_slice(server: SimulatedApiServer, name: str, driver: str = DRIVER, node: str = "node0") -> None:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "w0"}]}
    item = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    await server.ask("POST", SLICES, item)


async def node_of(server: SimulatedApiServer, name: str = "node0") -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Return a node's labels, the keys of its taints, and its capacity; allocatable has the same."""
    node = await server.ask("GET", f"/api/v1/nodes/{name}")
    assert node["status"]["capacity"] == node["status"]["allocatable"]
    taints = [each["key"] for each in node["spec"]["taints"]]
    return node["metadata"]["labels"], taints, node["status"]["capacity"]


async def slices_of(server: SimulatedApiServer) -> list[str]:
    return [each["metadata"]["name"] for each in (await server.ask("GET", SLICES))["items"]]


async def test_afterwards_the_node_is_as_before(
    server: SimulatedApiServer, run: Kdp, uninstall: Kdp, place: Path
) -> None:
    await make_node(server)
    await make_slice(server, "ours")
    await make_slice(server, "others", driver="gpu.example.org")
    await make_slice(server, "elsewhere", node="node1")
    before = await node_of(server)
    await run("node", "label", target(place), "--node", "node0")
    await run("node", "label", target(place, "Others"), "--node", "node0")
    words = (target(place), "--node-name", "node0", "--startup-taint", TAINT)
    lines = [
        "node/node0 example.com/widget.count (label): {}",
        f"node/node0 {TAINT} (start-up taint): {{}}",
        f"node/node0 {WIDGET} (resource, of which it has 0): {{}}",
        f"resourceslice/ours (slice of the driver {DRIVER} on node0): {{}}",
    ]

    tried = await uninstall(*words, "--dry-run", code=3)

    told = [line for line in tried.splitlines() if not line.endswith("if it is empty then")]
    assert told == [line.format("would be removed") for line in lines]
    labels, taints, capacity = await node_of(server)
    assert ("example.com/widget.count" in labels, TAINT in taints, WIDGET in capacity) == (True, True, True)
    done = await uninstall(*words)
    assert [line for line in done.splitlines() if str(place) not in line] == [line.format("removed") for line in lines]
    labels, taints, capacity = await node_of(server)
    assert labels == {**before[0], "example.com/other.count": "2"}
    assert taints == ["example.com/keeps"]
    assert capacity == {"cpu": "4", "example.com/served": "0"}
    assert await slices_of(server) == ["elsewhere", "others"]
    assert (await uninstall(*words, "--dry-run")).startswith("nothing of kdp is left in ")
    # Labels of what was not named stay; without any name, all labels that kdp has put there go.
    await uninstall("--node-name", "node0", "--resource", WIDGET)
    assert (await node_of(server))[0] == labels
    await uninstall("--node-name", "node0")
    assert (await node_of(server))[0] == before[0]


async def test_nothing_is_asked_of_the_api_server_unless_a_node_is_named(
    server: SimulatedApiServer, uninstall: Kdp, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_node(server)
    monkeypatch.setenv("KDP_NODE_NAME", "node0")
    asked: list[str] = []
    answer = server.api.answer

    def counting(request: Any) -> Any:
        asked.append(request.path)
        return answer(request)

    monkeypatch.setattr(server.api, "answer", counting)
    monkeypatch.setenv("KDP_STARTUP_TAINT", TAINT)
    await uninstall(target(place))
    assert asked == []
    for words in (("--resource", WIDGET), ("--startup-taint", TAINT)):
        refused = await uninstall(*words, code=2)
        assert f"{words[0]} names what the API server has of a node; give --node-name or --nodes" in refused
    wrong = await uninstall("--node-name", "node0", "--startup-taint", "no key", code=2)
    assert "--startup-taint: 'no key' is refused" in wrong
    await uninstall("--node-name", "node0")
    assert TAINT not in (await node_of(server))[1]


async def test_nodes_are_selected_and_files_of_this_machine_are_left_alone(
    server: SimulatedApiServer, uninstall: Kdp, place: Path
) -> None:
    for name in ("node0", "node1"):
        await make_node(server, name, **{"example.com/gpu": "true"})
    await make_node(server, "node2")
    await make_slice(server, "there", node="node1")
    lock = place / "kdp/example.com_served.device-plugin.lock"
    lock.touch()

    words = ("--resource", WIDGET, "--driver-name", DRIVER)
    said = await uninstall(*words, "--nodes", "example.com/gpu=true")

    assert [line.split(":")[0] for line in said.splitlines()] == [
        f"node/node0 {WIDGET} (resource, of which it has 0)",
        f"node/node1 {WIDGET} (resource, of which it has 0)",
        f"resourceslice/there (slice of the driver {DRIVER} on node1)",
    ]
    assert lock.exists()
    assert [WIDGET in (await node_of(server, f"node{i}"))[2] for i in range(3)] == [False, False, True]
    await uninstall(*words, "--nodes", "all")
    assert WIDGET not in (await node_of(server, "node2"))[2]
    none = await uninstall(*words, "--nodes", "example.com/gpu=false", code=2)
    assert "--nodes example.com/gpu=false: no node of the cluster has such labels" in none
    both = await uninstall(*words, "--nodes", "all", "--node-name", "node0", code=2)
    assert "two answers to which nodes are meant" in both


async def test_what_may_be_served_stays(server: SimulatedApiServer, uninstall: Kdp, place: Path) -> None:
    """The kubelet's number is no zero, and a pod of the driver runs; --force removes them all the same."""
    await make_node(server, number="2")
    await make_slice(server, "ours")
    volumes = [{"name": "driver", "hostPath": {"path": f"/var/lib/kubelet/plugins/{DRIVER}"}}]
    spec = {"nodeName": "node0", "containers": [{"name": "driver"}], "volumes": volumes}
    pod = {"metadata": {"name": "driver-x", "namespace": "kube-system"}, "spec": spec, "status": {"phase": "Running"}}
    await server.ask("POST", "/api/v1/namespaces/kube-system/pods", {"apiVersion": "v1", "kind": "Pod", **pod})
    lock = place / f"kdp/example.com_widget{mark_of(place / 'kubelet')}.dra.lock"
    lock.touch()
    words = (target(place), "--node-name", "node0")

    said = await uninstall(*words, code=1)

    assert "node node0 has 2 of it from its kubelet, so a device plugin serves it, or did so less than five" in said
    assert "pod kube-system/driver-x has the driver's directory, so the driver may run" in said
    assert "look again" not in said
    assert (await node_of(server))[2][WIDGET] == "2"
    assert await slices_of(server) == ["ours"]
    assert not lock.exists(), "files that nobody needs go all the same"
    assert (await uninstall(*words, "--dry-run", code=1)).count("removed") == 0
    await uninstall(*words, "--force")
    assert WIDGET not in (await node_of(server))[2]
    assert await slices_of(server) == []
