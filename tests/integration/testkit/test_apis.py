"""The kubelet's local APIs and its panics; that the answers are the real ones' is shown by tests/node."""

from __future__ import annotations

import pytest
from tests.node.nodekit import apis

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.testing import KubeletPanic, Pod, ScenarioError, SimulatedKubelet, events
from kdp_testkit.devicemanager.nodeapi import PodsApi
from kdp_testkit.protocol.registry import Refusal

from .bare_plugin import RESOURCE
from .conftest import MakePlugin


@pytest.mark.parametrize("profile", ["k136", "k137"])
async def test_both_apis_live_and_die_with_the_kubelet(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    await connect()
    await kubelet.admit(Pod.asking({RESOURCE: 2}, name="p"))
    resources = kubelet.paths.pod_resources_socket
    assert "['w0']" in await apis.pod_resources(resources, "List", 1)
    assert [event.method for event in kubelet.events.of(events.PodResourcesAsked)] == ["List"]
    await kubelet.crash()
    assert resources.is_socket(), "a killed kubelet leaves its sockets behind"
    assert (await apis.pod_resources(resources, "List", 1)).startswith("UNAVAILABLE")
    await kubelet.start()
    assert await apis.pod_resources(resources, "List", 1) == "no pods"
    assert kubelet.paths.pods_api_socket.exists() is kubelet.profile.serves_pods_api


async def test_get_is_disabled_before_134() -> None:
    async with SimulatedKubelet(profile="k132") as kubelet:
        said = await apis.pod_resources(kubelet.paths.pod_resources_socket, "Get", 1, pod_name="p")
    assert said == "UNKNOWN: PodResources API Get method disabled"


async def test_a_watch_that_is_a_hundred_events_behind_is_thrown_out() -> None:
    api = PodsApi(list, lambda: True)
    watch = api._watch(None)  # type: ignore[arg-type]
    await anext(watch)
    pod = Pod.asking({RESOURCE: 1}, name="p")
    for _ in range(101):
        api.updated(pod, "Running", is_new=False)
    for _ in range(100):
        await anext(watch)
    with pytest.raises(Refusal, match="watch client channel closed"):
        await anext(watch)


async def test_a_kubelet_that_panics_is_gone_until_it_is_started_again(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()

    async def vanish(request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        plugin.change({})
        await kubelet.until(capacity={RESOURCE: 0})
        return v1beta1.AllocateResponse(container_responses=[v1beta1.ContainerAllocateResponse()])

    plugin.on_allocate = vanish
    with pytest.raises(KubeletPanic, match="left the plugin's list before Allocate was answered"):
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))
    assert kubelet.events.of(events.KubeletStopped)[-1].how == "panicked"
    with pytest.raises(ScenarioError, match="the kubelet is not running"):
        kubelet.capacity()
    await kubelet.start()
    assert kubelet.capacity() == {RESOURCE: 0}


async def test_a_policy_is_the_kubelets_setting() -> None:
    async with SimulatedKubelet(topology_policy="restricted") as kubelet:
        pod = Pod.asking({RESOURCE: 1}, name="p")
        assert kubelet.topology_hints(pod) == {"main": {}}
    with pytest.raises(ScenarioError, match="unknown policy: 'strict'"):
        SimulatedKubelet(topology_policy="strict")
