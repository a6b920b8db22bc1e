from __future__ import annotations

import os
from pathlib import Path

import kdp
from kdp.cdi import CdiDevice, CdiEdits, CdiMount, CdiNode, render_device
from kdp.hardware import Host


def device(**edits: object) -> kdp.Device:
    return kdp.Device(id="w/0", edits=kdp.ContainerEdits(**edits))  # type: ignore[arg-type]


def test_everything_that_a_spec_can_carry(tmp_path: Path) -> None:
    hook = kdp.CdiHook(name="createContainer", path="/opt/hook")
    found = render_device(
        device(
            env={"WIDGET": "0", "ALL": "0"},
            device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path="/dev/w", permissions="r")],
            mounts=[kdp.Mount(host_path="/opt/w", container_path="/w", read_only=True)],
            annotations={"read": "by nobody"},
            hooks=[hook],
        ),
        Host(),
        without_env={"ALL"},
    )
    node = CdiNode(path="/dev/w", host_path="/dev/null", permissions="r", file_mode=0o666)
    mount = CdiMount(host_path="/opt/w", container_path="/w", options=("rbind", "rprivate", "ro"))
    edits = CdiEdits(env=["WIDGET=0"], device_nodes=[node], mounts=[mount], hooks=[hook])
    assert found == CdiDevice(name="x_w_2f0", edits=edits)


def test_a_link_is_followed_inside_the_root(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "by-name").symlink_to("/dev/zero")
    (tmp_path / "dev" / "zero").symlink_to("null")
    (tmp_path / "dev" / "null").symlink_to("nowhere")
    found = render_device(device(device_nodes=[kdp.DeviceNode(host_path="/dev/by-name")]), Host(tmp_path))
    assert found is not None
    # Nothing is there: written as declared, so that the runtime's own error names it.
    assert found.edits.device_nodes == (CdiNode(path="/dev/by-name", host_path="/dev/by-name"),)
    os.symlink("/dev/null", tmp_path / "link")
    found = render_device(device(device_nodes=[kdp.DeviceNode(host_path=str(tmp_path / "link"))]), Host())
    assert found is not None
    assert found.edits.device_nodes[0].host_path == "/dev/null"
    assert found.edits.device_nodes[0].path == str(tmp_path / "link")


def test_a_device_that_adds_nothing_has_no_part_in_a_spec() -> None:
    assert render_device(device(), Host()) is None
    assert render_device(device(annotations={"a": "b"}, env={"ALL": "0"}), Host(), without_env={"ALL"}) is None
