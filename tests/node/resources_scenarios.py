"""What is played of the pod-resources API, of the health in a pod's status and of the pods API; see `scenarios`."""

from __future__ import annotations

from typing import Final

from kdp.testing import Container, Pod

from .nodekit.nodes import RESOURCE, Play, Scenario
from .nodekit.recorder import Listed

SCENARIOS: Final[dict[str, Scenario]] = {}
OTHER = "example.com/gadget"
PREFERS = {"get_preferred_allocation_available": True}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def pod(name: str, count: int = 1, **more: int) -> Pod:
    return Pod.asking({RESOURCE: count, **more}, name=name)


def first(available: list[str], must: list[str], size: int) -> list[str]:
    return [*must, *(name for name in available if name not in must)][:size]


# -- the pod-resources API ---------------------------------------------------------------------------------------------


@scenario
async def who_holds_what(on: Play) -> None:
    """Devices of one NUMA node, of two, of none, and with a topology that names none; one is ill."""
    plugin = await on.registered(
        devices=[
            Listed("w0", numa_nodes=(0,)),
            Listed("w1", numa_nodes=(0, 1)),
            Listed("w2"),
            Listed("w3", numa_nodes=()),
            Listed("w4", "Unhealthy", (1,)),
        ]
    )
    await on.pod_resources("GetAllocatableResources")
    await on.pod_resources("List")
    one = pod("p", 4)
    await on.admit(one)
    await on.pod_resources("List")
    await on.pod_resources("Get", pod_name="p", pod_namespace="default")
    await on.pod_resources("Get", pod_name="p", pod_namespace="other")
    await on.pod_resources("Get")
    await on.pod_resources("GetAllocatableResources")
    plugin.change(Listed("w4", numa_nodes=(1,)), Listed("w1", "Unhealthy"))
    await on.see("two are left, one of them is well")
    await on.pod_resources("GetAllocatableResources")
    await on.pod_resources("List")
    await on.delete(one)
    await on.pod_resources("List")
    await plugin.stop()
    await on.see("the plugin ends")
    await on.pod_resources("GetAllocatableResources")


@scenario
async def which_containers_are_listed(on: Play) -> None:
    """Sidecars are listed, plain init containers are not; a pod without devices is."""
    await on.registered(
        options=PREFERS, prefer=first, devices=[Listed("w0"), Listed("w1"), Listed("w2", numa_nodes=(1,))]
    )
    await on.admit(
        Pod(
            name="p",
            namespace="ours",
            init_containers=[Container("i", {RESOURCE: 1}), Container("s", {RESOURCE: 1}, restartable=True)],
            containers=[Container("main", {RESOURCE: 2}), Container("bare")],
        )
    )
    await on.admit(Pod(name="q", containers=[Container("bare")]))
    await on.admit(pod("refused", 5))
    await on.pod_resources("List")


@scenario
async def two_resources_are_listed(on: Play) -> None:
    """A container with devices of two plugins."""
    on.any_order = True
    await on.registered(allocate=lambda asked: [], options=PREFERS, prefer=first)
    await on.admit(pod("fails"))
    await on.registered("b.sock", resource=OTHER, devices=[Listed("g0"), Listed("g1")])
    await on.admit(pod("p", 0, **{OTHER: 2}))
    await on.pod_resources("List")
    await on.pod_resources("GetAllocatableResources")


@scenario
async def a_new_kubelet_knows_no_pods(on: Play) -> None:
    """After a restart the list is empty until the pods come from the API server; devices come with the plugin."""
    await on.registered()
    await on.admit(pod("p", 2))
    await on.restart()
    await on.pod_resources("List")
    await on.pod_resources("Get", pod_name="p", pod_namespace="default")
    await on.pod_resources("GetAllocatableResources")
    await on.readmit()
    await on.pod_resources("List")
    await on.registered("b.sock")
    await on.pod_resources("GetAllocatableResources")


@scenario
async def too_many_calls(on: Play) -> None:
    """More than a hundred calls a second are refused."""
    await on.registered()
    # So many that also a busy machine makes more than a hundred a second.
    await on.pod_resources("List", calls=600)
    await on.pod_resources("Get", calls=600, pod_name="p")


# -- health in the pod's status ----------------------------------------------------------------------------------------


