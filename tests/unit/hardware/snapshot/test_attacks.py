"""Snapshots that somebody made to harm whoever opens them."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kdp.errors import ConfigurationError
from kdp.hardware.snapshot import archive as snapshots

from ...strategies import effort
from .test_archive import LISTS, archive, member, refusal

PRECIOUS = "precious\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of whoever opens the snapshot, beside the place where it is unpacked."""
    secret = tmp_path / "secret"
    secret.write_text(PRECIOUS)
    return secret


def sentence(path: Path) -> str:
    """Return what reading says of a snapshot; empty: it is one."""
    try:
        snapshots.read(path)
    except ConfigurationError as error:
        return str(error)
    return ""


def link(name: str, target: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, target)


@pytest.mark.parametrize(
    "links",
    [
        [link("p/q/r/s/t", "../../../.."), link("x", "p/q/r/s/t/../../../..")],
        [link("a/b", ".."), link("z", "a/b/a/b/../secret")],
    ],
)
def test_a_link_through_a_link_does_not_lead_out(links: list[tarfile.TarInfo], tmp_path: Path) -> None:
    assert "out of the archive" in refusal(archive(tmp_path / "s.tar.gz", LISTS, *links))


@pytest.mark.parametrize("name", ["FORMAT", "MODES"])
def test_nothing_but_a_list_has_the_name_of_a_list(name: str, tmp_path: Path) -> None:
    text = refusal(archive(tmp_path / "s.tar.gz", LISTS, link(name, "secret")))
    assert f"{name} has the name of a list of snapshots" in text


def test_a_derived_link_is_not_made_behind_a_link(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {**LISTS, "sys/devices/d/dev": "1:2\n"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        tar.addfile(link("sys/dev", "../elsewhere"))
    assert "/sys/dev/char/1:2 lies below /sys/dev" in refusal(path)


def test_a_loop_of_links_is_no_harm(tmp_path: Path) -> None:
    loop = [link("a", "b"), link("b", "a"), link("c", "c/../c/d")]
    snapshots.unpack(snapshots.read(archive(tmp_path / "s.tar.gz", LISTS, *loop)), tmp_path / "root")
    assert os.readlink(tmp_path / "root/a") == "b"


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("sys/big")
    sparse.type = tarfile.GNUTYPE_SPARSE
    raw = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    raw[386:398], raw[398:410] = b"%011o\0" % (1 << 31), b"%011o\0" % 0  # where its data lies, and how much
    raw[483:495] = b"%011o\0" % (1 << 31)  # its real size
    raw[148:156] = b"        "
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    with tarfile.open(archive(tmp_path / "s.tar.gz")) as tar:
        names = tar.getnames()
    assert names == [*LISTS]
    plain = gzip.decompress((tmp_path / "s.tar.gz").read_bytes()).rstrip(b"\0")
    plain += bytes(-len(plain) % 512) + bytes(raw) + bytes(1024)
    (tmp_path / "s.tar.gz").write_bytes(gzip.compress(plain))
    assert "sparse" in refusal(tmp_path / "s.tar.gz")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lists", "names"),
    [
        ({**LISTS, "DEVNODES": "/dev/x c 1:3 0666\n" * 50_000}, []),
        ({**LISTS, "UNREADABLE": "".join(f"/{'a/' * 90}{n} Invalid argument\n" for n in range(20_000))}, []),
        ({**LISTS, "UNREADABLE": f"/a{' ' * 2_000_000}b\n"}, []),
        (LISTS, ["a/" * 50_000 + "b"]),
        (LISTS, ["x" * 100_000]),
    ],
)
def test_a_small_archive_costs_no_minutes(lists: dict[str, str], names: list[str], tmp_path: Path) -> None:
    """None of these took less than ten seconds, or ever ended."""
    path = archive(tmp_path / "s.tar.gz", lists, *map(member, names))
    assert len(sentence(path)) < 1000


@pytest.mark.parametrize(
    ("lists", "names"),
    [
        pytest.param(LISTS, ["sys/" + "x" * 256], id="a long name"),
        pytest.param(LISTS, ["sys/" + "é" * 128], id="a long name in bytes"),
        pytest.param(LISTS, ["sys/" + "é/" * 90 + "/".join(["é" * 100] * 8)], id="a long path in bytes"),
        pytest.param({**LISTS, "UNREADABLE": f"/sys/{'x' * 256} Invalid argument\n"}, [], id="a long attribute"),
        pytest.param({**LISTS, "DEVNODES": "/dev/x c 99999999999:3 0666\n"}, [], id="a large number"),
        pytest.param({**LISTS, "DEVNODES": "/dev/x c 4096:0 0666\n"}, [], id="a number that Linux has not"),
        pytest.param({**LISTS, "DEVNODES": "/dev/x c 1:-3 0666\n"}, [], id="a negative number"),
    ],
)
def test_no_node_has_such_names_and_numbers(lists: dict[str, str], names: list[str], tmp_path: Path) -> None:
    """They ended in OSError and OverflowError, when the snapshot was unpacked or its devices were looked at."""
    assert sentence(archive(tmp_path / "s.tar.gz", lists, *map(member, names)))


def test_a_number_that_is_no_name_of_a_link_is_left_alone(tmp_path: Path) -> None:
    long = snapshots.FileEntry(b"1" * 300)
    snapshots.write(snapshots.Snapshot(kernel="Linux", files={"/sys/devices/x/dev": long}), tmp_path / "s.tar.gz")
    snapshots.unpack(snapshots.read(tmp_path / "s.tar.gz"), tmp_path / "root")


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_snapshot: object, _root: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshots, "unpack", full)
    with pytest.raises(ConfigurationError, match=r"cannot be unpacked in .* \(No space left on device\)"):
        snapshots.unpack_temporarily(archive(tmp_path / "s.tar.gz", LISTS))


