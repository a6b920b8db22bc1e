"""Pods on the simulated kubelet, as a test of a vendor has them; the kubelet's own behaviour is tests/node's."""

from __future__ import annotations

import anyio
import pytest

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.testing import (
    AdmissionError,
    Container,
    ContainerReply,
    DeviceSpec,
    MountSpec,
    Pod,
    ScenarioError,
    SimulatedKubelet,
)

from .bare_plugin import RESOURCE, BarePlugin
from .conftest import MakePlugin


async def test_a_pod_gets_devices_and_the_plugins_reply(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect()
    pod = Pod.asking({RESOURCE: 1})

    admitted = await kubelet.admit(pod)

    [device] = admitted.devices(RESOURCE)
    assert admitted.reply() == ContainerReply(
        envs={"WIDGETS": device},
        mounts=[MountSpec("/lib/widget", "/opt/widget", True)],
        devices=[DeviceSpec(f"/dev/{device}", f"/dev/{device}", "rw")],
        annotations={"example.com/widget": "yes"},
        cdi_devices=[f"example.com/widget={device}"],
    )
    assert plugin.calls == [("options", None), ("allocate", [[device]])]
    assert await kubelet.start_container(pod) == admitted.containers["main"]
    assert kubelet.in_use(RESOURCE) == {device}
    with pytest.raises(ScenarioError, match="was admitted already"):
        await kubelet.admit(pod)
    await kubelet.delete(pod)
    assert kubelet.in_use(RESOURCE) == set()
    with pytest.raises(ScenarioError, match="no pod"):
        await kubelet.delete(pod)


async def test_a_resource_that_the_node_still_shows_as_zero_is_out_of_stock(profile: str) -> None:
    now = 0.0
    async with SimulatedKubelet(profile=profile, clock=lambda: now) as kubelet:
        plugin = BarePlugin(kubelet.paths.device_plugin_dir)
        await plugin.serve()
        await plugin.register(kubelet.paths.kubelet_socket)
        await kubelet.until(allocatable={RESOURCE: 2})
        await plugin.stop()
        await kubelet.until(allocatable={RESOURCE: 0})
        now = 301.0
        assert kubelet.capacity() == {}
        with pytest.raises(AdmissionError) as caught:
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert caught.value.reason == "OutOfexample.com/widget"
        assert caught.value.message == (
            "Node didn't have enough resource: example.com/widget, requested: 1, used: 0, capacity: 0"
        )


async def test_nothing_is_admitted_while_the_kubelet_is_down(kubelet: SimulatedKubelet) -> None:
    await kubelet.stop()
    with pytest.raises(ScenarioError, match=r"the kubelet is not running: pod 'p' cannot be admitted"):
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))


async def test_a_kubelet_that_dies_in_the_middle_of_an_admission_forgets_it(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    asked, never = anyio.Event(), anyio.Event()

    async def hang(request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        asked.set()
        await never.wait()
        return v1beta1.AllocateResponse()

    plugin.on_allocate = hang
    pod = Pod.asking({RESOURCE: 1}, name="p")
    async with anyio.create_task_group() as tasks:

        async def admit() -> None:
            with pytest.raises(ScenarioError, match="the kubelet ended while it admitted pod 'p'"):
                await kubelet.admit(pod)

        tasks.start_soon(admit)
        await asked.wait()
        await kubelet.restart()
    assert kubelet.in_use(RESOURCE) == set()
    plugin.on_allocate = None
    never.set()
    assert await plugin.register(kubelet.paths.kubelet_socket, endpoint=(await renewed(plugin)).endpoint) is None
    await kubelet.until(streaming=RESOURCE)
    assert (await kubelet.admit(pod)).devices(RESOURCE)


async def renewed(plugin: BarePlugin) -> BarePlugin:
    """Serve under a new name, as every plugin must after the kubelet has wiped the directory."""
    await plugin.stop()
    plugin.endpoint = f"new-{plugin.endpoint}"
    await plugin.serve()
    return plugin


@pytest.mark.parametrize("profile", ["k134", "k137"])
async def test_a_container_that_had_restarted_may_look_dead_to_an_older_kubelet(profile: str) -> None:
    outcomes = []
    for seed in range(8):
        async with SimulatedKubelet(profile=profile, seed=seed) as kubelet:
            plugin = BarePlugin(kubelet.paths.device_plugin_dir)
            await plugin.serve()
            await plugin.register(kubelet.paths.kubelet_socket)
            await kubelet.until(streaming=RESOURCE)
            pod = Pod.asking({RESOURCE: 1})
            await kubelet.admit(pod)
            await kubelet.start_container(pod)
            await plugin.stop()
            await kubelet.restart()
            outcome = (await kubelet.readmit())[pod.uid]
            outcomes.append(type(outcome).__name__)
    if profile == "k134":
        assert set(outcomes) == {"AdmittedPod", "AdmissionError"}, "which record is looked at is up to a map's order"
    else:
        assert set(outcomes) == {"AdmittedPod"}


class TestWhatCannotHappenIsRefused:
    async def test_a_namesake_beside_it(self, kubelet: SimulatedKubelet) -> None:
        pod = Pod(containers=[Container("main")], name="p", uid="1")
        await kubelet.admit(pod)
        with pytest.raises(ScenarioError, match="pod default/p is on this node already, with the UID 1"):
            await kubelet.admit(Pod(containers=[Container("main")], name="p", uid="2"))
        await kubelet.admit(Pod(containers=[Container("main")], name="p", uid="3", namespace="other"))
        await kubelet.delete(pod)
        await kubelet.admit(Pod(containers=[Container("main")], name="p", uid="2"))

    async def test_a_main_container_before_its_init_containers(self, kubelet: SimulatedKubelet) -> None:
        pod = Pod(init_containers=[Container("i"), Container("j")], containers=[Container("main")], name="p")
        await kubelet.admit(pod, start=False)
        await kubelet.start_container(pod, "i")
        with pytest.raises(ScenarioError, match="'main' of pod 'p' cannot start before init container 'j' has"):
            await kubelet.start_container(pod)
        await kubelet.start_container(pod, "j")
        await kubelet.start_container(pod)
        with pytest.raises(ScenarioError, match="has no container 'other'"):
            await kubelet.start_container(pod, "other")

    async def test_containers_of_a_pod_that_this_kubelet_has_not_heard_of(self, kubelet: SimulatedKubelet) -> None:
        pod = Pod(containers=[Container("main")], name="p")
        await kubelet.admit(pod)
        await kubelet.restart()
        with pytest.raises(ScenarioError, match="the kubelet has not received pod 'p' since its start"):
            await kubelet.start_container(pod)
        await kubelet.readmit()
        await kubelet.start_container(pod)
        with pytest.raises(ScenarioError, match="already has the pods of the API server"):
            await kubelet.readmit()

    async def test_negative_times(self, kubelet: SimulatedKubelet) -> None:
        with pytest.raises(ScenarioError, match="cannot be down for -1 s"):
            await kubelet.restart(down=-1)
        assert kubelet.is_running
        await kubelet.crash()
        with pytest.raises(ScenarioError, match="cannot listen -1 s after it has bound"):
            await kubelet.start(listen_delay=-1)
