"""The examples' dra/ folders before a real API server, and their backends as DRA drivers by `kdp run --mode dra`."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdp.testing import SysfsTree
from kdp_nvidia_gpu.fake import GpuState, NvmlState, compile_library

from .conftest import Namespace
from .deploy import DEVICES, Nodes
from .nodekit.cluster import NODE
from .nodekit.image import STAY
from .nodekit.machine import IMAGE
from .test_dra import DRIVER as WIDGETS
from .test_dra import PROGRAM

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*/dra/*.yaml"))
PAGES = [EXAMPLES.parent / f"docs/how-to/{name}.md" for name in ("run-as-a-dra-driver", "publish-network-devices")]
SLICES = "resource.k8s.io/v1/resourceslices"
VF = "0000:d8:00.2"
VF_DRIVER = "vf.rdma.example.com"
Object = dict[str, Any]
Run = Callable[..., Awaitable[None]]


def test_every_example_that_has_devices_for_claims_is_here() -> None:
    assert {file.parents[1].name for file in FILES} == {"minimal", "generic", "nvidia_gpu", "fpga", "rdma"}


def _objects(file: Path) -> list[Object]:
    return [*yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parents[1].name}-{file.stem}")
async def test_the_api_server_takes_the_file_as_it_is(namespace: Namespace, file: Path) -> None:
    said = await namespace.cluster.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", f"--namespace={namespace.name}", f"--filename={file}")
    )
    assert said.count("(server dry run)") == len(_objects(file))


def _blocks(page: Path) -> list[str]:
    found: list[str] = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for text in found if "resource.k8s.io" in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_api_server_takes_a_pages_yaml(namespace: Namespace, page: Path) -> None:
    blocks = _blocks(page)
    assert blocks
    for text in blocks:
        arguments = ("apply", "--dry-run=server", "--validate=strict", f"--namespace={namespace.name}", "--filename=-")
        said = await namespace.cluster.kubectl(*arguments, stdin=text)
        assert said.count("(server dry run)") == len([*yaml.safe_load_all(text)])


@pytest.fixture
async def run(namespace: Namespace) -> AsyncIterator[Run]:
    """Run a backend as a driver until the end of the test, apply a file of its folder, and see its pod succeed."""
    cluster = namespace.cluster
    process = f"example-{namespace.name}"

    async def start(
        target: str, driver: str, file: str, said: str, *options: str, count: int, env: tuple[str, ...] = ()
    ) -> None:
        arguments = ["--mode=dra", "--node-name=node0", f"--kubeconfig={cluster.work}/admin.kubeconfig", *options]
        await cluster.spawn(process, "env", *env, sys.executable, "-m", "kdp", "run", target, *arguments)

        async def is_published() -> bool:
            slices = [each for each in await cluster.list(SLICES) if each["spec"]["driver"] == driver]
            return sum(len(each["spec"].get("devices", ())) for each in slices) == count

        await cluster.until(is_published, lambda: f"{count} devices are published: {cluster.log(process)}", every=0.05)
        objects = _objects(EXAMPLES / file)
        [pod] = [each for each in objects if each["kind"] == "Pod"]
        for container in pod["spec"]["containers"]:
            container |= {"image": IMAGE, "imagePullPolicy": "Never"}
        pod["spec"]["automountServiceAccountToken"] = False
        await cluster.apply(*objects, namespace=namespace.name)
        name = pod["metadata"]["name"]
        assert said in await cluster.until_said(name, said.splitlines()[-1], namespace=namespace.name)
        await cluster.until_pod(name, "Succeeded", namespace=namespace.name)
        await cluster.delete("v1/pods", name, namespace=namespace.name)

        async def is_free() -> bool:
            return not await cluster.list("resource.k8s.io/v1/resourceclaims", namespace=namespace.name)

        await cluster.until(is_free, "the claim is gone", every=0.05)

    yield start
    await cluster.kill(process)
    await cluster.clear_published()


async def test_minimal(run: Run) -> None:
    await run("minimal", "fuse.example.com", "minimal/dra/fuse.yaml", "opened", count=10)


async def test_generic(run: Run) -> None:
    config = EXAMPLES / "generic/configs/fuse-tun.yaml"
    options = ("--driver-name=nodes.example.com", f"--set=config={config}")
    await run("generic", "nodes.example.com", "generic/dra/fuse-tun.yaml", "opened", *options, count=200)


async def test_mig_instances_are_made_for_a_claim_and_destroyed_after_it(run: Run, namespace: Namespace) -> None:
    work = namespace.cluster.work
    try:
        library = compile_library(work)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    state = work / "mig-state"
    state.write_text(NvmlState(gpus=(GpuState(is_mig=True),)).text)
    made = work / "mig-state.made"
    root = work / "mig"  # where the driver sees the node's files; its /proc cannot be made up in its place
    caps = [f"nvidia-caps/nvidia-cap{number}" for gi in (1, 2) for number in (9 + 9 * gi, 10 + 9 * gi)]
    names = ("nvidiactl", "nvidia-uvm", "nvidia0", *caps)
    folders = [work / "mig-gpus/dev", root / f"{work}/mig-gpus/dev".lstrip("/")]
    for folder in folders:
        (folder / "nvidia-caps").mkdir(parents=True)
        Nodes(folder, *names)
    minors = root / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True, exist_ok=True)
    minors.write_text(
        "".join(f"gpu0/gi{gi}/access {9 + 9 * gi}\ngpu0/gi{gi}/ci0/access {10 + 9 * gi}\n" for gi in (1, 2))
    )
    try:
        await run(
            "nvidia-gpu",
            "gpu.nvidia.com",
            "nvidia_gpu/dra/dynamic.yaml",
            "nvidia-cap18\nnvidia-cap19\nnvidia-cap27\nnvidia-cap28\ndone",
            *(f"--set=library={library}", f"--host-root={root}", f"--set=dev_root={work}/mig-gpus"),
            *("--set=strategies=device-nodes", "--set=mig=dynamic"),
            count=7 + 3 + 2 + 1,
            env=(f"FAKE_NVML={state}",),
        )
        assert made.read_text() == "", "all that was made is destroyed"
    finally:
        for folder in folders:
            shutil.rmtree(folder)


async def test_a_gpu_with_a_power_limit(run: Run, namespace: Namespace) -> None:
    work = namespace.cluster.work
    try:
        library = compile_library(work)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    state = work / "state"
    state.write_text(NvmlState(gpus=(GpuState(memory_mib=40960), GpuState(), GpuState(compute="8.0"))).text)
    nodes = Nodes(work / "gpus/dev", "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2")
    options = (f"--set=library={library}", f"--set=dev_root={work}/gpus", "--set=strategies=device-nodes")
    try:
        await run(
            "nvidia-gpu",
            "gpu.nvidia.com",
            "nvidia_gpu/dra/gpu.yaml",
            "/dev/nvidia-uvm\n/dev/nvidia1\n/dev/nvidiactl\ndone",
            *(*options, "--set=power_limits=true"),
            count=3,
            env=(f"FAKE_NVML={state}",),
        )
    finally:
        nodes.clear()


def _slice(driver: str, *devices: tuple[str, Object]) -> Object:
    """Return a slice of the node; of each device its name and its attributes besides the PCI root."""
    spec = {
        "driver": driver,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "nodeName": NODE,
        "devices": [{"name": name, "attributes": attributes} for name, attributes in devices],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"by-hand-{driver}"},
        "spec": spec,
    }


async def test_the_scheduler_pairs_a_gpu_and_an_adapter_on_one_pci_root(namespace: Namespace) -> None:
    """What the two backends publish is tested beside them; here it is the file and the scheduler, and no driver."""
    cluster = namespace.cluster

    def at(root: str, **more: Object) -> Object:
        return {"resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{root}"}, **more}

    gpu: Object = {"type": {"string": "gpu"}}
    files = [EXAMPLES / "nvidia_gpu/dra/gpu.yaml", EXAMPLES / "rdma/dra/share.yaml"]
    classes = [each for file in files for each in _objects(file) if each["kind"] == "DeviceClass"]
    slices = [
        _slice("gpu.nvidia.com", ("gpu0", at("1a", **gpu)), ("gpu1", at("3b", **gpu)), ("gpu2", at("5d", **gpu))),
        _slice("rdma.example.com", ("hca0", at("af")), ("hca1", at("3b"))),
    ]
    try:
        await cluster.apply(*classes, *slices)
        await cluster.apply(*_objects(EXAMPLES / "rdma/dra/gpu-and-hca.yaml"), namespace=namespace.name)
        found: list[Object] = []

        async def is_allocated() -> bool:
            nonlocal found
            claims = await cluster.list("resource.k8s.io/v1/resourceclaims", namespace=namespace.name)
            found = [each["status"]["allocation"] for each in claims if each.get("status", {}).get("allocation")]
            return bool(found)

        await cluster.until(is_allocated, "the claim is allocated", every=0.05)
        [allocation] = found
        assert {each["request"]: each["device"] for each in allocation["devices"]["results"]} == {
            "gpu": "gpu1",
            "hca": "hca1",
        }
    finally:
        await cluster.clear_pods(namespace.name)
        await cluster.clear_published()


def _virtual_functions(root: Path) -> None:
    """Make a node's files: an Ethernet adapter with two virtual functions, one with an interface, one for vfio."""
    tree = SysfsTree(root)
    tree.write("/sys/module/ib_core/parameters/netns_mode", "Y")
    of: Object = {"vendor": 0x15B3, "class_code": 0x020000, "numa_node": 1}
    parent = tree.pci_function("0000:d8:00.0", device=0x101B, driver="mlx5_core", **of)
    own = tree.pci_function(VF, device=0x101C, driver="mlx5_core", **of)
    other = tree.pci_function("0000:d8:00.3", device=0x101C, driver="vfio-pci", iommu_group=77, **of)
    for number, function in enumerate((own, other)):
        tree.link(f"{function}/physfn", parent)
        tree.link(f"{parent}/virtfn{number}", function)
    for directory, name, address in ((parent, "eth0", "0c:42:a1:00:00:01"), (own, "eth0v0", "0c:42:a1:00:00:02")):
        facts: dict[str, str | int] = {"operstate": "up", "type": 1, "ifindex": 3, "address": address}
        for attribute, value in facts.items():
            tree.write(f"{directory}/net/{name}/{attribute}", value)
        tree.link(f"{directory}/net/{name}/device", directory)
        tree.link(f"/sys/class/net/{name}", f"{directory}/net/{name}")
    for address in ("192.0.2.5/24", "2001:db8::5/64"):
        tree.address("eth0v0", address)


