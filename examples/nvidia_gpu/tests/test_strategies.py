from __future__ import annotations

import json
import os

import pytest
import yaml
from click.testing import CliRunner
from typing_extensions import override

import kdp
import kdp.hardware
from kdp.command.app import kdp as command
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import GpuState, MigState, NvmlState
from kdp_nvidia_gpu.options import Strategy
from kdp_nvidia_gpu.runtime import RUNTIME_PLACES, is_default

from .conftest import MakeNode
from .support import MIG, Make, found, opened

GPU = NvmlState.uuid
SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def _edits(make: Make, *strategies: str, **options: object) -> kdp.ContainerEdits:
    """Return what a container gets that has both GPUs of a node."""
    _, backend = make(strategies=strategies, nvidia_runtime=True, **options)
    return kdp.ContainerEdits.merge(((d.id, d.edits) for d in found(backend).values()), joined_env=backend.joined_env)


def test_envvar(make: Make) -> None:
    edits = _edits(make, "envvar")
    assert edits == kdp.ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": f"{GPU(0)},{GPU(1)}"})


def test_envvar_by_index(make: Make) -> None:
    assert _edits(make, "envvar", naming="index").env == {"NVIDIA_VISIBLE_DEVICES": "0,1"}
    node, backend = make(MIG, strategies=["envvar"], nvidia_runtime=True, naming="index", mig="mixed")
    assert found(backend)[node.state.mig_uuid(1, 2)].edits.env == {"NVIDIA_VISIBLE_DEVICES": "1:2"}


def test_volume_mounts(make: Make) -> None:
    edits = _edits(make, "volume-mounts")
    place = "/var/run/nvidia-container-devices"
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": place}
    assert [(m.host_path, m.container_path) for m in edits.mounts] == [
        ("/dev/null", f"{place}/{GPU(0)}"),
        ("/dev/null", f"{place}/{GPU(1)}"),
    ]


def test_device_nodes_and_no_word_to_nvidias_runtime(make: Make) -> None:
    edits = _edits(make, "device-nodes")
    assert edits == kdp.ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": "void"},
        device_nodes=kdp.ContainerEdits.of_node(*SHARED, "/dev/nvidia0", "/dev/nvidia1").device_nodes,
    )


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_cdi_wants_a_spec_and_sees_when_it_comes_and_gets_old(make_node: MakeNode, name: str) -> None:
    node = make_node(MIG)
    backend = NvidiaGpu(node.host, strategies=["cdi"], mig="mixed")
    instance = node.state.mig_uuid(1, 1)
    with opened(backend):
        device = {d.id: d for d in backend.discover()}[instance]
        assert device.edits.cdi_devices == (f"nvidia.com/gpu={instance}",)
        assert device.health.reason == (
            f"no CDI spec of the node describes nvidia.com/gpu={instance}; run nvidia-ctk cdi generate, or set "
            "cdi_dirs if the runtime reads other directories than /etc/cdi and /var/run/cdi"
        )
        names = [GPU(0), instance]
        edits = {"deviceNodes": [{"path": "/dev/nvidiactl"}]}
        devices = [{"name": n, "containerEdits": edits} for n in names]
        spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        text = json.dumps(spec) if name.endswith("json") else yaml.safe_dump(spec)
        node.tree.write(f"/var/run/cdi/{name}", text)
        node.tree.write("/etc/cdi/broken.yaml", "{")
        node.tree.write("/etc/cdi/no-date.yaml", "kind: a.b/c\ndevices: []\nbuilt: 2024-13-45\n")
        node.tree.write("/etc/cdi/deep.yaml", "[" * 5000)
        reasons = {d.id: d.health.reason for d in backend.discover()}
        assert {n: reasons[n] for n in names} == dict.fromkeys(names)
        assert None not in [reasons[n] for n in reasons if n not in names]
        node.tree.remove(f"/var/run/cdi/{name}")
        assert not [d.id for d in backend.discover() if d.health.is_healthy]


