from __future__ import annotations

import errno
import glob
import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.errors import InvalidValueError
from kdp.hardware import Host

from ..strategies import effort


@pytest.fixture
def node(tmp_path: Path) -> Host:
    """A node's files below a root, with a decoy beside them."""
    root = tmp_path / "root"
    for directory in ("dev/by-id", "etc", "real"):
        (root / directory).mkdir(parents=True)
    (root / "etc/file").touch()
    (tmp_path / "outside").touch()
    return Host(root)


def link(node: Host, path: str, target: str) -> None:
    node.path(path).symlink_to(target)


@pytest.mark.parametrize(
    ("target", "resolved"),
    [("/etc/file", "/etc/file"), ("../../../../etc/file", "/etc/file"), ("/none/there", "/none/there")],
)
def test_links_are_followed_inside_the_root(node: Host, target: str, resolved: str) -> None:
    link(node, "/dev/x", target)
    assert node.resolve("/dev/x") == resolved
    assert node.exists("/dev/x") == (resolved == "/etc/file")


def test_no_link_leads_out_of_the_root(node: Host, tmp_path: Path) -> None:
    link(node, "/dev/absolute", str(tmp_path / "outside"))
    link(node, "/dev/climbing", "../" * 20 + str(tmp_path / "outside").lstrip("/"))
    link(node, "/dev/up", "../../..")
    for path in ("/dev/absolute", "/dev/climbing", "/dev/up/outside", "/../outside"):
        assert not node.exists(path), path
    assert node.exists("/dev/up/etc/file")


def test_neither_reading_nor_listing_leads_out_of_the_root(node: Host, tmp_path: Path) -> None:
    (tmp_path / "secret/below").mkdir(parents=True)
    (tmp_path / "secret/file").write_text("outside")
    link(node, "/dev/absolute", str(tmp_path / "secret"))
    link(node, "/dev/climbing", "../../secret")
    link(node, "/dev/file", "../../secret/file")
    for path in ("/dev/absolute/file", "/dev/climbing/file", "/dev/file", "/../secret/file"):
        assert node.reading(path).is_absent, path
    for path in ("/dev/absolute/*", "/dev/climbing/*", "/../secret/*"):
        assert node.directories(path) == [], path
    assert [each.path for each in node.directories("/dev/*")] == ["/dev/by-id"]


def test_what_is_read_and_listed_through_links_is_what_they_lead_to(node: Host) -> None:
    node.path("/etc/file").write_text("inside")
    node.path("/etc/d10/x").mkdir(parents=True)
    link(node, "/dev/file", "/etc/file")
    link(node, "/dev/etc", "/etc")
    link(node, "/etc/d2", "/real")
    link(node, "/etc/dangling", "none")
    link(node, "/etc/loop", "loop")
    for path in ("/etc/file", "/dev/file", "/dev/etc/file", "/dev/../etc//file"):
        assert node.read_bytes(path) == b"inside", path
    for pattern in ("/etc/*", "/dev/etc/d*"):
        assert [each.path for each in node.directories(pattern)] == ["/real", "/etc/d10"], pattern


def test_a_loop_is_an_error_and_nothing_is_there(node: Host) -> None:
    link(node, "/dev/a", "b")
    link(node, "/dev/b", "a")
    with pytest.raises(OSError, match="/dev/a") as caught:
        node.resolve("/dev/a")
    assert caught.value.errno == errno.ELOOP
    assert not node.exists("/dev/a")
    assert node.node_fault("/dev/a") == "device node /dev/a is gone"


def test_a_name_with_a_nul_is_that_of_nothing(node: Host) -> None:
    """What an attribute says may be nonsense, and may be asked for as a path: ``parent`` of soft-RoCE, ``DEVNAME``."""
    for host in (Host(), node):
        _has_nothing_at(host, "/dev/nu\0ll")


def _has_nothing_at(host: Host, path: str) -> None:
    assert host.look(path) is None
    assert not host.exists(path)
    assert host.device_type(path) is None
    assert host.device_number(path) is None
    assert host.read_link(path) is None
    assert host.glob(f"{path}/*") == host.glob(path) == []
    assert host.net_interface("eth\0") is None
    assert host.reading(path).problem == f"{path} cannot be read: Invalid argument"
    assert not host.directory(path).exists
    assert host.directory(path).children() == []
    assert host.node_fault(path) == f"device node {path} is gone"
    with pytest.raises(OSError, match="Invalid argument"):
        host.resolve(path)


def test_kinds_of_devices(node: Host, tmp_path: Path) -> None:
    assert Host().device_type("/dev/null") == "char"
    assert Host().device_type("/dev/none") is None
    assert Host().device_type("/etc") is None
    assert Host().node_fault("/dev/null") is None
    assert node.device_type("/etc/file") is None
    widget = tmp_path / "widget"
    widget.symlink_to("/dev/null")
    assert Host().device_node(str(widget)) == "/dev/null"
    assert Host().device_node("/dev/null") == "/dev/null"


def test_a_plugin_without_dev_said_that_each_node_is_gone(tmp_path: Path) -> None:
    why = f"the node's /dev is not mounted at {tmp_path}/dev; kdp manifests mounts what needs() declares"
    assert Host(tmp_path).node_fault("/dev/card0") == f"device node /dev/card0 is gone: {why}"
    why = f"the node's /opt is not mounted at {tmp_path}/opt; kdp manifests mounts what needs() declares"
    assert Host(tmp_path).mount_fault("/opt/lib") == f"mount source /opt/lib does not exist: {why}"
    (tmp_path / "dev").mkdir()
    assert Host(tmp_path).node_fault("/dev/card0") == "device node /dev/card0 is gone"


