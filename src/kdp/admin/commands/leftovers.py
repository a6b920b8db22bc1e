"""kdp's files on a node: found by their names, judged, and removed, for ``kdp uninstall``.

A process of kdp leaves files for its successor, so only the end of a plugin on the node removes them.

* A file goes only if it has one of kdp's names, and the kind that belongs to the name: a socket, or a regular file.
* No link is followed below a directory that a setting names: in the kubelet's there are other drivers' directories, and
  a link in one of them would lead to any file of the node.
* The directory of a DRA driver is kdp's only with the private directory of kdp's sockets in it. Go drivers have claims,
  metadata, and a lock of the same names, which are theirs, also with ``--force``.
* Sockets that answer, and locks that are held, show a living process.
* A record of a device that a pod may have is a reason to wait, too: without the plugin, no process would release it.

All functions block for the disk.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs

from ...cdi import cdi_kind
from ...daemon.mode_lock import mark_of
from ...daemon.own_socket import path_in
from ...daemon.services import record_name
from ...dra.sockets import DriverSockets
from ...errors import InvalidNameError
from ...kubelet.sockets import PREFIX, is_answered, plugin_prefix
from ...model.names import check_resource_name
from ...operations.feature_files import PREFIX as FEATURES
from ...operations.feature_files import file_name, is_written_by_kdp
from ...storage import locks, reading, trees
from ...storage.documents import parse_json
from ...supervision.claimed import CLAIMS, MARK, METADATA, SERIALIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...daemon.plan import ServingPlan
    from ...daemon.settings import Settings
    from ...kubelet.paths import KubeletPaths

_HIDDEN: Final = ".kdp"
"""The private directory beside sockets, where they are bound."""

_MARKS: Final = {(MARK, stat.S_IFREG), (_HIDDEN, stat.S_IFDIR)}
"""Entries of a driver's directory that tell that it is kdp's: the second is there while the driver serves."""

_CDI: Final = re.compile(r"kdp_.+\.json|\.kdp_.+\.draft")
_ALLOCATIONS: Final = re.compile(r"(?P<stem>.+)\.[0-9a-f]{12}\.json(?P<aside>\.set-aside-[0-9]+)?")
_LOCK: Final = re.compile(r"(?P<stem>.+)\.(device-plugin|dra)\.lock")
_CONFIG: Final = re.compile(r"config-([0-9a-f]{8}\.json|label-[0-9a-f]{8}\.txt)")
_RECORD: Final = re.compile(r"(?P<what>evictions|told)-[0-9a-f]{8}\.json")
_STORE: Final = re.compile(r"\.?(?P<stem>.+)\.store\.json(\.set-aside-[0-9]+|\.[0-9a-f]{12}\.draft)?")
_OWN_SOCKET: Final = re.compile(r".+-[0-9a-f]{8}\.sock|\.[0-9a-f]{8}\.[0-9a-f]{4}")
_FEATURES_DRAFT: Final = re.compile(r"\.(?P<name>kdp-.+)\.[0-9a-f]{12}\.draft")
_DRAFT: Final = re.compile(r"\..+\.draft")


@final
@attrs.frozen(kw_only=True)
class FileOwner:
    """A plugin whose files are meant.

    Attributes:
        keys: What its files in the state directory are named by.
        resources: The resources that its class names; its devices may name others.
        driver: The name of its DRA driver; None: it has none.
        targets: What ``kdp run`` was called with.
    """

    targets: tuple[str, ...]
    keys: tuple[str, ...]
    resources: tuple[str, ...]
    driver: str | None = None


@final
@attrs.frozen(kw_only=True)
class Leftover:
    """A file or directory that kdp has left.

    Attributes:
        base: The directory that a setting names.
        parts: The names on the way from there.
        what: What it is, in words.
        obstacle: Why it should stay; None: nobody needs it.
        is_living: Whether the obstacle is a process that runs.
        is_claim: Whether it is the record of a claim, which only a driver can undo.
        is_directory: Whether it is a directory, which goes when it is empty.
        resource: The extended resource that its name says was served on this node; None: it says none.
        driver: The DRA driver that its name says was there; None: it says none.
    """

    base: Path
    parts: tuple[str, ...]
    what: str
    obstacle: str | None = None
    is_living: bool = False
    is_claim: bool = False
    is_directory: bool = False
    resource: str | None = None
    driver: str | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.base.joinpath(*self.parts)


def find(settings: Settings, owner: FileOwner | None = None) -> list[Leftover]:
    """Return what kdp has left in the directories that the settings name, in the order in which it can be removed.

    Args:
        settings: Where to look.
        owner: Whose; None: that of all plugins and drivers.
    """
    paths = settings.paths
    found = [
        *_sockets(paths.device_plugin_dir, owner),
        *_sockets(paths.plugins_registry_dir, owner),
        *_drivers(paths, owner),
        *_cdi(settings.cdi_dir, owner),
        *_features(settings.labels_dir, owner),
    ]
    if settings.state_dir is not None:
        found += _state(settings.state_dir, owner, mark_of(settings.kubelet_root))
    return found


def remove(leftovers: Iterable[Leftover]) -> list[tuple[Leftover, str]]:
    """Remove what was found, and return what could not be, with the reason.

    A directory that is a mount, or has something else in it, stays; that is no failure.
    """
    failed: list[tuple[Leftover, str]] = []
    for each in leftovers:
        try:
            if each.parts:
                trees.remove(each.base, each.parts)
            else:
                os.rmdir(each.base)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not each.is_directory:
                failed.append((each, error.strerror or str(error)))
    return failed


# -- where it looks ----------------------------------------------------------------------------------------------------


def _sockets(directory: Path, owner: FileOwner | None) -> Iterator[Leftover]:
    """Tell the sockets of plugins in one of the kubelet's directories; a hidden one is in a directory beside them."""
    prefixes = [PREFIX] if owner is None else [plugin_prefix(directory, name) for name in owner.resources]
    for place in ((_HIDDEN,), ()):
        for name, mode in trees.entries(directory, place):
            is_ours = name.endswith(".sock") and name.removeprefix(".").startswith(tuple(prefixes))
            if is_ours and stat.S_ISSOCK(mode):
                yield _socket(directory, (*place, name), "socket of a plugin")
    yield from _private(directory)


