"""`gather`: ask the API server all that the questions need, beside each other, with a bound for time and size.

A plugin's own words come second, because the list of pods names the plugins.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from ....cluster.api import ApiError
from ....cluster.nodes import nodes, part, pods_in, pods_of, resource_slices, waiting_pods
from ....errors import KdpError, sentence
from ..plain import mapping_in, name_of, path_of
from .facts import Listed, NodeFacts, Object, Said
from .pods import ended_containers, of_daemonset, port_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from ....cluster.client import KubeApi

FIRST: Final = 2.0
"""Seconds for the lists."""

ALL: Final = 3.2
"""Seconds for all requests, less than the doctor waits for one answer."""

MOST: Final = 2000
"""Objects of a list that are looked at: eight pages."""

MOST_ASKED: Final = 8
"""Plugins of the node whose own words are read."""

_RESOURCE: Final = "/apis/resource.k8s.io/v1"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_REFUSALS: Final = "involvedObject.kind=DaemonSet,reason=FailedCreate"

_OK: Final = 200

_S = TypeVar("_S")
_T = TypeVar("_T")


async def gather(api: KubeApi, name: str) -> NodeFacts:
    """Return what the API server says about a node; it takes `ALL` seconds at most, and does not fail."""
    loop = asyncio.get_running_loop()
    first, until = loop.time() + FIRST, loop.time() + ALL
    about = f"involvedObject.kind=Node,involvedObject.name={name}"
    async with api:
        asked = {
            "node": _listed(first, "get nodes", _one(api, name)),
            "leases": _listed(first, "list leases", _pages(api, _LEASES, "leases", f"metadata.name={name}")),
            "pods": _listed(first, "list pods", pods_of(api, name)),
            "waiting": _listed(first, "list pods", waiting_pods(api)),
            "events": _listed(first, "list events", _pages(api, "/api/v1/events", "events", about)),
            "offered": _listed(first, "list nodes", _offers(api)),
            "daemonsets": _listed(first, "list daemonsets", _plugin_daemonsets(api)),
            "refusals": _listed(first, "list events", _pages(api, "/api/v1/events", "events", _REFUSALS)),
            "slices": _listed(first, "list resourceslices", resource_slices(api, name)),
            "classes": _listed(first, "list deviceclasses", _pages(api, f"{_RESOURCE}/deviceclasses", "deviceclasses")),
            "claims": _listed(
                first, "list resourceclaims", _pages(api, f"{_RESOURCE}/resourceclaims", "resourceclaims")
            ),
        }
        found: dict[str, Any] = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
        facts = NodeFacts(name=name, now=time.time(), **found)
        plugins = facts.plugins()[:MOST_ASKED]
        siblings, logs, answers = await asyncio.gather(
            _each(
                {plugin.namespace: plugin.namespace for plugin, _ in plugins},
                lambda each: _listed(until, "list pods", pods_in(api, each)),
            ),
            _each(
                {path_of(pod): pod for _, pod in plugins if ended_containers(pod)}, lambda each: _log(api, until, each)
            ),
            _each({path_of(pod): pod for _, pod in plugins if port_of(pod)}, lambda each: _ready(api, until, each)),
        )
    return attrs.evolve(facts, siblings=siblings, logs=logs, answers=answers)


async def _each(subjects: Mapping[str, _S], ask: Callable[[_S], Awaitable[_T]]) -> dict[str, _T]:
    answers = await asyncio.gather(*(ask(each) for each in subjects.values()))
    return dict(zip(subjects, answers, strict=True))


async def _listed(until: float, what: str, found: AsyncGenerator[Object, None]) -> Listed:
    """Return what a list yields, or why not."""
    items: list[Object] = []
    try:
        async with asyncio.timeout_at(until), aclosing(found):
            async for each in found:
                if len(items) == MOST:
                    return Listed(items, is_cut=True)
                items.append(each)
    except TimeoutError:
        return Listed(problem=f"{what}: the API server did not answer in time")
    except KdpError as error:
        return Listed(problem=sentence(error), status=error.status if isinstance(error, ApiError) else 0)
    return Listed(items)


async def _one(api: KubeApi, name: str) -> AsyncGenerator[Object, None]:
    yield await api.node(name)


async def _pages(api: KubeApi, path: str, resource: str, selector: str = "") -> AsyncGenerator[Object, None]:
    async with aclosing(api.pages(path, f"list {resource}", selector)) as pages:
        async for page in pages:
            for each in page:
                yield mapping_in(each)


async def _offers(api: KubeApi) -> AsyncGenerator[Object, None]:
    """Yield the name and capacity of each node. A whole Node takes 20 KB and more."""
    async with aclosing(nodes(api)) as found:
        async for each in found:
            yield {"metadata": {"name": name_of(each)}, "status": {"capacity": part(each, "status", "capacity")}}


async def _plugin_daemonsets(api: KubeApi) -> AsyncGenerator[Object, None]:
    """Yield the DaemonSets of plugins."""
    async with aclosing(_pages(api, _DAEMONSETS, "daemonsets")) as found:
        async for each in found:
            if of_daemonset(each) is not None:
                yield each


async def _log(api: KubeApi, until: float, pod: Object) -> Said:
    """Return the last line of a plugin's container before it ended last."""
    params = {"tailLines": "1", "limitBytes": "4096", "previous": "true", "container": ended_containers(pod)[0]}
    said = await _said(api, until, f"{_path(pod)}/log", f"get pods/log {path_of(pod)}", params)
    return said if said.problem or said.status == _OK else Said(problem=f"the log cannot be read: {said.status}")


async def _ready(api: KubeApi, until: float, pod: Object) -> Said:
    """Return what a plugin answers to ``/readyz``."""
    what = f"get pods/proxy {path_of(pod)}"
    return await _said(api, until, f"{_path(pod)}:{port_of(pod)}/proxy/readyz", what)


async def _said(api: KubeApi, until: float, path: str, what: str, params: Mapping[str, str] | None = None) -> Said:
    try:
        async with asyncio.timeout_at(until):
            status, text = await api.text(path, what, params)
    except TimeoutError:
        return Said(problem=f"{what}: the API server did not answer in time")
    except KdpError as error:
        return Said(problem=sentence(error))
    return Said(text.strip(), status)


def _path(pod: Object) -> str:
    namespace, _, name = path_of(pod).partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
