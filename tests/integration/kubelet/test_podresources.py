"""The pod-resources client against a server that throttles, is slow, says much, or is not there."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from kdp.errors import PodResourcesError
from kdp.kubelet import podresources
from kdp.kubelet.podresources import Holder, PodResources
from kdp.proto import podresources_v1_pb2 as pb
from kdp_testkit.patience import PATIENCE

RESOURCE = "example.com/widget"


class Server:
    """Answers as a test says."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.answer: Callable[[], bytes] = lambda: b""
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False

    async def serve(self, _: bytes, context: Any) -> bytes:
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal is not None:
            await context.abort(*self.refusal)
        return self.answer()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path / "kubelet.sock")
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(made.serve) for name in ("List", "GetAllocatableResources")
    }
    running = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    running.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)])
    running.add_insecure_port(f"unix:{made.socket}")
    await running.start()
    yield made
    await running.stop(0)


def listing(*ids: str, padding: int = 0) -> bytes:
    devices = [pb.ContainerDevices(resource_name=RESOURCE, device_ids=[device_id]) for device_id in ids]
    containers = [pb.ContainerResources(name="main", devices=devices)]
    reply = pb.ListPodResourcesResponse(
        pod_resources=[
            pb.PodResources(name="one", namespace="default", containers=containers),
            pb.PodResources(name="x" * padding, namespace="default"),
        ]
    )
    return reply.SerializeToString()


async def test_a_reply_of_8_mib_is_read(server: Server) -> None:
    """Fault 78: gRPC's own limit is 4 MiB."""
    server.answer = lambda: listing("w0", "w0", padding=8 << 20)
    async with PodResources(server.socket).connect() as calls:
        report = await calls.list()
    assert report.holders == {(RESOURCE, "w0"): (Holder("default", "one", "main"),)}
    assert len(report.pods) == 2


async def test_a_device_with_two_numa_nodes_counts_once(server: Server) -> None:
    """The kubelet lists it once for each of its nodes."""
    entries = [
        pb.ContainerDevices(
            resource_name=RESOURCE, device_ids=["w0"], topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)])
        )
        for node in (0, 1)
    ]
    pods = [
        pb.PodResources(
            name="one", namespace="default", containers=[pb.ContainerResources(name="main", devices=entries)]
        )
    ]
    async with PodResources(server.socket).connect() as calls:
        server.answer = pb.ListPodResourcesResponse(pod_resources=pods).SerializeToString
        assert (await calls.list()).holders == {(RESOURCE, "w0"): (Holder("default", "one", "main"),)}
        server.answer = pb.AllocatableResourcesResponse(devices=entries).SerializeToString
        assert await calls.allocatable() == {RESOURCE: {"w0"}}


async def test_more_than_16_mib_is_an_error(server: Server) -> None:
    server.answer = lambda: listing(padding=17 << 20)
    async with PodResources(server.socket).connect() as calls:
        with pytest.raises(PodResourcesError, match="does not answer List"):
            await calls.list()


async def test_throttling_is_an_error_like_any_other(server: Server) -> None:
    """Fault 74."""
    server.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    async with PodResources(server.socket).connect() as calls:
        with pytest.raises(PodResourcesError, match="does not answer List: rejected by rate limit"):
            await calls.list()
        with pytest.raises(PodResourcesError, match="does not answer GetAllocatableResources"):
            await calls.allocatable()
        server.refusal = None
        assert await calls.allocatable() == {}


async def test_a_kubelet_that_hangs_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podresources, "CALL_DEADLINE", 0.2)
    server.hangs = True
    async with PodResources(server.socket).connect() as calls:
        with pytest.raises(PodResourcesError):
            await calls.list()


async def test_no_socket_and_a_dead_one(server: Server, tmp_path: Path) -> None:
    assert PodResources(server.socket).made_at() is not None
    assert PodResources(tmp_path / "none").made_at() is None
    async with PodResources(tmp_path / "none").connect() as calls:
        with pytest.raises(PodResourcesError):
            await calls.list()


async def test_the_command_shows_who_holds_a_device(server: Server, tmp_path: Path) -> None:
    (tmp_path / "widgets.py").write_text(
        "import kdp\n"
        "class Widgets(kdp.DeviceBackend):\n"
        f"    resource = {RESOURCE!r}\n"
        "    def discover(self):\n"
        "        return [kdp.Device(id='w0'), kdp.Device(id='w1')]\n"
    )
    server.answer = lambda: listing("w1")

    command = ["devices", f"{tmp_path}/widgets.py:Widgets", "--pod-resources-dir", str(tmp_path), "--format", "json"]
    command += ["--state-dir", str(tmp_path)]  # otherwise a plugin of this machine may answer for its devices

    async def devices() -> tuple[str, str]:
        # A process of its own: gRPC serves one event loop in a process well, and with two it may report errors.
        done = await anyio.run_process([sys.executable, "-m", "kdp", *command])
        return done.stdout.decode(), done.stderr.decode()

    with anyio.fail_after(PATIENCE):
        while "held_by" not in (text := (await devices())[0]):
            pass  # on a busy machine the command may have given up
    found = json.loads(text)["resources"][RESOURCE]
    assert [(each["id"], each["held_by"]) for each in found] == [("w0", None), ("w1", "default/one (main)")]
    server.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    out, complaints = await devices()
    assert "held_by" not in out
    assert "which pod holds a device is not shown" in complaints
