"""What is played of NUMA nodes and topology policies; see `scenarios`, which takes them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kdp.testing import Container, Pod

from .nodekit.nodes import RESOURCE, Play, Scenario, Settings
from .nodekit.recorder import Listed

SCENARIOS: Final[dict[str, Scenario]] = {}
SETTINGS: Final[dict[str, Settings]] = {}
OTHER = "example.com/gadget"
POLICIES = ("best-effort", "restricted", "single-numa-node")
PREFERS = {"get_preferred_allocation_available": True}


def under(*policies: str, scope: str = "container", numa_nodes: int = 2) -> Callable[[Scenario], Scenario]:
    """Play this scenario once under each of these policies."""

    def add(scenario: Scenario) -> Scenario:
        for policy in policies:
            name = f"{scenario.__name__}_{policy.replace('-', '_')}"
            SCENARIOS[name] = scenario
            SETTINGS[name] = Settings(topology_policy=policy, topology_scope=scope, numa_nodes=numa_nodes)
        return scenario

    return add


def pod(name: str, count: int = 1, **more: int) -> Pod:
    return Pod.asking({RESOURCE: count, **more}, name=name)


def on_nodes(**nodes: tuple[int, ...] | None) -> list[Listed]:
    return [Listed(name, numa_nodes=where) for name, where in nodes.items()]


def first(available: list[str], must: list[str], size: int) -> list[str]:
    return [*must, *(name for name in available if name not in must)][:size]


FOUR = on_nodes(w0=(0,), w1=(0,), w2=(1,), w3=(1,))


async def preferring(on: Play, devices: list[Listed], name: str = "a.sock", resource: str = RESOURCE) -> None:
    """Register a plugin whose preference is the first ones of what it is offered, so that no choice is by chance."""
    await on.registered(name, resource=resource, devices=devices, options=PREFERS, prefer=first)


@under("none", *POLICIES)
async def devices_on_two_nodes(on: Play) -> None:
    """Pods of one, two and three devices, two devices on each NUMA node."""
    await preferring(on, FOUR)
    await on.hints(pod("x", 2))
    one, two = pod("p", 1), pod("q", 2)
    await on.admit(one)
    await on.admit(two)
    await on.hints(pod("x", 2))
    await on.admit(pod("r", 2))
    await on.delete(two)
    await on.hints(pod("x", 3))
    await on.admit(pod("s", 3))


@under(*POLICIES)
async def one_is_left_on_each_node(on: Play) -> None:
    """Two devices are wanted, and each NUMA node has one: not as good as it could be."""
    await preferring(on, FOUR)
    gone = pod("q")
    await on.admit(pod("p"))
    await on.admit(gone)
    await on.admit(pod("r"))
    await on.delete(gone)
    await on.hints(pod("x", 2))
    await on.admit(pod("s", 2))


@under(*POLICIES)
async def an_ill_device_makes_a_node_promising(on: Play) -> None:
    """An unhealthy device counts for how few nodes could do, and cannot be had."""
    await preferring(
        on, [Listed("w0", numa_nodes=(0,)), Listed("w1", "Unhealthy", (0,)), Listed("w2", numa_nodes=(1,))]
    )
    await on.hints(pod("x", 2))
    await on.admit(pod("p", 2))


async def one_after_another(on: Play, *counts: int) -> None:
    """Have a pod come with each of these numbers of devices, and go."""
    for count in counts:
        one = pod(f"p{count}", count)
        await on.hints(one)
        await on.admit(one)
        if one.uid in on.pods:
            await on.delete(one)


@under(*POLICIES)
async def devices_of_several_nodes_and_of_none(on: Play) -> None:
    """Devices of one node, of two and of none in one resource: those of none never count."""
    await preferring(on, on_nodes(w0=(0,), w1=(0, 1), w2=None, w3=(1,), w4=None))
    await one_after_another(on, 1, 2, 3, 4, 5)


@under(*POLICIES)
async def nodes_that_are_not_there(on: Play) -> None:
    """NUMA nodes that the machine has not got, -1 among them, and a topology without nodes."""
    await preferring(on, on_nodes(w0=(7,), w1=(-1,), w2=(64, 0), w3=()))
    await one_after_another(on, 1, 2, 4)


@under(*POLICIES)
async def only_nodes_that_are_not_there(on: Play) -> None:
    """No device is on a NUMA node of the machine."""
    await preferring(on, on_nodes(w0=(7,), w1=(8,)))
    await on.hints(pod("x"))
    await on.admit(pod("p"))


@under("restricted", numa_nodes=4)
async def most_nodes_have_no_device(on: Play) -> None:
    """Four NUMA nodes, devices on two: up to 1.34 hints are tried over all of them."""
    await preferring(on, on_nodes(w0=(0,), w1=(2,), w2=(2,)))
    for count in (1, 2, 3):
        await on.hints(pod("x", count))
    await on.admit(pod("p", 2))
    await on.admit(pod("q", 1))


@under(*POLICIES)
async def two_resources_on_nodes(on: Play) -> None:
    """A container wants devices of two resources, which share one NUMA node, and then none."""
    on.any_order = True
    await preferring(on, FOUR)
    await preferring(on, on_nodes(g0=(1,), g1=(1,)), "b.sock", OTHER)
    for name in ("p", "q"):
        one = pod(name, 1, **{OTHER: 1})
        await on.hints(one)
        await on.admit(one)
    await on.admit(pod("s", 1))


@under(*POLICIES)
async def one_resource_does_not_care(on: Play) -> None:
    """A container wants devices of two resources, one of them without NUMA nodes."""
    on.any_order = True
    await preferring(on, FOUR)
    await preferring(on, [Listed("g0"), Listed("g1")], "b.sock", OTHER)
    one = pod("p", 1, **{OTHER: 1})
    await on.hints(one)
    await on.admit(one)
    await on.admit(pod("q", 0, **{OTHER: 1}))


@under(*POLICIES)
async def init_containers_on_nodes(on: Play) -> None:
    """What an init container had binds the main container to its NUMA node; a sidecar's devices do not."""
    await preferring(on, FOUR)
    one = Pod(
        name="p",
        init_containers=[Container("i", {RESOURCE: 1}), Container("s", {RESOURCE: 1}, restartable=True)],
        containers=[Container("main", {RESOURCE: 2})],
    )
    await on.admit(one)
    await on.admit(pod("q", 1))
    if one.uid in on.pods:
        await on.delete(one)
    two = Pod(name="r", init_containers=[Container("i", {RESOURCE: 2})], containers=[Container("main", {RESOURCE: 2})])
    await on.admit(two)
    await on.admit(pod("t", 2))


