"""All questions about a node that is seen from outside, and the rights that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import dra, node, pods, resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..answers import Question
    from ..node import Once
    from .facts import NodeFacts

GROUPS: Final[Mapping[str, tuple[Question[Once[NodeFacts]], ...]]] = {
    "The node": node.QUESTIONS,
    "The plugins' pods": pods.QUESTIONS,
    "Resources": resources.QUESTIONS,
    "Dynamic Resource Allocation": dra.QUESTIONS,
}

QUESTIONS: Final[tuple[Question[Once[NodeFacts]], ...]] = tuple(each for group in GROUPS.values() for each in group)

RIGHTS: Final[Mapping[str, str]] = {
    "nodes": "get, list",
    "pods": "list",
    "events": "list",
    "daemonsets.apps": "list",
    "leases.coordination.k8s.io": "list",
    "resourceslices.resource.k8s.io": "list",
    "deviceclasses.resource.k8s.io": "list",
    "resourceclaims.resource.k8s.io": "list",
    "pods/log": "get",
    "pods/proxy": "get",
}
"""The verb that is needed for each resource, in all namespaces; leases in ``kube-node-lease`` only."""
