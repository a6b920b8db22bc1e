from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from pathlib import Path

import pytest

import kdp
import kdp.hardware
from kdp.testing import AdmissionError, Pod, SimulatedKubelet, SysfsTree
from kdp_example_hwrng import Hwrng

RESOURCE = "example.com/hwrng"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "node")
    tree.write("/sys/class/misc/hw_random/rng_current", "virtio_rng.0")
    return tree


def says(tree: SysfsTree, data: bytes) -> None:
    tree.path("/dev").mkdir(exist_ok=True)
    tree.path("/dev/hwrng").write_bytes(data)


def allocation(backend: Hwrng, *, seconds: float = 20) -> kdp.Allocation:
    return kdp.Allocation(resource=RESOURCE, devices=tuple(backend.discover()[:1]), deadline=time.monotonic() + seconds)


def test_each_of_ten_containers_may_read_the_generator(tree: SysfsTree) -> None:
    says(tree, b"")
    devices = Hwrng(tree.host).discover()

    assert [device.id for device in devices] == [f"hwrng-{i}" for i in range(10)]
    assert {device.unit for device in devices} == {"hwrng"}
    assert {device.health for device in devices} == {kdp.Health.healthy()}
    assert dict(devices[0].attributes) == {"generator": "virtio_rng.0"}
    assert [(n.host_path, n.permissions) for n in devices[0].edits.device_nodes] == [("/dev/hwrng", "r")]


def test_a_node_without_a_generator_behind_it_is_unhealthy(tree: SysfsTree) -> None:
    says(tree, b"")
    tree.write("/sys/class/misc/hw_random/rng_current", "none")

    (device,) = Hwrng(tree.host, count=1).discover()
    assert device.health == kdp.Health.unhealthy("the kernel has no generator behind it")


@pytest.mark.parametrize(
    ("hook", "data", "sentence"),
    [
        (
            "allocate",
            bytes(256),
            "/dev/hwrng of this node does not work: it gives nothing but 0x00; the pod may run on another",
        ),
        ("prepare_container", b"ab" * 128, "/dev/hwrng of this node does not work: it repeats itself; the pod"),
        ("allocate", b"", "/dev/hwrng of this node does not work: it gave 0 of 256 bytes in"),
    ],
)
def test_a_broken_generator_is_refused_with_a_sentence_for_the_pods_author(
    tree: SysfsTree, hook: str, data: bytes, sentence: str
) -> None:
    says(tree, data)
    backend = Hwrng(tree.host)

    with pytest.raises(kdp.AllocationError, match=re.escape(sentence)):
        getattr(backend, hook)(allocation(backend))


def test_a_generator_that_hangs_is_refused_in_time(tree: SysfsTree) -> None:
    tree.path("/dev").mkdir()
    os.mkfifo(tree.path("/dev/hwrng"))
    writer = os.open(tree.path("/dev/hwrng"), os.O_RDWR)
    backend = Hwrng(tree.host, patience=0.05)
    began = time.monotonic()

    with pytest.raises(kdp.AllocationError, match=r"it gave 0 of 256 bytes in 0\.\d s"):
        backend.allocate(allocation(backend))

    assert time.monotonic() - began < 5
    os.close(writer)


def test_a_generator_that_works_is_given(tree: SysfsTree) -> None:
    says(tree, hashlib.shake_256(b"1").digest(256))
    backend = Hwrng(tree.host)
    devices = allocation(backend)

    assert backend.allocate(devices) == devices[0].edits
    backend.prepare_container(devices)


def test_a_node_that_is_gone_is_told_in_words(tree: SysfsTree) -> None:
    says(tree, b"")
    backend = Hwrng(tree.host)
    devices = allocation(backend)
    tree.path("/dev/hwrng").unlink()

    with pytest.raises(kdp.AllocationError, match=r"cannot be read \(No such file or directory\); the pod may run on"):
        backend.allocate(devices)


async def test_pods_get_it_while_it_works_and_the_sentence_while_it_does_not(tmp_path: Path) -> None:
    """Real nodes: /dev/urandom and /dev/zero under another name; no configuration tells them apart."""
    tree = SysfsTree(tmp_path / "node")
    tree.path("/dev").mkdir()
    node = tree.path("/dev/hwrng")

    def is_really(device: str) -> None:
        new = node.with_name("new")
        try:
            os.mknod(new, stat.S_IFCHR | 0o666, os.stat(device).st_rdev)
        except PermissionError:
            pytest.skip("a device node of the test's own needs the right to make it (CAP_MKNOD)")
        new.replace(node)

    is_really("/dev/urandom")
    try:
        os.close(os.open(node, os.O_RDONLY))
    except PermissionError:
        pytest.skip(f"device nodes cannot be opened in {tmp_path}: it is mounted with 'nodev'")
    async with SimulatedKubelet() as kubelet, kubelet.serving(Hwrng(tree.host, count=3), host=tree.host):
        await kubelet.until(allocatable={RESOURCE: 3})
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert [(n.host_path, n.permissions) for n in pod.reply("main").devices] == [("/dev/hwrng", "r")]

        is_really("/dev/zero")
        with pytest.raises(
            AdmissionError, match="does not work: it gives nothing but 0x00; the pod may run on another"
        ):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))


def test_it_says_what_it_opens_itself() -> None:
    assert Hwrng(kdp.hardware.Host()).needs() == kdp.Needs(host_paths=("/sys",), opened_nodes=("/dev/hwrng",))
