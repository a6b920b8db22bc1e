from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.hardware import resolving

from ..strategies import effort

NAMES = ["a", "b", "c", "d", "e", "..", ".", "", "sys", "none"]


@effort(300)
@given(
    links=st.dictionaries(
        st.sampled_from(["a", "b", "c/d", "c/e", "c/sys"]),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=5).map("/".join),
        max_size=4,
    ),
    asked=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join),
)
def test_what_is_sure_at_once_is_what_step_by_step_finds(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], asked: str
) -> None:
    """Also where links lead to / or above the root, and where the same names are there and here."""
    outside = tmp_path_factory.mktemp("out")
    root = outside / "c"
    for directory in (outside / "a", root / "c", root / "sys"):
        directory.mkdir(parents=True)
    for place, target in links.items():
        if target:
            os.symlink(target, root / place)
    sure = resolving._at_once(str(root), f"/{asked}")
    if sure is not None:
        assert sure == resolving._step_by_step(str(root), f"/{asked}")


def test_a_link_that_comes_back_by_the_name_of_the_root_is_not_followed_out_of_it(tmp_path: Path) -> None:
    root = tmp_path / "node"
    (root / "sys").mkdir(parents=True)
    (root / "climbs").symlink_to("../node/sys")
    (root / "absolute").symlink_to(root / "sys")
    assert resolving.resolve(str(root), "/climbs") == "/node/sys"
    assert resolving.resolve(str(root), "/absolute") == f"{root}/sys"


def test_the_paths_of_sysfs_are_sure_at_once(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/pci0000:3b/0000:3b:00.0/net").mkdir(parents=True)
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").symlink_to("../../devices/pci0000:3b/0000:3b:00.0/net")
    for path, found in (
        ("/sys/class/net", "/sys/class/net"),
        ("/sys/class/net/eth0", "/sys/devices/pci0000:3b/0000:3b:00.0/net"),
        ("/sys/devices/pci0000:3b/0000:3b:00.0/net/mtu", "/sys/devices/pci0000:3b/0000:3b:00.0/net/mtu"),
        ("sys", "/sys"),
    ):
        assert resolving._at_once(str(tmp_path), path) == found
    assert resolving._at_once(str(tmp_path), "/sys/class/net/eth0/mtu") is None


def test_without_proc_it_goes_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    readlink = os.readlink

    def without_proc(path: str) -> str:
        if path.startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", without_proc)
    assert resolving._at_once(str(tmp_path), "/b") is None
    assert resolving.resolve(str(tmp_path), "/b") == "/a"
