"""Intel's boards, on what was recorded of two under the kernel's own drivers: three ports, two memory nodes."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import kdp
import kdp.hardware
from kdp.testing import SysfsTree
from kdp_fpga import Fpga
from kdp_fpga.backend import Mode
from kdp_fpga.recorded import NODE

DATA = Path(__file__).with_name("data")
TWO_PORTS = "fpga.intel.com/af-992.d84.mSarbWySWmiqvKfYTFRXONhCTcSko8QT-J5DNoP5BAs"
ONE_PORT = "fpga.intel.com/af-992.f7d.mSarbWySWmiqvKfYTFRXOPffQFy9es9yIvFEsLk6zRg"
REGION = "fpga.intel.com/region-9926ab6d6c925a68aabca7d84c545738"

FIRST, SECOND = "0000:41:00.0", "0000:81:00.0"
BOARD = "/sys/class/fpga_region/region0"
ENGINE, PORT = f"{BOARD}/dfl-fme.0", f"{BOARD}/dfl-port.0"

NodeFrom = Callable[[Path], SysfsTree]


@pytest.fixture
def node(node_from: NodeFrom) -> SysfsTree:
    return node_from(NODE)


def _health(backend: Fpga) -> dict[str, str]:
    return {device.id: str(device.health) for device in backend.discover()}


def _nodes(device: kdp.Device) -> list[str]:
    return [node.host_path for node in device.edits.device_nodes]


def test_every_port_is_a_device_of_the_resource_of_its_accelerator(node: SysfsTree) -> None:
    devices = Fpga(node.host).discover()

    assert [(device.id, device.resource, device.unit, device.numa_nodes, _nodes(device)) for device in devices] == [
        (f"{FIRST}-port0", TWO_PORTS, FIRST, (0,), ["/dev/dfl-port.0"]),
        (f"{FIRST}-port1", TWO_PORTS, FIRST, (0,), ["/dev/dfl-port.1"]),
        (f"{SECOND}-port0", ONE_PORT, SECOND, (1,), ["/dev/dfl-port.2"]),
    ]
    assert all(device.health.is_healthy for device in devices)
    assert all(device.identity.endswith(f"/{device.unit}") for device in devices)
    assert all(len(resource.partition("/")[2]) <= 63 for resource in (TWO_PORTS, ONE_PORT, REGION))


@pytest.mark.parametrize(("mode", "more"), [("region", []), ("regiondevel", ["/dev/dfl-fme.0"])])
def test_a_region_is_a_whole_board(node: SysfsTree, mode: Mode, more: list[str]) -> None:
    first, second = Fpga(node.host, mode=mode).discover()

    assert (first.id, first.resource, first.numa_nodes) == (FIRST, REGION, (0,))
    assert first.identity == node.host.resolve(f"/sys/bus/pci/devices/{FIRST}")
    assert _nodes(first) == ["/dev/dfl-port.0", "/dev/dfl-port.1", *more]
    assert (second.id, second.numa_nodes) == (SECOND, (1,))
    annotations = {"com.intel.fpga.mode": "fpga.intel.com/region"} if mode == "region" else {}
    assert first.edits.annotations == annotations


def test_a_region_may_be_programmed_by_a_hook_of_the_runtime(node: SysfsTree) -> None:
    backend = Fpga(node.host, mode="region", programmer="/opt/intel/fpga-sw/intel-fpga-crihook")

    (hook,) = backend.discover()[0].edits.hooks

    assert (hook.name, hook.path, hook.args) == (
        "createRuntime",
        "/opt/intel/fpga-sw/intel-fpga-crihook",
        ("intel-fpga-crihook",),
    )


@pytest.mark.parametrize("register", ["fme_errors", "pcie0_errors"])
def test_an_error_of_the_engine_is_one_of_all_its_ports(node: SysfsTree, register: str) -> None:
    backend = Fpga(node.host)
    node.write(f"{ENGINE}/errors/{register}", "0x3")

    wrong = f"Unhealthy ({register} is 0x3)"
    assert _health(backend) == {f"{FIRST}-port0": wrong, f"{FIRST}-port1": wrong, f"{SECOND}-port0": "Healthy"}
    assert _health(Fpga(node.host, ignored_errors=(register,)))[f"{FIRST}-port0"] == "Healthy"

    node.write(f"{ENGINE}/errors/{register}", "0x0")
    assert set(_health(backend).values()) == {"Healthy"}


def test_an_error_of_a_port_is_its_own(node: SysfsTree) -> None:
    node.write(f"{PORT}/errors/errors", "0x1")

    health = _health(Fpga(node.host))
    assert health.pop(f"{FIRST}-port0") == "Unhealthy (port_errors is 0x1)"
    assert set(health.values()) == {"Healthy"}
    assert _health(Fpga(node.host, mode="region"))[FIRST] == f"Unhealthy (port {FIRST}-port0: port_errors is 0x1)"


def test_a_hot_board_is_unhealthy_until_it_is_clearly_cooler(node: SysfsTree) -> None:
    backend = Fpga(node.host)
    sensor = f"{ENGINE}/hwmon/hwmon0/temp1_input"

    def health_at(degrees: float) -> str:
        node.write(sensor, int(degrees * 1000))
        return _health(backend)[f"{FIRST}-port0"]

    assert health_at(94.5) == "Healthy"
    assert health_at(95) == "Unhealthy (is 95 °C hot, the limit is 95 °C)"
    assert health_at(91) == "Unhealthy (is 91 °C hot, the limit is 95 °C)"
    node.fail(sensor, errno.ENODATA)
    assert _health(backend)[f"{FIRST}-port0"] == "Unhealthy (was too hot, and its sensor cannot be read now)"
    assert health_at(90) == "Healthy"
    assert health_at(94.5) == "Healthy"
    assert set(_health(Fpga(node.host, max_temperature=80)).values()) == {
        "Healthy",
        "Unhealthy (is 94.5 °C hot, the limit is 80 °C)",
    }


@pytest.mark.parametrize(("digit", "why"), [("f", "its firmware does not answer"), ("0", "nothing is programmed")])
def test_a_blank_accelerator_keeps_the_resource_that_it_had(node: SysfsTree, digit: str, why: str) -> None:
    backend = Fpga(node.host)
    before = backend.discover()
    node.write(f"{PORT}/afu_id", digit * 32)

    first, *others = backend.discover()

    assert (first.id, first.resource) == (before[0].id, TWO_PORTS)
    assert str(first.health) == f"Unhealthy (afu_id is {digit * 32}: {why})"
    assert others == before[1:]
    # From the start there is nothing to keep: it is listed under what it says, as Intel's plugin does.
    fresh = Fpga(node.host).discover()[0]
    assert fresh.resource is not None
    assert fresh.resource.startswith(f"fpga.intel.com/af-992.{digit * 3}.")
    assert not fresh.health.is_healthy
    # Programming is what mode region is for.
    assert set(_health(Fpga(node.host, mode="region")).values()) == {"Healthy"}


def test_what_was_programmed_anew_is_of_another_resource(node: SysfsTree) -> None:
    backend = Fpga(node.host)
    backend.discover()
    node.write(f"{PORT}/afu_id", "f7df405cbd7acf7222f144b0b93acd18")

    assert [device.resource for device in backend.discover()] == [ONE_PORT, TWO_PORTS, ONE_PORT]


def test_numbers_that_shift_do_not_change_who_is_who(node: SysfsTree) -> None:
    backend = Fpga(node.host)
    before = {device.id: device for device in backend.discover()}
    node.vanish(f"/sys/bus/pci/devices/{FIRST}")
    assert [device.id for device in backend.discover()] == [f"{SECOND}-port0"]

    # The kernel gives the numbers that became free to the board that comes next.
    place = node.path(node.host.resolve(f"/sys/bus/pci/devices/{SECOND}"))
    (place / "fpga_region/region3").rename(place / "fpga_region/region0")
    region = place / "fpga_region/region0"
    for name, at in (("dfl-port", 2), ("dfl-fme", 1)):
        (region / f"{name}.{at}").rename(region / f"{name}.0")
        uevent = region / f"{name}.0/uevent"
        uevent.write_text(uevent.read_text().replace(f"{name}.{at}", f"{name}.0"))
    node.link("/sys/class/fpga_region/region0", f"/sys/bus/pci/devices/{SECOND}/fpga_region/region0")

    (device,) = backend.discover()

    assert (device.id, device.resource, device.numa_nodes) == (f"{SECOND}-port0", ONE_PORT, (1,))
    assert _nodes(device) == ["/dev/dfl-port.0"] != _nodes(before[device.id])


def test_a_board_without_its_engine_is_on_its_way_out(node: SysfsTree) -> None:
    """Ports may be there a moment longer than what they belong to, as in a tree recorded half-way through an unplug."""
    backend = Fpga(node.host)
    before = backend.discover()
    node.vanish(ENGINE)

    wrong = f"Unhealthy (the management engine of {FIRST} is gone)"
    assert _health(backend) == {f"{FIRST}-port0": wrong, f"{FIRST}-port1": wrong, f"{SECOND}-port0": "Healthy"}
    assert [device.resource for device in backend.discover()] == [device.resource for device in before]
    assert Fpga(node.host).discover() == before[2:]  # one that starts now does not know what to call them
    assert [device.id for device in Fpga(node.host, mode="region").discover()] == [SECOND]


@pytest.mark.parametrize(
    ("attribute", "says", "why"),
    [
        ("id", "1", f"a second device is called {FIRST}-port1, and is left out"),
        ("uevent", "DEVNAME=../\x07", "host path"),
    ],
)
def test_nonsense_of_one_port_leaves_out_that_port_only(
    node: SysfsTree, caplog: pytest.LogCaptureFixture, attribute: str, says: str, why: str
) -> None:
    before = Fpga(node.host).discover()
    node.write(f"{PORT}/{attribute}", says)

    with caplog.at_level(logging.WARNING):
        devices = Fpga(node.host).discover()

    assert [device.id for device in devices] == [device.id for device in before[1:]]
    assert why in caplog.text


def test_trees_that_were_recorded_half_way_name_what_they_can(node_from: NodeFrom) -> None:
    """The kernel takes a board away part by part; here it has taken the driver of one part."""
    without_engine = Fpga(node_from(DATA / "dfl-6.1-half-removed-engine.tar.gz").host)
    without_port = Fpga(node_from(DATA / "dfl-6.1-half-removed-port.tar.gz").host)

    assert [(device.id, device.resource) for device in without_engine.discover()] == [(f"{SECOND}-port0", ONE_PORT)]
    assert [(device.id, device.resource) for device in without_port.discover()] == [
        (f"{FIRST}-port1", TWO_PORTS),
        (f"{SECOND}-port0", ONE_PORT),
    ]


def test_a_port_that_moved_to_a_virtual_function_has_the_engine_of_the_physical_one(node: SysfsTree) -> None:
    function = node.pci_function("0000:41:00.1", vendor=0x8086, device=0x0B2C, numa_node=0)
    node.link(f"{function}/physfn", f"/sys/bus/pci/devices/{FIRST}")
    region = f"{function}/fpga_region/region7"
    node.write(f"{region}/dfl-port.7/id", 1)
    node.write(f"{region}/dfl-port.7/afu_id", "d8424dc4a4a3c413f89e433683f9040b")
    node.write(f"{region}/dfl-port.7/uevent", "DEVNAME=dfl-port.7")
    node.link("/sys/class/fpga_region/region7", region)
    node.write(f"{ENGINE}/errors/fme_errors", "0x3")

    devices = {device.id: device for device in Fpga(node.host).discover()}

    moved = devices["0000:41:00.1-port1"]
    assert (moved.resource, moved.unit, _nodes(moved)) == (TWO_PORTS, FIRST, ["/dev/dfl-port.7"])
    assert str(moved.health) == "Unhealthy (fme_errors is 0x3)"


def test_a_board_whose_driver_is_not_done_yet_gets_no_other_resource(node: SysfsTree) -> None:
    """The ports are there some ten milliseconds before the regions that name the interface."""
    node.vanish(f"/sys/bus/pci/devices/{FIRST}")
    backend = Fpga(node.host)
    assert len(backend.discover()) == 1
    node.bring_back(f"/sys/bus/pci/devices/{FIRST}")
    regions = node.host.glob(f"{ENGINE}/dfl-fme-region.*")
    for place in regions:
        node.vanish(place)

    assert [device.id for device in backend.discover()] == [f"{SECOND}-port0"]

    for place in regions:
        node.bring_back(node.host.resolve(place))
    assert [device.resource for device in backend.discover()] == [TWO_PORTS, TWO_PORTS, ONE_PORT]


def test_the_older_drivers_names_are_known_too(sysfs_tree: SysfsTree) -> None:
    function = sysfs_tree.pci_function("0000:5e:00.0", vendor=0x8086, device=0x09C4, numa_node=1)
    top = f"{function}/fpga/intel-fpga-dev.0"
    engine, port = f"{top}/intel-fpga-fme.0", f"{top}/intel-fpga-port.0"
    sysfs_tree.link("/sys/class/fpga/intel-fpga-dev.0", top)
    sysfs_tree.write(f"{engine}/pr/interface_id", "ce48969398f05f33946d560708be108a")
    sysfs_tree.write(f"{engine}/errors/fme-errors/errors", "0x0")
    sysfs_tree.write(f"{engine}/errors/bbs_errors", "0x0")
    sysfs_tree.write(f"{engine}/thermal_mgmt/temperature", "52")
    sysfs_tree.write(f"{engine}/thermal_mgmt/threshold2", "93")
    sysfs_tree.write(f"{port}/id", "0")
    sysfs_tree.write(f"{port}/afu_id", "d8424dc4a4a3c413f89e433683f9040b")
    for place, name in ((engine, "intel-fpga-fme.0"), (port, "intel-fpga-port.0")):
        sysfs_tree.write(f"{place}/uevent", f"DEVNAME={name}")
    backend = Fpga(sysfs_tree.host)

    (device,) = backend.discover()
    assert (device.id, device.numa_nodes, _nodes(device)) == ("0000:5e:00.0-port0", (1,), ["/dev/intel-fpga-port.0"])
    assert device.resource == "fpga.intel.com/af-ce4.d84.zkiWk5jwXzOUbVYHCL4QithCTcSko8QT-J5DNoP5BAs"
    assert device.health.is_healthy

    sysfs_tree.write(f"{engine}/errors/fme-errors/errors", "0x2")
    sysfs_tree.write(f"{engine}/errors/bbs_errors", "0x1")
    sysfs_tree.write(f"{engine}/thermal_mgmt/temperature", "95")
    assert str(backend.discover()[0].health) == (
        "Unhealthy (fme_errors is 0x2; bbs_errors is 0x1; is 95 °C hot, the limit is 93 °C)"
    )


def test_what_has_no_name_is_left_out_and_told_once(node: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    node.fail(f"{PORT}/afu_id", errno.EINVAL)
    backend = Fpga(node.host)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert [device.id for device in backend.discover()] == [f"{FIRST}-port1", f"{SECOND}-port0"]

    (record,) = caplog.records
    assert record.getMessage().startswith(f"left out: port {FIRST}-port0: /sys/devices/")
    assert record.getMessage().endswith("afu_id cannot be read: Invalid argument")
    node.heal(f"{PORT}/afu_id")
    assert len(backend.discover()) == 3


def test_all_devices_of_a_board_measure_its_sensors(node: SysfsTree) -> None:
    backend = Fpga(node.host)
    assert backend.measure() == {}
    backend.discover()
    of_board = {"fpga_temperature": pytest.approx(45), "fpga_power": pytest.approx(37)}
    assert backend.measure() == dict.fromkeys((f"{FIRST}-port0", f"{FIRST}-port1", f"{SECOND}-port0"), of_board)
    node.write(f"{ENGINE}/hwmon/hwmon0/temp1_input", "51500")
    node.write(f"{ENGINE}/hwmon/hwmon1/power1_input", "40250000")
    assert backend.measure()[f"{FIRST}-port1"] == {"fpga_temperature": 51.5, "fpga_power": 40.25}
    assert backend.measure()[f"{SECOND}-port0"] == of_board
    region = Fpga(node.host, mode="region")
    region.discover()
    assert region.measure()[FIRST] == {"fpga_temperature": 51.5, "fpga_power": 40.25}
