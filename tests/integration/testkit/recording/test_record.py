"""The recorder between a simulated kubelet and plugins: both must see what they would see without it."""

from __future__ import annotations

import math
from pathlib import Path

import anyio
import grpc
import pytest

from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.kubelet import KubeletState, look
from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.testing import CallError, Pod, SimulatedKubelet, SysfsTree, events
from kdp_example_minimal import Fuse
from kdp_testkit.patience import PATIENCE
from kdp_testkit.recording import read

from ...deviceplugin.helpers import until
from ..bare_plugin import BarePlugin
from .conftest import Connect
from .helpers import RESOURCE, Recording, recording

FUSE = "example.com/fuse"


async def listening(at: Recording) -> None:
    """Wait until the plugin's side has its kubelet."""
    await until(lambda: look(at.paths.kubelet_socket).state is KubeletState.LISTENING)


async def test_the_minimal_example_works_through_it_and_survives_a_killed_kubelet(
    kubelet: SimulatedKubelet, tmp_path: Path, sysfs_tree: SysfsTree
) -> None:
    sysfs_tree.char_device("/dev/fuse")
    async with recording(kubelet, tmp_path) as at:
        async with PluginManager([Fuse(count=3)], ManagerOptions(paths=at.paths, host=sysfs_tree.host)):
            await kubelet.until(allocatable={FUSE: 3})
            first = await kubelet.admit(Pod.asking({FUSE: 1}))
            await kubelet.restart()
            await kubelet.until(allocatable={FUSE: 3})
            await kubelet.readmit()
            await kubelet.admit(Pod.asking({FUSE: 1}))
        await kubelet.until(allocatable={FUSE: 0})

    assert [node.host_path for node in first.reply().devices] == ["/dev/fuse"]
    states = [line["state"] for line in at.of("kubelet")]
    assert states == ["listening", "gone", "listening"]
    assert [line["message"]["resource_name"] for line in at.of("call", "Register")] == [FUSE, FUSE]
    (asked, _) = at.of("call", "Allocate")
    assert asked["message"]["container_requests"] == [{"devices_ids": [*first.devices(FUSE)]}]
    (end, last) = at.of("end", "ListAndWatch")
    assert (end["from"], end["code"]) == ("kubelet", "CANCELLED")
    assert (last["from"], last["code"]) == ("plugin", "OK")
    assert at.lines[-1]["what"] == "closed"
    assert read(at.file).profile == kubelet.profile.name