def _private(directory: Path) -> Iterator[Leftover]:
    """Tell the private directory beside sockets; one that another plugin needs is not empty."""
    if trees.is_directory(directory, (_HIDDEN,)):
        yield Leftover(base=directory, parts=(_HIDDEN,), what="directory of sockets that begin", is_directory=True)


def _drivers(paths: KubeletPaths, owner: FileOwner | None) -> Iterator[Leftover]:
    """Tell the directories and the sockets of DRA drivers."""
    base = paths.plugins_dir
    if owner is not None:
        names = [] if owner.driver is None else [owner.driver]
    else:
        names = [name for name, _ in trees.entries(base)]
    for driver in names:
        if any((name, stat.S_IFMT(mode)) in _MARKS for name, mode in trees.entries(base, (driver,))):
            yield from _driver_sockets(paths, driver)
            yield from _driver_files(base, driver)
        elif owner is not None and trees.is_directory(base, (driver,)) and not trees.entries(base, (driver,)):
            # A device plugin's manifest mounts it, and a kubelet makes a directory that is mounted.
            yield Leftover(base=base, parts=(driver,), what=f"directory of the driver {driver}", is_directory=True)


def _driver_files(base: Path, driver: str) -> Iterator[Leftover]:
    """Yield a driver's files in its data directory, and then the directories, from the inmost outwards."""
    what = f"claim of the driver {driver}"
    for name, mode in trees.entries(base, (driver, CLAIMS)):
        if stat.S_ISREG(mode):
            uid = name.removeprefix(".").removesuffix(".copy").removesuffix(".json")
            # The copy of a record is one, too: if the record is damaged, it is the only one.
            is_record = name in (f"{uid}.json", f".{uid}.json.copy")
            why = f"a pod may still have the claim {uid}, or it is not released yet" if is_record else None
            yield Leftover(base=base, parts=(driver, CLAIMS, name), what=what, obstacle=why, is_claim=is_record)
    what = f"metadata of the driver {driver}"
    for uid, mode in trees.entries(base, (driver, METADATA)):
        if stat.S_ISDIR(mode):
            for name, kind in trees.entries(base, (driver, METADATA, uid)):
                if stat.S_ISREG(kind):
                    yield Leftover(base=base, parts=(driver, METADATA, uid, name), what=what)
            yield Leftover(base=base, parts=(driver, METADATA, uid), what=what, is_directory=True)
    if any(name == SERIALIZE and stat.S_ISREG(mode) for name, mode in trees.entries(base, (driver,))):
        held = _holder(base / driver / SERIALIZE)
        what = f"lock of the driver {driver}"
        parts = (driver, SERIALIZE)
        yield Leftover(base=base, parts=parts, what=what, obstacle=held, is_living=held is not None, driver=driver)
    what = f"directory of the driver {driver}"
    for folder in (CLAIMS, METADATA, _HIDDEN):
        if trees.is_directory(base, (driver, folder)):
            yield Leftover(base=base, parts=(driver, folder), what=what, is_directory=True)
    # The mark goes last: a second try finds the files that a first one has left.
    if any(name == MARK for name, _ in trees.entries(base, (driver,))):
        yield Leftover(base=base, parts=(driver, MARK), what=f"mark of the driver {driver}")
    yield Leftover(base=base, parts=(driver,), what=what, is_directory=True)


