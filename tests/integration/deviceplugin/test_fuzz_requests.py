"""Damaged requests over a plugin's real socket: each gets a status of gRPC, and the plugin serves on."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from tests.fuzzing import PIECES
from tests.unit.strategies import scaled
from typing_extensions import override

import kdp
from kdp.kubelet.server import unix_target
from kdp.proto import deviceplugin_v1beta1_pb2 as pb
from kdp.testing import Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, registers

ODD = ["", "w0", "w9", "\0", "..", "x" * 10_000, "ü", "w0 ", "-1"]
REQUESTS = {
    "Allocate": [
        pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=each) for each in (ids, ["w0"])]
        ).SerializeToString()
        for ids in ([], *([each] for each in ODD), ["w0", "w0"], ODD)
    ],
    "GetPreferredAllocation": [
        pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=ids, must_include_deviceIDs=ODD[:2], allocation_size=size
                )
            ]
        ).SerializeToString()
        for ids in ([], ["w0"], ["w0", "w0"], ODD)
        for size in (-(2**31), -1, 0, 1, 2**31 - 1)
    ],
    "PreStartContainer": [
        pb.PreStartContainerRequest(devices_ids=ids).SerializeToString() for ids in ([], ODD, ["w0"])
    ],
    "GetDevicePluginOptions": [b""],
    "Nothing": [b""],
}
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INTERNAL,  # gRPC's own for what is no message
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNKNOWN,
}


class Starting(Widgets):
    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        assert devices

    @override
    def prefer(self, request: kdp.PreferRequest) -> None:
        assert request


async def test_a_damaged_request_has_a_status_and_the_plugin_serves_on(
    kubelet: SimulatedKubelet, figure: Callable[[str, float, str], None]
) -> None:
    tried = 0
    async with connected(kubelet, Starting("w0")):
        socket = kubelet.paths.device_plugin_dir / registers(kubelet)[-1].endpoint
        async with grpc.aio.insecure_channel(unix_target(socket)) as channel:
            for method, seeds in REQUESTS.items():
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                    f"/v1beta1.DevicePlugin/{method}"
                )
                cut = [seed[: len(seed) // 2] for seed in seeds]
                noise = [piece + seed for seed in seeds[: scaled(10)] for piece in PIECES]
                for request in [*seeds, *cut, *noise]:
                    tried += 1
                    answer = call(request, timeout=20)
                    assert await answer.code() in EXPECTED, (method, request[:100], await answer.details())
                    assert "Traceback" not in (await answer.details() or "")
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert admitted.devices(RESOURCE) == ("w0",)
        assert len(registers(kubelet)) == 1, "its stream has lived"
    figure("fuzzing: requests over a plugin's socket", tried, "inputs")
