"""`Snapshot`: some of a node's files as a small archive: the format, reading, writing and unpacking it.

A ``.tar.gz`` with

* each attribute at its own path with the text that was read and its permissions, each link as a relative link,
* ``KERNEL``: one line, system, release and machine; ``DEVNODES`` and ``UNREADABLE``: see `kdp.hardware.fake_nodes`,
* ``FORMAT``: ``kdp-snapshot 1``. An archive without it is of format 1.

An archive comes from somebody else's machine, so nothing in it is believed. It is read to its end before anything is
unpacked, and holds only files, directories and links. No name leads out of it, and no link, also through other links.
Its size, its entries, and the work to check them are bounded. Unpacking follows no link and replaces no file.

Rule: whatever is wrong with the file is told in one sentence (`ConfigurationError`).
"""

from __future__ import annotations

import atexit
import io
import os
import posixpath
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, final

import attrs

from ...errors import ConfigurationError, InvalidValueError
from ...storage import files, reading
from ..fake_nodes import MODES, NODES, UNREADABLE, NodeEntry, make_stand_in, owned_mode, parse_nodes, parse_unreadable

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Mapping


FORMAT_VERSION = 1
MAX_ENTRIES = 200_000
MAX_BYTES = 256 << 20

_FORMAT = "FORMAT"
_KERNEL = "KERNEL"
_NAME = "kdp-snapshot"
_LISTS = {_FORMAT, _KERNEL, NODES, UNREADABLE}
_RESERVED = {*_LISTS, MODES}

_LONGEST_PATH = 1024
"""Bytes of a path: with the directory that it is unpacked in, it stays within the kernel's 4096."""

_LONGEST_NAME = 255
"""Bytes of a name in a directory, as file systems have it."""

_LONGEST_NUMBER = len("4294967295:4294967295")
_DEEPEST_PATH = 100
_MOST_STEPS = 5_000_000
"""Parts of paths that are followed to check all links; a large node has some hundred thousand."""

_MOST_FOLLOWED = 40
"""Links on the way of one path, as the kernel follows them; it refuses more."""


@final
@attrs.frozen
class FileEntry:
    """A file that could be read.

    Attributes:
        data: What it said.
        mode: Its permissions; without any ``r`` it is only written to, and reading it is refused.
    """

    data: bytes
    mode: int = 0o444


@final
@attrs.define
class Snapshot:
    """Some of a node's files. Paths are those of the node, without links on the way.

    Attributes:
        kernel: System, release and machine.
        directories: Directories that must be there even if nothing is in them.
        files: By path.
        links: Their targets by path, relative.
        nodes: Device nodes by path.
        unreadable: By path the text of the error with which reading fails.
    """

    kernel: str = ""
    directories: set[str] = attrs.field(factory=set[str])
    files: dict[str, FileEntry] = attrs.field(factory=dict[str, FileEntry])
    links: dict[str, str] = attrs.field(factory=dict[str, str])
    nodes: dict[str, NodeEntry] = attrs.field(factory=dict[str, NodeEntry])
    unreadable: dict[str, str] = attrs.field(factory=dict[str, str])

    def lists(self) -> dict[str, str]:
        """Return the text files at the top, by name."""
        return {
            _FORMAT: f"{_NAME} {FORMAT_VERSION}\n",
            _KERNEL: f"{self.kernel}\n",
            NODES: "".join(f"{path} {node.line}\n" for path, node in sorted(self.nodes.items())),
            UNREADABLE: "".join(f"{path} {reason}\n" for path, reason in sorted(self.unreadable.items())),
        }


# -- reading -----------------------------------------------------------------------------------------------------------