async def test_a_claim_tells_of_its_virtual_functions_interface_until_it_is_released(namespace: Namespace) -> None:
    """The claim has a device of another driver, too, and each of the two changes its own entry only."""
    cluster = namespace.cluster
    root = cluster.work / "adapter"
    _virtual_functions(root)
    nodes = Nodes(cluster.work / "run/widgets", "w0")
    command = [sys.executable, "-m", "kdp", "run", "rdma", "--mode=dra", f"--driver-name={VF_DRIVER}", "--set=mode=vf"]
    # Its device nodes are another node's, which no container here can have: so it is a function without RDMA.
    command += ["--set=is_rdma=false", f"--host-root={root}", "--device-status=on", "--device-metadata=on"]
    device_class, claim, pod = _objects(EXAMPLES / "rdma/dra/function.yaml")
    selectors = [{"cel": {"expression": f'device.driver == "{WIDGETS}"'}}]
    widgets = {**device_class, "metadata": {"name": "widget"}, "spec": {"selectors": selectors}}
    claim["spec"]["devices"]["requests"].append({"name": "w", "exactly": {"deviceClassName": "widget"}})
    [container] = pod["spec"]["containers"]
    script = (
        "cat /var/run/kubernetes.io/dra-device-attributes/resourceclaims/function/vf/*; env | grep PCI; echo end; "
        f"{STAY}"
    )
    container |= {"image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    pod["spec"] |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
    name = pod["metadata"]["name"]

    async def told() -> Object:
        arguments = ("get", "resourceclaim", "function", f"--namespace={namespace.name}", "--output=json")
        status: Object = json.loads(await cluster.kubectl(*arguments)).get("status", {})
        return status

    try:
        await cluster.spawn(
            "functions", *command, f"--node-name={NODE}", f"--kubeconfig={cluster.work}/admin.kubeconfig"
        )
        await cluster.spawn("widgets", sys.executable, PROGRAM, DEVICES)
        await cluster.apply(device_class, widgets, claim, pod, namespace=namespace.name)
        said = await cluster.until_said(name, "end", namespace=namespace.name)
        status: Object = {}

        async def is_told() -> bool:
            nonlocal status
            status = await told()
            return len(status.get("devices", ())) == 2

        await cluster.until(is_told, lambda: f"both devices are told of: {status}", every=0.2)
        entries = {each["driver"]: each for each in status["devices"]}
        network = {
            "interfaceName": "eth0v0",
            "ips": ["192.0.2.5/24", "2001:db8::5/64"],
            "hardwareAddress": "0c:42:a1:00:00:02",
        }
        assert entries[VF_DRIVER]["networkData"] == network
        assert "networkData" not in entries[WIDGETS]
        allocated = {each["driver"]: each["device"] for each in status["allocation"]["devices"]["results"]}
        assert {driver: each["device"] for driver, each in entries.items()} == allocated
        assert [each["type"] for entry in entries.values() for each in entry["conditions"]] == ["Ready", "Ready"]
        metadata, _older, variable = (
            line for line in said.splitlines() if line.startswith(("{", "PCIDEVICE_RDMA_VF="))
        )
        assert variable == f"PCIDEVICE_RDMA_VF={VF}"
        [device] = json.loads(metadata)["requests"][0]["devices"]
        assert (device["name"], device["networkData"]) == (allocated[VF_DRIVER], network)

        await cluster.delete("v1/pods", name, namespace=namespace.name)

        async def is_released() -> bool:
            nonlocal status
            status = await told()
            return not status.get("devices") and "allocation" not in status

        await cluster.until(is_released, lambda: f"the claim tells of no device: {status}", every=0.2)
    finally:
        await cluster.clear_pods(namespace.name)
        for process in ("functions", "widgets"):
            await cluster.kill(process)
        nodes.clear()
        shutil.rmtree(root)
        await cluster.clear_published()
