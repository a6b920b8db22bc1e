from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kdp.cdi import CdiDevice, CdiDirectory, CdiEdits, CdiNode, CdiSpec, cdi_kind, parse_spec
from kdp.errors import CdiWriteError, InvalidNameError
from kdp.hardware import Host

KIND = "kdp.example.com/widget"


def spec(*names: str, kind: str = KIND, node: str | None = None) -> CdiSpec:
    nodes = [] if node is None else [CdiNode(path=node)]
    return CdiSpec(
        kind=kind, devices=[CdiDevice(name=name, edits=CdiEdits(env=["A=1"], device_nodes=nodes)) for name in names]
    )


def test_a_file_is_made_with_its_directory_for_everybody_to_read(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "run" / "cdi")
    old = os.umask(0o077)
    try:
        assert directory.write(spec("w-0"))
    finally:
        os.umask(old)
    file = directory.file(KIND)
    assert file.name == "kdp_kdp.example.com_widget.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert parse_spec(file.read_bytes(), where="w") == spec("w-0")
    assert os.listdir(directory.path) == [file.name]


def test_the_same_is_not_written_again(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(spec("w-0"))
    before = directory.file(KIND).stat().st_ino
    assert not directory.write(spec("w-0"))
    assert directory.file(KIND).stat().st_ino == before
    assert directory.write(spec("w-0", "w-1"))


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_a_harmed_file_is_repaired(tmp_path: Path, harm: str) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(spec("w-0"))
    file = directory.file(KIND)
    match harm:
        case "removed":
            file.unlink()
        case _:
            file.write_bytes(file.read_bytes()[:20])
    assert directory.write(spec("w-0"))
    assert parse_spec(file.read_bytes(), where="w") == spec("w-0")


def test_a_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    with pytest.raises(
        CdiWriteError, match=r"kdp_kdp\.example\.com_widget\.json cannot be written: .*; mount the node's"
    ):
        CdiDirectory(tmp_path / "cdi").write(spec("w-0"))


def test_only_files_of_ours_that_serve_nobody_are_removed(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(spec("w-0", kind="kdp.example.com/here", node="/dev/null"))
    directory.write(spec("w-0", kind="kdp.example.com/gone", node="/dev/kdp-is-not-there"))
    directory.write(spec("w-0", kind="kdp.example.com/no-node"))
    (tmp_path / "kdp_broken.json").write_text("{")
    (tmp_path / "vendor.json").write_text("{")
    (tmp_path / ".kdp_left.draft").touch()
    os.utime(tmp_path / ".kdp_left.draft", (0, 0))
    (tmp_path / ".kdp_being-written.draft").touch()
    removed = {file.name for file in directory.remove_stale(Host())}
    assert removed == {"kdp_kdp.example.com_gone.json", "kdp_broken.json", ".kdp_left.draft"}
    assert {file.name for file in tmp_path.iterdir()} == {
        "kdp_kdp.example.com_here.json",
        "kdp_kdp.example.com_no-node.json",
        "vendor.json",
        ".kdp_being-written.draft",
    }


def test_the_file_of_a_resource_whose_kind_was_another_before_goes_with_its_devices(tmp_path: Path) -> None:
    """Until then it does no harm, and a container that starts again finds the old names."""
    directory, host = CdiDirectory(tmp_path), Host(tmp_path / "host")
    node = tmp_path / "host" / "dev" / "w"
    node.parent.mkdir(parents=True)
    node.touch()
    for kind in ("kdp.example.com/w_x", cdi_kind("example.com/w_x")):
        directory.write(spec("w-0", kind=kind, node="/dev/w"))
    old, new = directory.file("kdp.example.com/w_x"), directory.file(cdi_kind("example.com/w_x"))
    assert directory.remove_stale(host) == []
    assert sorted(tmp_path.glob("*.json")) == sorted([old, new])
    node.unlink()
    assert sorted(directory.remove_stale(host)) == sorted([old, new])


@pytest.mark.thorough
def test_what_is_no_file_is_replaced_or_removed_and_nobody_waits(tmp_path: Path) -> None:
    """A runtime that reads a FIFO waits for ever, for all of its containers."""
    directory = CdiDirectory(tmp_path)
    os.mkfifo(directory.file(KIND))
    os.mkfifo(tmp_path / "kdp_other.json")
    os.mkfifo(tmp_path / "vendor.json")
    (tmp_path / "kdp_nested.json").write_text("[" * 100_000)
    (tmp_path / "kdp_large.json").touch()
    os.truncate(tmp_path / "kdp_large.json", 1 << 40)
    (tmp_path / "kdp_link.json").symlink_to("vendor.json")
    assert directory.write(spec("w-0"))
    assert parse_spec(directory.file(KIND).read_bytes(), where="w") == spec("w-0")
    removed = directory.remove_stale(Host())
    assert [path.name for path in removed] == ["kdp_large.json", "kdp_nested.json", "kdp_other.json"]
    left = [directory.file(KIND).name, "kdp_link.json", "vendor.json"]
    assert sorted(os.listdir(tmp_path)) == left, "a link is somebody else's doing"


def test_a_link_with_our_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    directory, other = CdiDirectory(tmp_path / "cdi"), tmp_path / "other"
    directory.write(spec("w-0"))
    directory.file(KIND).rename(other)
    directory.file(KIND).symlink_to(other)
    assert directory.write(spec("w-0"))
    assert not directory.file(KIND).is_symlink()


@pytest.mark.parametrize("part", ["a/b", "a\0b"])
def test_a_part_is_one_name(tmp_path: Path, part: str) -> None:
    with pytest.raises(InvalidNameError, match="must not have '/' or NUL"):
        CdiDirectory(tmp_path).file(KIND, part)
