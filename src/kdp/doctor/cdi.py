"""Questions about CDI: does the runtime use it, and are kdp's files valid?"""

from __future__ import annotations

import contextlib
import os
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ..cdi.parse import parse_spec
from ..errors import InvalidValueError, message_of
from ..storage import reading
from ..storage.room import why_no_file
from .answers import Answer, Question, Verdict, failed, not_known, ok, warning
from .node import counted, some, text_of
from .rights import is_read_only, let_write, may_write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..cdi.model import CdiSpec
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
        found += [Path(directory, name) for name in names if name.startswith("kdp_") and name.endswith(".json")]
    return found[:_MOST_FILES]


def _written(node: Node) -> tuple[Path, ...] | None:
    """Return where the plugins that answer write CDI files, in order; None: none of them tells."""
    told = [plugin.cdi_dir for plugin in node.answering() if plugin.tells_directories]
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
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return not_known(f"{name} is no TOML", "see what containerd makes of it: containerd config dump")
    version = found.get("version", 1)
    sections = [_section(found, key) for key in _SECTIONS]
    section: Mapping[str, Any] = next(filter(lambda each: "enable_cdi" in each, sections), sections[0])
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


def _directories(node: Node, name: str, section: Mapping[str, Any]) -> Answer:
    """Return whether the runtime looks where kdp writes."""
    given = section.get("cdi_spec_dirs")
    listed: list[str] = [str(each) for each in cast("list[object]", given)] if isinstance(given, list) else []
    read = {os.path.realpath(path) for each in listed for path in (each, _on_node(node, each))}
    ours = _written(node)
    for directory in (node.cdi_dir,) if ours is None else ours:
        if listed and os.path.realpath(directory) not in read:
            remedy = f"add it to cdi_spec_dirs in {name}, or give the plugin --cdi-dir {listed[0]}"
            return warning(f"{name} looks for CDI files in {some(listed)}, not in {directory}", remedy)
    return ok(f"containerd uses CDI ({name})")


def _section(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    plugins = found.get("plugins")
    section = cast("Mapping[str, Any]", plugins).get(key) if isinstance(plugins, dict) else None
    return cast("Mapping[str, Any]", section) if isinstance(section, dict) else {}


def directory(node: Node) -> Answer | None:
    """Can CDI files be written?"""
    written = _written(node)
    if written == ():
        return ok("the plugin writes no CDI files")
    if written is None and node.is_pod and not node.cdi_dir.exists():
        return None  # only a plugin with --cdi, or a DRA driver, mounts it
    answers = [_writing(node, path, is_used=written is not None) for path in written or (node.cdi_dir,)]
    return max(answers, key=lambda answer: [*Verdict].index(answer.verdict))


def _writing(node: Node, path: Path, *, is_used: bool) -> Answer:
    """Return whether files can be written in a directory; a plugin serves no device if it uses one where none can."""
    wrong = failed if is_used else warning
    if path.exists() and not path.is_dir():
        return failed(f"{path} is no directory", f"remove it: rm {path}")
    if not path.exists():
        if (obstacle := why_no_file(path)) is not None:
            return wrong(f"{path} does not exist, and user {os.geteuid()} cannot make it: {obstacle}", let_write(path))
        return ok(f"{path} does not exist; a plugin makes it when it needs it")
    if is_read_only(path):
        return wrong(f"{path} is on a read-only file system", "remove readOnly from this mount in the DaemonSet")
    if not may_write(path):
        return wrong(f"user {os.geteuid()} may not write to {path}", let_write(path))
    if (obstacle := why_no_file(path)) is not None:
        return wrong(f"no file can be made in {path}: {obstacle}", f"make room there: df -h {path}; df -i {path}")
    return ok(f"{path} is writable")


def files(node: Node) -> Answer:
    """Are kdp's CDI files valid?"""
    paths = _files(node)
    owners: dict[tuple[str, str], Path] = {}
    wrong: list[str] = []
    gone: list[str] = []
    for path in paths:
        try:
            spec = parse_spec(reading.read(path, limit=_MOST_BYTES, follow=False), where=str(path))
        except InvalidValueError as error:
            wrong.append(message_of(error))
            continue
        except OSError as error:
            wrong.append(f"{path}: {error.strerror}")
            continue
        for device in spec.devices:
            other = owners.setdefault((spec.kind, device.name), path)
            if other != path:
                wrong.append(f"{spec.kind}={device.name} is in {other} and in {path}, so the runtime uses neither")
        gone += _gone(node, spec)
    if wrong:
        return failed(some(wrong, 2), "remove the file, and restart the plugin, which writes it again: rm FILE")
    if gone:
        seen = f"CDI files name device nodes that are missing: {some(sorted(set(gone)))}"
        return warning(seen, "load the driver that makes them, or restart the plugin, which removes old files")
    return ok(f"{counted(len(paths), 'CDI file')} of kdp, all valid")


def _gone(node: Node, spec: CdiSpec) -> list[str]:
    named = [each.host_path or each.path for device in spec.devices for each in device.edits.device_nodes]
    return [path for path in named if not _is_node(node, path)]


def _is_node(node: Node, path: str) -> bool:
    found = node.host.look(path)
    return found is not None and (stat.S_ISCHR(found[0]) or stat.S_ISBLK(found[0]))


QUESTIONS: Final = (
    Question(
        id="cdi-runtime",
        title="Does the container runtime use CDI?",
        why="A runtime with CDI off ignores CDI names silently, and the container starts without its device.",
        ask=runtime,
    ),
    Question(
        id="cdi-directory",
        title="Can CDI files be written?",
        why="A DRA driver, and a plugin with --cdi, describe devices in this directory.",
        ask=directory,
    ),
    Question(
        id="cdi-files",
        title="Are the CDI files of kdp valid?",
        why="A container whose CDI name cannot be resolved does not start.",
        ask=files,
    ),
)
