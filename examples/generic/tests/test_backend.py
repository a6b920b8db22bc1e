from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_example_generic import Generic

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

Make = Callable[[str], Generic]


def _config(*members: str, group: str = "") -> str:
    extra = f"{group}, " if group else ""
    return f"resources: [{{name: example.com/widget, groups: [{{{extra}paths: [{', '.join(members)}]}}]}}]"


def test_every_node_that_matches_is_a_device_of_the_resource(tree: Tree, backend: Make) -> None:
    tree.node("/dev/widget0", "/dev/widget1", "/dev/other")

    devices = backend(_config("{path: /dev/widget*}")).discover()

    assert [(device.id, device.resource) for device in devices] == [
        ("widget0", "example.com/widget"),
        ("widget1", "example.com/widget"),
    ]
    assert devices[0].edits == kdp.ContainerEdits.of_node("/dev/widget0")
    assert devices[0].health.is_healthy


def test_count_makes_replicas_of_one_unit(tree: Tree, backend: Make) -> None:
    tree.node("/dev/fuse")

    devices = backend(_config("{path: /dev/fuse}", group="count: 3")).discover()

    assert [device.id for device in devices] == ["widget-fuse-0", "widget-fuse-1", "widget-fuse-2"]
    assert {device.unit for device in devices} == {"fuse"}
    merged = kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)
    assert merged == kdp.ContainerEdits.of_node("/dev/fuse")


def test_a_device_has_all_members_with_paths_permissions_and_mounts(tree: Tree, backend: Make) -> None:
    tree.node("/dev/widget3", "/dev/ctl")
    tree.directory("/usr/lib/widget")

    (device,) = backend(
        _config(
            r"{regex: '/dev/widget(?P<n>\d)', mountPath: '/dev/w/{n}', permissions: rwm}",
            "{path: /dev/ctl, permissions: r, limit: 9}",
            "{path: /usr/lib/widget, type: Mount, readOnly: true, mountPath: /opt/widget, limit: 9}",
            "{path: /dev/nothing, optional: true}",
            group="id: 'w{n}', env: {W: '{path}', N: '{n}'}, annotations: {example.com/w: '{name}'}",
        )
    ).discover()

    assert device.id == "w3"
    assert device.edits == kdp.ContainerEdits(
        env={"W": "/dev/widget3", "N": "3"},
        device_nodes=[
            kdp.DeviceNode(host_path="/dev/widget3", container_path="/dev/w/3", permissions="rwm"),
            kdp.DeviceNode(host_path="/dev/ctl", permissions="r"),
        ],
        mounts=[kdp.Mount(host_path="/usr/lib/widget", container_path="/opt/widget", read_only=True)],
        annotations={"example.com/w": "widget3"},
    )


def test_variables_that_differ_from_device_to_device_are_joined(tree: Tree, backend: Make) -> None:
    tree.node("/dev/widget0", "/dev/widget1")
    made = backend(_config("{path: /dev/widget*}", group="env: {PORTS: '{path}', MODE: fast}"))

    devices = made.discover()
    merged = kdp.ContainerEdits.merge(((d.id, d.edits) for d in devices), joined_env=made.joined_env)

    assert merged.env == {"PORTS": "/dev/widget0,/dev/widget1", "MODE": "fast"}


def test_a_condition_must_hold_and_gives_the_container_nothing(tree: Tree, backend: Make) -> None:
    tree.node("/dev/widget0", "/dev/widget1")
    tree.directory("/sys/class/widget/widget1")

    (device,) = backend(
        _config(
            r"{regex: '/sys/class/widget/widget(?P<n>\d)', type: Condition}",
            r"{regex: '/dev/widget(?P<n>\d)'}",
            group="id: 'w{n}'",
        )
    ).discover()

    assert device.id == "w1"
    assert device.edits == kdp.ContainerEdits.of_node("/dev/widget1")


