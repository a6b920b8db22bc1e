"""Every file in configs/ on a tree that looks like a node with that hardware, and on one without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kdp_example_generic import Generic

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

    import kdp

CONFIGS = Path(__file__).parents[1] / "configs"


def _drm(tree: Tree, driver: str, bdf: str, card: int, render: int) -> None:
    place = f"/sys/devices/pci0000:00/{bdf}"
    for name in (f"card{card}", f"renderD{render}"):
        tree.directory(f"{place}/drm/{name}")
    tree.file(f"{place}/numa_node", "1\n")
    tree.link(f"/sys/bus/pci/drivers/{driver}/{bdf}", f"../../../../devices/pci0000:00/{bdf}")
    tree.file(f"/sys/bus/pci/drivers/{driver}/bind")
    for name, number in ((f"card{card}", card), (f"renderD{render}", render)):
        tree.node(f"/dev/dri/{name}", number=(226, number))
        tree.link(f"/sys/dev/char/226:{number}", f"../../devices/pci0000:00/{bdf}/drm/{name}")


def _kvm(tree: Tree) -> None:
    tree.node("/dev/kvm", number=(10, 232))
    tree.node("/dev/vhost-net", number=(10, 238))


def _fuse_tun(tree: Tree) -> None:
    tree.node("/dev/fuse", number=(10, 229))
    tree.node("/dev/net/tun", number=(10, 200))


def _amd_gpu(tree: Tree) -> None:
    tree.node("/dev/dri/card0")  # the board's own display controller has no render node
    _drm(tree, "i915", "0000:00:02.0", 3, 128)
    _drm(tree, "amdgpu", "0000:c1:00.0", 1, 130)
    _drm(tree, "amdgpu", "0000:41:00.0", 2, 129)
    tree.node("/dev/kfd")


def _intel_gpu(tree: Tree) -> None:
    _drm(tree, "i915", "0000:00:02.0", 1, 128)
    _drm(tree, "xe", "0000:03:00.0", 0, 129)
    _drm(tree, "amdgpu", "0000:41:00.0", 2, 130)


def _usb_stick(tree: Tree, port: str, vendor: str, product: str, number: int) -> None:
    place = f"/sys/bus/usb/devices/{port}"
    for name, text in {"idVendor": vendor, "idProduct": product, "busnum": "2", "devnum": str(number)}.items():
        tree.file(f"{place}/{name}", f"{text}\n")
    tree.node(f"/dev/bus/usb/002/{number:03}")


def _tpu(tree: Tree) -> None:
    tree.node(*(f"/dev/accel{i}" for i in range(4)), "/dev/apex_0")
    tree.directory("/dev/accel")  # accelerators of the kernel's own subsystem are in there
    _usb_stick(tree, "2-1", "1a6e", "089a", 4)
    _usb_stick(tree, "2-2", "18d1", "9302", 5)


def _nvme(tree: Tree) -> None:
    tree.node("/dev/nvme0", number=(240, 0))
    tree.node("/dev/nvme0n1", "/dev/nvme0n1p1", "/dev/nvme1n1", kind="block")
    tree.link("/dev/disk/by-id/nvme-eui.0025385b71b0c5e1", "../../nvme0n1")
    tree.link("/dev/disk/by-id/nvme-eui.0025385b71b0c5e1-part1", "../../nvme0n1p1")
    tree.link("/dev/disk/by-id/nvme-eui.00000000000000008ce38ee20c1b0401", "../../nvme1n1")
    tree.link("/dev/disk/by-id/nvme-Samsung_SSD_970_EVO_S4EWNX0M", "../../nvme0n1")


def _serial(tree: Tree) -> None:
    tree.node("/dev/ttyUSB0", "/dev/ttyACM0", "/dev/ttyS0")
    tree.link("/dev/serial/by-id/usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0", "../../ttyUSB0")
    tree.link("/dev/serial/by-id/usb-Arduino_Uno_7573530-if00", "../../ttyACM0")
    tree.link("/dev/serial/by-id/usb-unplugged", "../../ttyUSB9")


def _video(tree: Tree) -> None:
    tree.node(*(f"/dev/video{i}" for i in range(3)))
    tree.link("/dev/v4l/by-path/pci-0000:00:14.0-usb-0:1:1.0-video-index0", "../../video0")
    tree.link("/dev/v4l/by-path/pci-0000:00:14.0-usb-0:1:1.0-video-index1", "../../video1")
    tree.link("/dev/v4l/by-path/pci-0000:00:14.0-usbv2-0:1:1.0-video-index0", "../../video0")
    tree.link("/dev/v4l/by-path/pci-0000:00:14.0-usbv2-0:1:1.0-video-index1", "../../video1")
    tree.link("/dev/v4l/by-path/platform-fe801000.csi-video-index0", "../../video2")


def _gpu(bdf: str, card: int, render: int, *more: str) -> tuple[str, list[str]]:
    return bdf, [f"/dev/dri/renderD{render}", f"/dev/dri/card{card}", *more]


DRIVES = ("0025385b71b0c5e1", "00000000000000008ce38ee20c1b0401")
PORTS = ("usb-Arduino_Uno_7573530-if00", "usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0")
CAMERA, CSI = "pci-0000:00:14.0-usb-0:1:1.0", "platform-fe801000.csi"

NODES: dict[str, tuple[Callable[[Tree], None], dict[str, list[tuple[str, list[str]]]]]] = {
    "kvm": (_kvm, {"example.com/kvm": [(f"kvm-{i}", ["/dev/kvm", "/dev/vhost-net"]) for i in range(100)]}),
    "fuse-tun": (
        _fuse_tun,
        {
            "example.com/fuse": [(f"fuse-{i}", ["/dev/fuse"]) for i in range(100)],
            "example.com/tun": [(f"tun-{i}", ["/dev/net/tun"]) for i in range(100)],
        },
    ),
    "amd-gpu": (
        _amd_gpu,
        {
            "amd.com/gpu": [
                _gpu("gpu-0000:41:00.0", 2, 129, "/dev/kfd"),
                _gpu("gpu-0000:c1:00.0", 1, 130, "/dev/kfd"),
            ]
        },
    ),
    "intel-gpu": (
        _intel_gpu,
        {
            "gpu.intel.com/i915": [_gpu("i915-0000:00:02.0", 1, 128)],
            "gpu.intel.com/xe": [_gpu("xe-0000:03:00.0", 0, 129)],
        },
    ),
    "tpu": (
        _tpu,
        {
            "google.com/tpu": [(f"tpu-accel{i}", [f"/dev/accel{i}"]) for i in range(4)],
            "coral.ai/edge-tpu": [
                ("edge-tpu-apex_0", ["/dev/apex_0"]),
                ("edge-tpu-usb-2-1", ["/dev/bus/usb/002/004"]),
                ("edge-tpu-usb-2-2", ["/dev/bus/usb/002/005"]),
            ],
        },
    ),
    "nvme": (_nvme, {"example.com/nvme": [(eui, [f"/dev/disk/by-id/nvme-eui.{eui}"]) for eui in DRIVES]}),
    "serial": (_serial, {"example.com/serial": [(port, [f"/dev/serial/by-id/{port}"]) for port in PORTS]}),
    "video": (
        _video,
        {
            "example.com/video": [
                (CAMERA, [f"/dev/v4l/by-path/{CAMERA}-video-index{i}" for i in range(2)]),
                (CSI, [f"/dev/v4l/by-path/{CSI}-video-index0"]),
            ]
        },
    ),
}


def _seen(devices: list[kdp.Device]) -> dict[str, list[tuple[str, list[str]]]]:
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for device in devices:
        nodes = [node.host_path for node in device.edits.device_nodes]
        found.setdefault(device.resource or "", []).append((device.id, nodes))
    return {name: sorted(of_it) for name, of_it in found.items()}


@pytest.mark.parametrize("name", NODES)
def test_a_node_with_the_hardware(name: str, tree: Tree) -> None:
    make, expected = NODES[name]
    make(tree)

    devices = Generic(CONFIGS / f"{name}.yaml", tree.host).discover()

    assert _seen(devices) == {resource: sorted(of_it) for resource, of_it in expected.items()}
    assert [str(device.health) for device in devices if not device.health.is_healthy] == []
    print(name, json.dumps({name: len(of_it) for name, of_it in _seen(devices).items()}))


def test_a_node_without_it_has_no_devices(tree: Tree) -> None:
    tree.node("/dev/null", "/dev/ttyS0", "/dev/dri/card0", "/dev/dri/renderD128")

    for name in NODES:
        assert Generic(CONFIGS / f"{name}.yaml", tree.host).discover() == [], name


def test_a_card_whose_virtual_functions_exist_was_given_out_beside_them(tree: Tree) -> None:
    for number in range(3):
        _drm(tree, "i915", f"0000:03:00.{number}", number, 128 + number)
    _drm(tree, "i915", "0000:83:00.0", 3, 131)
    tree.link("/sys/devices/pci0000:00/0000:03:00.0/virtfn0", "../0000:03:00.1")
    made = Generic(CONFIGS / "intel-gpu.yaml", tree.host)
    assert [device.id for device in made.discover()] == [
        f"i915-{bdf}" for bdf in ("0000:03:00.1", "0000:03:00.2", "0000:83:00.0")
    ]
    tree.remove("/sys/devices/pci0000:00/0000:03:00.0/virtfn0")
    assert "i915-0000:03:00.0" in [device.id for device in made.discover()]


@pytest.mark.parametrize("has_link", [False, True])
def test_a_stick_that_loads_its_firmware_is_the_same_device(has_link: bool, tree: Tree) -> None:
    def plug_in(product: tuple[str, str], number: int) -> kdp.Device:
        _usb_stick(tree, "2-1", *product, number)
        if has_link:
            tree.link("/dev/coral/2-1", f"../bus/usb/002/{number:03}")
        (device,) = made.discover()
        return device

    made = Generic(CONFIGS / "tpu.yaml", tree.host)
    before = plug_in(("1a6e", "089a"), 5)
    tree.remove("/dev/bus/usb/002/005", *(["/dev/coral/2-1"] if has_link else []))
    after = plug_in(("18d1", "9302"), 6)

    assert before.id == after.id == "edge-tpu-usb-2-1"
    assert before.health.is_healthy
    assert after.health.is_healthy
    assert before.identity == after.identity
    assert [(mount.host_path, mount.read_only) for mount in after.edits.mounts] == [("/dev/bus/usb", True)]
    # A link is what the container is started with again; a number is another one.
    assert (before.edits == after.edits) is has_link


def test_a_gpu_knows_its_memory_node(tree: Tree) -> None:
    if not tree.real_nodes:
        pytest.skip("a node with a number of its own needs the right to make it (CAP_MKNOD)")
    _amd_gpu(tree)

    assert [device.numa_nodes for device in Generic(CONFIGS / "amd-gpu.yaml", tree.host).discover()] == [(1,), (1,)]


def test_a_gpu_whose_driver_lost_the_common_node_is_unhealthy(tree: Tree) -> None:
    _amd_gpu(tree)
    made = Generic(CONFIGS / "amd-gpu.yaml", tree.host)
    made.discover()

    tree.remove("/dev/kfd")

    assert [str(device.health) for device in made.discover()] == ["Unhealthy (/dev/kfd is gone)"] * 2
