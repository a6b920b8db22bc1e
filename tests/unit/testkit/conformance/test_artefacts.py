from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdp.testing import ContainerReply, DeviceSpec, MountSpec
from kdp_testkit.conformance.deviceplugin.replies import missing_artefacts, problems_of

CDI = ContainerReply(cdi_devices=["example.com/dev=one"])


def test_what_exists_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/one").touch()
    reply = ContainerReply(
        devices=[DeviceSpec("/dev/x", "/dev/one", "rw"), DeviceSpec("/dev/y", "/dev/two", "rw")],
        mounts=[MountSpec("/a", "/dev"), MountSpec("/b", "/nowhere")],
    )
    assert missing_artefacts([reply, reply], [], str(tmp_path)) == ["/dev/two", "/nowhere"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps({"cdiVersion": "0.6.0", "kind": "example.com/dev", "devices": [{"name": "one"}]})),
        ("a.yaml", 'cdiVersion: "0.6.0"\nkind: example.com/dev\ndevices:\n  - name: "one"\n    containerEdits: {}\n'),
    ],
)
def test_a_cdi_name_is_found_in_its_spec(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert missing_artefacts([CDI], [tmp_path]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps({"kind": "example.com/other", "devices": [{"name": "one"}]})),
        ("a.json", '{"kind": "example.com/dev", "devices": null}'),
        ("a.json", "{cut"),
        ("a.json.tmp", json.dumps({"kind": "example.com/dev", "devices": [{"name": "one"}]})),
    ],
)
def test_a_cdi_name_that_no_spec_declares_is_missing(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert missing_artefacts([CDI], [tmp_path, tmp_path / "none"]) == ["CDI device example.com/dev=one"]


def test_a_good_reply_has_no_problems() -> None:
    reply = ContainerReply(
        devices=[DeviceSpec("/dev/x", "/dev/x", "rwm")], mounts=[MountSpec("/a", "/b")], cdi_devices=CDI.cdi_devices
    )
    assert problems_of(reply) == []


@pytest.mark.parametrize(
    "reply",
    [
        ContainerReply(devices=[DeviceSpec("dev/x", "/dev/x", "rw")]),
        ContainerReply(devices=[DeviceSpec("/dev/x", "/dev/x", "rx")]),
        ContainerReply(mounts=[MountSpec("a", "/b")]),
        ContainerReply(cdi_devices=["dev=one"]),
    ],
)
def test_a_bad_reply_has_one(reply: ContainerReply) -> None:
    assert len(problems_of(reply)) == 1