@scenario
async def a_pods_device_falls_ill(on: Play) -> None:
    """The pod's status tells of an unhealthy device; of one that vanished it says that it is well."""
    plugin = await on.registered()
    one = pod("p", 2)
    await on.admit(one)
    await on.health(one)
    lists = {
        "one is ill": [Listed("w0", "Unhealthy"), Listed("w1")],
        "it is ill in another word": [Listed("w0", "broken"), Listed("w1")],
        "the same again": [Listed("w0", "broken"), Listed("w1")],
        "it vanishes": [Listed("w1")],
        "it is back and ill": [Listed("w0", "Unhealthy"), Listed("w1")],
        "both are well": [Listed("w0"), Listed("w1")],
        "a third one comes": [Listed("w0"), Listed("w1"), Listed("w2")],
        "the third one is ill": [Listed("w0"), Listed("w1"), Listed("w2", "Unhealthy")],
        "all vanish": [],
    }
    for title, devices in lists.items():
        plugin.change(*devices)
        await on.see(title)
        await on.health(one)


@scenario
async def health_after_the_plugins_end(on: Play) -> None:
    """A plugin that is gone says nothing about health: the pod's devices stay what they were."""
    plugin = await on.registered(devices=[Listed("w0"), Listed("w1")])
    one = pod("p", 2)
    await on.admit(one)
    plugin.change(Listed("w0", "Unhealthy"), Listed("w1"))
    await on.see("one is ill")
    await plugin.stop()
    await on.see("the plugin ends")
    await on.health(one)
    await on.registered("b.sock", devices=[Listed("w0", "Unhealthy"), Listed("w1")])
    await on.health(one)


@scenario
async def health_over_a_restart(on: Play) -> None:
    """A new kubelet takes all for well until the plugin is back, and then tells of all that it lists."""
    await on.registered()
    one = pod("p", 2)
    await on.admit(one)
    await on.restart()
    await on.readmit()
    await on.health(one)
    await on.registered("b.sock", devices=[Listed("w0"), Listed("w1", "Unhealthy")])
    await on.health(one)


@scenario
async def health_of_init_containers(on: Play) -> None:
    """The status tells of main containers only; a sidecar's device has the status written all the same."""
    plugin = await on.registered(options=PREFERS, prefer=first)
    one = Pod(
        name="p",
        init_containers=[Container("s", {RESOURCE: 1}, restartable=True)],
        containers=[Container("main", {RESOURCE: 1})],
    )
    await on.admit(one)
    await on.health(one)
    plugin.change(Listed("w0", "Unhealthy"), Listed("w1"))
    await on.see("the sidecar's device is ill")
    await on.health(one)


@scenario
async def one_id_in_two_resources(on: Play) -> None:
    """A device of another resource with the same id falls ill: up to 1.36 the wrong pod is told."""
    await on.registered(devices=[Listed("d0")])
    other = await on.registered("b.sock", resource=OTHER, devices=[Listed("d0")])
    one = pod("p")
    await on.admit(one)
    other.change(Listed("d0", "Unhealthy"))
    await on.see("the other resource's device is ill")
    await on.health(one)


# -- the pods API ------------------------------------------------------------------------------------------------------


@scenario
async def pods_are_listed(on: Play) -> None:
    """ListPods and GetPod: pods with uid, specification and phase."""
    await on.registered()
    await on.pods_api("ListPods")
    one = pod("p", 2)
    await on.admit(one)
    await on.admit(
        Pod(
            name="q",
            namespace="ours",
            init_containers=[Container("i"), Container("s", restartable=True)],
            containers=[Container("main", {OTHER: 1})],
        )
    )
    await on.admit(pod("refused"))
    await on.pods_api("ListPods")
    await on.pods_api("GetPod", podUID="uid-p")
    await on.pods_api("GetPod", podUID="nobody")
    await on.delete(one)
    await on.pods_api("ListPods")
    await on.pods_api("ListPods", calls=60)


@scenario
async def pods_are_watched(on: Play) -> None:
    """WatchPods: the pods that there are, the end of them, and each change."""
    await on.registered(options=PREFERS, prefer=first)
    one = pod("p")
    await on.admit(one)
    async with on.watching_pods():
        await on.watched("it begins")
        await on.admit(pod("q"))
        await on.watched("q came")
        await on.admit(pod("refused", 2))
        await on.watched("one was refused")
        await on.delete(one)
        await on.watched("p is gone")


@scenario
async def pods_before_the_api_server_was_heard(on: Play) -> None:
    """A kubelet that has not heard all its sources does not say which pods there are."""
    await on.registered(options=PREFERS, prefer=first)
    await on.admit(pod("p"))
    await on.restart()
    await on.pods_api("ListPods")
    await on.pods_api("GetPod", podUID="uid-p")
    async with on.watching_pods():
        await on.watched("too early")
    await on.readmit()
    await on.pods_api("ListPods")
