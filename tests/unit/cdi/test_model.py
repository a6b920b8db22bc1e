from __future__ import annotations

import json
from typing import Any

import pytest

from kdp import CdiHook
from kdp.cdi import CdiDevice, CdiEdits, CdiMount, CdiNetDevice, CdiNode, CdiSpec, parse_spec
from kdp.errors import InvalidValueError

KIND = "kdp.example.com/widget"
ENV = CdiEdits(env=["WIDGET=0"])


def spec(*edits: CdiEdits, kind: str = KIND, name: str = "w-", **more: Any) -> CdiSpec:
    return CdiSpec(kind=kind, devices=[CdiDevice(name=f"{name}{i}", edits=e) for i, e in enumerate(edits)], **more)


@pytest.mark.parametrize(
    ("needs", "version"),
    [
        (spec(ENV), "0.3.0"),
        (spec(CdiEdits(mounts=[CdiMount(host_path="/a", container_path="/b", type="tmpfs")])), "0.4.0"),
        (spec(CdiEdits(device_nodes=[CdiNode(path="/dev/w", host_path="/dev/w0")])), "0.5.0"),
        (spec(ENV, name="0"), "0.5.0"),
        (spec(ENV, kind="example.com/a.b"), "0.6.0"),
        (spec(ENV, annotations={"by": "us"}), "0.6.0"),
        (spec(CdiEdits(additional_gids=[44])), "0.7.0"),
        (spec(CdiEdits(net_devices=[CdiNetDevice(host_interface_name="ib0", name="net1")])), "1.1.0"),
        (spec(ENV, CdiEdits(additional_gids=[44]), name="0"), "0.7.0"),
    ],
)
def test_the_version_is_the_lowest_that_will_do(needs: CdiSpec, version: str) -> None:
    assert needs.version == version
    assert needs.as_json()["cdiVersion"] == version


def test_a_file_says_what_is_there_and_no_more() -> None:
    edits = CdiEdits(
        env=["WIDGET=0"],
        device_nodes=[CdiNode(path="/dev/w", host_path="/dev/w0", permissions="r", file_mode=0o660, gid=44)],
        mounts=[CdiMount(host_path="/opt/w", container_path="/w", options=["ro"])],
        hooks=[CdiHook(name="createContainer", path="/opt/hook", args=["hook", "0"], timeout=5)],
    )
    assert json.loads(spec(edits).encode()) == {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [
            {
                "name": "w-0",
                "containerEdits": {
                    "env": ["WIDGET=0"],
                    "deviceNodes": [
                        {"path": "/dev/w", "hostPath": "/dev/w0", "permissions": "r", "fileMode": 432, "gid": 44}
                    ],
                    "mounts": [{"hostPath": "/opt/w", "containerPath": "/w", "options": ["ro"]}],
                    "hooks": [
                        {"hookName": "createContainer", "path": "/opt/hook", "args": ["hook", "0"], "timeout": 5}
                    ],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: spec(), r"CDI spec kdp\.example\.com/widget: must have at least one device"),
        (lambda: spec(CdiEdits()), "CDI device 'w-0': must add something to a container; give it a variable"),
        (lambda: spec(ENV, kind="3m.com/widget"), "CDI kind '3m.com/widget'"),
        (lambda: spec(ENV, name="-"), "CDI device name 'kdp.example.com/widget=-0'"),
        (lambda: CdiSpec(kind=KIND, devices=[CdiDevice(name="w", edits=ENV)] * 2), "device 'w' is there twice"),
        (lambda: CdiEdits(env=["WIDGET"]), "'WIDGET': must be NAME=VALUE"),
        (lambda: CdiEdits(additional_gids=[0]), "CDI additional group 0: must be a whole number from 1 to 4294967295"),
        (
            lambda: CdiEdits(device_nodes=["/dev/w"]),  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
            "'/dev/w': must be a CdiNode, this is a str",
        ),
        (lambda: CdiNode(path="/dev/w", permissions="rx"), "permissions 'rx': must be of 'rwm'"),
    ],
)
def test_what_the_specification_forbids_is_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        wrong()


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("file_mode", "CDI device node file mode {}: must be a whole number from 0 to 4294967295; for example 0o660"),
        ("uid", "CDI device node uid {}: must be a whole number from 0 to 4294967295; for example 1000"),
        ("gid", "CDI device node gid {}: must be a whole number from 0 to 4294967295; for example 44"),
        ("additional_gids", "CDI additional group {}: must be a whole number from 1 to 4294967295; for example 44"),
    ],
)
def test_a_number_that_does_not_fit_into_32_bits_does_not_spoil_a_whole_file(field: str, sentence: str) -> None:
    for number in (-1, 2**32, True, 1.5):
        value: Any = [44, number] if field == "additional_gids" else number
        with pytest.raises(InvalidValueError) as caught:
            CdiEdits(additional_gids=value) if field == "additional_gids" else CdiNode(path="/dev/w", **{field: value})
        assert str(caught.value) == sentence.format(repr(number))


def test_every_number_that_fits_into_32_bits_stays() -> None:
    for number in (0, 2**32 - 1):
        node = CdiNode(path="/dev/w", file_mode=number, uid=number, gid=number)
        assert (node.file_mode, node.uid, node.gid) == (number, number, number)
    assert CdiEdits(additional_gids=[1, 2**32 - 1]).additional_gids == (1, 2**32 - 1)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([("ib0", "net1"), ("ib0", "net2")], "^CDI network interface 'ib0': is there twice on the node; .* valid are "),
        ([("ib0", "net1"), ("ib1", "net1")], "^CDI network interface 'net1': is there twice in the container; "),
        ([("ib0", "")], "^CDI network interface '': must be text and not empty; "),
    ],
)
def test_a_network_interface_that_is_there_twice_or_nameless_does_not_spoil_a_whole_file(
    pairs: list[tuple[str, Any]], sentence: str
) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        CdiEdits(net_devices=[CdiNetDevice(host_interface_name=host, name=name) for host, name in pairs])


def test_a_character_that_yaml_refuses_does_not_spoil_a_whole_file() -> None:
    whole = spec(CdiEdits(env=["A=\x7f\x85\u2028\ufeff\ufffeü\U0001f600"]))
    assert r"A=\u007f\u0085\u2028\ufeff\ufffeü" in whole.encode().decode()
    assert parse_spec(whole.encode(), where="w") == whole