def test_a_device_without_a_member_is_unhealthy_until_it_is_back(tree: Tree, backend: Make) -> None:
    tree.node("/dev/widget0", "/dev/widget1", "/dev/ctl0", "/dev/ctl1")
    made = backend(_config("{path: /dev/widget*}", "{path: /dev/ctl*}"))
    before = made.discover()

    tree.remove("/dev/ctl0")
    first, second = made.discover()

    assert str(first.health) == "Unhealthy (/dev/ctl0 is gone)"
    assert second == before[1]
    tree.node("/dev/ctl0")
    assert made.discover() == before


def test_what_is_no_device_is_unhealthy_and_says_what_it_is(tree: Tree, backend: Make) -> None:
    tree.file("/dev/widget0")
    tree.directory("/dev/gadget0")
    text = _config("{path: /dev/widget*}") + "\n"
    (device,) = backend(text).discover()
    assert str(device.health) == "Unhealthy (/dev/widget0 is a file, not a device node)"

    (device,) = backend(_config("{path: /dev/gadget0}")).discover()
    assert str(device.health) == "Unhealthy (/dev/gadget0 is a directory without device nodes)"
    # A wildcard means nodes, so a directory beside them is none of its business.
    assert backend(_config("{path: /dev/gadget*}")).discover() == []


def test_a_device_that_asks_for_one_place_twice_is_unhealthy_alone(tree: Tree, backend: Make) -> None:
    tree.node("/dev/widget0", "/dev/a", "/dev/b")

    (device,) = backend(
        _config("{path: /dev/widget0}", "{path: /dev/a, mountPath: /dev/x}", "{path: /dev/b, mountPath: /dev/x}")
    ).discover()

    assert str(device.health) == "Unhealthy (two members want the container's '/dev/x'; give one another mountPath)"


def test_ids_are_valid_and_short_whatever_the_nodes_are_called(tree: Tree, backend: Make) -> None:
    tree.node("/dev/serial/" + "x" * 90 + "1", "/dev/serial/" + "x" * 90 + "2", "/dev/serial/a b")

    ids = [device.id for device in backend(_config("{path: /dev/serial/*}")).discover()]

    assert len(set(ids)) == 3
    assert all(len(text) <= 63 for text in ids)
    assert "widget-serial-a_b" in ids


def test_the_same_node_in_two_resources_has_two_ids(tree: Tree, backend: Make) -> None:
    tree.node("/dev/kvm")

    devices = backend(
        "resources: [{name: a.io/one, groups: [{paths: [{path: /dev/kvm}]}]},"
        " {name: a.io/two, groups: [{paths: [{path: /dev/kvm, shared: true}]}]}]"
    ).discover()

    assert [device.id for device in devices] == ["one-kvm", "two-kvm"]
    assert all(device.health.is_healthy for device in devices)
    assert {device.unit for device in devices} == {"kvm"}


def test_a_directory_as_a_device_was_unhealthy(tree: Tree, backend: Make) -> None:
    tree.node("/dev/snd/controlC0", "/dev/snd/sub/seq", "/dev/snd0")
    made = backend(_config("{path: /dev/snd}", group="count: 2"))

    first, second = made.discover()

    assert first.health.is_healthy
    assert first.edits == second.edits
    assert [node.container_path for node in first.edits.device_nodes] == ["/dev/snd/controlC0", "/dev/snd/sub/seq"]
    (elsewhere,) = backend(_config("{path: /dev/snd, mountPath: /audio/}")).discover()
    assert [(node.host_path, node.container_path) for node in elsewhere.edits.device_nodes] == [
        ("/dev/snd/controlC0", "/audio/snd/controlC0"),
        ("/dev/snd/sub/seq", "/audio/snd/sub/seq"),
    ]


def test_a_mount_path_with_a_slash_at_its_end_was_one_path_for_all(tree: Tree, backend: Make) -> None:
    tree.node("/dev/ttyUSB0", "/dev/ttyUSB1")
    devices = backend(_config("{path: /dev/ttyUSB*, mountPath: /dev/serial/}")).discover()
    assert [node.container_path for device in devices for node in device.edits.device_nodes] == [
        "/dev/serial/ttyUSB0",
        "/dev/serial/ttyUSB1",
    ]


