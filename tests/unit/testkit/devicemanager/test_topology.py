"""NUMA hints and topology policies, without a kubelet."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp_testkit.devicemanager.topology import POLICIES, Hint, Topology, device_hints
from kdp_testkit.protocol.pods import KubeletPanic, Pod, ScenarioError
from kdp_testkit.protocol.wire import ListedDevice, PluginOptions

from ..fakes import RESOURCE, Calls, Node

FOUR = [ListedDevice(f"w{n}", "Healthy", (n // 2,)) for n in range(4)]

hints = st.one_of(
    st.none(),
    st.lists(
        st.builds(Hint, st.sets(st.integers(0, 2), min_size=1).map(lambda s: tuple(sorted(s))), st.booleans()),
        max_size=5,
    ),
)


def table(*devices: ListedDevice) -> dict[str, ListedDevice]:
    return {device.id: device for device in devices}


def preferring(policy: str = "best-effort", *, nodes: int = 2) -> Node:
    node = Node(topology=Topology(policy, nodes=nodes))
    node.register(options=PluginOptions(preferred_allocation_available=True))
    node.manager.listed(RESOURCE, FOUR)
    return node


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("strict",), "unknown policy: 'strict'"),
        (("restricted", "node"), "unknown scope: 'node'"),
        (("none", "container", 65), "1 to 64 NUMA nodes"),
        (("best-effort", "container", 9), "unsupported on machines with more than 8 NUMA Nodes"),
    ],
)
def test_what_no_kubelet_starts_with_is_refused(settings: tuple[str, str, int], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        Topology(*settings)


def test_hints_are_the_nodes_that_suffice_and_the_fewest_are_preferred() -> None:
    found = device_hints(table(*FOUR), {"w0", "w2", "w3"}, (), 2, (0, 1), every_node=False)
    assert found == [Hint((1,), True), Hint((0, 1), False)]


@pytest.mark.parametrize("every_node", [True, False])
def test_nodes_without_devices_are_tried_up_to_134(every_node: bool) -> None:
    found = device_hints(table(*FOUR), {"w0"}, (), 1, range(4), every_node=every_node)
    assert (Hint((0, 3), False) in found) is every_node
    assert found[0] == Hint((0,), True)


def test_what_init_containers_had_must_be_within() -> None:
    devices = table(*FOUR, ListedDevice("x", "Healthy", None), ListedDevice("y", "Healthy", ()))
    assert device_hints(devices, {"w0", "w1"}, {"w2", "x"}, 1, (0, 1), every_node=False) == [
        Hint((1,), True),
        Hint((0, 1), False),
    ]
    # A topology without nodes is within nothing.
    assert not device_hints(devices, {"w0"}, {"y"}, 1, (0, 1), every_node=False)


def test_a_device_that_is_not_listed_any_more_kills_the_kubelet() -> None:
    with pytest.raises(KubeletPanic, match="device gone"):
        device_hints(table(*FOUR), {"gone"}, (), 1, (0, 1), every_node=False)


@given(st.lists(hints, max_size=3), st.sampled_from(POLICIES))
def test_policies_differ_in_what_they_refuse_and_never_in_order(resources: list[list[Hint] | None], name: str) -> None:
    policy = Topology(name, nodes=3)
    best, admitted = policy.merge(resources)
    assert all(policy.merge(order) == (best, admitted) for order in itertools.permutations(resources))
    assert admitted or name in ("restricted", "single-numa-node")
    if name == "single-numa-node" and admitted:
        assert best.nodes is None or len(best.nodes) == 1
    if name == "restricted" and admitted:
        assert best.preferred
        assert Topology("best-effort", nodes=3).merge(resources) == (best, True)


@given(st.lists(hints, max_size=3))
def test_what_is_preferred_wins_over_all_that_is_not(resources: list[list[Hint] | None]) -> None:
    best, _ = Topology("best-effort", nodes=3).merge(resources)
    spelled = [[Hint(None, True)] if each is None else each or [Hint(None, False)] for each in resources]
    alike = [
        combination
        for combination in itertools.product(*spelled)
        if all(hint.preferred for hint in combination)
        and len({hint.nodes for hint in combination if hint.nodes is not None}) <= 1
    ]
    assert best.preferred is bool(alike)
    placed = [hint.nodes for combination in alike for hint in combination if hint.nodes is not None]
    if placed and all(any(hint.nodes is not None for hint in combination) for combination in alike):
        assert best.nodes == min(placed, key=lambda nodes: (len(nodes), sum(1 << node for node in nodes)))


async def test_aligned_devices_are_offered_alone_where_they_suffice() -> None:
    node, calls, pod = preferring(), Calls(), Pod.asking({RESOURCE: 1}, name="p")
    node.pods.add(pod.uid)
    assert node.manager.align(pod, pod.containers[0])
    await node.manager.allocate(pod, pod.containers[0], calls)
    assert calls.asked == ({"w0", "w1"}, set(), 1)


async def test_exactly_the_aligned_ones_need_no_preference() -> None:
    node, calls, pod = preferring(), Calls(), Pod.asking({RESOURCE: 2}, name="p")
    node.pods.add(pod.uid)
    assert node.manager.align(pod, pod.containers[0])
    await node.manager.allocate(pod, pod.containers[0], calls)
    assert calls.made == [("allocate", ("w0", "w1"))]
