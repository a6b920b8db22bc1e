"""`DoubleHolders`: devices that a List names for two pods, because the kubelet has given them twice. Sans-IO.

A kubelet up to 1.37 can do that (`kdp.kubelet.list_guard`), and every kubelet that has lost its checkpoint. Containers
of one pod may share a device: an init container hands its devices on. Replicas of a device have different ids.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from ...kubelet.podresources import rival_pods

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...kubelet.podresources import Report

logger = logging.getLogger(__name__)

_Pods = tuple[tuple[str, str], ...]


@final
class DoubleHolders:
    """Remembers these devices until a List names one pod, and logs the beginning and the end."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], _Pods] = {}

    def of(self, resource: str) -> Mapping[str, str]:
        """Return a resource's devices with two pods, each with the names of the pods."""
        return {device_id: _words(pods) for (name, device_id), pods in self._pods.items() if name == resource}

    def listed(self, report: Report, *, is_complete: bool) -> frozenset[str]:
        """Take a List, and return the resources with a change.

        Args:
            report: The List.
            is_complete: Whether the List is complete; otherwise a missing pod may still hold a device.
        """
        found = {key: pods for key, holders in report.holders.items() if (pods := rival_pods(holders))}
        changed = {key for key, pods in found.items() if self._pods.get(key) != pods}
        over = self._pods.keys() - found.keys() if is_complete else set[tuple[str, str]]()
        for resource, device_id in sorted(changed):
            pods = found[resource, device_id]
            namespace, name = pods[-1]
            text = f"the kubelet gave device {device_id} to two pods, {_words(pods)} (kubernetes/kubernetes#137534)"
            remedy = f"no other pod gets it; delete one of the two: kubectl delete pod -n {namespace} {name}"
            extra = {"resource": resource, "device_id": device_id, "pod": f"{namespace}/{name}"}
            logger.error("%s: %s; %s", resource, text, remedy, extra=extra)
        for resource, device_id in sorted(over):
            del self._pods[resource, device_id]
            text = f"device {device_id} is no longer held by two pods"
            logger.info("%s: %s", resource, text, extra={"resource": resource, "device_id": device_id})
        self._pods |= found
        return frozenset(resource for resource, _ in changed | over)


def _words(pods: _Pods) -> str:
    return " and ".join(f"{namespace}/{name}" for namespace, name in pods)