def test_a_group_of_optional_members_is_a_device_while_one_is_there(tree: Tree, backend: Make) -> None:
    made = backend(
        _config(
            "{path: /dev/ttyS0, optional: true}", "{path: /dev/ttyUSB0, optional: true}", group="env: {PORT: '{path}'}"
        )
    )
    assert made.discover() == []
    seen: list[tuple[str, str, list[str]]] = []
    for change in (tree.node, tree.node, tree.remove):
        change("/dev/ttyS0" if seen else "/dev/ttyUSB0")
        (device,) = made.discover()
        assert device.health.is_healthy
        seen.append((device.id, device.edits.env["PORT"], [node.host_path for node in device.edits.device_nodes]))
    name = "widget-ttyS0+ttyUSB0"
    assert seen == [
        (name, "/dev/ttyUSB0", ["/dev/ttyUSB0"]),
        (name, "/dev/ttyS0", ["/dev/ttyS0", "/dev/ttyUSB0"]),
        (name, "/dev/ttyUSB0", ["/dev/ttyUSB0"]),
    ]


def test_two_devices_were_given_one_node_that_each_has_for_itself(sysfs_tree: SysfsTree, tmp_path: Path) -> None:
    for minor in (0, 1):
        sysfs_tree.stand_in(f"/dev/ttyUSB{minor}", major=188, minor=minor)
    sysfs_tree.link("/dev/serial/by-id/modem", "/dev/ttyUSB0")
    file = tmp_path / "config.yaml"
    text = (
        "resources: [{name: a.io/modem, groups: [{id: '{name}', paths: [{path: /dev/serial/by-id/*}]}]},"
        " {name: a.io/any, groups: [{paths: [{path: /dev/ttyUSB*}]}]}]"
    )

    file.write_text(text)
    first, second, third = Generic(file, sysfs_tree.host).discover()

    assert first.health.is_healthy
    assert str(second.health) == (
        "Unhealthy (/dev/ttyUSB0 belongs to 'modem' of a.io/modem and to 'any-ttyUSB0' of a.io/any, and only the "
        "first is given out; write shared: true beside the second, or leave the node out of one)"
    )
    assert third.health.is_healthy
    for allowed in (text.replace("by-id/*", "by-id/*, shared: true"), text.replace("{paths", "{count: 2, paths")):
        file.write_text(allowed)
        assert all(device.health.is_healthy for device in Generic(file, sysfs_tree.host).discover())


@pytest.mark.parametrize("second", ["/dev/modem", "/dev/by-name/modem"], ids=["node", "link"])
def test_two_names_of_one_node_number_were_two_devices(sysfs_tree: SysfsTree, tmp_path: Path, second: str) -> None:
    """Some udev rules make a node a second time, with the same number."""
    sysfs_tree.stand_in("/dev/ttyUSB1", major=188, minor=1)
    sysfs_tree.stand_in("/dev/modem", major=188, minor=1)
    sysfs_tree.link("/dev/by-name/modem", "/dev/modem")
    file = tmp_path / "config.yaml"
    file.write_text(
        "resources: [{name: a.io/one, groups: [{paths: [{path: /dev/ttyUSB1}]}]},"
        f" {{name: a.io/two, groups: [{{paths: [{{path: {second}}}]}}]}}]"
    )
    first, other = Generic(file, sysfs_tree.host).discover()
    assert first.health.is_healthy
    assert f"{second} belongs to 'one-ttyUSB1' of a.io/one" in str(other.health.reason)
    sysfs_tree.stand_in("/dev/modem", major=188, minor=2)
    assert all(device.health.is_healthy for device in Generic(file, sysfs_tree.host).discover())


