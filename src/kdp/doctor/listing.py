"""The question whether the kubelet lists the same devices as the plugin. It alone needs gRPC, which takes 20 MiB."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ..errors import PodResourcesError, message_of
from .answers import Answer, Question, not_known, ok, warning
from .node import PATIENCE, some
from .process import free_memory
from .resources import without_device_plugin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .living import Plugin
    from .node import Node

NEEDED: Final = 40 << 20
"""Bytes of the control group that must be free before gRPC is loaded: the kernel may end the plugin instead of us."""

SETTLE: Final = 0.3
"""Seconds before a difference is looked at again: a change takes a moment to arrive at the kubelet."""


def same(node: Node) -> Answer | None:
    """Does the kubelet list the same healthy devices as the plugin?"""
    plugins = _of_plugins(node.answering())
    if not plugins:
        return without_device_plugin(node)
    if not node.paths.pod_resources_socket.is_socket():
        return not_known(f"there is no {node.paths.pod_resources_socket}")
    free = free_memory(node)
    if free is not None and free < NEEDED:
        return not_known(f"only {free >> 20} MiB of memory are free in this container, too few to ask the kubelet")
    try:
        told = _differences(_healthy(plugins), _kubelets(node))
        if told:
            time.sleep(SETTLE)
            told = _differences(_healthy(_of_plugins(node.ask_plugins())), _kubelets(node))
    except PodResourcesError as error:
        return not_known(message_of(error))
    except TimeoutError:
        return not_known(f"the pod-resources API did not answer within {PATIENCE:g} s")
    if told:
        return warning(
            some(told), "restart the plugin's pod; if it lasts, restart the kubelet: systemctl restart kubelet"
        )
    return ok("the kubelet lists the same healthy devices")


def _of_plugins(plugins: Iterable[Plugin]) -> list[Plugin]:
    return [each for each in plugins if each.mode == "device-plugin" and not each.problem and each.is_ready]


def _healthy(plugins: Iterable[Plugin]) -> dict[str, frozenset[str]]:
    """Return the ids of healthy devices by resource, without a resource whose list is cut off."""
    return {
        resource.name: frozenset(each.id for each in resource.listed if each.is_healthy)
        for plugin in plugins
        for resource in plugin.resources
        if len(resource.listed) >= resource.devices
    }


def _kubelets(node: Node) -> Mapping[str, frozenset[str]]:
    import asyncio

    from ..kubelet.podresources import PodResources

    async def ask() -> Mapping[str, frozenset[str]]:
        async with asyncio.timeout(PATIENCE), PodResources(node.paths.pod_resources_socket).connect() as calls:
            return await calls.allocatable()

    return asyncio.run(ask())


def _differences(plugin: Mapping[str, frozenset[str]], kubelet: Mapping[str, frozenset[str]]) -> list[str]:
    told: list[str] = []
    for name, ids in plugin.items():
        theirs = kubelet.get(name, frozenset())
        if missing := sorted(ids - theirs):
            told.append(f"{name}: the kubelet does not offer {some(missing)}")
        if strange := sorted(theirs - ids):
            told.append(f"{name}: the kubelet offers {some(strange)}, which the plugin does not report as healthy")
    return told


QUESTIONS: Final = (
    Question(
        id="kubelet-list",
        title="Does the kubelet list the same healthy devices as the plugin?",
        why="A kubelet with an old list offers devices that are gone, or hides those that are there.",
        ask=same,
    ),
)
