"""Questions about sockets: the kubelet's, the pod-resources API's, and the plugins' own."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from ...command.found_sockets import why_no_socket
from ...kubelet.sockets import greet, missing_right
from .answers import Answer, failed, not_known, ok, question, quoted, warning
from .commands import kubectl, logs, look_for_pods, process
from .directories import AS_ROOT, is_denied
from .kubelet import for_device_plugin
from .node import PATIENCE, Node, some, text_of

if TYPE_CHECKING:
    from pathlib import Path

_RESTART: Final = "restart the kubelet, on the node: systemctl restart kubelet"


def _kind(path: Path) -> int | None:
    """Return what is there, as `stat.S_IFMT` says it; None: nothing is."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return None


def _unseen(path: Path) -> str:
    return f"user {os.geteuid()} may not see whether {path} exists"


@question("kubelet-socket", "A plugin registers there; without a listener its devices do not exist for Kubernetes.")
@for_device_plugin(Node.needs_plugin_directory)
def kubelet_socket(node: Node) -> Answer:
    """Does a kubelet listen on kubelet.sock?"""
    path = node.paths.kubelet_socket
    if is_denied(path):
        return failed(_unseen(path), AS_ROOT)
    kind = _kind(path)
    if kind is None:
        seen = f"there is no {path}"
        look = "systemctl status kubelet; journalctl -u kubelet"
        return failed(seen, f"see why on the node, and start the kubelet anew: {look}; systemctl restart kubelet")
    if kind != stat.S_IFSOCK and kind != stat.S_IFLNK:
        return failed(f"{path} is not a socket", f"remove it, and restart the kubelet: rm -r {quoted(path)}")
    found = greet(path, 0.0)
    if found.error in (0, errno.EAGAIN):
        return ok(f"a process listens on {path}")
    if found.error in (errno.EACCES, errno.EPERM):
        remedy = missing_right(found.error).removeprefix("; ") or "allow it in SELinux or AppArmor: ausearch -m avc"
        return failed(f"connecting to {path} is not permitted", remedy)
    return failed(f"nobody listens on {path}: a kubelet that ended left it behind", _RESTART)


@question("kubelet-answers", "A stopped or stuck kubelet still accepts connections, and then registers no plugin.")
@for_device_plugin(Node.needs_plugin_directory)
def kubelet_answers(node: Node) -> Answer:
    """Does the kubelet's process answer?"""
    path = node.paths.kubelet_socket
    if _kind(path) is None:
        return not_known(_unseen(path) if is_denied(path) else f"there is no {path}")
    found = greet(path, PATIENCE)
    if found.error and found.error != errno.EAGAIN:
        return not_known(f"nobody can be reached on {path}")
    if found.answered:
        return ok("the kubelet answers")
    who = f"process {found.pid}" if found.pid else "the process"
    if found.answered is False:
        seen = f"{who} on {path} is not a gRPC server"
        return failed(seen, f"end that process, and restart the kubelet: ss -xlp | grep {quoted(path.name)}")
    if _is_stopped(node, found.pid):
        return failed(f"{who} on {path} is stopped", _go_on(found.pid))
    return failed(f"{who} listens on {path}, and did not answer within {PATIENCE:g} s", _RESTART)


def _is_stopped(node: Node, pid: int) -> bool:
    """Return whether a process got SIGSTOP, or is traced."""
    status = text_of(node.host.path(f"/proc/{pid}/stat")) if pid else ""
    return status.rpartition(") ")[2][:1] in ("T", "t")


def _go_on(pid: int) -> str:
    return f"let it run again: kill -CONT {pid}"


@question(
    "pod-resources", "Without it kdp cannot see which pod holds a device, and calls released() late or not at all."
)
@for_device_plugin(Node.needs_pod_resources)
def pod_resources(node: Node) -> Answer:
    """Does the pod-resources API answer?"""
    path = node.paths.pod_resources_socket
    if is_denied(path):
        return warning(_unseen(path), AS_ROOT)
    if _kind(path) is None:
        remedy = f"mount the node's {path.parent} into the plugin's container, or give --pod-resources-dir"
        return warning(f"there is no {path}", remedy)
    found = greet(path, PATIENCE)
    if found.error in (errno.EACCES, errno.EPERM):
        return warning(f"connecting to {path} is not permitted", "run the plugin as root: runAsUser: 0")
    if found.error and found.error != errno.EAGAIN:
        seen = f"nobody listens on {path}"
        return warning(seen, f"{_RESTART}; if the kubelet answers elsewhere, give --pod-resources-dir")
    if not found.answered:
        return warning(f"the process on {path} did not answer within {PATIENCE:g} s", _RESTART)
    return ok("the pod-resources API answers")


@question("plugin", "A plugin that does not run serves no device.")
def plugin(node: Node) -> Answer:
    """Does a plugin run, and answer?"""
    plugins = node.plugins()
    if not plugins and node.state_dir is None:
        return warning("there is no state directory", "name the plugin's socket: kdp doctor --socket PATH")
    if not plugins:
        assert node.state_dir is not None
        absence = why_no_socket(node.state_dir, node.paths, locks=node.host.path("/proc/locks"))
        if absence.is_running:
            return warning(absence.seen, absence.remedy)
        if absence.is_closed:
            return not_known(absence.seen, absence.remedy)
        return failed(f"no plugin runs: {absence.seen}", _why_it_ended(node))
    silent = [each for each in plugins if each.problem]
    if not silent:
        told = [f"{each.label} is of kdp {each.status.version}, process {each.status.pid}" for each in plugins]
        return ok(some(told))
    seen = some([f"{each.socket}: {each.problem}" for each in silent])
    dead = [str(each.socket) for each in silent if each.problem == os.strerror(errno.ECONNREFUSED)]
    if dead and len(silent) < len(plugins):
        return warning(seen, f"a plugin that was killed left it behind; remove it: rm {quoted(dead[0])}")
    first = silent[0].socket
    if _is_stopped(node, pid := process(first)):
        return failed(f"{first}: process {pid} is stopped", _go_on(pid))
    remedy = f"restart it, and look why it was silent: {kubectl(node, first, 'delete pod')}; {logs(node, first)}"
    return (warning if len(silent) < len(plugins) else failed)(seen, remedy)


def _why_it_ended(node: Node) -> str:
    """Return how to see why a plugin does not run: one that cannot start ends with exit code 2, and says why."""
    loaded = "" if node.target is None else "; the answer about the target may say it, too"
    if node.is_pod:
        return f"see why it ended: {kubectl(node, None, 'logs', '--previous')}{loaded}"
    return f"see why it ended, in the log of its previous container: {look_for_pods(node)}{loaded}"


QUESTIONS: Final = (kubelet_socket, kubelet_answers, pod_resources, plugin)