def read(file: str | os.PathLike[str], *, kind: str = "snapshot", command: str = "kdp snapshot") -> Snapshot:
    """Read a snapshot and check all of it.

    Args:
        file: The archive.
        kind: What errors call it.
        command: What writes such an archive, for errors.

    Raises:
        ConfigurationError: It cannot be read, is not a snapshot, is cut off, of a newer format, or not safe to unpack.
    """
    import gzip
    import tarfile
    import zlib

    label = f"{kind} {os.fspath(file)}"
    expected = f"expected a .tar.gz as {command} writes it"
    try:
        data = reading.read(file, limit=MAX_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{label}: cannot be read ({error.strerror})") from None
    if not data.startswith(b"\x1f\x8b"):
        raise ConfigurationError(f"{label}: is not a {kind}; {expected}")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(MAX_BYTES + 1)
    except EOFError:
        raise ConfigurationError(f"{label}: is cut off; take it again or copy it again") from None
    except (OSError, zlib.error):
        raise ConfigurationError(f"{label}: is damaged; take it again or copy it again") from None
    if len(plain) > MAX_BYTES:
        raise ConfigurationError(f"{label}: holds more than {MAX_BYTES >> 20} MiB, which no {kind} does")
    if plain[257:262] == b"ustar" and not plain.endswith(bytes(2 * tarfile.BLOCKSIZE)):
        raise ConfigurationError(f"{label}: is cut off; take it again or copy it again")  # tarfile may not notice
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            return _of_archive(archive, kind, expected)
    except InvalidValueError as error:
        raise ConfigurationError(f"{label}: {error}") from None
    except (tarfile.TarError, EOFError, ValueError, OverflowError):  # tarfile lets the numbers in a header overflow
        raise ConfigurationError(f"{label}: is not a {kind}, or is damaged; {expected}") from None


def _of_archive(archive: tarfile.TarFile, kind: str, expected: str) -> Snapshot:
    lists: dict[str, str] = {}
    snapshot = Snapshot()
    for position, member in enumerate(archive):
        if position >= MAX_ENTRIES:
            raise InvalidValueError(f"holds more than {MAX_ENTRIES} files, which no snapshot does")
        archive.members.clear()  # type: ignore[attr-defined] # pyright: ignore - tarfile would keep them all
        path = _safe_path(member.name)
        if not (member.isfile() and path[1:] in _LISTS):
            _check_is_no_list(path)
        if member.issparse():
            raise InvalidValueError(f"{member.name} is a sparse file; kdp snapshot writes none")
        if member.isfile():
            held = archive.extractfile(member)
            data = b"" if held is None else held.read()
            if path[1:] in _LISTS:
                lists[path[1:]] = data.decode(errors="replace")
            else:
                snapshot.files[path] = FileEntry(data, member.mode & 0o777)
        elif member.isdir():
            snapshot.directories.add(path)
        elif member.issym():
            snapshot.links[path] = _relative(path, member.linkname)
        else:
            raise InvalidValueError(
                f"{member.name} is not a file, a directory, or a link; a snapshot holds nothing else"
            )
    _check_format(lists, kind, expected)
    snapshot.kernel = lists[_KERNEL].strip()
    snapshot.nodes = parse_nodes(lists[NODES])
    snapshot.unreadable = {path: reason for path, (_, reason) in parse_unreadable(lists[UNREADABLE]).items()}
    if len(snapshot.nodes) + len(snapshot.unreadable) > MAX_ENTRIES:
        raise InvalidValueError(f"lists more than {MAX_ENTRIES} files, which no snapshot does")
    for path in (*snapshot.nodes, *snapshot.unreadable):
        _check_is_no_list(_safe_path(path[1:]))
    _derive(snapshot)
    _check_tree(snapshot)
    _check_links(snapshot.links)
    return snapshot


def _check_format(lists: Mapping[str, str], kind: str, expected: str) -> None:
    declared = lists.get(_FORMAT, f"{_NAME} {FORMAT_VERSION}").split()
    if len(declared) < 2 or declared[0] != _NAME or not declared[1].isdigit():
        raise InvalidValueError(
            f"is not a {kind}: its FORMAT says {' '.join(declared)[:40]!r}; expected {_NAME} and a number"
        )
    if int(declared[1]) > FORMAT_VERSION:
        raise InvalidValueError(
            f"is of format {declared[1]}, and this kdp reads format {FORMAT_VERSION}; install a newer kdp-sdk"
        )
    missing = sorted(_LISTS - {_FORMAT} - lists.keys())
    if missing:
        raise InvalidValueError(f"is not a {kind}: it has no {missing[0]}; {expected}")


def _safe_path(name: str) -> str:
    parts = name.removeprefix("./").rstrip("/").split("/")
    is_long = len(os.fsencode(name)) > _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in parts)
    if is_long or name.count("/") > _DEEPEST_PATH:
        raise InvalidValueError(f"the name {name[:80]!r}... is longer or deeper than any on a node; it is not unpacked")
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidValueError(f"the name {name[:200]!r} leads out of the archive; it is not unpacked")
    return "/" + "/".join(parts)


