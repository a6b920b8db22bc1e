from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import kdp
from kdp.command.app import kdp as command
from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState

from .support import Make, found, opened

GPU = NvmlState.uuid
PIPE = "/tmp/nvidia-mps"


@contextmanager
def _daemon(node: FakeNode) -> Generator[None]:
    """A control daemon, as far as a plugin meets it: its socket, of the type that driver 580 has."""
    folder = node.tree.path(PIPE)
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        descriptor = os.open(folder, os.O_PATH)
        listening.bind(f"/proc/self/fd/{descriptor}/control")
        os.close(descriptor)
        listening.listen()
        listening.setblocking(False)
        yield
        with pytest.raises(BlockingIOError):  # each connection would be two lines in the real one's log
            listening.accept()
    (folder / "control").unlink(missing_ok=True)
    folder.rmdir()


def test_a_unit_sees_the_daemons_directory_below_tmp() -> None:
    arguments = ["manifests", "nvidia-gpu", "--format=systemd", "--set=mps=4"]
    result = CliRunner().invoke(command, arguments)
    shared = CliRunner().invoke(command, [*arguments, "--set=mps_pipe=/run/nvidia-mps"])
    assert (result.exit_code, shared.exit_code) == (0, 0)
    assert "PrivateTmp" not in result.stdout
    assert "\nPrivateTmp=yes\n" in shared.stdout


def _allocation(*devices: kdp.Device) -> kdp.Allocation:
    return kdp.Allocation(resource="nvidia.com/gpu", devices=devices, deadline=time.monotonic() + 20)


def test_without_its_daemon_nothing_is_listed(make: Make) -> None:
    node, backend = make(mps=4)
    with pytest.raises(kdp.NotReady, match=f"the MPS control daemon's directory {PIPE} is not there"):
        backend.open()
    folder = node.tree.path(PIPE)
    folder.mkdir(parents=True)
    with pytest.raises(
        kdp.NotReady,
        match=f"does not answer at {PIPE}/control \\(No such file or directory\\); start nvidia-cuda-mps-control",
    ):
        backend.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:  # what a daemon that was killed leaves behind
        os.chdir(folder)
        dead.bind("control")
    with pytest.raises(kdp.NotReady, match="Connection refused"):
        backend.open()


@pytest.fixture(autouse=True)
def _same_place() -> Generator[None]:
    before = Path.cwd()
    yield
    os.chdir(before)


def test_nothing_was_ever_listed_with_the_real_daemon_whose_socket_is_no_stream(make: Make) -> None:
    node, backend = make(mps=4)
    with _daemon(node), opened(backend):
        assert {device.health.is_healthy for device in backend.discover()} == {True}


def test_a_container_started_without_limits_after_the_daemon_was_killed(make: Make) -> None:
    """On an H100 its program had all 132 multiprocessors and 78 GiB."""
    node, backend = make(mps=4)
    with _daemon(node), opened(backend):
        part = _allocation(backend.discover()[0])
        backend.prepare_container(part)
        (node.tree.path(PIPE) / "control").unlink()
        with pytest.raises(kdp.AllocationError, match=f"the MPS control daemon does not answer at {PIPE}/control"):
            backend.prepare_container(part)
    assert "prepare_container" in make()[1].unused_hooks


def test_each_gpu_is_listed_as_its_parts(make: Make) -> None:
    node, backend = make(mps=4)
    with _daemon(node):
        devices = found(backend)
    assert [*devices] == [f"{GPU(i)}/{part}" for i in (0, 1) for part in range(4)]
    assert {device.unit for device in devices.values()} == {GPU(0), GPU(1)}


def test_a_container_gets_pipe_shared_memory_and_limits(make: Make) -> None:
    node, backend = make(mps=4)
    with _daemon(node), opened(backend):
        devices = {device.id: device for device in backend.discover()}
        one = backend.allocate(_allocation(devices[f"{GPU(0)}/0"]))
        assert {n: v for n, v in one.env.items() if n.startswith("CUDA")} == {
            "CUDA_MPS_PIPE_DIRECTORY": PIPE,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=35942M",
        }
        assert [(m.host_path, m.container_path) for m in one.mounts] == [(PIPE, PIPE), ("/dev/shm", "/dev/shm")]
        two = backend.allocate(_allocation(devices[f"{GPU(0)}/0"], devices[f"{GPU(0)}/3"]))
        assert two.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert two.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=71885M"
        both = backend.allocate(_allocation(devices[f"{GPU(0)}/0"], devices[f"{GPU(1)}/0"]))
        assert both.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=35942M,1=35942M"
        uneven = [devices[f"{GPU(0)}/0"], devices[f"{GPU(0)}/1"], devices[f"{GPU(1)}/0"]]
        with pytest.raises(
            kdp.AllocationError, match="2 parts of one GPU and 1 of another, and MPS has one limit for all"
        ):
            backend.allocate(_allocation(*uneven))


def test_a_gpu_that_does_not_tell_its_memory_is_shared_without_a_limit_and_that_is_told_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A GB10 has none of its own: NVML says that it does not support the question."""
    node, backend = make(NvmlState(gpus=(GpuState(),), failing=(("nvmlDeviceGetMemoryInfo", 3, -1),)), mps=4)
    with _daemon(node), opened(backend):
        backend.discover()
        devices = backend.discover()
        assert all(device.health.is_healthy for device in devices)
        env = backend.allocate(_allocation(devices[0])).env
    assert {name for name in env if name.startswith("CUDA")} == {
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    }
    told = (
        f"{GPU(0)}: the driver does not report its memory, so its 4 parts have no "
        "memory limit; one container can take all of it"
    )
    assert [text for text in caplog.messages if "memory" in text] == [told]


def test_a_daemon_that_dies_makes_the_parts_unhealthy(make: Make) -> None:
    node, backend = make(mps=2)
    with _daemon(node):
        backend.open()
        assert all(device.health.is_healthy for device in backend.discover())
    reasons = {device.health.reason for device in backend.discover()}
    backend.close()
    assert len(reasons) == 1
    assert str(reasons.pop()).startswith(f"the MPS control daemon's directory {PIPE} is not there")
