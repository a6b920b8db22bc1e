from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp import CdiHook
from kdp.cdi import CdiDevice, CdiEdits, CdiMount, CdiNetDevice, CdiNode, CdiSpec, parse_spec
from kdp.errors import InvalidValueError

NAMES = st.sampled_from(["w-0", "0000:3b:00.0", "x_mlx5_5f0", "GPU.1", "7"])
PATHS = st.sampled_from(["/dev/w0", "/dev/w/1", "/opt/vendor/lib64"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
IDS = st.none() | st.integers(0, 2**16)
EDITS = st.builds(
    CdiEdits,
    env=st.lists(st.builds("{}={}".format, st.sampled_from(["A", "WIDGET_0"]), TEXTS), max_size=2),
    device_nodes=st.lists(
        st.builds(
            CdiNode,
            path=PATHS,
            host_path=st.none() | PATHS,
            permissions=st.sampled_from(["r", "rw", "rwm", "m"]),
            file_mode=st.none() | st.integers(0, 0o777),
            uid=IDS,
            gid=IDS,
        ),
        max_size=2,
    ),
    mounts=st.lists(
        st.builds(
            CdiMount,
            host_path=PATHS,
            container_path=PATHS,
            options=st.lists(st.sampled_from(["ro", "bind"])),
            type=st.none() | st.just("tmpfs"),
        ),
        max_size=2,
    ),
    hooks=st.lists(
        st.builds(
            CdiHook,
            name=st.sampled_from(["createRuntime", "poststop"]),
            path=PATHS,
            args=st.lists(TEXTS, max_size=2),
            env=st.just(("A=1",)),
            timeout=st.none() | st.integers(1, 60),
        ),
        max_size=1,
    ),
    net_devices=st.lists(st.builds(CdiNetDevice, host_interface_name=st.just("ib0"), name=st.just("net1")), max_size=1),
    additional_gids=st.lists(st.integers(1, 9), max_size=2),
)
SPECS = st.builds(
    CdiSpec,
    kind=st.sampled_from(["kdp.example.com/widget", "example.com/a.b"]),
    devices=st.lists(
        st.builds(
            CdiDevice,
            name=NAMES,
            edits=EDITS.filter(bool),
            annotations=st.dictionaries(NAMES, TEXTS, max_size=1),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda device: device.name,
    ),
    edits=EDITS,
)
GOOD: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "example.com/widget",
    "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}],
}


@given(SPECS)
def test_what_is_written_is_read(spec: CdiSpec) -> None:
    # A host path that equals the container's is not written.
    again = parse_spec(spec.encode(), where="w.json")
    assert again.as_json() == spec.as_json()


def changed(**fields: Any) -> str:
    return json.dumps({name: value for name, value in {**GOOD, **fields}.items() if value is not None})


def with_edits(version: str = "0.5.0", /, **edits: Any) -> str:
    return changed(cdiVersion=version, devices=[{"name": "0", "containerEdits": edits}])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "w.json: is no JSON: "),
        ("[]", "w.json: must be an object, this is []"),
        (changed(kind=None), "w.json: kind: is missing; it must be text that is not empty"),
        (changed(kinds="x"), "w.json: unknown field 'kinds'; known are annotations, cdiVersion, containerEdits"),
        (changed(cdiVersion="2.0.0"), "w.json: cdiVersion: must be one of 0.3.0, "),
        (changed(cdiVersion="0.3.0"), "w.json: cdiVersion '0.3.0': the content of the spec needs at least 0.5.0"),
        (changed(kind="widget"), "w.json: kind: CDI kind 'widget'"),
        (changed(devices={}), "w.json: devices: must be a list, this is {}"),
        (changed(devices=[{"name": "0"}]), "w.json: devices[0]: containerEdits: must add something to a container"),
        (with_edits("0.7.0", intelRdt={}), "w.json: intelRdt: kdp does not write this field"),
        (with_edits(deviceNodes=[{}]), "w.json: devices[0]: containerEdits: deviceNodes[0]: path: is missing"),
        (with_edits(deviceNodes=[{"path": "/dev/w", "type": "c"}]), "w.json: type: kdp does not write this field"),
        (
            with_edits(deviceNodes=[{"path": "/dev/w", "uid": -1}]),
            "w.json: devices[0]: containerEdits: deviceNodes[0]: uid: must be a whole number from 0 to 4294967295, ",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_spec(text, where="w.json")
    assert str(caught.value).startswith(sentence)
