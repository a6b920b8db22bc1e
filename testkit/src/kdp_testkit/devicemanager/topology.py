"""The topology manager: NUMA hints of a resource's devices, and what a policy makes of them (contract section 8).

A hint is a set of NUMA nodes that could serve a request, and whether no smaller set could. The hints of all
resources of a container are merged to one, and the policy admits the container with it or refuses the pod before
any call to a plugin. Devices are then taken from the merged hint's nodes first.

Values and functions only: no I/O, no state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from ..protocol.pods import KubeletPanic, ScenarioError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..protocol.wire import ListedDevice

POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES: Final = ("container", "pod")
REFUSAL: Final = ("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
"""Reason and message of a pod that the policy refuses."""

_MAX_POLICY_NODES: Final = 8
_MASK_BITS: Final = 64


@attrs.frozen
class Hint:
    """NUMA nodes that could serve a request.

    Attributes:
        nodes: The nodes, in ascending order; None: any.
        preferred: Whether no smaller set of nodes has enough devices.
    """

    nodes: tuple[int, ...] | None
    preferred: bool


@attrs.frozen
class Topology:
    """The machine's NUMA nodes and the kubelet's topology policy.

    Attributes:
        policy: ``none``, ``best-effort``, ``restricted`` or ``single-numa-node``.
        scope: What is aligned together: ``container`` or ``pod``.
        nodes: How many NUMA nodes the machine has; they are numbered from 0.
    """

    policy: str = "none"
    scope: str = "container"
    nodes: int = 2

    def __attrs_post_init__(self) -> None:
        """Refuse what no kubelet starts with."""
        if self.policy not in POLICIES:
            raise ScenarioError(f"unknown policy: {self.policy!r}; kubelets support {', '.join(POLICIES)}")
        if self.scope not in SCOPES:
            raise ScenarioError(f"unknown scope: {self.scope!r}; kubelets support {', '.join(SCOPES)}")
        if not 1 <= self.nodes <= _MASK_BITS:
            raise ScenarioError(f"a machine has 1 to {_MASK_BITS} NUMA nodes, not {self.nodes}")
        if self.policy != "none" and self.nodes > _MAX_POLICY_NODES:
            raise ScenarioError(
                f"the kubelet does not start with the topology policy {self.policy} on {self.nodes} NUMA nodes: "
                f"unsupported on machines with more than {_MAX_POLICY_NODES} NUMA Nodes"
            )

    @property
    def all_nodes(self) -> tuple[int, ...]:
        """The machine's NUMA nodes."""
        return tuple(range(self.nodes))

    def merge(self, hints: Iterable[Sequence[Hint] | None]) -> tuple[Hint, bool]:
        """Merge the hints of all resources, and tell whether the policy admits the result.

        Args:
            hints: Of each resource; None: it has no preference; empty: no nodes can serve it.
        """
        if self.policy == "none":
            return Hint(None, True), True
        resources = [_spelled_out(each) for each in hints] or [[Hint(None, True)]]
        if self.policy == "single-numa-node":
            resources = [[hint for hint in each if hint.preferred and _count(hint) <= 1] for each in resources]
        best = self._best(resources)
        if self.policy == "single-numa-node" and best.nodes == self.all_nodes:
            best = Hint(None, best.preferred)
        return best, best.preferred or self.policy == "best-effort"

    def _best(self, resources: Sequence[Sequence[Hint]]) -> Hint:
        # What is not preferred should be as wide as the resource that needs the most nodes, and no wider.
        wanted = max((min(map(_count, placed)) for each in resources if (placed := _placed(each))), default=0)
        best: Hint | None = None
        for permutation in itertools.product(*resources):
            merged = self._merged(permutation)
            if merged.nodes and (best is None or _is_better(merged, best, wanted)):
                best = merged
        return best or Hint(self.all_nodes, False)

    def _merged(self, permutation: Sequence[Hint]) -> Hint:
        masks = [hint.nodes for hint in permutation if hint.nodes is not None]
        nodes = set(self.all_nodes).intersection(*masks)
        preferred = all(hint.preferred for hint in permutation) and len(set(masks)) <= 1
        return Hint(tuple(sorted(nodes)), preferred)


