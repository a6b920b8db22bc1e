"""Questions about device nodes: those that containers are given, and those that the plugin itself opens."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from ...errors import KdpError
from .answers import Answer, failed, not_known, ok, question, quoted, warning
from .node import counted, some
from .resources import NO_PLUGIN, resources_of, unknown_of_blocked

if TYPE_CHECKING:
    from .node import Node

MOST_NODES: Final = 10_000
"""Device nodes that are looked at."""


@question("device-nodes", "A container with a missing node does not start; one without a right cannot use its device.")
def nodes(node: Node) -> Answer:
    """Does each device node exist that containers get?"""
    if not node.answering():
        return not_known(NO_PLUGIN)
    if (answer := unknown_of_blocked(node)) is not None:
        return answer
    devices = [device for resource in resources_of(node) for device in resource.listed]
    if devices and all(device.nodes is None for device in devices):
        return not_known("the plugin does not report its device nodes: its version of kdp is older")
    paths = [*dict.fromkeys(path for device in devices for path in device.nodes or ())][:MOST_NODES]
    if not paths:
        return ok("no device names a device node")
    gone, odd, private = _sorted(node, paths)
    if gone:
        remedy = "load the driver that makes it, or mount the node's /dev and give --host-root: ls -l " + gone[0]
        return failed(f"missing: {some(gone)}", remedy)
    if odd:
        remedy = f"remove it, and load the driver that makes the node: ls -l {quoted(odd[0])}"
        return failed(f"no device node: {some(odd)}", remedy)
    if private:
        seen = f"neither owner, group, nor others may open {some(private)}"
        return warning(seen, f"give it a mode by a udev rule, or at once: chmod 0660 {quoted(private[0])}")
    return ok(f"{counted(len(paths), 'device node')} there: {some(paths)}")


def _sorted(node: Node, paths: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the paths that are missing, that are no device node, and that nobody may open."""
    gone: list[str] = []
    odd: list[str] = []
    private: list[str] = []
    for path in paths:
        found = node.host.look(path)
        if found is None:
            gone.append(path)
        elif not (stat.S_ISCHR(found[0]) or stat.S_ISBLK(found[0])):
            odd.append(path)
        elif not found[0] & 0o666:
            private.append(path)
    return gone, odd, private


@question("opened-nodes", "In a container the control group refuses device nodes, unless the container is privileged.")
def opened(node: Node) -> Answer | None:
    """Can the backend open its own device nodes?"""
    if node.target is None:
        return None
    try:
        needs = node.target().needs
    except KdpError:
        return not_known("the target cannot be loaded")
    paths = [path for path in (needs.opened_nodes if needs else ()) if path.startswith("/")]
    if not paths:
        return ok("the backend opens no device node itself")
    for path in paths:
        if error := _try(node, path):
            return failed(f"{path} cannot be opened: {os.strerror(error)}", _remedy(node, error, path))
    return ok(f"can be opened: {some(paths)}")


def _try(node: Node, path: str) -> int:
    """Open a node as its backend does, and return the error's number; 0: it can be opened."""
    try:
        descriptor = os.open(node.host.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        return error.errno or errno.EIO
    os.close(descriptor)
    return 0


def _remedy(node: Node, error: int, path: str) -> str:
    if error == errno.EPERM and node.is_pod:
        return "the container's control group refuses it: set securityContext.privileged, as kdp manifests does"
    if error == errno.EACCES:
        return f"run this as a user who may open it: ls -l {quoted(path)}"
    return f"load the driver that makes it: ls -l {quoted(path)}"


QUESTIONS: Final = (nodes, opened)
