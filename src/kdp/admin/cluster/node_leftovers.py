"""What kdp has left of nodes in the API server: found, judged, and removed, for ``kdp uninstall --node-name``.

* Labels that ``kdp node label`` has put on a Node. Their field manager says whose they are.
* The start-up taint, whose key an administrator gives.
* The number 0 that a kubelet leaves for a resource whose plugin has vanished. The kubelet owns that field; a number
  that was advertised by hand stays.
* ResourceSlices of a driver on a node. The kubelet deletes them half a minute after a driver has ended, and when it
  starts, so they are left where a kubelet no longer runs, or could not reach the API server.

What is served, or may be, has an obstacle. Each request names the object's UID or tests the value that was judged.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal, final

import attrs

from ...cluster.api import ApiError
from ...cluster.nodes import mounts, nodes, part, running_pods, slices_of, taint_removal
from ...errors import ConfigurationError, sentence
from .extended_resources import MANAGER, is_of_kubelet, withdrawing
from .node_labels import application_of, change_of, managers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ...cluster.api import Object
    from ...cluster.client import KubeApi

_GONE: Final = 404
_CHANGED: Final = (409, 422)


@final
@attrs.frozen(kw_only=True)
class Wanted:
    """What is looked for.

    Attributes:
        managers: The names under which labels were applied; None: all of kdp's.
        taint: The key of the start-up taint; None: none.
        resources: Extended resources.
        drivers: Names of DRA drivers.
    """

    managers: tuple[str, ...] | None = None
    taint: str | None = None
    resources: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


@final
@attrs.frozen(kw_only=True)
class NodeLeftover:
    """Something that kdp has left of a node.

    Attributes:
        node: The node.
        name: What it is called, behind ``node/NAME`` or as ``resourceslice/NAME``.
        what: What it is, in words.
        obstacle: Why it should stay; None: nobody needs it.
        step: How it is removed.
        change: The object to apply, the patch, or the slice.
        manager: Under which name it is applied.
    """

    node: str
    name: str
    what: str
    step: Literal["apply", "patch", "patch-status", "delete"]
    change: Any = attrs.field(repr=False)
    obstacle: str | None = None
    manager: str = ""

    @property
    def path(self) -> str:
        """Where it is, as ``kubectl`` names objects."""
        return self.name if self.step == "delete" else f"node/{self.node} {self.name}"


# -- judging: without I/O ----------------------------------------------------------------------------------------------


def of_node(
    node: Object, wanted: Wanted, *, served_by: Callable[[str], str | None] = lambda _: None, force: bool = False
) -> Iterator[NodeLeftover]:
    """Yield what kdp has left on a Node object.

    Args:
        node: The Node.
        wanted: What is looked for.
        served_by: Returns the running plugin that serves a resource there, in words; None: none is known.
        force: Whether a number is removed, too, that a plugin may still stand behind.
    """
    where: str = node["metadata"]["name"]
    for manager in managers_of(node):
        if wanted.managers is None or manager in wanted.managers:
            for label in change_of(node, {}, manager).removed:
                yield NodeLeftover(
                    node=where,
                    name=label,
                    what="label",
                    step="apply",
                    change=application_of(node, {}),
                    manager=manager,
                )
    if wanted.taint is not None and (patch := taint_removal(node, wanted.taint)):
        taint = ({"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]}, *patch)
        yield NodeLeftover(node=where, name=wanted.taint, what="start-up taint", step="patch", change=taint)
    for resource in wanted.resources:
        if is_of_kubelet(node, resource):
            yield _of_resource(node, resource, served_by(resource), force=force)


def _of_resource(node: Object, name: str, served_by: str | None, *, force: bool) -> NodeLeftover:
    number = part(node, "status", "capacity")[name]
    common: dict[str, Any] = {
        "node": node["metadata"]["name"],
        "name": name,
        "what": f"resource, of which it has {number}",
        "step": "patch-status",
        "manager": MANAGER,
    }
    try:
        change = withdrawing(node, name, served_by=served_by, force=force)
    except ConfigurationError as error:
        return NodeLeftover(**common, change=(), obstacle=str(error).removeprefix(f"{name}: "))
    return NodeLeftover(**common, change=change.patch)


def of_slice(item: Object, pods: Iterable[Object]) -> NodeLeftover:
    """Return a slice as a leftover, with an obstacle if a pod of the driver is on its node."""
    driver: str = item["spec"]["driver"]
    owner = next((each for each in pods if mounts(each, f"/plugins/{driver}")), None)
    why = None
    if owner is not None:
        name = f"{owner['metadata'].get('namespace', '')}/{owner['metadata']['name']}"
        why = f"pod {name} has the driver's directory, so the driver may run: delete its DaemonSet"
    return NodeLeftover(
        node=item["spec"]["nodeName"],
        name=f"resourceslice/{item['metadata']['name']}",
        what=f"slice of the driver {driver} on {item['spec']['nodeName']}",
        step="delete",
        change=item,
        obstacle=why,
    )


# -- asking the API server ---------------------------------------------------------------------------------------------


async def find(
    api: KubeApi,
    wanted: Wanted,
    *,
    node: str | None = None,
    labels: str = "",
    served_by: Callable[[str, str], str | None] = lambda _node, _resource: None,
    force: bool = False,
) -> list[NodeLeftover]:
    """Return what kdp has left of a node, or of the nodes that a label selector means.

    Args:
        api: The API server.
        wanted: What is looked for.
        node: The node; None: those of the selector.
        labels: The label selector; empty: all nodes.
        served_by: Returns the running plugin that serves a resource on a node, in words; None: none is known.
        force: See `of_node`.

    Raises:
        ApiError: Something cannot be read.
        ConfigurationError: No node has such labels.
    """
    found: list[NodeLeftover] = []
    names: set[str] = set()

    def look(item: Object) -> None:
        name: str = item["metadata"]["name"]
        names.add(name)
        found.extend(
            of_node(item, wanted, served_by=lambda resource: served_by(name, resource), force=force),
        )

    if node is not None:
        look(await api.node(node))
    else:
        async with aclosing(nodes(api, labels)) as several:
            async for each in several:
                look(each)
        if labels and not names:
            raise ConfigurationError(
                f"--nodes {labels}: no node of the cluster has such labels; look at them with kubectl get nodes "
                "--show-labels"
            )
    for driver in wanted.drivers:
        found += await _slices(api, driver, names)
    return found


async def _slices(api: KubeApi, driver: str, names: set[str]) -> list[NodeLeftover]:
    try:
        async with aclosing(slices_of(api, driver)) as several:
            found = [each async for each in several if each["spec"].get("nodeName") in names]
    except ApiError as error:
        if error.status == _GONE:  # the server has no DRA
            return []
        raise
    pods: dict[str, list[Object]] = {}
    for name in dict.fromkeys(each["spec"]["nodeName"] for each in found):
        async with aclosing(running_pods(api, name)) as several:
            pods[name] = [each async for each in several]
    return [of_slice(each, pods[each["spec"]["nodeName"]]) for each in found]


async def remove(api: KubeApi, leftovers: Sequence[NodeLeftover]) -> list[tuple[NodeLeftover, str]]:
    """Remove what was found, and return what could not be, with the reason."""
    failed: list[tuple[NodeLeftover, str]] = []
    answers: dict[tuple[str, str], str | None] = {}
    for each in leftovers:
        if each.step != "apply":
            why = await _removed(api, each)
        else:  # one request removes all labels of a manager
            key = (each.node, each.manager)
            if key not in answers:
                answers[key] = await _removed(api, each)
            why = answers[key]
        if why is not None:
            failed.append((each, why))
    return failed


async def _removed(api: KubeApi, each: NodeLeftover) -> str | None:
    """Remove it, and return why not; None: it is gone."""
    try:
        match each.step:
            case "apply":
                application: Mapping[str, Any] = each.change
                await api.apply_node(application, manager=each.manager)
            case "patch":
                await api.patch_node(each.node, each.change)
            case "patch-status":
                await api.patch_node_status(each.node, each.change, manager=each.manager)
            case "delete":
                await api.delete_slice(each.change)
    except ApiError as error:
        if error.status == _GONE:
            return None
        if error.status in _CHANGED:
            return "it has changed meanwhile; look again"
        return sentence(error)
    return None
