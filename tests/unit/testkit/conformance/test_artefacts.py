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


def test_a_link_of_a_recorded_node_led_out_of_it(tmp_path: Path) -> None:
    """An absolute link was followed on this machine, where its target is not."""
    for name in ("dev/cards", "dev/by-path", "links"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "dev/cards/one-of-a-recorded-node").touch()
    (tmp_path / "dev/by-path/a").symlink_to("/dev/cards/one-of-a-recorded-node")
    (tmp_path / "dev/by-path/b").symlink_to("../cards/one-of-a-recorded-node")
    (tmp_path / "dev/by-path/c").symlink_to("/links/d")
    (tmp_path / "links/d").symlink_to("../../../dev/by-path/b")
    (tmp_path / "dev/by-path/lost").symlink_to("/dev/cards/two-of-a-recorded-node")
    (tmp_path / "dev/by-path/loop").symlink_to("loop")
    names = ("a", "b", "c", "lost", "loop")
    reply = ContainerReply(devices=[DeviceSpec(f"/dev/{name}", f"/dev/by-path/{name}", "rw") for name in names])
    assert missing_artefacts([reply], [], str(tmp_path)) == ["/dev/by-path/loop", "/dev/by-path/lost"]


def test_a_file_that_a_plugin_on_a_recorded_node_makes_on_this_machine_was_missing(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "made").touch()
    reply = ContainerReply(mounts=[MountSpec("/a", str(tmp_path / "made")), MountSpec("/b", str(tmp_path / "gone"))])
    assert missing_artefacts([reply], [], str(tmp_path / "node")) == [str(tmp_path / "gone")]
