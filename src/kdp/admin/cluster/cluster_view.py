"""The devices of a cluster: for each node and extended resource how many there are, can be had, and are asked for.

Nodes, pods, and slices come one by one, and only figures are kept, so that 10,000 pods cost little memory. Without I/O.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...cluster.nodes import is_ready, items, mounts, part
from ...errors import InvalidValueError
from ...model.quantities import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ...cluster.api import Object

_PLUGINS: Final = "/device-plugins"
_WATCHER: Final = "/plugins_registry"
"""How directories end that only plugins of a kubelet mount; a DRA driver needs the second one only."""

_KDP: Final = "kdp"
_VARIABLES: Final = "KDP_"
"""Each container of `kdp manifests` has the command, and a variable that begins so."""

_VERSION: Final = "app.kubernetes.io/version"
ANYWHERE: Final = "*"
"""Stands for the node of a pool that is no node's own."""


@final
@attrs.frozen(kw_only=True)
class PluginPod:
    """A pod that is a plugin of a kubelet, by the directories of the node that it mounts.

    Attributes:
        namespace: Its namespace.
        pod: Its name.
        owner: The DaemonSet, or what else has made it; empty: nothing.
        image: Of its first container.
        version: What its label ``app.kubernetes.io/version`` says, else its image's tag; empty: unknown.
        is_ready: Whether it is ready.
        is_driver: Whether it can be a DRA driver only, and no device plugin.
        is_kdp: Whether the command ``kdp`` is in its container.
    """

    namespace: str
    pod: str
    owner: str
    image: str
    version: str
    is_ready: bool
    is_driver: bool
    is_kdp: bool

    @property
    def name(self) -> str:
        """The DaemonSet's name; of a pod without one, the pod's."""
        return self.owner or self.pod

    @property
    def title(self) -> str:
        """Name and version, in short."""
        return f"{self.name}:{self.version}" if self.version else self.name


@final
@attrs.frozen(kw_only=True)
class ResourceRow:
    """One resource of one node.

    Attributes:
        node: The node.
        resource: The resource.
        capacity: Devices, unhealthy ones included.
        allocatable: Devices that pods can have.
        requested: Devices that pods on the node ask for that have not ended.
        is_node_ready: Whether the node is ready.
        is_unserved: Whether no new pod gets any because no device plugin is ready on the node. The kubelet counts so
            for five minutes after a plugin has ended. It says nothing of the devices, and pods keep those that they
            have.
    """

    node: str
    resource: str
    capacity: int
    allocatable: int
    requested: int
    is_node_ready: bool
    is_unserved: bool

    @property
    def unhealthy(self) -> int:
        """Devices that their plugin keeps from new pods."""
        return 0 if self.is_unserved else max(0, self.capacity - self.allocatable)


@final
@attrs.define(kw_only=True)
class PoolRow:
    """The devices that one DRA driver publishes in one pool of one node.

    Attributes:
        node: The node; `ANYWHERE`: the pool is no node's own.
        driver: The driver.
        pool: The pool.
        slices: ResourceSlices.
        devices: Devices in them.
        tainted: Devices with a taint, as unhealthy ones have.
    """

    node: str
    driver: str
    pool: str
    slices: int = 0
    devices: int = 0
    tainted: int = 0


@final
@attrs.frozen(kw_only=True)
class PluginCount:
    """The pods of one plugin and version, on all nodes.

    Attributes:
        owner: The DaemonSet; of a pod without one, the pod.
        version: Its version; empty: unknown.
        nodes: Nodes that have such a pod.
        ready: Nodes where one is ready.
    """

    owner: str
    version: str
    nodes: int
    ready: int


@attrs.define
class _Node:
    is_ready: bool
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]