def _check_is_no_list(path: str) -> None:
    if path.split("/")[1] in _RESERVED:
        raise InvalidValueError(f"{path[1:]} has the name of a list of snapshots, but is not a list")


def _relative(path: str, target: str) -> str:
    if target.startswith("/") or not target or "\0" in target or len(os.fsencode(target)) > _LONGEST_PATH:
        raise InvalidValueError(f"the link {path} leads to {target[:200]!r}; only relative links may be in a snapshot")
    return target


def _check_links(links: Mapping[str, str]) -> None:
    """Refuse a link that leads out, the links on its way followed as the kernel follows them."""
    steps = 0
    for path, target in links.items():
        place = path.split("/")[1:-1]
        left = target.split("/")[::-1]
        followed = 0
        while left and followed <= _MOST_FOLLOWED:
            steps += 1
            part = left.pop()
            if part == "..":
                if not place:
                    raise InvalidValueError(
                        f"the link {path} leads to {target[:200]!r}, out of the archive; it is not unpacked"
                    )
                place.pop()
            elif part not in ("", "."):
                place.append(part)
                if (inner := links.get("/" + "/".join(place))) is not None:
                    followed += 1
                    place.pop()
                    left += inner.split("/")[::-1]
        if steps > _MOST_STEPS:
            raise InvalidValueError("its links lead through more directories than any node has; it is not unpacked")


def _check_tree(snapshot: Snapshot) -> None:
    """Refuse what cannot be in one tree: something below a file or a link, two things at one place."""
    leaves = Counter([*snapshot.files, *snapshot.links, *snapshot.nodes, *snapshot.unreadable])
    double = next((path for path, times in leaves.items() if times > 1), None)
    if double is not None:
        raise InvalidValueError(f"{double} is in it twice, as different things")
    directories = {"/"}
    for path in (*leaves, *snapshot.directories):
        above = path if path in snapshot.directories else posixpath.dirname(path)
        while above not in directories:
            if above in leaves:
                raise InvalidValueError(f"{path} lies below {above}, which is not a directory; it is not unpacked")
            directories.add(above)
            above = posixpath.dirname(above)


def _derive(snapshot: Snapshot) -> None:
    """Add the links ``/sys/dev/char/231:192``, which the kernel always has: snapshots need not hold them."""
    for path, file in list(snapshot.files.items()):
        number = file.data[: 2 * _LONGEST_NUMBER].decode(errors="replace").strip()
        directory, _, name = path.rpartition("/")
        if name != "dev" or not directory.startswith("/sys/devices/"):
            continue
        if len(number) > _LONGEST_NUMBER or not number.replace(":", "", 1).isdigit():
            continue
        subsystem = snapshot.links.get(f"{directory}/subsystem", "")
        kind = "block" if subsystem.endswith("/block") or "/block/" in directory else "char"
        link = f"/sys/dev/{kind}/{number}"
        if link not in snapshot.directories:
            snapshot.links.setdefault(link, f"../../{directory.removeprefix('/sys/')}")


