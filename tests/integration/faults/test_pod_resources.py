"""Faults 73 to 81 of the pod-resources API, as a client sees them; a plugin that does not ask it goes on."""

from __future__ import annotations

import anyio
import grpc
import grpc.aio
import pytest
from tests.faults import FaultyKubelet

from kdp.proto import podresources_v1_pb2 as podresources
from kdp.testing import Container, Pod, ScenarioError

from ..deviceplugin.helpers import RESOURCE, Widgets, connected, registers

W0 = podresources.ContainerDevices(resource_name=RESOURCE, device_ids=["w0"])

HELD = podresources.ListPodResourcesResponse(
    pod_resources=[
        podresources.PodResources(
            name="trainer",
            namespace="ml",
            containers=[podresources.ContainerResources(name=name, devices=[W0]) for name in ("setup", "main")],
        )
    ]
)


async def ask(
    k: FaultyKubelet, method: str = "List", *, limit: int = 4 * 1024 * 1024, seconds: float = 5.0
) -> podresources.ListPodResourcesResponse:
    """Ask on a fresh connection, as a reconciler after an error does."""
    options = [("grpc.max_receive_message_length", limit), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{k.paths.pod_resources_socket}", options=options) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
        return podresources.ListPodResourcesResponse.FromString(await call(b"", timeout=seconds))


async def refused(k: FaultyKubelet, method: str = "List", **options: float) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(k, method, **options)  # type: ignore[arg-type]
    return failure.value.code().name, failure.value.details() or ""


def holders(reply: podresources.ListPodResourcesResponse) -> list[tuple[str, str, str]]:
    return [
        (pod.name, container.name, device_id)
        for pod in reply.pod_resources
        for container in pod.containers
        for device in container.devices
        for device_id in device.device_ids
    ]


BOTH = [("trainer", "setup", "w0"), ("trainer", "main", "w0")]


async def test_each_fault_is_what_a_client_sees_and_the_plugin_goes_on(k: FaultyKubelet) -> None:
    """Scenarios 70 and 72, as far as they are the server's."""
    async with connected(k, Widgets("w0")) as manager:
        await k.admit(Pod(name="trainer", containers=[Container(name="main", limits={RESOURCE: 1})]))
        held = [("trainer", "main", "w0")]
        assert holders(await ask(k)) == held

        k.faults.pod_resources_exhausted(times=2)
        assert await refused(k) == await refused(k) == ("RESOURCE_EXHAUSTED", "rejected by rate limit")
        assert holders(await ask(k)) == held

        k.faults.pod_resources_slow(600.0)
        assert (await refused(k, seconds=0.1))[0] == "DEADLINE_EXCEEDED"
        k.faults.clear()

        k.faults.list_terminal_pods(RESOURCE, ["w1"])
        assert holders(await ask(k)) == [*held, ("ended", "main", "w1")]

        k.faults.hide_containers("main")
        assert holders(await ask(k)) == []

        k.faults.list_devices_twice()
        assert holders(await ask(k)) == [*held, *held]

        k.faults.list_too_much(times=2)
        code, text = await refused(k)
        assert code == "RESOURCE_EXHAUSTED"
        assert "larger than max" in text
        assert len((await ask(k, limit=16 * 1024 * 1024)).pod_resources) > 10_000

        k.faults.list_nothing()
        assert holders(await ask(k)) == []

        k.faults.disable_get()
        assert await refused(k, "Get") == ("UNKNOWN", "PodResources API Get method disabled")
        assert holders(await ask(k)) == held

        inode = k.paths.pod_resources_socket.stat().st_ctime_ns
        k.faults.recreate_pod_resources_socket()
        assert k.paths.pod_resources_socket.stat().st_ctime_ns != inode
        assert holders(await ask(k)) == held

        k.faults.pod_resources_absent()
        assert (await refused(k))[0] == "UNAVAILABLE"
        with pytest.raises(ScenarioError, match="is not a socket"):
            k.faults.recreate_pod_resources_socket()
        assert manager.is_ready
        assert k.streams(RESOURCE) == 1
    assert len(registers(k)) == 1


async def test_faults_of_lists_add_up(k: FaultyKubelet) -> None:
    reply = HELD.SerializeToString()
    assert k.faults.armed.shape(reply) == reply
    k.faults.list_terminal_pods(RESOURCE, ["w1"], times=None)
    k.faults.hide_containers("main")
    assert holders(podresources.ListPodResourcesResponse.FromString(k.faults.armed.shape(reply))) == [BOTH[0]]
    again = holders(podresources.ListPodResourcesResponse.FromString(k.faults.armed.shape(reply)))
    assert again == [*BOTH, ("ended", "main", "w1")]
    with pytest.raises(ScenarioError, match="a fault cannot meet 0 calls"):
        k.faults.list_nothing(times=0)
    with anyio.fail_after(1):
        await k.faults.armed.meet("List")