def test_a_spec_that_gives_a_gpu_another_ones_node_makes_it_unhealthy(make: Make) -> None:
    """As after a new start of the driver, when nobody has written the spec anew."""
    node, backend = make(strategies=["cdi"])
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
    }
    gpus = [{"name": GPU(n), "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}} for n in (0, 1)]
    node.tree.write("/etc/cdi/nvidia.json", json.dumps({**spec, "devices": gpus}))
    devices = found(backend)
    assert devices[GPU(0)].health.is_healthy
    assert devices[GPU(1)].health.reason == (
        f"the CDI spec gives nvidia.com/gpu={GPU(1)} the device node /dev/nvidia0 of another GPU; run nvidia-ctk cdi "
        "generate"
    )


def _spec(*names: str) -> str:
    edits = {"deviceNodes": [{"path": "/dev/nvidiactl"}]}
    devices = [{"name": name, "containerEdits": edits} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})


@pytest.mark.parametrize(
    ("naming", "names", "other"), [("uuid", ["0", "1", "all"], "index"), ("index", [GPU(0)], "uuid")]
)
def test_a_spec_with_the_other_kind_of_names_was_asked_for_again(
    make: Make, naming: str, names: list[str], other: str
) -> None:
    node, backend = make(strategies=["cdi"], naming=naming)
    node.tree.write("/etc/cdi/nvidia.json", _spec(*names))
    reason = str(found(backend)[GPU(0)].health.reason)
    assert reason.endswith(f"; set naming={other}, because the spec describes it as nvidia.com/gpu={names[0]}")
    _, backend = make(strategies=["cdi"], naming=other)
    assert found(backend)[GPU(0)].health.is_healthy


def test_specs_in_the_directories_of_talos_were_not_found(make: Make) -> None:
    directories = ["/var/cdi/static", "/var/cdi/dynamic"]
    node, backend = make(strategies=["cdi"], cdi_dirs=directories)
    node.tree.write("/var/cdi/static/nvidia.json", _spec(GPU(0)))
    devices = found(backend)
    assert devices[GPU(0)].health.is_healthy
    assert "set cdi_dirs if the runtime reads other directories than /var/cdi/static and" in str(devices[GPU(1)].health)
    assert {*directories} <= {*backend.needs().host_paths}


def test_an_instance_whose_name_is_none_for_cdi_leaves_the_others_listed(make: Make) -> None:
    """As that of a driver before 470."""
    old = MigState(index=0, uuid=f"MIG-{GPU(1)}/7/0")
    _, backend = make(
        NvmlState(gpus=(GpuState(), GpuState(is_mig=True, instances=(old,)))), strategies=["cdi"], mig="mixed"
    )
    devices = found(backend)
    assert [*devices] == [GPU(0), old.uuid]
    assert devices[GPU(0)].edits.cdi_devices == (f"nvidia.com/gpu={GPU(0)}",)
    assert not devices[old.uuid].health.is_healthy


# -- NVIDIA's container runtime ----------------------------------------------------------------------------------------


def test_without_nvidias_runtime_nothing_is_listed(make: Make) -> None:
    strategy = "envvar"
    _, backend = make(strategies=[strategy])
    with pytest.raises(kdp.NotReady) as caught:
        backend.open()
    assert str(caught.value).startswith(
        f"strategies={strategy} needs NVIDIA's container runtime, and without it containers start with no GPU; the "
        "plugin's own container has no GPU from it, and sees none of /etc/nvidia-container-runtime/config.toml, "
    )
    assert str(caught.value).endswith("or set nvidia_runtime=true if it is elsewhere")


@pytest.mark.parametrize("place", RUNTIME_PLACES[:1])
def test_nvidias_runtime_is_found(make: Make, place: str, caplog: pytest.LogCaptureFixture) -> None:
    node, backend = make(strategies=["envvar"])
    node.tree.write(place, "")
    with caplog.at_level("INFO"):
        assert found(backend)
    assert caplog.messages == [
        f"the node has NVIDIA's container runtime ({place} is there); pods may have to say runtimeClassName: nvidia"
    ]
    node.tree.write("/etc/containerd/conf.d/99-nvidia.toml", '  default_runtime_name = "nvidia"')
    assert is_default(node.host)


# -- what the plugin itself must be given ------------------------------------------------------------------------------


class _Seen(kdp.hardware.Host):
    """The node's files, and which of them were looked at."""

    @override
    def look(self, host_path: str | os.PathLike[str]) -> tuple[int, int] | None:
        _LOOKED.append(str(host_path))
        return super().look(host_path)

    @override
    def read_bytes(self, host_path: str | os.PathLike[str]) -> bytes:
        _LOOKED.append(str(host_path))
        return super().read_bytes(host_path)

    @override
    def glob(self, pattern: str | os.PathLike[str]) -> list[str]:
        _LOOKED.append(str(pattern))
        return super().glob(pattern)


_LOOKED: list[str] = []


@pytest.mark.parametrize(
    ("strategies", "driver_root"),
    [(["envvar", "cdi"], "/"), (["device-nodes"], "/home/kubernetes/bin/nvidia")],
)
def test_needs_declares_all_that_is_read(make_node: MakeNode, strategies: list[Strategy], driver_root: str) -> None:
    node = make_node(MIG)
    node.tree.write("/etc/nvidia-container-runtime/config.toml", "")
    library = node.file.with_name("libnvidia-ml.so.1")
    backend = NvidiaGpu(
        _Seen(node.root),
        strategies=strategies,
        driver_root=driver_root,
        library=library,
        mig="mixed",
        imex_channels=[0],
    )
    _LOOKED.clear()
    assert found(backend)
    needs = backend.needs()
    assert _LOOKED
    declared = (*needs.host_paths, *needs.optional_paths)
    assert [path for path in _LOOKED if not any(f"{path}/".startswith(f"{held}/") for held in declared)] == []
    assert ("/etc/cdi" in needs.host_paths) == ("cdi" in strategies)


def test_a_unit_may_open_what_nvml_opens_as_no_runtime_brings_it() -> None:
    """Also where the unit is written on a machine without a GPU."""
    strategy: Strategy = "device-nodes"
    arguments = ["manifests", "nvidia-gpu", "--format=systemd", f"--set=strategies={strategy}"]

    result = CliRunner().invoke(command, [*arguments, "--set=dev_root=/run/nvidia/driver"])

    assert result.exit_code == 0, result.output
    assert "DevicePolicy=closed\n" in result.stdout
    assert "\nDeviceAllow=char-nvidia* rw\n" in result.stdout
