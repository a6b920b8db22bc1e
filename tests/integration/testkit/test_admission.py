"""Pods: which devices they get, which calls that takes, and in which words they fail (contract sections 4.6, 6, 7)."""

from __future__ import annotations

import json

import anyio
import pytest

from kdp.proto.deviceplugin.v1beta1 import api_pb2 as v1beta1
from kdp.testing import (
    AdmissionError,
    AdmittedPod,
    Container,
    ContainerReply,
    ContainerStartError,
    DeviceSpec,
    MountSpec,
    Pod,
    ScenarioError,
    SimulatedKubelet,
    events,
)

from .bare_plugin import RESOURCE, BarePlugin
from .conftest import MakePlugin

PREFERS = v1beta1.DevicePluginOptions(get_preferred_allocation_available=True)
PRE_STARTS = v1beta1.DevicePluginOptions(pre_start_required=True)
FOUR = {f"w{number}": "Healthy" for number in range(4)}


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
    assert kubelet.in_use(RESOURCE) == {device}
    with pytest.raises(ScenarioError, match="was admitted already"):
        await kubelet.admit(pod)


async def test_devices_are_free_when_their_pod_is_gone(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    await connect()
    first = Pod.asking({RESOURCE: 2})
    await kubelet.admit(first)
    with pytest.raises(AdmissionError) as caught:
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
    assert caught.value.reason == "UnexpectedAdmissionError"
    assert caught.value.message == (
        "Allocate failed due to requested number of devices unavailable for example.com/widget. "
        "Requested: 1, Available: 0, which is unexpected"
    )
    await kubelet.delete(first)
    await kubelet.admit(Pod.asking({RESOURCE: 1}))
    with pytest.raises(ScenarioError, match="no pod"):
        await kubelet.delete(first)


async def test_init_containers_hand_their_devices_on_and_sidecars_keep_them(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    await connect(devices=FOUR)
    admitted = await kubelet.admit(
        Pod(
            init_containers=[
                Container("init", {RESOURCE: 2}),
                Container("sidecar", {RESOURCE: 1}, restartable=True),
            ],
            containers=[Container("main", {RESOURCE: 2}), Container("idle")],
        )
    )
    init = set(admitted.devices(RESOURCE, "init"))
    sidecar = set(admitted.devices(RESOURCE, "sidecar"))
    main = set(admitted.devices(RESOURCE, "main"))
    assert sidecar < init, "the sidecar takes one of the init container's devices"
    assert init - sidecar < main, "what the sidecar left goes to the next container"
    assert not sidecar & main
    assert len(kubelet.in_use(RESOURCE)) == 3
    assert admitted.containers["idle"].reply == ContainerReply()
    assert [event.resource for event in kubelet.events.of(events.AllocateRequested)] == [RESOURCE] * 3


async def test_containers_of_two_resources_get_both_replies_merged(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    await connect()
    await connect(resource="example.com/gadget", devices={"g0": "Healthy"})
    admitted = await kubelet.admit(Pod.asking({RESOURCE: 1, "example.com/gadget": 1}))
    given = admitted.containers["main"]
    assert set(given.replies) == {RESOURCE, "example.com/gadget"}
    assert admitted.reply().envs["WIDGETS"] in {"g0", *given.devices[RESOURCE]}  # the first one wins, in a map's order
    assert len(admitted.reply().devices) == 2
    assert len(admitted.reply().mounts) == 1


async def test_a_resource_that_nobody_knows_is_silently_left_out(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    admitted = await kubelet.admit(Pod.asking({"example.com/other": 1}))
    assert admitted.reply() == ContainerReply()
    assert plugin.calls == [("options", None)]


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


@pytest.mark.parametrize("devices", [{}, {"w0": "Unhealthy"}])
async def test_without_healthy_devices_a_pod_fails(
    kubelet: SimulatedKubelet, connect: MakePlugin, devices: dict[str, str]
) -> None:
    await connect(devices=devices)
    with pytest.raises(AdmissionError, match="no healthy devices present; cannot allocate unhealthy devices"):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))


async def test_what_the_plugin_prefers_is_taken_and_the_rest_corrected(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect(devices=FOUR, options=PREFERS)
    asked: list[v1beta1.ContainerPreferredAllocationRequest] = []

    def prefer(request: v1beta1.PreferredAllocationRequest) -> list[str]:
        asked.append(request.container_requests[0])
        return answers.pop(0)

    plugin.on_preferred = prefer
    answers = [["w3", "w1"], ["w0", "w2", "w2", "nonsense"], [], ["w0", "w1", "w2", "w3"]]

    exact = Pod.asking({RESOURCE: 2})
    assert (await kubelet.admit(exact)).devices(RESOURCE) == ("w1", "w3")
    assert (sorted(asked[0].available_deviceIDs), list(asked[0].must_include_deviceIDs), asked[0].allocation_size) == (
        ["w0", "w1", "w2", "w3"],
        [],
        2,
    )
    rest = Pod.asking({RESOURCE: 2})  # also asked when free equals needed
    assert (await kubelet.admit(rest)).devices(RESOURCE) == ("w0", "w2")
    await kubelet.delete(rest)
    assert (await kubelet.admit(Pod.asking({RESOURCE: 1}))).devices(RESOURCE)[0] in {"w0", "w2"}  # filled at random
    assert (await kubelet.admit(Pod.asking({RESOURCE: 1}))).devices(RESOURCE)[0] in {"w0", "w2"}  # trimmed


async def test_reused_devices_are_named_as_must_include(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect(devices=FOUR, options=PREFERS)
    asked: list[v1beta1.ContainerPreferredAllocationRequest] = []

    def prefer(request: v1beta1.PreferredAllocationRequest) -> list[str]:
        asked.append(request.container_requests[0])
        return []

    plugin.on_preferred = prefer
    admitted = await kubelet.admit(
        Pod(init_containers=[Container("init", {RESOURCE: 1})], containers=[Container("main", {RESOURCE: 3})])
    )
    assert tuple(asked[1].must_include_deviceIDs) == admitted.devices(RESOURCE, "init")
    assert asked[1].allocation_size == 3
    assert set(admitted.devices(RESOURCE, "init")) < set(admitted.devices(RESOURCE, "main"))


async def test_a_failing_preference_fails_the_pod(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    await connect(options=PREFERS)
    with pytest.raises(AdmissionError) as caught:
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
    assert caught.value.message == (
        "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = Internal desc = no preference today, which is unexpected"
    )
    [answered] = kubelet.events.of(events.PreferredAnswered)
    assert answered.error == "rpc error: code = Internal desc = no preference today"


async def test_a_failing_allocate_fails_the_pod_and_frees_its_devices(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()

    async def refuse(request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        raise RuntimeError("out of order")

    plugin.on_allocate = refuse
    with pytest.raises(
        AdmissionError, match=r"^UnexpectedAdmissionError: Allocate failed due to rpc error: code = Unk"
    ):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
    assert kubelet.in_use(RESOURCE) == set()
    assert kubelet.pods == {}
    [rejected] = kubelet.events.of(events.PodRejected)
    assert rejected.reason == "UnexpectedAdmissionError"


async def test_an_empty_allocate_reply_fails_the_pod_and_leaves_devices_booked(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()

    async def nothing(request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        return v1beta1.AllocateResponse()

    plugin.on_allocate = nothing
    with pytest.raises(AdmissionError) as caught:
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
    # As the kubelet says it: an empty reply is printed as nothing.
    assert caught.value.message == (
        "Allocate failed due to no containers return in allocation response , which is unexpected"
    )
    assert len(kubelet.in_use(RESOURCE)) == 2
    plugin.on_allocate = None
    with pytest.raises(AdmissionError, match="Available: 0"):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))


async def test_pre_start_comes_before_every_start(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect(options=PRE_STARTS)
    pod = Pod(init_containers=[Container("init", {RESOURCE: 1})], containers=[Container("main", {RESOURCE: 1})])
    admitted = await kubelet.admit(pod)
    await kubelet.start_container(pod)
    ids = list(admitted.devices(RESOURCE))
    assert [call for call in plugin.calls if call[0] == "pre_start"] == [("pre_start", ids)] * 3
    with pytest.raises(ScenarioError, match="has no container 'other'"):
        await kubelet.start_container(pod, "other")


async def test_a_failing_pre_start_fails_that_start_only(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect(options=PRE_STARTS)
    plugin.pre_start_error = "still resetting"
    pod = Pod.asking({RESOURCE: 1})
    with pytest.raises(ContainerStartError) as caught:
        await kubelet.admit(pod)
    assert caught.value.reason == "CreateContainerConfigError"
    assert caught.value.message == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = still resetting"
    )
    assert pod.uid in kubelet.pods
    plugin.pre_start_error = ""
    await kubelet.start_container(pod)


async def test_containers_of_a_stopped_plugin_start_from_the_cache_unless_it_wants_a_call(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plain, eager = await connect(), await connect(resource="example.com/eager", options=PRE_STARTS)
    first, second = Pod.asking({RESOURCE: 1}), Pod.asking({"example.com/eager": 1})
    await kubelet.admit(first)
    await kubelet.admit(second)
    await plain.stop()
    await eager.stop()
    await kubelet.until(allocatable={RESOURCE: 0, "example.com/eager": 0})
    await kubelet.start_container(first)
    with pytest.raises(ContainerStartError, match="has been stopped"):
        await kubelet.start_container(second)


async def test_running_pods_survive_a_restart_of_the_kubelet_without_any_call(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    pod = Pod.asking({RESOURCE: 1})
    before = await kubelet.admit(pod)
    await kubelet.restart()
    assert kubelet.capacity() == {RESOURCE: 0}  # known from the checkpoint, with nothing in it

    after = await kubelet.readmit()

    outcome = after[pod.uid]
    assert isinstance(outcome, AdmittedPod)
    assert outcome.containers == before.containers
    assert [name for name, _ in plugin.calls].count("allocate") == 1
    assert kubelet.in_use(RESOURCE) == set(before.devices(RESOURCE))
    with pytest.raises(ScenarioError, match="heard from the API server already"):
        await kubelet.readmit()


async def test_after_a_reboot_pods_fail_until_the_plugin_is_back(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect(devices=FOUR)
    early, late, unlucky = (Pod.asking({RESOURCE: 1}) for _ in range(3))
    held = {pod.uid: (await kubelet.admit(pod)).devices(RESOURCE) for pod in (early, late, unlucky)}
    await plugin.stop()
    await kubelet.restart(reboot=True)

    with pytest.raises(AdmissionError, match="no healthy devices present; cannot allocate unhealthy devices"):
        await kubelet.admit(early)

    plugin.devices = {id_: "Unhealthy" if id_ in held[unlucky.uid] else "Healthy" for id_ in FOUR}
    await plugin.serve()
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    await kubelet.until(streaming=RESOURCE)
    assert (await kubelet.admit(late)).devices(RESOURCE) == held[late.uid]
    with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy; cannot allocate"):
        await kubelet.admit(unlucky)
    assert [name for name, _ in plugin.calls].count("allocate") == 3, "what is in the checkpoint takes no call"
    assert kubelet.in_use(RESOURCE) == set(held[late.uid]) | set(held[early.uid]) | set(held[unlucky.uid])
    await kubelet.readmit()  # nobody is left to come; from now on finished pods are noticed
    assert kubelet.in_use(RESOURCE) == set(held[late.uid])


async def test_a_lost_checkpoint_starts_the_pod_without_its_device(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    pod = Pod.asking({RESOURCE: 1})
    await kubelet.admit(pod)
    await plugin.stop()
    await kubelet.crash()
    path = kubelet.paths.device_plugin_dir / "kubelet_internal_checkpoint"
    document = json.loads(path.read_text())
    document["Data"]["RegisteredDevices"] = {}
    path.write_text(json.dumps(document))  # its checksum is wrong now
    await kubelet.start()
    assert kubelet.capacity() == {}
    assert (await kubelet.admit(pod)).reply() == ContainerReply()


async def test_a_pod_that_asks_for_another_number_than_before_is_refused(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    await connect()
    pod = Pod.asking({RESOURCE: 1}, name="p")
    await kubelet.admit(pod)
    await kubelet.restart()
    with pytest.raises(AdmissionError, match=r'pod "uid-p" container "main" changed request .* from 1 to 2'):
        await kubelet.admit(Pod.asking({RESOURCE: 2}, name="p"))


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

    async def test_containers_of_a_pod_that_this_kubelet_has_not_heard_of(self, kubelet: SimulatedKubelet) -> None:
        pod = Pod(containers=[Container("main")], name="p")
        await kubelet.admit(pod)
        await kubelet.restart()
        with pytest.raises(ScenarioError, match="the kubelet has not heard of pod 'p' since its start"):
            await kubelet.start_container(pod)
        await kubelet.readmit()
        await kubelet.start_container(pod)

    async def test_negative_times(self, kubelet: SimulatedKubelet) -> None:
        with pytest.raises(ScenarioError, match="cannot be down for -1 s"):
            await kubelet.restart(down=-1)
        assert kubelet.is_running
        await kubelet.crash()
        with pytest.raises(ScenarioError, match="cannot listen -1 s after it has bound"):
            await kubelet.start(listen_delay=-1)