def _spelled_out(hints: Sequence[Hint] | None) -> Sequence[Hint]:
    if hints is None:
        return [Hint(None, True)]
    return hints or [Hint(None, False)]


def _placed(hints: Sequence[Hint]) -> list[Hint]:
    return [hint for hint in hints if hint.nodes is not None]


def _count(hint: Hint) -> int:
    return len(hint.nodes or ())


def _width(hint: Hint) -> tuple[int, int]:
    """Order hints from narrow to wide; of equally many nodes those with lower numbers are narrower."""
    nodes = hint.nodes or ()
    return len(nodes), sum(1 << node for node in nodes)


def _is_better(candidate: Hint, current: Hint, wanted: int) -> bool:
    """Tell whether a merged hint replaces the best one so far.

    Args:
        candidate: The merged hint.
        current: The best one so far.
        wanted: How many nodes the resource that needs the most of them needs at least.
    """
    if candidate.preferred != current.preferred:
        return candidate.preferred
    narrower = _width(candidate) < _width(current)
    have, offered = _count(current), _count(candidate)
    if current.preferred or have > wanted:
        return narrower
    if have == wanted:
        return offered == wanted and narrower
    # The current one is too narrow: wider is better, but not wider than wanted.
    if offered > wanted or offered < have:
        return False
    return offered > have or narrower


def has_topology(devices: Mapping[str, ListedDevice]) -> bool:
    """Tell whether a resource takes part in hints: one device with a NUMA node is enough."""
    return any(device.numa_nodes for device in devices.values())


def device_hints(
    devices: Mapping[str, ListedDevice],
    available: Collection[str],
    reusable: Collection[str],
    wanted: int,
    nodes: Sequence[int],
    *,
    every_node: bool,
) -> list[Hint]:
    """Return the sets of NUMA nodes that can serve a request, smaller ones first.

    Args:
        devices: The resource's devices by id, the unhealthy ones too.
        available: The ids that can be taken.
        reusable: The ids that the pod's init containers had: they must be in the set, those without topology apart.
        wanted: How many are asked for.
        nodes: The machine's NUMA nodes.
        every_node: Whether all of them are tried (up to 1.34), or only those that have devices.

    Raises:
        KubeletPanic: A device that the pod has is not in the list any more.
    """
    for device_id in itertools.chain(available, reusable):
        if device_id not in devices:
            raise KubeletPanic(
                f"nil pointer dereference in generateDeviceTopologyHints: a pod holds device {device_id}, and the "
                f"plugin no longer lists it; with a topology policy it must stay in the list, unhealthy"
            )
    where = {device_id: frozenset(device.numa_nodes or ()) for device_id, device in devices.items()}
    tried = list(nodes)
    if not every_node:
        tried = sorted(frozenset[int]().union(*where.values()).intersection(nodes)) or tried
    # Alike devices are counted together: there may be ten thousand of them.
    all_places = Counter(where.values())
    free_places = Counter(where[device_id] for device_id in available)
    bound_places = Counter(where[device_id] for device_id in reusable if devices[device_id].numa_nodes is not None)
    least = len(tried)
    masks: list[tuple[int, ...]] = []
    for size in range(1, len(tried) + 1):
        for mask in itertools.combinations(tried, size):
            if _within(all_places, mask) >= wanted:
                least = min(least, size)
            bound = _within(bound_places, mask)
            if bound == bound_places.total() and bound + _within(free_places, mask) >= wanted:
                masks.append(mask)
    return [Hint(mask, len(mask) == least) for mask in masks]


def _within(places: Counter[frozenset[int]], mask: Sequence[int]) -> int:
    """Count the devices that have a node of the mask."""
    return sum(count for place, count in places.items() if not place.isdisjoint(mask))