@under(*POLICIES, scope="pod")
async def a_whole_pod_on_nodes(on: Play) -> None:
    """With the pod's scope all containers are aligned together."""
    await preferring(on, FOUR)
    await on.admit(pod("p", 1))
    both = Pod(name="q", containers=[Container("one", {RESOURCE: 1}), Container("two", {RESOURCE: 1})])
    await on.admit(both)
    await on.admit(Pod(name="r", init_containers=[Container("i", {RESOURCE: 1})], containers=[Container("m")]))
    if both.uid in on.pods:
        await on.delete(both)
    await on.admit(Pod(name="s", containers=[Container("one", {RESOURCE: 2}), Container("two", {RESOURCE: 1})]))


@under("single-numa-node", numa_nodes=1)
async def a_machine_with_one_node(on: Play) -> None:
    """All devices on the only NUMA node."""
    await preferring(on, on_nodes(w0=(0,), w1=(0,)))
    await on.hints(pod("x"))
    await on.admit(pod("p"))


@under("restricted", "single-numa-node")
async def a_restart_with_nodes(on: Play) -> None:
    """After the kubelet's restart the hints are those of the devices that the pod has."""
    await preferring(on, FOUR)
    one = pod("p", 2)
    await on.admit(one)
    await on.restart()
    await preferring(on, FOUR, "b.sock")
    await on.hints(one)
    await on.readmit()
    await on.admit(pod("q", 2))
    await on.admit(pod("r", 1))


@under("single-numa-node")
async def the_lists_nodes_change(on: Play) -> None:
    """A later list with other NUMA nodes counts for new pods; what was allocated keeps its record."""
    plugin = await on.registered(devices=FOUR, options=PREFERS, prefer=first)
    await on.admit(pod("p", 2))
    plugin.change(*on_nodes(w0=(1,), w1=(1,), w2=(0,), w3=(1,)))
    await on.see("other nodes")
    await on.hints(pod("x", 1))
    await on.admit(pod("q", 2))
    await on.admit(pod("r", 1))
    await on.checkpoint()


@under("best-effort")
async def a_device_is_missing_after_the_restart(on: Play) -> None:
    """A pod holds a device that its plugin does not list after the kubelet's restart: the kubelet dies of it."""
    await preferring(on, FOUR)
    await on.admit(pod("p", 2))
    await on.restart()
    await preferring(on, FOUR[1:], "b.sock")
    await on.readmit()
    await on.restart()
    await preferring(on, FOUR, "c.sock")
    await on.readmit()