def test_what_is_no_device_node(node: Host) -> None:
    assert node.node_fault("/dev/none") == "device node /dev/none is gone"
    assert node.node_fault("/etc/file") == "/etc/file is no device node"
    assert node.node_fault("/etc/file/x") == "device node /etc/file/x is gone"
    assert Host().node_fault("/etc") == "/etc is no device node"


@effort(300)
@given(
    links=st.fixed_dictionaries(
        {},
        optional={
            "link": st.sampled_from(["dev", "etc", "real", "none"]),
            "dev/link": st.sampled_from(["../etc", "../real", "a1", "none"]),
            "dev/by-id/link": st.sampled_from(["../../real", "../a1", "../link"]),
            "etc/.link": st.sampled_from(["../real", "file", "none"]),
        },
    ),
    pattern=st.lists(
        st.sampled_from(["*", "**", "?*", "dev", "link", "by-id", "a*", ".*", "[!a]*", "file", "none", "a**"]),
        max_size=4,
    ).map("/".join),
    end=st.sampled_from(["", "/"]),
)
def test_patterns_find_what_glob_finds(links: dict[str, str], pattern: str, end: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = Host(Path(directory) / "root[1]")
        for above in ("dev/by-id", "etc", "real/.hidden/deep"):
            (node.root / above).mkdir(parents=True)
        for file in ("dev/a1", "dev/a2", "dev/.hidden", "etc/file", "real/file", "real/.hidden/file"):
            (node.root / file).touch()
        for name, target in links.items():
            link(node, name, target)
        root = str(node.root)
        found = glob.glob(f"{glob.escape(root)}/{(pattern + end).lstrip('/')}", recursive=True)
        # For "file/**" glob says "file/", be it a directory or not.
        found = [path for path in found if not path.endswith("/") or os.path.isdir(path)]
        assert node.glob("/" + pattern + end) == sorted(path.removeprefix(root) for path in found)


@pytest.mark.parametrize("pattern", ["/dev/out/*", "/dev/**/secret", "/dev/out/secret"])
def test_no_pattern_leads_out_of_the_root(node: Host, tmp_path: Path, pattern: str) -> None:
    secret = tmp_path / "elsewhere/secret"
    secret.parent.mkdir()
    secret.touch()
    link(node, "/dev/out", str(secret.parent))
    assert node.glob(pattern) == []
    node.path(secret.parent).mkdir(parents=True)
    node.path(secret).touch()
    assert node.glob(pattern) == ["/dev/out/secret"]


def test_a_pattern_ends_where_links_form_a_loop(node: Host) -> None:
    link(node, "/dev/loop", "loop")
    assert node.glob("/dev/*/x") == node.glob("/dev/loop/*") == []
    assert node.glob("/dev/*") == ["/dev/by-id", "/dev/loop"]


@effort(150)
@given(
    links=st.dictionaries(
        st.sampled_from(["a", "b", "c/d", "c/e"]),
        st.lists(st.sampled_from(["a", "b", "c", "d", "e", "..", ".", "f", ""]), max_size=5).map("/".join),
        max_size=4,
    ),
    asked=st.lists(st.sampled_from(["a", "b", "c", "d", "e", "..", "f"]), min_size=1, max_size=4).map("/".join),
)
def test_it_resolves_as_the_kernel_does_in_a_changed_root(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], asked: str
) -> None:
    """Compared with open(2) on /proc/self/fd, where the root cannot be left because no link here climbs that high."""
    root = tmp_path_factory.mktemp("root")
    inner = root / "1/2/3/4/5/6/7/8/9"
    (inner / "c").mkdir(parents=True)
    for place, target in links.items():
        if target:
            os.symlink(target if not target.startswith("/") else "." + target, inner / place)
    host = Host(root)
    path = f"/1/2/3/4/5/6/7/8/9/{asked}"
    try:
        there = os.path.realpath(root / path.lstrip("/"), strict=True)
    except OSError:
        assert not host.exists(path) or ".." in asked or ".." in "".join(links.values())
        return
    if there.startswith(f"{root}/"):
        assert host.resolve(path) == there.removeprefix(str(root))
        assert host.exists(path)


@pytest.mark.parametrize("is_live", [False, True], ids=["below a root", "live"])
def test_reading_never_waits_for_a_writer(node: Host, is_live: bool) -> None:
    path = "/etc/fifo"
    os.mkfifo(node.path(path))

    # A read that waits would hang the whole run: an alarm ends it.
    def hung(*_: object) -> None:
        raise AssertionError("it waits for a writer")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(10)
    try:
        with pytest.raises(OSError, match=r"."):
            (Host() if is_live else node).read_bytes(node.path(path) if is_live else path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("path", ["node", "sys/class/net/*", "~/x", ""])
def test_a_relative_path_found_nothing_or_another_place(node: Host, path: str) -> None:
    for host in (Host(), node):
        for ask in (host.glob, host.directories, host.directory, host.reading, host.read_bytes):
            for form in (path, Path(path)):
                with pytest.raises(InvalidValueError, match=r"must be absolute; for example '/sys/class/net/\*'"):
                    ask(form)


def test_a_path_object_as_a_pattern_was_a_bare_error(node: Host) -> None:
    node.path("/etc/d1").mkdir(parents=True, exist_ok=True)
    pattern = Path("/etc") / "d*"
    assert node.glob(pattern) == ["/etc/d1"]
    assert [each.path for each in node.directories(pattern)] == ["/etc/d1"]
    assert node.reading(Path("/etc/d1")).path == "/etc/d1"
