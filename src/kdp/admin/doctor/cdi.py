"""Questions about CDI: does the runtime use it, and are kdp's files valid?"""

from __future__ import annotations

import contextlib
import errno
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...cdi.parse import parse_spec
from ...errors import InvalidValueError, in_one_line, message_of
from ...storage import reading
from ...storage.documents import parse_json
from ...storage.files import why_no_file
from ...storage.mounts import how_to_write
from .answers import Answer, Verdict, failed, not_known, ok, question, quoted, warning
from .directories import AS_ROOT, is_denied, is_read_only, let_write, may_write
from .node import counted, some, text_of
from .plain import list_in, mapping_in, mappings_in, string_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...cdi.model import CdiSpec
    from .node import Node

CONFIGS: Final = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/run/k0s/containerd-cri.toml",
    "/etc/cri/conf.d/00-base.toml",
)
"""Where distributions have containerd's configuration; the last one is that of Talos."""

_SECTIONS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")

_KEYS: Final = frozenset({"enable_cdi", "cdi_spec_dirs"})

_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 4 << 20


def _files(node: Node) -> list[Path]:
    """Return kdp's CDI files. A directory that two names lead to counts as one."""
    directories = {os.path.realpath(each): None for each in (*node.cdi_dirs, *(_written(node) or (node.cdi_dir,)))}
    found: list[Path] = []
    for directory in directories:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        found += [Path(directory, name) for name in names if _is_ours(name)]
    return found[:_MOST_FILES]


def _is_ours(name: str) -> bool:
    return name.startswith("kdp_") and name.endswith(".json")


def _written(node: Node) -> tuple[Path, ...] | None:
    """Return where the plugins that answer write CDI files, in order; None: none of them tells."""
    told = [plugin.directory("cdi") for plugin in node.answering() if plugin.status.directories is not None]
    return tuple(dict.fromkeys(_seen_from_here(node, each) for each in told if each is not None)) if told else None


def _seen_from_here(node: Node, directory: Path) -> Path:
    """Return where this process finds a plugin's directory: a pod that has the node's files at /host has it there."""
    if os.path.lexists(directory):
        return directory
    below = _on_node(node, directory)
    return below if os.path.lexists(below) else directory


def _on_node(node: Node, directory: str | os.PathLike[str]) -> Path:
    """Return where this process finds a directory of the node. ``/var/run`` is a link of the node's, not of ours."""
    with contextlib.suppress(OSError):
        return node.host.path(node.host.resolve(directory))
    return node.host.path(directory)


@question(
    "cdi-runtime", "A runtime with CDI off ignores CDI names silently, and the container starts without its device."
)
def runtime(node: Node) -> Answer | None:
    """Does the container runtime use CDI?"""
    if _written(node) == ():
        return ok("the plugin writes no CDI files")
    for name in CONFIGS:
        text = text_of(node.host.path(name))
        if text:
            return _containerd(node, name, text)
    for name in ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d"):
        if node.host.exists(name):
            return ok("the runtime is CRI-O, which uses CDI since 1.23")
    if node.is_pod:
        return None
    return not_known(
        "no configuration of a container runtime is visible from here",
        "ask on the node: containerd config dump | grep cdi",
    )


def _containerd(node: Node, name: str, text: str) -> Answer:
    try:
        configs = _with_imports(node, name, text)
    except (ValueError, RecursionError, OSError) as error:
        remedy = "see what containerd makes of it: containerd config dump | grep cdi"
        return not_known(f"{name}, or a file that it imports, cannot be read as TOML: {in_one_line(error)}", remedy)
    version = configs[0][1].get("version", 1)
    sections = [(file, section) for file, found in configs if (section := _cri(found))]
    name, section = sections[-1] if sections else configs[0]
    if len(sections) > 1 and any(each.keys() & _KEYS - section.keys() for _, each in sections):
        # Releases differ in whether a later file replaces the whole section, or single values of it.
        seen = f"{some([file for file, _ in sections])} each have a part of the CRI plugin's settings"
        return not_known(seen, "see what containerd makes of them: containerd config dump | grep cdi")
    enabled = section.get("enable_cdi")
    if enabled is None and isinstance(version, int) and version >= 3:
        enabled = True  # containerd 2 uses CDI unless it is told otherwise
    if enabled is True:
        return _directories(node, name, section)
    files = _files(node)
    if enabled is None:
        seen = f"{name} does not say enable_cdi; containerd 1.7 has it off by default, and 2.0 on"
        return not_known(seen, "see what it is: containerd config dump | grep enable_cdi")
    if not files:
        return ok(f"{name} turns CDI off, and kdp has no CDI file here")
    remedy = f"set enable_cdi = true in {name}, and restart it: systemctl restart containerd"
    return warning(f"{name} turns CDI off, and kdp has {counted(len(files), 'CDI file')} here", remedy)


