"""IMEX channels, by each strategy, there and not there."""

from __future__ import annotations

import json

import pytest

import kdp
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import FakeNode, NvmlState

from .conftest import MakeNode
from .support import Make, found, opened

GPU = NvmlState.uuid
DIRECTORY = "/dev/nvidia-caps-imex-channels"
MOUNTS = "/var/run/nvidia-container-devices"


def _channel(node: FakeNode, number: int) -> None:
    node.tree.stand_in(f"{DIRECTORY}/channel{number}", major=234, minor=number)


def _edits(backend: NvidiaGpu) -> kdp.ContainerEdits:
    """Return what a container gets that has both GPUs."""
    return kdp.ContainerEdits.merge(((d.id, d.edits) for d in found(backend).values()), joined_env=backend.joined_env)


def test_by_each_strategy(make: Make) -> None:
    node, backend = make(strategies=["envvar"], nvidia_runtime=True, imex_channels=[0, 3])
    _channel(node, 0)
    _channel(node, 3)
    assert _edits(backend).env == {
        "NVIDIA_VISIBLE_DEVICES": f"{GPU(0)},{GPU(1)}",
        "NVIDIA_IMEX_CHANNELS": "0,3",
    }

    mounts = NvidiaGpu(node.host, strategies=["volume-mounts"], nvidia_runtime=True, imex_channels=[0])
    edits = _edits(mounts)
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": MOUNTS}
    assert [held.container_path for held in edits.mounts] == [f"{MOUNTS}/{name}" for name in (GPU(0), "imex/0", GPU(1))]

    edits = _edits(NvidiaGpu(node.host, strategies=["device-nodes"], imex_channels=[0]))
    assert "NVIDIA_IMEX_CHANNELS" not in edits.env
    assert [held.host_path for held in edits.device_nodes].count(f"{DIRECTORY}/channel0") == 1


def test_by_cdi_the_spec_must_describe_them(make_node: MakeNode) -> None:
    node = make_node()
    backend = NvidiaGpu(node.host, strategies=["cdi"], imex_channels=[0], imex_required=True)
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}
    gpus = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in (GPU(0), GPU(1))]
    node.tree.write("/var/run/cdi/nvidia.json", json.dumps({**spec, "devices": gpus}))
    with opened(backend):
        assert {device.health.reason for device in backend.discover()} == {
            (
                "IMEX channel 0: no CDI spec of the node describes nvidia.com/imex-channel=0; run nvidia-ctk cdi "
                "generate --mode=imex"
            )
        }
        channels = {**spec, "kind": "nvidia.com/imex-channel", "devices": [{**gpus[0], "name": "0"}]}
        node.tree.write("/etc/cdi/imex.yaml", json.dumps(channels))
        devices = backend.discover()
        assert all(device.health.is_healthy for device in devices)
        assert devices[0].edits.cdi_devices == (f"nvidia.com/gpu={GPU(0)}", "nvidia.com/imex-channel=0")


@pytest.mark.parametrize("strategy", ["envvar", "device-nodes"])
def test_one_that_is_not_there_is_left_out_and_told_once(
    make: Make, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    node, backend = make(strategies=[strategy], nvidia_runtime=True, imex_channels=[0])
    with opened(backend):
        for _ in range(2):
            devices = backend.discover()
            assert all(device.health.is_healthy for device in devices)
            assert "imex" not in str(devices[0].edits).lower()
        told = f"IMEX channel 0: {DIRECTORY}/channel0 is not there; make it with mknod"
        assert [text for text in caplog.messages if "IMEX" in text] == [
            f"{told}; containers start without it, see imex_required"
        ]
        _channel(node, 0)
        assert "imex" in str(backend.discover()[0].edits).lower()


def test_without_a_required_one_gpus_are_unhealthy_until_it_is_there(make: Make) -> None:
    node, backend = make(imex_channels=[0, 1], imex_required=True)
    _channel(node, 0)
    with opened(backend):
        reason = f"IMEX channel 1: {DIRECTORY}/channel1 is not there; make it with mknod"
        assert {device.health.reason for device in backend.discover()} == {reason}
        _channel(node, 1)
        assert all(device.health.is_healthy for device in backend.discover())
        node.tree.remove(f"{DIRECTORY}/channel1")
        assert {device.health.reason for device in backend.discover()} == {reason}
