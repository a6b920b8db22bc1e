from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kdp.hardware import Host, resolving

from ..strategies import effort

NAMES = ["a", "b", "c", "d", "e", "..", ".", "", "sys", "none"]


LINKS = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "c/e", "c/sys"]),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=5).map("/".join),
    max_size=4,
)
ASKED = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


def drawn(above: Path, links: dict[str, str]) -> Path:
    """Make a root with links, and names beside it that are in it, too; each file says where it is."""
    root = above / "c"
    for directory in (above / "a", root / "c", root / "sys"):
        directory.mkdir(parents=True)
    for file in (above / "d", above / "sys", root / "d", root / "sys/d"):
        file.write_text(str(file))
    for place, target in links.items():
        if target:
            os.symlink(target, root / place)
    return root


def outcome(call: Callable[[str], Any], path: str) -> Any:
    """Return what came of it, an error by its number."""
    try:
        return call(path)
    except OSError as error:
        return error.errno


@effort(300)
@given(links=LINKS, asked=ASKED, known=st.sampled_from(["/", "/c", "/sys"]))
def test_a_directory_without_links_need_not_be_looked_at_again(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], asked: str, known: str
) -> None:
    """Nor does it matter to what is found below it, and read."""
    root = drawn(tmp_path_factory.mktemp("out"), links)
    host, path = Host(root), resolving.Below(known, asked)
    for call in (host.resolve, host.read_bytes, host.read_link, host.look):
        assert outcome(call, path) == outcome(call, str(path))
    names = [directory.path for directory in host.directories(resolving.Below(known, f"{asked}/*"))]
    assert names == [directory.path for directory in host.directories(f"{path}/*")]


@effort(300)
@given(links=LINKS, asked=ASKED)
@example(links={"b": "a/../b"}, asked="b")
@example(links={"a": "b/a", "b": "d/.."}, asked="a")
def test_without_a_root_it_is_where_the_kernel_gets_to(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], asked: str
) -> None:
    path = str(drawn(tmp_path_factory.mktemp("out"), links) / asked)
    found, there = outcome(Host().resolve, path), outcome(os.stat, path)
    if found == errno.ELOOP:  # also by what is not there or no directory, beyond which the kernel does not go
        assert there in (errno.ELOOP, errno.ENOENT, errno.ENOTDIR)
    else:
        assert there != errno.ELOOP
        assert found == os.path.realpath(path)


def test_what_has_no_path_keeps_the_name_of_its_link() -> None:
    """A pipe has none, and the kernel says one of a file that was removed."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer), tempfile.TemporaryFile() as removed:
        for descriptor in (reader, removed.fileno()):
            path = f"/proc/self/fd/{descriptor}"
            assert Host().resolve(path) == os.path.realpath(path)


def test_a_missing_attribute_costs_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll of sixteen adapters asked a thousand times for what was not there."""
    (tmp_path / "sys/devices/card").mkdir(parents=True)
    card = Host(tmp_path).directory("/sys/devices/card")
    calls: list[str] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counts(path: str, *more: Any) -> Any:
            calls.append(path)
            return call(path, *more)

        return counts

    for name in ("open", "readlink", "stat"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    assert card.text("none").is_absent
    assert calls == [f"{tmp_path}/sys/devices/card/none"]


def test_a_link_that_comes_back_by_the_name_of_the_root_is_not_followed_out_of_it(tmp_path: Path) -> None:
    root = tmp_path / "node"
    (root / "sys").mkdir(parents=True)
    (root / "climbs").symlink_to("../node/sys")
    (root / "absolute").symlink_to(root / "sys")
    assert resolving.resolve(str(root), "/climbs") == "/node/sys"
    assert resolving.resolve(str(root), "/absolute") == f"{root}/sys"


def test_the_paths_of_sysfs_are_found(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/pci0000:3b/0000:3b:00.0/net").mkdir(parents=True)
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").symlink_to("../../devices/pci0000:3b/0000:3b:00.0/net")
    for path, found in (
        ("/sys/class/net", "/sys/class/net"),
        ("/sys/class/net/eth0", "/sys/devices/pci0000:3b/0000:3b:00.0/net"),
        ("/sys/devices/pci0000:3b/0000:3b:00.0/net/mtu", "/sys/devices/pci0000:3b/0000:3b:00.0/net/mtu"),
        ("/sys/class/net/eth0/mtu", "/sys/devices/pci0000:3b/0000:3b:00.0/net/mtu"),
        ("sys", "/sys"),
    ):
        assert resolving.resolve(str(tmp_path), path) == found