def _with_imports(node: Node, name: str, text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return containerd's configuration and what it imports, in the order in which a later one wins.

    Raises:
        ValueError: A file is no TOML.
        OSError: An imported file cannot be read.
    """
    found: dict[str, Mapping[str, Any]] = {}
    pending = [name]
    while pending and len(found) < _MOST_FILES:
        path = pending.pop(0)
        if path not in found:
            data = reading.read(node.host.path(path), limit=_MOST_BYTES).decode() if found else text
            found[path] = tomllib.loads(data)
            for pattern in map(string_in, list_in(found[path].get("imports"))):
                if pattern:
                    pending += node.host.glob(os.path.normpath(os.path.join(os.path.dirname(path), pattern)))
    return [*found.items()]


def _cri(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the CRI plugin, under its new or its old name."""
    sections = [mapping_in(mapping_in(found.get("plugins")).get(key)) for key in _SECTIONS]
    return next(filter(lambda each: "enable_cdi" in each, sections), sections[0] or sections[1])


def _directories(node: Node, name: str, section: Mapping[str, Any]) -> Answer:
    """Return whether the runtime looks where kdp writes."""
    listed = [str(each) for each in list_in(section.get("cdi_spec_dirs"))]
    read = {os.path.realpath(path) for each in listed for path in (each, _on_node(node, each))}
    ours = _written(node)
    for directory in (node.cdi_dir,) if ours is None else ours:
        if listed and os.path.realpath(directory) not in read:
            remedy = f"add it to cdi_spec_dirs in {name}, or give the plugin --cdi-dir {quoted(listed[0])}"
            return warning(f"{name} looks for CDI files in {some(listed)}, not in {directory}", remedy)
    return ok(f"containerd uses CDI ({name})")


@question("cdi-directory", "A DRA driver, and a plugin with --cdi, describe devices in this directory.")
def directory(node: Node) -> Answer | None:
    """Can CDI files be written?"""
    written = _written(node)
    if written == ():
        return ok("the plugin writes no CDI files")
    if written is None and node.is_pod and not os.path.exists(node.cdi_dir):
        return None  # only a plugin with --cdi, or a DRA driver, mounts it
    answers = [_writing(node, path, is_used=written is not None) for path in written or (node.cdi_dir,)]
    return max(answers, key=lambda answer: [*Verdict].index(answer.verdict))


def _writing(node: Node, path: Path, *, is_used: bool) -> Answer:
    """Return whether files can be written in a directory; a plugin serves no device if it uses one where none can."""
    wrong = failed if is_used else warning
    if is_denied(path):
        return wrong(f"{path} cannot be examined: {os.strerror(errno.EACCES)}", AS_ROOT)
    if os.path.exists(path) and not os.path.isdir(path):
        return failed(f"{path} is no directory", f"remove it: rm {quoted(path)}")
    if not os.path.exists(path):
        if (obstacle := why_no_file(path)) is not None:
            return wrong(f"{path} does not exist, and user {os.geteuid()} cannot make it: {obstacle}", let_write(path))
        return ok(f"{path} does not exist; a plugin makes it when it needs it")
    if is_read_only(path):
        return wrong(f"{path} is on a read-only file system", how_to_write(path))
    if not may_write(path):
        return wrong(f"user {os.geteuid()} may not write to {path}", let_write(path))
    if (obstacle := why_no_file(path)) is not None:
        remedy = f"make room there: df -h {quoted(path)}; df -i {quoted(path)}"
        return wrong(f"no file can be made in {path}: {obstacle}", remedy)
    return ok(f"{path} is writable")


@question(
    "cdi-files", "A container whose CDI name cannot be resolved does not start, as where two files have one device."
)
def files(node: Node) -> Answer:
    """Are the CDI files of kdp valid, and alone in having their devices?"""
    paths = _files(node)
    owners: dict[tuple[str, str], Path] = {}
    wrong: list[tuple[str, Path]] = []
    gone: list[str] = []
    for path in paths:
        try:
            spec = parse_spec(reading.read(path, limit=_MOST_BYTES, follow=False), where=str(path))
        except InvalidValueError as error:
            wrong.append((message_of(error), path))
            continue
        except OSError as error:
            wrong.append((f"{path}: {error.strerror}", path))
            continue
        for device in spec.devices:
            other = owners.setdefault((spec.kind, device.name), path)
            if other != path and other.parent == path.parent:
                wrong.append((_twice(spec.kind, device.name, other, path), _older(other, path)))
        gone += _gone(node, spec)
    if wrong:
        remove = f"rm {'-r ' if os.path.isdir(wrong[0][1]) else ''}{quoted(wrong[0][1])}"
        remedy = f"remove the file, and restart the plugin, which writes its files again: {remove}"
        return failed(some([text for text, _ in wrong], 2), remedy)
    if conflicts := _conflicts(node, owners):
        other = conflicts[0][1]
        seen = some([text for text, _ in conflicts], 2)
        look = f"rm {quoted(other)}; ls -l {quoted(other.parent)}"
        return failed(seen, f"remove the other file, unless another driver needs it: {look}")
    if gone:
        seen = f"CDI files name device nodes that are missing: {some(sorted(set(gone)))}"
        return warning(seen, "load the driver that makes them, or restart the plugin, which removes old files")
    return ok(f"{counted(len(paths), 'CDI file')} of kdp, all valid")


def _twice(kind: str, name: str, first: Path, second: Path) -> str:
    return f"{kind}={name} is in {first} and in {second}, so the runtime uses neither"


def _older(first: Path, second: Path) -> Path:
    with contextlib.suppress(OSError):
        return min(first, second, key=lambda path: os.lstat(path).st_mtime_ns)
    return first


def _conflicts(node: Node, owners: Mapping[tuple[str, str], Path]) -> list[tuple[str, Path]]:
    """Return which devices other files have, too, and those files.

    Two files of one directory make a runtime use neither, and a file of a later directory is used instead.
    """
    directories = [os.path.realpath(each) for each in node.cdi_dirs]
    kinds = {kind.encode() for kind, _ in owners}
    found: list[tuple[str, Path]] = []
    for directory in dict.fromkeys([*directories, *(str(path.parent) for path in owners.values())]):
        for path in _others(directory):
            for kind, name in _devices_in(node, path, kinds):
                ours = owners.get((kind, name))
                if ours is None:
                    continue
                if ours.parent == path.parent:
                    found.append((_twice(kind, name, ours, path), path))
                elif _is_later(directories, directory, str(ours.parent)):
                    found.append((f"{kind}={name} is in {path}, which the runtime uses instead of {ours}", path))
    return found


def _is_later(directories: Sequence[str], one: str, other: str) -> bool:
    known = one in directories and other in directories
    return known and directories.index(one) > directories.index(other)


def _others(directory: str) -> list[Path]:
    try:
        names = sorted(os.listdir(directory))[:_MOST_FILES]
    except OSError:
        return []
    return [Path(directory, each) for each in names if each.endswith((".json", ".yaml")) and not _is_ours(each)]


def _devices_in(node: Node, path: Path, kinds: Collection[bytes]) -> list[tuple[str, str]]:
    """Return the devices of another's file; none: it has no device of these kinds, or cannot be read."""
    try:
        data = reading.read(path, limit=_MOST_BYTES)
        if not any(kind in data for kind in kinds):
            return []
        parse = parse_json if path.suffix == ".json" else node.parse_yaml
        document = mapping_in(None if parse is None else parse(data.decode()))
    except (OSError, ValueError):  # a runtime takes no such file either
        return []
    kind = string_in(document.get("kind"))
    return [(kind, string_in(each.get("name"))) for each in mappings_in(document.get("devices"))]


def _gone(node: Node, spec: CdiSpec) -> list[str]:
    named = [each.host_path or each.path for device in spec.devices for each in device.edits.device_nodes]
    return [path for path in named if node.host.device_type(path) is None]


QUESTIONS: Final = (runtime, directory, files)