@pytest.mark.parametrize("resources", [1, 2])
def test_a_function_of_vfio_by_its_group_and_by_its_own_node_was_two_devices(
    sysfs_tree: SysfsTree, tmp_path: Path, resources: int
) -> None:
    function = sysfs_tree.pci_function(
        "0000:3b:02.0", vendor=1, device=2, driver="vfio-pci", iommu_group=41, numa_node=1
    )
    sysfs_tree.stand_in("/dev/vfio/41", major=240, minor=0)
    sysfs_tree.stand_in("/dev/vfio/devices/vfio0", major=511, minor=0)
    sysfs_tree.write(f"{function}/vfio-dev/vfio0/dev", "511:0")
    sysfs_tree.link("/sys/dev/char/511:0", f"{function}/vfio-dev/vfio0")
    own = "{paths: [{path: '/dev/vfio/devices/vfio*'}]}"
    second = f", {own}]}}]" if resources == 1 else f"]}}, {{name: a.io/two, groups: [{own}]}}]"
    file = tmp_path / "config.yaml"
    file.write_text("resources: [{name: a.io/one, groups: [{paths: [{regex: '/dev/vfio/\\d+'}]}" + second)
    by_group, by_node = Generic(file, sysfs_tree.host).discover()
    assert by_group.health.is_healthy
    assert "IOMMU group 41 of /dev/vfio/devices/vfio0 belongs to 'one-vfio-41'" in str(by_node.health.reason)
    assert by_node.numa_nodes == (1,)


def test_a_group_that_vfio_does_not_open_is_unhealthy_by_its_functions_nodes_too(
    sysfs_tree: SysfsTree, tmp_path: Path
) -> None:
    function = sysfs_tree.pci_function("0000:3b:02.0", vendor=1, device=2, driver="vfio-pci", iommu_group=41)
    sysfs_tree.pci_function("0000:3b:02.1", vendor=1, device=2, driver="nvme", iommu_group=41)
    sysfs_tree.stand_in("/dev/vfio/devices/vfio0", major=511, minor=0)
    sysfs_tree.link(
        "/sys/dev/char/511:0", sysfs_tree.write(f"{function}/vfio-dev/vfio0/dev", "511:0").removesuffix("/dev")
    )
    file = tmp_path / "config.yaml"
    file.write_text("resources: [{name: a.io/one, groups: [{paths: [{path: '/dev/vfio/devices/vfio*'}]}]}]")
    (device,) = Generic(file, sysfs_tree.host).discover()
    assert "0000:3b:02.1 is bound to nvme" in str(device.health.reason)


def test_a_group_that_vfio_does_not_open_was_healthy(tree: Tree, backend: Make) -> None:
    tree.node("/dev/vfio/17")
    made = backend(_config(r"{regex: '/dev/vfio/\d+'}"))
    for address in ("0000:3b:00.0", "0000:3b:00.1"):
        tree.directory(f"/sys/devices/pci0000:3b/{address}")
        tree.link(f"/sys/devices/pci0000:3b/{address}/iommu_group", "../../../kernel/iommu_groups/17")
        tree.link(f"/sys/bus/pci/devices/{address}", f"../../../devices/pci0000:3b/{address}")
    assert made.discover()[0].health.is_healthy
    tree.link("/sys/devices/pci0000:3b/0000:3b:00.1/driver", "../../../bus/pci/drivers/nvme")
    assert "0000:3b:00.1 is bound to nvme" in str(made.discover()[0].health)


def test_a_device_of_a_mere_number_did_not_say_what_stays(tree: Tree, backend: Make) -> None:
    card = "/sys/devices/pci0000:00/0000:00:1f.3"
    tree.node("/dev/widget0", number=(240, 0))
    tree.node("/dev/shared", number=(241, 0))
    for number, place in (("240:0", card), ("241:0", "/sys/devices/pci0000:00/0000:00:02.0")):
        tree.directory(f"{place}/widget/x")
        tree.link(f"/sys/dev/char/{number}", f"../..{place.removeprefix('/sys')}/widget/x")
    tree.link("/dev/by-name/left", "../widget0")
    made = backend(_config("{path: /dev/widget0}", "{path: /dev/shared, limit: 9}"))
    if tree.real_nodes:  # stand-ins have no numbers
        assert [device.identity for device in made.discover()] == [card]
    (device,) = backend(_config("{path: /dev/by-name/*}")).discover()
    assert device.identity == ""  # the name stays, and the container is given the link
    assert device.edits == kdp.ContainerEdits.of_node("/dev/by-name/left")