def _driver_sockets(paths: KubeletPaths, driver: str) -> Iterator[Leftover]:
    registry, plugins = paths.plugins_registry_dir, paths.plugins_dir
    try:
        sockets = DriverSockets.of(driver, registry=registry, data=plugins / driver, pod_uid=None)
    except InvalidNameError:  # so long a path that no driver can have had a socket there
        return
    places = ((registry, (), sockets.is_registration), (plugins, (driver,), sockets.is_service))
    for base, parts, is_ours in places:
        for place in ((*parts, _HIDDEN), parts):
            for name, mode in trees.entries(base, place):
                if is_ours(name) and stat.S_ISSOCK(mode):
                    yield _socket(base, (*place, name), f"socket of the driver {driver}")


def _cdi(directory: Path, owner: FileOwner | None) -> Iterator[Leftover]:
    """Tell the CDI files; the directory belongs to all."""
    meant = [r".*"]
    if owner is not None:
        meant = [re.escape(cdi_kind(name).replace("/", "_")) for name in owner.resources]
        if owner.driver is not None:
            from ...dra.claims.cdi_specs import kind_of

            meant.append(rf"{re.escape(kind_of(owner.driver).replace('/', '_'))}(_.*)?")  # one file for each claim
    for name, mode in trees.entries(directory):
        if _CDI.fullmatch(name) and stat.S_ISREG(mode):
            stem = name.removeprefix(".").removeprefix("kdp_")
            if any(re.match(rf"{each}\.json", stem) for each in meant):
                yield Leftover(base=directory, parts=(name,), what="CDI file")


def _features(directory: Path, owner: FileOwner | None) -> Iterator[Leftover]:
    """Tell the files with the node's labels; the directory belongs to Node Feature Discovery."""
    names = None if owner is None else {file_name(key) for key in owner.keys}
    for entry, mode in trees.entries(directory):
        draft = _FEATURES_DRAFT.fullmatch(entry)
        name = entry if draft is None else draft["name"]
        is_meant = name.startswith(FEATURES) if names is None else name in names
        # A draft may be empty; others may begin the names of their files as kdp does.
        if is_meant and stat.S_ISREG(mode) and (draft is not None or is_written_by_kdp(directory / entry)):
            yield Leftover(base=directory, parts=(entry,), what="labels for Node Feature Discovery")