async def test_a_bare_plugin_that_dies_and_comes_back(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        plugin = await connect(at)
        await kubelet.until(allocatable={RESOURCE: 2})
        await plugin.stop()
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
        await connect(at, devices={"w0": "Healthy"})
        await kubelet.until(allocatable={RESOURCE: 1})

        assert at.recorder.resources == {RESOURCE: 1}
        registered = kubelet.events.of(events.RegisterReceived)
        assert len({event.endpoint for event in registered}) == 2


async def test_no_byte_is_changed_not_even_what_nobody_understands(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    odd = (
        v1beta1.AllocateResponse(
            container_responses=[v1beta1.ContainerAllocateResponse(envs={"A": "b"})]
        ).SerializeToString()
        + bytes([0xFA, 0x06, 3])
        + b"odd"
    )
    seen: list[bytes] = []
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        plugin = await connect(at)

        async def allocate(request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
            seen.append(request.SerializeToString())
            return v1beta1.AllocateResponse.FromString(odd)

        plugin.on_allocate = allocate
        await kubelet.until(allocatable={RESOURCE: 2})
        asked = (
            v1beta1.AllocateRequest(
                container_requests=[v1beta1.ContainerAllocateRequest(devices_ids=["w1", "w0"])]
            ).SerializeToString()
            + bytes([0xFA, 0x06, 2])
            + b"ey"
        )
        answer = await kubelet.plugin(RESOURCE).call("Allocate", asked)

    assert seen == [asked]
    assert answer == odd
    assert all("bytes" in line for line in (*at.of("call", "Allocate"), *at.of("answer", "Allocate")))


async def test_errors_keep_their_code_and_their_text(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        plugin = await connect(at)
        plugin.pre_start_error = "the widget is on fire\nand so is its neighbour"
        await kubelet.until(allocatable={RESOURCE: 2})
        with pytest.raises(CallError) as refused:
            await kubelet.plugin(RESOURCE).allocate(["nonsense"])
        with pytest.raises(CallError) as failed:
            await kubelet.plugin(RESOURCE).pre_start(["w0"])
        with pytest.raises(CallError) as unknown:
            await kubelet.plugin(RESOURCE).call("Frobnicate", b"\x01")

    assert (refused.value.code, refused.value.detail) == ("INVALID_ARGUMENT", "unknown device nonsense")
    assert (failed.value.code, failed.value.detail) == ("INTERNAL", plugin.pre_start_error)
    assert unknown.value.code == "UNIMPLEMENTED"
    assert [line["detail"] for line in at.of("end", "Allocate")] == ["unknown device nonsense"]


async def test_a_deadline_arrives_and_ends_the_plugins_call(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    ended = anyio.Event()
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        plugin = await connect(at)

        async def hang(_: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
            try:
                await anyio.sleep(math.inf)
            finally:
                ended.set()
            raise AssertionError

        plugin.on_allocate = hang
        await kubelet.until(allocatable={RESOURCE: 2})
        with pytest.raises(CallError) as late:
            await kubelet.plugin(RESOURCE).allocate(["w0"], timeout=0.2)
        assert late.value.code == "DEADLINE_EXCEEDED"
        with anyio.fail_after(PATIENCE):
            await ended.wait()


async def test_the_kubelets_refusal_reaches_the_plugin(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        plugin = BarePlugin(at.paths.device_plugin_dir, resource="not-valid")
        await plugin.serve()
        try:
            answer = await plugin.register(at.paths.kubelet_socket)
        finally:
            await plugin.stop()

    assert answer == 'UNKNOWN: the ResourceName "not-valid" is invalid'
    (end,) = at.of("end", "Register")
    assert (end["from"], end["detail"]) == ("kubelet", 'the ResourceName "not-valid" is invalid')


async def test_without_a_kubelet_nobody_listens_and_the_plugins_sockets_go_when_one_comes(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        plugin = await connect(at)
        await kubelet.until(allocatable={RESOURCE: 2})
        await kubelet.crash()
        await plugin.until(lambda: plugin.streams == 0)
        await until(lambda: look(at.paths.kubelet_socket).state is not KubeletState.LISTENING)
        assert plugin.path.exists()
        await kubelet.start()
        await listening(at)
        assert not plugin.path.exists()


async def test_nothing_is_left_in_the_kubelets_directory(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    before = {path.name for path in kubelet.paths.device_plugin_dir.iterdir()}
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        await connect(at)
        await kubelet.until(allocatable={RESOURCE: 2})
    await kubelet.until(allocatable={RESOURCE: 0})

    left = {path.name for path in kubelet.paths.device_plugin_dir.iterdir()} - before
    assert left <= {"kubelet_internal_checkpoint"}
    assert not at.paths.kubelet_socket.exists()


async def test_values_and_paths_are_left_out_consistently(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    async with recording(kubelet, tmp_path, redact=["env", "paths"]) as at:
        await listening(at)
        await connect(at)
        await kubelet.until(allocatable={RESOURCE: 2})
        replies = await kubelet.plugin(RESOURCE).allocate(["w0"])
        await kubelet.plugin(RESOURCE).allocate(["w0"])

    assert replies[0].envs == {"WIDGETS": "w0"}, "what passes is not touched"
    first, again = (line["message"]["container_responses"][0] for line in at.of("answer", "Allocate"))
    assert first["envs"] == {"WIDGETS": "redacted-env-1"}
    assert first["devices"] == [
        {"container_path": "/redacted/path-2", "host_path": "/redacted/path-2", "permissions": "rw"}
    ]
    assert first["mounts"] == [{"container_path": "/lib/widget", "host_path": "/redacted/path-1", "read_only": True}]
    assert again == first
    assert "/opt/widget" not in at.file.read_text()


async def test_a_list_that_no_kubelet_takes_ends_the_stream_as_it_would_there(
    kubelet: SimulatedKubelet, tmp_path: Path, connect: Connect
) -> None:
    async with recording(kubelet, tmp_path) as at:
        await listening(at)
        await connect(at, devices={f"{number:063}": "Healthy" for number in range(60_000)})
        await kubelet.until(lambda: kubelet.events.of(events.StreamEnded))

    (ended,) = kubelet.events.of(events.StreamEnded)
    assert ended.code == grpc.StatusCode.RESOURCE_EXHAUSTED.name
    assert "received message larger than max" in ended.detail