@final
class ClusterView:
    """Collects what nodes, pods, and slices say.

    Args:
        patterns: Shell patterns of resources and drivers that are wanted; none: all.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._wanted: Callable[[str], bool] = lambda name: (
            not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        )
        self._nodes: dict[str, _Node] = {}
        self._requested: dict[tuple[str, str], int] = {}
        self._pools: dict[tuple[str, str, str], PoolRow] = {}
        self._plugins: dict[str, list[PluginPod]] = {}

    # -- what is told --------------------------------------------------------------------------------------------------

    def add_node(self, node: Object) -> None:
        """Take a node."""
        status = part(node, "status")
        self._nodes[node["metadata"]["name"]] = _Node(
            is_ready=is_ready(node),
            capacity=self._amounts(status, "capacity"),
            allocatable=self._amounts(status, "allocatable"),
        )

    def add_pod(self, pod: Object) -> None:
        """Take a pod that is on a node and has not ended."""
        node = pod["spec"].get("nodeName") or ""
        for resource, count in requests_of(pod["spec"]).items():
            if self._wanted(resource):
                key = node, resource
                self._requested[key] = self._requested.get(key, 0) + count
        if (plugin := plugin_pod(pod)) is not None:
            self._plugins.setdefault(node, []).append(plugin)

    def add_slice(self, item: Object) -> None:
        """Take a ResourceSlice."""
        spec = item["spec"]
        if not self._wanted(spec["driver"]):
            return
        key = spec.get("nodeName") or ANYWHERE, spec["driver"], spec["pool"]["name"]
        pool = self._pools.setdefault(key, PoolRow(node=key[0], driver=key[1], pool=key[2]))
        devices = items(spec, "devices")
        pool.slices += 1
        pool.devices += len(devices)
        pool.tainted += sum(bool(device.get("taints")) for device in devices)

    # -- what follows --------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self._nodes)

    def resources(self) -> Iterator[ResourceRow]:
        """Yield the resources, by node. One that only pods ask for is not there any more, and has none."""
        asked: dict[str, set[str]] = {}
        for name, resource in self._requested:
            asked.setdefault(name, set()).add(resource)
        for name, node in sorted(self._nodes.items()):
            is_served = any(each.is_ready and not each.is_driver for each in self._plugins.get(name, ()))
            for resource in sorted({*node.capacity, *node.allocatable, *asked.get(name, ())}):
                capacity, allocatable = node.capacity.get(resource, 0), node.allocatable.get(resource, 0)
                yield ResourceRow(
                    node=name,
                    resource=resource,
                    capacity=capacity,
                    allocatable=allocatable,
                    requested=self._requested.get((name, resource), 0),
                    is_node_ready=node.is_ready,
                    is_unserved=capacity > 0 and allocatable == 0 and not is_served,
                )

    def pools(self) -> Sequence[PoolRow]:
        """Return the pools of DRA drivers, by node and driver."""
        return [self._pools[key] for key in sorted(self._pools)]

    def plugins(self, node: str) -> Sequence[PluginPod]:
        """Return the plugins' pods of a node."""
        return sorted(self._plugins.get(node, ()), key=lambda each: (each.owner, each.pod))

    def plugin_counts(self) -> Sequence[PluginCount]:
        """Return on how many nodes each plugin is, by name and version."""
        there: dict[tuple[str, str], set[str]] = {}
        ready: dict[tuple[str, str], set[str]] = {}
        for node, plugins in self._plugins.items():
            for plugin in plugins:
                key = plugin.name, plugin.version
                there.setdefault(key, set()).add(node)
                if plugin.is_ready:
                    ready.setdefault(key, set()).add(node)
        return [
            PluginCount(owner=key[0], version=key[1], nodes=len(there[key]), ready=len(ready.get(key, ())))
            for key in sorted(there)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all of it, JSON-like."""
        return {
            "nodes": self.nodes,
            "resources": [{**attrs.asdict(row), "unhealthy": row.unhealthy} for row in self.resources()],
            "pools": [attrs.asdict(row) for row in self.pools()],
            "plugins": [
                {"node": node, **attrs.asdict(plugin)}
                for node in sorted(self._plugins)
                for plugin in self.plugins(node)
            ],
        }

    def _amounts(self, status: Mapping[str, Any], amounts: str) -> dict[str, int]:
        held = part(status, amounts)
        return {name: _whole(text) for name, text in held.items() if is_extended(name) and self._wanted(name)}


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one, and none of Kubernetes' own."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return what a pod asks for of extended resources, as the scheduler counts it.

    Containers and sidecars run together, and init containers one after another before them. A pod holds the most of
    both. Source: ``PodRequests`` in ``k8s.io/component-helpers/resource``.
    """
    running = _sum(_requests(each) for each in items(spec, "containers"))
    most: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for each in items(spec, "initContainers"):
        asked = _requests(each)
        if each.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, asked))
            most = _most(most, sidecars)
        else:
            most = _most(most, _sum((sidecars, asked)))
    return {name: count for name, count in _most(_sum((running, sidecars)), most).items() if count}


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    # Of an extended resource request and limit are equal; a limit alone is both.
    asked: Mapping[str, Any] = {**part(container, "resources", "limits"), **part(container, "resources", "requests")}
    return {name: _whole(amount) for name, amount in asked.items() if is_extended(name)}


def _sum(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in amounts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def _most(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}


def _whole(amount: object) -> int:
    """Return a number of devices; what is none counts as none."""
    text = str(amount)
    if text.isascii() and text.isdigit():
        return int(text[:20])
    try:
        return int(Quantity(text).value)
    except InvalidValueError:
        return 0


def plugin_pod(pod: Object) -> PluginPod | None:
    """Return what is known of a plugin's pod; None: the pod is none."""
    spec, metadata = part(pod, "spec"), part(pod, "metadata")
    is_plugin = mounts(pod, _PLUGINS)
    if not is_plugin and not mounts(pod, _WATCHER):
        return None
    image: str = next((each.get("image") or "" for each in items(spec, "containers")), "")
    owner: str = next((each.get("name") or "" for each in items(metadata, "ownerReferences")), "")
    return PluginPod(
        namespace=metadata.get("namespace") or "",
        pod=metadata["name"],
        owner=owner,
        image=image,
        version=part(metadata, "labels").get(_VERSION) or _tag(image),
        is_ready=is_ready(pod),
        is_driver=not is_plugin,
        is_kdp=any(map(_has_kdp, items(spec, "containers"))),
    )


def _has_kdp(container: Mapping[str, Any]) -> bool:
    names: list[str] = [each.get("name") or "" for each in items(container, "env")]
    return _KDP in (container.get("command") or ()) or any(name.startswith(_VARIABLES) for name in names)


def _tag(image: str) -> str:
    """Return the tag of an image, or the beginning of its digest; empty: it has neither."""
    name, _, digest = image.partition("@")
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return tag if colon else digest[:19]