def _state(directory: Path, owner: FileOwner | None, mark: str) -> Iterator[Leftover]:
    """Tell what is in the state directory.

    Args:
        directory: The state directory.
        owner: Whose files are meant.
        mark: What the names of this kubelet's accounts end with.
    """
    for name, mode in trees.entries(directory):
        found = _state_file(directory, name, mode, owner, mark)
        if found is not None:
            yield found
    if os.path.isdir(directory) and not os.path.islink(directory):
        yield Leftover(base=directory, parts=(), what="state directory", is_directory=True)


def _state_file(directory: Path, name: str, mode: int, owner: FileOwner | None, mark: str) -> Leftover | None:
    path = directory / name
    if stat.S_ISSOCK(mode):
        is_ours = _OWN_SOCKET.fullmatch(name) is not None
        if owner is not None:
            is_ours = path in {path_in(directory, way, owner.keys) for way in ("device-plugin", "dra")}
        return _socket(directory, (name,), "socket for commands") if is_ours else None
    if not stat.S_ISREG(mode):
        return None
    found = functools.partial(Leftover, base=directory, parts=(name,))
    if (match := _LOCK.fullmatch(name)) is not None:
        stems = None if owner is None else [key.replace("/", "_") for key in owner.keys]
        if stems is None or match["stem"] in stems:
            resource = _resource_of(match["stem"], mark)
            held = _holder(path)
            return found(what="lock", obstacle=held, is_living=held is not None, resource=resource)
    elif (match := _ALLOCATIONS.fullmatch(name)) is not None:
        stems = None if owner is None else [key.replace("/", "_") for key in owner.resources]
        if stems is None or match["stem"] in stems:
            is_owed = match["aside"] is None and _said(path, "releases") is not False
            held = _holder(path)
            why = held or ("pods had devices when the plugin ended: end them" if is_owed else None)
            resource = _resource_of(match["stem"])
            return found(what="allocations", obstacle=why, is_living=held is not None, resource=resource)
    elif _CONFIG.fullmatch(name):
        if owner is None or _said(path, "targets") == list(owner.targets):  # what `kdp run` was called with
            return found(what="configuration that was kept")
    elif (match := _STORE.fullmatch(name)) is not None:
        if owner is None or match["stem"] in {key.replace("/", "_") for key in owner.keys}:
            return found(what="values that a class keeps")
    elif (match := _RECORD.fullmatch(name)) is not None:
        if owner is None or name == record_name(match["what"], owner.keys):
            return found(what="record of what it did in the cluster")
    elif _DRAFT.fullmatch(name) and owner is None:
        return found(what="draft")
    return None


def _resource_of(stem: str, mark: str = "") -> str | None:
    """Return the resource that a file is named by; None: its name is a class's, or another kubelet's account."""
    if not stem.endswith(mark):
        return None
    try:
        # A domain has no underscore, so the first one stands for the slash.
        return check_resource_name(stem.removesuffix(mark).replace("_", "/", 1))
    except InvalidNameError:
        return None


def _said(path: Path, key: str) -> object:
    """Return what a file of the state directory says; None: it does not say it, or cannot be read."""
    try:
        return parse_json(reading.read(path, follow=False)).get(key)
    except (OSError, ValueError, AttributeError):
        return None


# -- judging -----------------------------------------------------------------------------------------------------------


def _socket(base: Path, parts: tuple[str, ...], what: str) -> Leftover:
    answered = is_answered(base.joinpath(*parts))
    why = "a process answers there: end the plugin" if answered else None
    return Leftover(base=base, parts=parts, what=what, obstacle=why, is_living=bool(answered))


def _holder(path: Path) -> str | None:
    """Return why a lock's file should stay; None: nobody holds it."""
    try:
        descriptor = reading.open_file(path, os.O_RDWR, follow=False)
    except OSError:
        return None
    try:
        return None if locks.lock(descriptor) else "a process holds its lock: end the plugin"
    finally:
        locks.close(descriptor)


def owner_of(plan: ServingPlan, targets: Iterable[str]) -> FileOwner:
    """Return the owner of a plan's files; without a name, a driver has the one that its resource gives it."""
    resources = tuple(backend.resource for backend in plan.served() if backend.resource is not None)
    return FileOwner(targets=tuple(targets), keys=plan.keys, resources=resources, driver=plan.driver)
