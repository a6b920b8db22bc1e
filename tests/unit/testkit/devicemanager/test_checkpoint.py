"""The checkpoint: its layout, its way to the disk, and what is done with a broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdp_testkit.devicemanager.assignments import Assignment
from kdp_testkit.devicemanager.checkpoint import CHECKPOINT_NAME, Checkpoint
from kdp_testkit.protocol.pods import ContainerReply, DeviceSpec

CHECKPOINT = Checkpoint(
    registered={"example.com/widget": ("a", "b")},
    assignments={
        "uid": {
            "main": {
                "example.com/widget": Assignment(
                    {-1: ("a",), 1: ("b",)},
                    ContainerReply(envs={"A": "1"}, devices=[DeviceSpec("/d", "/d", "rw")], cdi_devices=["v/c=1"]),
                )
            }
        }
    },
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    CHECKPOINT.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_NAME]
    assert Checkpoint.load(tmp_path) == CHECKPOINT


def test_the_layout_is_the_kubelets() -> None:
    document = json.loads(CHECKPOINT.to_json())
    assert set(document) == {"Data", "Checksum"}
    [entry] = document["Data"]["PodDeviceEntries"]
    assert {key: entry[key] for key in ("PodUID", "ContainerName", "ResourceName", "DeviceIDs")} == {
        "PodUID": "uid",
        "ContainerName": "main",
        "ResourceName": "example.com/widget",
        "DeviceIDs": {"-1": ["a"], "1": ["b"]},
    }
    assert document["Data"]["RegisteredDevices"] == {"example.com/widget": ["a", "b"]}
    assert json.loads(Checkpoint().to_json())["Data"] == {"PodDeviceEntries": None, "RegisteredDevices": {}}


@pytest.mark.parametrize("text", ["{", '{"Data": {}, "Checksum": 1}'])
def test_a_broken_one_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / CHECKPOINT_NAME).write_text(text)
    assert Checkpoint.load(tmp_path) is None
    assert Checkpoint.load(tmp_path / "nowhere") is None


def test_an_altered_one_is_corrupt() -> None:
    document = json.loads(CHECKPOINT.to_json())
    document["Data"]["RegisteredDevices"] = {}
    with pytest.raises(ValueError, match="its checksum does not match"):
        Checkpoint.from_json(json.dumps(document))


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT_NAME).mkdir()
    with pytest.raises(OSError, match="directory"):
        CHECKPOINT.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_NAME]
