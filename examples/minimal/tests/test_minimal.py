from __future__ import annotations

from importlib.metadata import entry_points

import kdp
import kdp_example_minimal


def test_each_of_ten_containers_may_have_the_fuse_device() -> None:
    devices = kdp_example_minimal.Fuse().discover()

    assert [device.id for device in devices] == [f"fuse-{i}" for i in range(10)]
    assert {node.host_path for device in devices for node in device.edits.device_nodes} == {"/dev/fuse"}


def test_the_number_of_containers_is_an_option() -> None:
    assert len(kdp_example_minimal.Fuse(count=3).discover()) == 3


def test_one_container_may_have_several_and_gets_the_node_once() -> None:
    devices = kdp_example_minimal.Fuse().discover()

    edits = kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)

    assert edits == kdp.ContainerEdits.of_node("/dev/fuse")


def test_two_discoveries_return_equal_devices_so_that_nothing_is_sent_twice() -> None:
    backend = kdp_example_minimal.Fuse()

    assert backend.discover() == backend.discover()


def test_kdp_finds_the_backend_by_its_entry_point() -> None:
    (found,) = entry_points(group="kdp.backends", name="minimal")

    assert found.load() is kdp_example_minimal.Fuse