@pytest.mark.thorough
def test_links_through_links_are_followed_so_far_and_no_further(tmp_path: Path) -> None:
    chain = [link(f"l{n}", "./" * 400 + f"l{n + 1}") for n in range(2000)]
    snapshots.read(archive(tmp_path / "s.tar.gz", LISTS, *chain[:50]))
    assert "more directories than any node has" in refusal(archive(tmp_path / "s.tar.gz", LISTS, *chain))


def test_unpacking_replaces_no_file_and_follows_no_link(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "KERNEL").symlink_to(outside)
    with pytest.raises(FileExistsError):
        snapshots.unpack(snapshots.Snapshot(kernel="overwritten"), root)
    assert outside.read_text() == PRECIOUS


NAMES = st.lists(st.sampled_from(["a", "b", "..", "sys", "dev", "KERNEL", "MODES", "x"]), min_size=1, max_size=5).map(
    "/".join
)
MEMBERS = st.lists(
    st.one_of(
        NAMES.map(member),
        NAMES.map(lambda name: member(name, tarfile.DIRTYPE)),
        st.tuples(NAMES, NAMES).map(lambda pair: link(*pair)),
    ),
    max_size=8,
)


@effort(1000)
@given(members=MEMBERS)
@example(members=[link("p/q/r/s/t", "../../../.."), link("x", "p/q/r/s/t/../../../..")])
def test_whatever_is_in_an_archive_stays_inside(
    members: list[tarfile.TarInfo], tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("attack")
    try:
        found = snapshots.read(archive(here / "s.tar.gz", LISTS, *members))
    except ConfigurationError:
        return
    root = here / "deep" / "root"
    snapshots.unpack(found, root)
    assert {path.name for path in here.iterdir()} == {"s.tar.gz", "deep"}
    assert [path.name for path in (here / "deep").iterdir()] == ["root"]
    for path in found.links:
        place = os.path.realpath(root / path[1:])
        assert place == str(root) or place.startswith(f"{root}/")


@effort(400)
@given(data=st.data())
def test_a_damaged_archive_is_one_sentence(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    here = tmp_path_factory.mktemp("damaged")
    file = archive(here / "s.tar.gz", {"FORMAT": "kdp-snapshot 1\n", **LISTS}, member("sys/a"), link("sys/b", "a"))
    plain = bytearray(gzip.decompress(file.read_bytes()))
    for _ in range(data.draw(st.integers(1, 12))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(gzip.compress(bytes(plain)))
    assert "\n" not in sentence(file)
