"""Replies of Allocate: what is wrong with one, how two differ, and what they name that is not on the node."""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

import attrs

from ..scene import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ...protocol.pods import ContainerReply

_CDI_NAME = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9_.-]+=[A-Za-z0-9_.:-]+")


def shown(reply: ContainerReply) -> str:
    """Return how much is in a reply, in words."""
    parts = {
        "variable": len(reply.envs),
        "device node": len(reply.devices),
        "mount": len(reply.mounts),
        "annotation": len(reply.annotations),
        "CDI name": len(reply.cdi_devices),
    }
    return ", ".join(plural(count, what) for what, count in parts.items() if count) or "nothing"


def problems_of(reply: ContainerReply) -> list[str]:
    """Return what a container runtime would stumble over in a reply."""
    found = [
        f"device node path {path!r} is not absolute"
        for node in reply.devices
        for path in (node.host_path, node.container_path)
        if not posixpath.isabs(path)
    ]
    found += [
        f"permissions {node.permissions!r} of {node.container_path} are not of r, w, m"
        for node in reply.devices
        if not node.permissions or set(node.permissions) - set("rwm")
    ]
    found += [
        f"mount path {path!r} is not absolute"
        for mount in reply.mounts
        for path in (mount.host_path, mount.container_path)
        if not posixpath.isabs(path)
    ]
    found += [
        f"CDI name {name!r} is not vendor/class=device" for name in reply.cdi_devices if not _CDI_NAME.fullmatch(name)
    ]
    return found


def _as_sets(reply: ContainerReply) -> dict[str, object]:
    return {
        "envs": dict(reply.envs),
        "annotations": dict(reply.annotations),
        "devices": set(reply.devices),
        "mounts": set(reply.mounts),
        "cdi_devices": set(reply.cdi_devices),
    }


def varying(first: ContainerReply, second: ContainerReply) -> frozenset[str]:
    """Return the variables and annotations with another value in each reply to one request, as a session's token."""
    both = [(first.envs, second.envs), (first.annotations, second.annotations)]
    return frozenset(name for one, other in both for name in one.keys() & other.keys() if one[name] != other[name])


def differences(first: ContainerReply, second: ContainerReply, ignored: Collection[str] = ()) -> str:
    """Return in words in which fields two replies differ, whatever their order, apart from the ignored variables."""
    one, other = (_as_sets(_without(reply, ignored)) for reply in (first, second))
    return "; ".join(f"{key}: {one[key]} and {other[key]}" for key in one if one[key] != other[key])


def _without(reply: ContainerReply, names: Collection[str]) -> ContainerReply:
    kept = [{n: value for n, value in each.items() if n not in names} for each in (reply.envs, reply.annotations)]
    return attrs.evolve(reply, envs=kept[0], annotations=kept[1])


def without_order(reply: ContainerReply) -> ContainerReply:
    """Return a reply whose lists of words, as in ``A=x,y``, are sorted: such a variable names a set."""

    def values(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: ",".join(sorted(value.split(","))) for name, value in variables.items()}

    return attrs.evolve(reply, envs=values(reply.envs), annotations=values(reply.annotations))


def missing_artefacts(replies: Iterable[ContainerReply], cdi_dirs: Iterable[Path], root: str = "/") -> list[str]:
    """Return the paths and CDI names of replies that do not exist.

    A path exists below the node's root directory, or on this machine as a file of the plugin.

    Args:
        replies: The replies.
        cdi_dirs: Where CDI specs are.
        root: Where the node's root directory is on this machine.
    """
    all_of = [*replies]
    names = {name for reply in all_of for name in reply.cdi_devices}
    paths = {node.host_path for reply in all_of for node in reply.devices}
    paths |= {mount.host_path for reply in all_of for mount in reply.mounts}
    missing = [path for path in paths if not _exists(Path(root), path) and not Path(path).exists()]
    known = _cdi_names(cdi_dirs) if names else set[str]()
    return sorted(missing) + [f"CDI device {name}" for name in sorted(names - known)]


_MOST_LINKS = 40
"""As many as the kernel follows."""


def _exists(root: Path, path: str) -> bool:
    """Return whether a path of the node exists below its root directory; absolute links lead to that root again."""
    here, links = root, 0
    parts = [*reversed(PurePosixPath(path.lstrip("/")).parts)]
    while parts and links <= _MOST_LINKS:
        part = parts.pop()
        if part == "..":
            here = root if here == root else here.parent
        elif (here / part).is_symlink():
            links += 1
            target = os.readlink(here / part)
            here = root if target.startswith("/") else here
            parts += reversed(PurePosixPath(target.lstrip("/")).parts)
        else:
            here /= part
    return not parts and here.exists()


def _cdi_names(directories: Iterable[Path]) -> set[str]:
    """Return the qualified names that the CDI specs in these directories declare."""
    found: set[str] = set()
    for directory in directories:
        for path in sorted(directory.glob("*")) if directory.is_dir() else ():
            if path.suffix not in (".json", ".yaml", ".yml"):
                continue
            try:
                text = path.read_text()
            except OSError:
                continue
            found |= _names_in_json(text) if path.suffix == ".json" else _names_in_yaml(text)
    return found


def _names_in_json(text: str) -> set[str]:
    try:
        spec = cast("dict[str, object]", json.loads(text))
        kind, devices = spec["kind"], cast("list[dict[str, object]]", spec["devices"])
        return {f"{kind}={device['name']}" for device in devices}
    except (ValueError, KeyError, TypeError):
        return set()  # no spec, or not a valid one


def _names_in_yaml(text: str) -> set[str]:
    kind = re.search(r"^kind:\s*[\"']?([^\s\"']+)", text, re.MULTILINE)
    names = re.findall(r"^\s*(?:-\s+)?name:\s*[\"']?([^\s\"']+)", text, re.MULTILINE)
    return {f"{kind[1]}={name}" for name in names} if kind else set()


def named(replies: Iterable[ContainerReply]) -> str:
    """Return in words how many replies there are, and how much of the node they name."""
    all_of = [*replies]
    count = len(
        {node.host_path for reply in all_of for node in reply.devices}
        | {mount.host_path for reply in all_of for mount in reply.mounts}
        | {name for reply in all_of for name in reply.cdi_devices}
    )
    return f"{plural(len(all_of), 'reply').replace('replys', 'replies')} with {plural(count, 'host path or CDI name')}"
