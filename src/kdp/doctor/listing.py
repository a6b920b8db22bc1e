"""The question whether the kubelet lists the same devices as the plugin.

The plugin asks the pod-resources API itself, every 30 s. Its answer is taken, because gRPC would take 20 MiB more than
the plugin's container has for this command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .answers import Answer, Question, ok, warning
from .node import some
from .resources import device_plugins, without_device_plugin

if TYPE_CHECKING:
    from .living import KubeletList
    from .node import Node


def same(node: Node) -> Answer | None:
    """Does the kubelet list the same healthy devices as the plugin?"""
    plugins = device_plugins(node)
    if not plugins:
        return without_device_plugin(node)
    # Of another plugin's devices the question about other processes tells, and only that has the right remedy.
    seen = {each.name: each.kubelet_list for plugin in plugins for each in plugin.resources if not each.rival}
    compared = {name: found for name, found in seen.items() if found is not None}
    if not compared:
        return None  # the plugin was started just now, or has no pod-resources API: another question asks for that
    told = [text for name, found in compared.items() for text in _differences(name, found)]
    if told:
        return warning(
            some(told), "restart the kubelet, if the plugin has not mended it within 5 min: systemctl restart kubelet"
        )
    return ok(f"the kubelet listed the same healthy devices at {max(each.at for each in compared.values())}")


def _differences(name: str, found: KubeletList) -> list[str]:
    told: list[str] = []
    since = f" since {found.since}"
    if found.missing:
        told.append(f"{name}: the kubelet does not offer {some(found.missing)}{since}")
    if found.phantom:
        told.append(
            f"{name}: the kubelet offers {some(found.phantom)}{since}, which the plugin does not report as healthy"
        )
    return told


QUESTIONS: Final = (
    Question(
        id="kubelet-list",
        title="Does the kubelet list the same healthy devices as the plugin?",
        why="A kubelet with an old list offers devices that are gone, or hides those that are there.",
        ask=same,
    ),
)