# -- unpacking ---------------------------------------------------------------------------------------------------------


def unpack(snapshot: Snapshot, root: Path) -> None:
    """Make the tree of a snapshot below a directory, which must not exist or be empty. `Host` on it is that node.

    The owner of the tree can change and remove all of it. `Host` shows the permissions that the files have on the node.
    """
    modes = {path: file.mode for path, file in snapshot.files.items() if owned_mode(file.mode) != file.mode}
    root.mkdir(parents=True, exist_ok=True)
    for name, text in (*snapshot.lists().items(), (MODES, "".join(f"{p} {m:04o}\n" for p, m in sorted(modes.items())))):
        _create(root / name, text.encode(errors="surrogateescape"), 0o644)
    for directory in sorted(snapshot.directories):
        (root / directory[1:]).mkdir(parents=True, exist_ok=True)
    for path in (*snapshot.files, *snapshot.links, *snapshot.nodes, *snapshot.unreadable):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    for path, file in snapshot.files.items():
        _create(root / path[1:], file.data, owned_mode(file.mode))
    for path in (*snapshot.nodes, *snapshot.unreadable):
        make_stand_in(root / path[1:])
    for path, target in snapshot.links.items():  # the last: nothing is made behind one
        (root / path[1:]).symlink_to(target)


def _create(place: Path, data: bytes, mode: int) -> None:
    """Make a new file; whatever is there already, as a link, is an error."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode)


def unpack_temporarily(file: str | os.PathLike[str]) -> Path:
    """Unpack a snapshot into a new temporary directory, which is removed by the end of the process.

    Raises:
        ConfigurationError: `read` refuses it, or there is no room to unpack it.
    """
    snapshot = read(file)
    try:
        root = Path(tempfile.mkdtemp(prefix="kdp-snapshot-"))
        # Also if a hook's daemon thread has begun to remove it, and ends with the process in the middle of it.
        atexit.register(remove_unpacked, root)
        unpack(snapshot, root)
    except OSError as error:
        where = tempfile.gettempdir()
        raise ConfigurationError(
            f"snapshot {os.fspath(file)}: cannot be unpacked in {where} ({error.strerror}); make room there, or name "
            "another directory by TMPDIR"
        ) from None
    return root


def remove_unpacked(root: Path) -> None:
    """Remove a directory that `unpack_temporarily` returned."""
    shutil.rmtree(root, ignore_errors=True)


# -- writing -----------------------------------------------------------------------------------------------------------


def write(snapshot: Snapshot, file: Path, *, first: str | None = None, mode: int = 0o644) -> None:
    """Write a snapshot; what is there is replaced at once or not at all.

    Args:
        snapshot: The snapshot.
        file: Where it is written.
        first: The path of the file that people are to see first; None: the lists are first.
        mode: Who may read it.

    Raises:
        OSError: It cannot be written.
    """
    import gzip
    import tarfile

    buffer = io.BytesIO()
    # No times and no names of users: the same node gives the same bytes.
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):

        def add(path: str, mode: int, data: bytes = b"", target: str = "", kind: bytes = tarfile.REGTYPE) -> None:
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode, member.size, member.type, member.linkname = mode, len(data), kind, target
            archive.addfile(member, io.BytesIO(data))

        if first is not None:
            add(first, snapshot.files[first].mode, snapshot.files[first].data)
        for name, text in snapshot.lists().items():
            add(name, 0o644, text.encode(errors="surrogateescape"))
        for path in sorted({*snapshot.directories, *snapshot.files, *snapshot.links} - {first}):
            if path in snapshot.files:
                add(path, snapshot.files[path].mode, snapshot.files[path].data)
            elif path in snapshot.links:
                add(path, 0o777, target=snapshot.links[path], kind=tarfile.SYMTYPE)
            else:
                add(path, 0o755, kind=tarfile.DIRTYPE)
    files.replace(file, buffer.getvalue(), mode=mode, sync="nothing")
