"""Commands for remedies, with the names that can be found from here: a remedy should work when it is pasted."""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from ...command.found_sockets import POD_NAMESPACE, listener_of
from .answers import quoted
from .living import pod_of
from .node import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from .living import Plugin
    from .node import Node

FIND_DAEMONSETS: Final = "kubectl get daemonsets -A -o wide"

_LEAST_MEMORY: Final = 64
"""MiB; with less, Python hardly starts."""

_POD_UID: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def kubectl(node: Node, socket: Path | None, *words: str) -> str:
    """Return a command about the pod of a plugin: ``kubectl -n kube-system logs w-x7k2p --previous``.

    If the pod is unknown, the command lists the pods of the node.

    Args:
        node: The node.
        socket: The plugin's socket; None: the pod is that of this process.
        *words: The verb, and what follows the pod's name.
    """
    found = _pod(node, socket)
    if found is None:
        return look_for_pods(node)
    namespace, name = found
    return " ".join(["kubectl", "-n", quoted(namespace), words[0], quoted(name), *words[1:]])


def logs(node: Node, socket: Path | None) -> str:
    """Return the command that shows a plugin's log: its pod's, or the journal's of its process."""
    if _pod(node, socket) is None and not node.is_pod and (pid := process(socket)):
        return f"journalctl _PID={pid}"
    return kubectl(node, socket, "logs")


def look_for_pods(node: Node) -> str:
    """Return the command that lists the pods of this node."""
    name = node_name(node)
    return f"kubectl get pods -A {f'--field-selector spec.nodeName={quoted(name)}' if name else '-o wide'}"


def node_name(node: Node) -> str:
    """Return the node's name, as a setting has it, or the kernel; empty: unknown, as the kernel's is the pod's own."""
    return node.environ.get("KDP_NODE_NAME") or ("" if node.is_pod else platform.node())


def give_memory(namespace: str, daemonset: str, limit: int) -> str:
    """Return the remedy that doubles a container's memory; both names are empty if they are unknown.

    Args:
        namespace: The DaemonSet's namespace.
        daemonset: The DaemonSet.
        limit: The limit that the container has, in bytes.
    """
    command = FIND_DAEMONSETS
    if daemonset:
        most = f"--limits=memory={max(limit >> 19, _LEAST_MEMORY)}Mi"
        command = f"kubectl -n {quoted(namespace)} set resources daemonset/{quoted(daemonset)} {most}"
    return f"give the container more memory: {command}"


def daemonset_of(node: Node) -> tuple[str, str]:
    """Return namespace and name of this process's DaemonSet, by its pod's name. Both are empty if it is unknown."""
    namespace, name = _pod(node, None) or ("", "")
    return namespace, re.sub(r"-[a-z0-9]{5}\Z", "", name)


def hang_up(node: Node, plugin: Plugin) -> str:
    """Return the command that lets a plugin read its configuration again."""
    pid = process(plugin.socket) or plugin.status.pid
    return f"kill -HUP {pid}" if pid else kubectl(node, plugin.socket, "delete pod")


def process(socket: Path | None) -> int:
    """Return which process listens at a socket, as it is numbered here; 0: that is not known."""
    return 0 if socket is None else listener_of(socket)


def pod_uid(node: Node, socket: Path) -> str | None:
    """Return the UID of the pod whose process answers on a socket, or in whose volume the socket is."""
    if (uid := pod_of(socket)) is not None:
        return uid
    pid = process(socket)
    groups = text_of(node.host.path(f"/proc/{pid}/cgroup")) if pid else ""
    found = _POD_UID.search(groups)
    return None if found is None else found[1].replace("_", "-")


def _pod(node: Node, socket: Path | None) -> tuple[str, str] | None:
    if node.is_pod and (socket is None or pod_of(socket) is None):
        namespace = node.environ.get(POD_NAMESPACE) or text_of(node.account / "namespace")
        name = node.environ.get("HOSTNAME", "")
        return (namespace, name) if namespace and name else None
    uid = None if socket is None else pod_uid(node, socket)
    if uid is not None:
        with contextlib.suppress(OSError):  # only root may read the directory
            for path in node.host.glob(f"/var/log/pods/*_{uid}"):
                namespace, _, rest = PurePosixPath(path).name.partition("_")
                return namespace, rest.removesuffix(f"_{uid}")
    return None
