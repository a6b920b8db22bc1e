"""CDI files beside the reference library: what kdp writes resolves, and declares the lowest version that will do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kdp
from kdp.cdi import (
    CdiDevice,
    CdiDirectory,
    CdiEdits,
    CdiMount,
    CdiNetDevice,
    CdiNode,
    CdiSpec,
    cdi_device_name,
    cdi_kind,
    parse_spec,
    render_device,
)
from kdp.hardware import Host
from kdp_testkit.patience import PATIENCE

from .nodekit import Missing
from .nodekit.tools import tool

Judge = Callable[[Path], dict[str, Any]]
ENV = CdiEdits(env=["WIDGET=0"])

SPECS = {
    "a variable": ENV,
    "all that YAML has rules for": CdiEdits(env=["A=\x01\n\x7f\x85\x9f\u2028\ufeff\ufffe\uffffü\U0001f600"]),
    "a node": CdiEdits(device_nodes=[CdiNode(path="/dev/null", file_mode=0o660, uid=1, gid=44)]),
    "a node of another name": CdiEdits(device_nodes=[CdiNode(path="/dev/w", host_path="/dev/null", permissions="r")]),
    "a mount": CdiEdits(mounts=[CdiMount(host_path="/etc", container_path="/w", options=["rbind", "ro"])]),
    "a typed mount": CdiEdits(mounts=[CdiMount(host_path="/etc", container_path="/w", type="bind")]),
    "a hook": CdiEdits(hooks=[kdp.CdiHook(name="createContainer", path="/bin/true", args=["true"], timeout=5)]),
    "groups": CdiEdits(additional_gids=[44]),
    "the highest numbers": CdiEdits(
        device_nodes=[CdiNode(path="/dev/null", file_mode=2**32 - 1, uid=2**32 - 1, gid=2**32 - 1)],
        hooks=[kdp.CdiHook(name="prestart", path="/bin/true", env=["A="], timeout=2**63 - 1)],
        additional_gids=[2**32 - 1],
    ),
    "a network interface": CdiEdits(net_devices=[CdiNetDevice(host_interface_name="ib0", name="net1")]),
}


@pytest.fixture
def judge() -> Judge:
    """Ask the reference library about the files of a directory."""
    try:
        program = tool("cdi-validate")
    except Missing as missing:
        pytest.skip(str(missing))

    def ask(directory: Path) -> dict[str, Any]:
        done = subprocess.run([program, directory], check=True, capture_output=True, timeout=PATIENCE)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    return ask


@pytest.mark.parametrize("what", SPECS)
@pytest.mark.parametrize("name", ["w-0", "0000:3b:00.0", cdi_device_name("mlx5_0/3")])
@pytest.mark.parametrize("resource", ["example.com/widget", "3m.com/mig-1g.5gb", "example.com/w_x"])
def test_every_spec_resolves_with_the_lowest_version(
    judge: Judge, tmp_path: Path, what: str, name: str, resource: str
) -> None:
    spec = CdiSpec(kind=cdi_kind(resource), devices=[CdiDevice(name=name, edits=SPECS[what])])
    directory = CdiDirectory(tmp_path)
    directory.write(spec)
    said = judge(tmp_path)
    assert said["errors"] == {}
    assert said["devices"] == [f"{spec.kind}={name}"]
    assert said["versions"] == {directory.file(spec.kind).name: [spec.version, spec.version]}


def test_annotations_and_a_class_with_a_dot_are_known_to_cost_a_version(judge: Judge, tmp_path: Path) -> None:
    for number, spec in enumerate(
        [
            CdiSpec(kind="example.com/a.b", devices=[CdiDevice(name="w", edits=ENV)]),
            CdiSpec(kind="example.com/w", devices=[CdiDevice(name="w", edits=ENV)], annotations={"by": "us"}),
            CdiSpec(kind="example.com/w", devices=[CdiDevice(name="w", edits=ENV, annotations={"by": "us"})]),
        ]
    ):
        directory = CdiDirectory(tmp_path / str(number))
        directory.write(spec)
        assert judge(directory.path)["versions"] == {directory.file(spec.kind).name: ["0.6.0", "0.6.0"]}


def test_a_rendered_device_resolves(judge: Judge, tmp_path: Path) -> None:
    edits = kdp.ContainerEdits(
        env={"WIDGET": "0"},
        device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path="/dev/w")],
        mounts=[kdp.Mount(host_path="/etc", container_path="/w", read_only=True)],
    )
    device = render_device(kdp.Device(id="mlx5_0/3", edits=edits), Host())
    assert device is not None
    CdiDirectory(tmp_path).write(CdiSpec(kind="kdp.example.com/widget", devices=[device]))
    assert judge(tmp_path)["devices"] == ["kdp.example.com/widget=x_mlx5_5f0_2f3"]


NET = {"hostInterfaceName": "ib0", "name": "net1"}

WRONG: list[dict[str, Any]] = [
    {"cdiVersion": "0.3.0"},
    {"kind": "3m.com/widget"},
    {"devices": []},
    {"devices": [{"name": "w", "containerEdits": {}}]},
    {"devices": [{"name": "-w", "containerEdits": {"env": ["A=1"]}}]},
    {"devices": [{"name": "w", "containerEdits": {"env": ["A=1"]}, "extra": 1}]},
    {"devices": [{"name": "w", "containerEdits": {"deviceNodes": [{"path": "/dev/w", "permissions": "rx"}]}}]},
    {"containerEdits": {"hooks": [{"hookName": "sometime", "path": "/bin/true"}]}},
    {"containerEdits": {"hooks": [{"hookName": "prestart", "path": "/bin/true", "env": ["NOEQ"]}]}},
    {"containerEdits": {"hooks": [{"hookName": "prestart", "path": "/bin/true", "env": ["=0"]}]}},
    {"containerEdits": {"deviceNodes": [{"path": "/dev/w", "fileMode": -1}]}},
    {"containerEdits": {"deviceNodes": [{"path": "/dev/w", "fileMode": 2**32}]}},
    {"containerEdits": {"deviceNodes": [{"path": "/dev/w", "uid": -1}]}},
    {"containerEdits": {"deviceNodes": [{"path": "/dev/w", "uid": 2**40}]}},
    {"containerEdits": {"deviceNodes": [{"path": "/dev/w", "gid": True}]}},
    {"containerEdits": {"additionalGids": [2**40]}, "cdiVersion": "0.7.0"},
    {"containerEdits": {"additionalGids": [True]}, "cdiVersion": "0.7.0"},
    {"containerEdits": {"netDevices": [NET, {**NET, "name": "net2"}]}, "cdiVersion": "1.1.0"},
    {"containerEdits": {"netDevices": [NET, {**NET, "hostInterfaceName": "ib1"}]}, "cdiVersion": "1.1.0"},
    {"containerEdits": {"netDevices": [{**NET, "name": ""}]}, "cdiVersion": "1.1.0"},
    {"containerEdits": {"hooks": [{"hookName": "prestart", "path": "/bin/true", "timeout": True}]}},
    {"containerEdits": {"hooks": [{"hookName": "prestart", "path": "/bin/true", "timeout": 2**63}]}},
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: next(iter(change)))
def test_what_kdp_refuses_the_library_refuses(judge: Judge, tmp_path: Path, change: dict[str, Any]) -> None:
    """The comparison can fail, and our rules are not stricter than theirs."""
    spec = CdiSpec(
        kind="example.com/widget",
        devices=[CdiDevice(name="w", edits=CdiEdits(device_nodes=[CdiNode(path="/dev/w", host_path="/dev/null")]))],
    )
    (tmp_path / "w.json").write_text(json.dumps({**spec.as_json(), **change}))
    assert judge(tmp_path)["devices"] == []
    with pytest.raises(kdp.InvalidValueError):
        parse_spec((tmp_path / "w.json").read_text(), where="w.json")