def test_a_device_that_is_left_out_owned_its_nodes(tree: Tree, backend: Make) -> None:
    """A third device was unhealthy, because of one that nobody ever saw."""
    tree.node("/dev/a0")
    tree.node("/dev/b0")
    made = backend(
        "resources: [{name: a.io/widget, groups: [{id: one, paths: [{path: /dev/a0}]}, "
        "{id: one, paths: [{path: '/dev/b*'}]}, {id: two, paths: [{path: /dev/b0}]}]}]"
    )
    assert [(device.id, device.health.is_healthy) for device in made.discover()] == [("one", True), ("two", True)]


def test_two_devices_with_one_id_leave_the_first_and_one_sentence(
    tree: Tree, backend: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tree.node("/dev/widget0")
    made = backend(
        "resources: [{name: a.io/widget, groups: [{paths: [{path: /dev/widget0}]}, {paths: [{path: /dev/widget*}]}]}]"
    )

    with caplog.at_level(logging.ERROR):
        assert [device.id for device in made.discover()] == ["widget0"]
        made.discover()

    (record,) = caplog.records
    assert "resources[0].groups[1] (a.io/widget) makes a second device 'widget0'" in record.getMessage()


def test_a_wrong_file_is_refused_at_the_start(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(kdp.ConfigurationError, match=r"no\.yaml: cannot be read \(No such file or directory\)"):
        Generic(tmp_path / "no.yaml", tree.host)
    with pytest.raises(kdp.ConfigurationError, match=r"cannot be read \(Is a directory\)"):
        Generic(tmp_path, tree.host)
    with pytest.raises(kdp.ConfigurationError, match=r"cannot be read \(it is a device node, not a regular file\)"):
        Generic(Path("/dev/zero"), tree.host)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(kdp.ConfigurationError, match=r"is not UTF-8 \(byte 0\)"):
        Generic(tmp_path / "binary", tree.host)
    (tmp_path / "large").write_bytes(b"#" * 2_000_000)
    with pytest.raises(kdp.ConfigurationError, match="has more than 1048576 bytes"):
        Generic(tmp_path / "large", tree.host)


def test_a_changed_file_keeps_the_pairs_of_groups_that_stay(tree: Tree, tmp_path: Path) -> None:
    tree.node("/dev/a0", "/dev/a1", "/dev/b0", "/dev/b1", "/dev/c")
    file = tmp_path / "config.yaml"
    file.write_text("resources: [{name: x.io/a, groups: [{paths: [{path: /dev/a*}, {path: /dev/b*}]}]}]")
    made = Generic(file, tree.host)
    made.discover()
    tree.remove("/dev/b0")

    file.write_text(file.read_text()[:-1] + ", {name: x.io/c, groups: [{paths: [{path: /dev/c}]}]}]")
    lost, kept, new = made.discover()

    assert str(lost.health) == "Unhealthy (/dev/b0 is gone)"
    assert [node.host_path for node in kept.edits.device_nodes] == ["/dev/a1", "/dev/b1"]
    assert new.resource == "x.io/c"


def test_it_says_what_its_container_needs_of_the_node(backend: Make) -> None:
    made = backend(
        "resources: [{name: a.io/x, groups: [{paths: [{path: /dev/dri/renderD*}], usb: [{vendor: 1a86}]},"
        r" {paths: [{regex: '/dev/tty(USB|ACM)\d'}]}]}]"
    )

    assert made.needs().host_paths == ("/dev", "/dev/bus/usb", "/dev/dri", "/sys")
