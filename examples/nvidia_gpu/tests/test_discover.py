from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

import kdp
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import GpuState, MigState, NvmlState

from .conftest import MakeNode
from .support import MIG, Make, change, found, opened

GPU = NvmlState.uuid


def _resources(devices: dict[str, kdp.Device]) -> dict[str, list[str]]:
    resources: dict[str, list[str]] = {}
    for device in devices.values():
        resources.setdefault(str(device.resource), []).append(device.id)
    return resources


@pytest.mark.parametrize(("driver", "version"), [("580.159.03.1", "580.159.3"), ("open-580", None)])
def test_a_driver_whose_version_is_not_semantic_leaves_all_gpus_listed(
    make: Make, driver: str, version: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    _, backend = make(NvmlState(driver=driver))
    with opened(backend):
        for _ in range(2):
            devices = backend.discover()
            assert [device.attributes.get("driverVersion") for device in devices] == [
                version and kdp.Version(version)
            ] * 2
    assert caplog.messages.count(
        f"driver version {driver!r}: begins with no number; devices have no attribute for it"
    ) == (version is None)


def test_two_gpus(make: Make) -> None:
    _, backend = make(NvmlState(gpus=(GpuState(), GpuState(numa_node=1, minor=5))))
    devices = found(backend)
    assert [*devices] == [GPU(0), GPU(1)]
    assert [device.numa_nodes for device in devices.values()] == [(0,), (1,)]
    assert all(device.health.is_healthy for device in devices.values())
    assert "/dev/nvidia5" in [node.host_path for node in devices[GPU(1)].edits.device_nodes]
    assert dict(devices[GPU(0)].attributes) == {
        "product": "NVIDIA-H200",
        "memory": 143771,
        "family": "hopper",
        "compute": kdp.Version("9.0.0"),
        "bus": "0000:3b:00.0",
        "driver": kdp.Version("580.159.3"),
        "cuda": kdp.Version("13.0.0"),
        "type": "gpu",
        "uuid": GPU(0),
        "productName": "NVIDIA H200",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": kdp.Version("9.0.0"),
        "driverVersion": kdp.Version("580.159.3"),
        "cudaDriverVersion": kdp.Version("13.0.0"),
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
    }


def test_mig_mixed_names_resources_by_profile(make: Make) -> None:
    node, backend = make(MIG, mig="mixed")
    devices = found(backend)
    assert {name: len(ids) for name, ids in _resources(devices).items()} == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-3g.71gb": 1,
        "nvidia.com/mig-1g.18gb": 2,
    }
    instance = devices[node.state.mig_uuid(1, 1)]
    assert (instance.unit, instance.numa_nodes) == (GPU(1), (1,))
    assert {n: instance.attributes[n] for n in ("profile", "slices", "memory")} == {
        "profile": "1g.18gb",
        "slices": 1,
        "memory": 16384,
    }
    # The node of the GPU instance and that of the compute instance, with the GPU's own.
    nodes = [held.host_path for held in instance.edits.device_nodes]
    assert {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap200", "/dev/nvidia-caps/nvidia-cap201"} <= {*nodes}
    assert "/dev/nvidia-caps/nvidia-cap155" not in nodes


def test_a_part_of_an_instance_and_media_engines_have_names_of_their_own(make: Make) -> None:
    half = (MigState(index=0, gi=2, slices=1, gi_slices=3, memory_mib=71424),)
    state = NvmlState(
        gpus=(
            GpuState(is_mig=True, instances=half),
            GpuState(name="NVIDIA X MIG 1g.10gb+me", is_mig=True, instances=(MigState(index=0),)),
            GpuState(name="NVIDIA X MIG 1g.10gb-me", is_mig=True, instances=(MigState(index=0),)),
        )
    )
    _, backend = make(state, mig="mixed")
    names = ["nvidia.com/mig-1c.3g.71gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-1g.10gb-me"]
    assert [*_resources(found(backend))] == names
    _, backend = make(state, mig="mixed", mig_profiles=["1g.10gb-me"])
    assert [*_resources(found(backend))] == names[2:]


def test_mig_single_is_one_resource_of_one_profile(make: Make) -> None:
    same = GpuState(is_mig=True, instances=(MigState(index=0, gi=7), MigState(index=1, gi=8)))
    _, backend = make(NvmlState(gpus=(same, same)), mig="single")
    assert {name: len(ids) for name, ids in _resources(found(backend)).items()} == {"nvidia.com/gpu": 4}


def test_mig_single_with_several_kinds_says_so_and_hands_out_none(make: Make) -> None:
    _, backend = make(MIG, mig="single")
    reasons = {device.health.reason for device in found(backend).values()}
    assert reasons == {
        (
            "mig=single wants one MIG profile on all GPUs, here are 2 x 1g.18gb, 1 x 3g.71gb, 1 x whole GPU; make "
            "them equal, or set mig=mixed"
        )
    }


@pytest.mark.parametrize("error", [15, 999])
def test_mig_single_where_one_gpu_does_not_tell_its_mode_at_first_serves_the_others(make: Make, error: int) -> None:
    """It was counted as a whole GPU, and every instance of the node was Unhealthy beside it."""
    same = GpuState(is_mig=True, instances=(MigState(index=0),))
    failing = NvmlState(gpus=(same, same), failing=(("nvmlDeviceGetMigMode", error, 1),))
    node, backend = make(failing, mig="single")
    told, lost = found(backend).values()
    assert told.health.is_healthy
    assert (lost.id, lost.health.reason) == (GPU(1), "it does not report whether it is in MIG mode")
    node.set(attrs.evolve(failing, failing=()))
    assert [device.health.is_healthy for device in found(backend).values()] == [True, True]


def test_mig_single_where_one_gpu_does_not_tell_its_profiles_serves_the_others(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    same = GpuState(is_mig=True, instances=(MigState(index=0),))
    state = NvmlState(gpus=(same, same), failing=(("nvmlDeviceGetAttributes_v2", 3, 1),))
    _, backend = make(state, mig="single")
    told, untold = found(backend).values()
    assert told.health.is_healthy
    reason = "the driver does not report its profile, so kdp cannot see whether it is 1g.18gb as the others"
    assert untold.health.reason == reason
    assert not caplog.messages
    _, backend = make(state, mig="single", mig_profiles=["1g.18gb"])
    assert [*found(backend)] == [told.id]
    assert caplog.messages == [
        f"{untold.id}: the driver does not report its profile, so its resource is unknown; it is left out"
    ]


@pytest.mark.parametrize(
    ("mig", "profile"),
    [("mixed", "5c.3g.71gb"), ("dynamic", "1c.3g.71gb")],
)
def test_a_part_that_no_instance_can_have_was_waited_for_in_silence(
    make: Make, caplog: pytest.LogCaptureFixture, mig: str, profile: str
) -> None:
    _, backend = make(NvmlState(gpus=(GpuState(is_mig=True),)), mig=mig, mig_profiles=[profile])
    assert not found(backend)
    (told,) = (line for line in caplog.messages if line.startswith("mig_profiles"))
    assert told.startswith(f"mig_profiles: no GPU of this node has the profile {profile!r}; they have 1g.18gb, ")


def test_only_the_profiles_that_are_asked_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    _, backend = make(MIG, mig="mixed", mig_profiles=["1g.18gb", "9g.99gb"])
    assert [*_resources(found(backend))] == ["nvidia.com/gpu", "nvidia.com/mig-1g.18gb"]
    assert backend.resources == ["nvidia.com/mig-1g.18gb", "nvidia.com/mig-9g.99gb"]
    assert caplog.messages == [
        "mig_profiles: no GPU of this node has the profile '9g.99gb'; they have 1g.18gb, 2g.35gb, 3g.71gb, 7g.141gb"
    ]


def test_a_lost_gpu_stays_listed_with_the_reason_and_comes_back(make: Make) -> None:
    node, backend = make()
    with opened(backend):
        before = [*backend.discover()]
        node.change(1, is_lost=True)
        lost = [*backend.discover()]
        assert [device.id for device in lost] == [GPU(0), GPU(1)]
        assert [device.health.reason for device in lost] == [None, "it is lost: GPU is lost (NVML error 15)"]
        node.change(1, is_lost=False)
        assert [*backend.discover()] == before


def test_a_driver_that_numbers_its_nodes_anew_is_asked_again(make: Make) -> None:
    """The GPU's pod had /dev/nvidia0, which is another GPU's now, and so would the next one."""
    node, backend = make(NvmlState(gpus=(GpuState(minor=0), GpuState(minor=1))))
    before = found(backend)
    node.set(NvmlState(gpus=(GpuState(minor=1), GpuState(minor=0))))
    after = found(backend)
    for index in (0, 1):
        old, new = before[GPU(index)], after[GPU(index)]
        assert [each.edits.device_nodes[-1].host_path for each in (old, new)] == [
            f"/dev/nvidia{index}",
            f"/dev/nvidia{1 - index}",
        ]
        numbers = index, 1 - index
        assert [old.identity, new.identity] == [f"{GPU(index)}, minor number {number}" for number in numbers]


@pytest.mark.parametrize(
    ("options", "identity"),
    [
        ({"strategies": ["envvar", "cdi"]}, GPU(1)),
        ({"strategies": ["cdi"], "naming": "index"}, f"{GPU(1)}, index 1"),
        ({"strategies": ["device-nodes"], "naming": "index"}, f"{GPU(1)}, minor number 5"),
        ({"strategies": ["envvar", "device-nodes"], "naming": "index"}, f"{GPU(1)}, index 1, minor number 5"),
    ],
)
def test_the_uuid_and_numbers_that_a_container_is_given_are_the_identity(
    make: Make, options: dict[str, Any], identity: str
) -> None:
    _, backend = make(NvmlState(gpus=(GpuState(), GpuState(minor=5))), nvidia_runtime=True, **options)
    assert found(backend)[GPU(1)].identity == identity


def test_a_lost_gpu_is_not_taken_for_one_that_has_its_index_no_longer(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a new start of the driver without the first of three."""
    node, backend = make(NvmlState(gpus=(GpuState(), GpuState(), GpuState())))
    with opened(backend):
        first = [*backend.discover()]
        node.set(NvmlState(gpus=(GpuState(uuid=GPU(1)), GpuState(uuid=GPU(2), is_lost=True))))
        later = [*backend.discover()]
    assert [device.id for device in later] == [first[1].id]
    assert later[0].health.is_healthy
    assert caplog.messages[0].endswith("kdp cannot identify it, so it has no device under its UUID")


@pytest.mark.parametrize(("uuid", "why"), [("", "it has no UUID"), ("\udcff", "'utf-8' codec can't decode byte 0xff")])
def test_a_gpu_whose_uuid_is_none_leaves_the_others_listed(
    make: Make, caplog: pytest.LogCaptureFixture, uuid: str, why: str
) -> None:
    _, backend = make(NvmlState(gpus=(GpuState(uuid=uuid), GpuState())))
    assert [*found(backend)] == [GPU(1)]
    assert why in caplog.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"remap_failed": True}, "row remapping has failed: the GPU's memory is broken, replace the GPU"),
        ({"recovery_action": 1}, "the driver wants a reset of the GPU"),
        ({"remap_pending": True}, None),
    ],
)
def test_what_the_driver_holds_against_a_gpu(make: Make, changes: dict[str, object], reason: str | None) -> None:
    _, backend = make(change(NvmlState(), 0, **changes))
    assert found(backend)[GPU(0)].health.reason == reason


def test_a_driver_that_is_installed_later(make_node: MakeNode, library: Path) -> None:
    node = make_node(driver=False)
    backend = NvidiaGpu(node.host, strategies=["device-nodes"])
    with pytest.raises(
        kdp.NotReady, match=r"libnvidia-ml.so.1 is not in / of the node, so the NVIDIA driver is not installed"
    ):
        backend.open()
    node.install(library)
    assert [*found(backend)] == [GPU(0), GPU(1)]


def test_a_node_without_a_gpu_waits_for_no_driver(make_node: MakeNode) -> None:
    node = make_node(driver=False)
    backend = NvidiaGpu(node.host, strategies=["device-nodes"])
    node.tree.pci_function("0000:00:1f.0", vendor=0x8086, device=0x1572, class_code=0x020000)
    with pytest.raises(kdp.NoHardware, match="no NVIDIA GPU is on this node's PCI bus"):
        backend.open()
    node.tree.pci_function("0000:3b:00.0", vendor=0x10DE, device=0x2335, class_code=0x030200)
    with pytest.raises(kdp.NotReady, match="driver is not installed") as caught:
        backend.open()
    assert not isinstance(caught.value, kdp.NoHardware)


def test_a_driver_with_a_root_of_its_own(make_node: MakeNode, library: Path) -> None:
    """As on GKE: library and programs are in a directory that containers get as a mount."""
    node = make_node(driver=True)
    node.tree.remove("/usr")
    root = "/home/kubernetes/bin/nvidia"
    backend = NvidiaGpu(node.host, strategies=["device-nodes"], driver_root=root)
    with pytest.raises(kdp.NotReady, match=f"is not in {root} of the node"):
        backend.open()
    (node.tree.path(root) / "lib64").mkdir(parents=True)
    (node.tree.path(root) / "vulkan/icd.d").mkdir(parents=True)
    (node.tree.path(root) / "lib64/libnvidia-ml.so.1").write_bytes(library.read_bytes())
    node.file.parent.mkdir(parents=True)
    node.set(node.state)
    device = found(backend)[GPU(0)]
    assert {(m.host_path, m.container_path, m.read_only) for m in device.edits.mounts} == {
        (root, "/usr/local/nvidia", True),
        (f"{root}/vulkan/icd.d", "/etc/vulkan/icd.d", True),
    }


@pytest.mark.parametrize(
    ("code", "reason"),
    [(9, "not loaded: Driver Not Loaded"), (18, "restart the plugin"), (999, r"Unknown Error \(NVML error 999\)")],
)
def test_a_driver_that_does_not_answer_is_no_error(make: Make, code: int, reason: str) -> None:
    node, backend = make(NvmlState(init=code))
    with pytest.raises(kdp.NotReady, match=reason):
        backend.open()
    node.set(NvmlState())
    assert found(backend)
