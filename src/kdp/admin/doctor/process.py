"""Questions about this process and its surroundings: limits, memory, inotify, the clock, and what is installed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ... import __file__ as _imported
from ..._version import __version__
from ...daemon.limits import check_limits
from ...errors import ConfigurationError, message_of
from . import selinux
from .answers import Answer, failed, not_known, ok, question, quoted, warning
from .commands import daemonset_of, give_memory, kubectl
from .node import PATIENCE, number_of, some, text_of
from .resources import NO_PLUGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node import Node

_SKEW: Final = 5.0
"""Seconds that a file may be newer than the clock."""

_PARTS_OF_LABEL: Final = 3
"""Colons of a label of SELinux; a profile of AppArmor has none."""

_PEER_LABEL: Final = 31
"""``SO_PEERSEC`` of socket(7), which Python has no name for."""

_FULL: Final = 0.9
_DIST_INFO: Final = re.compile(r"(kdp|kdp[-_.]sdk)-([^-]+)\.(dist|egg)-info\Z", re.IGNORECASE)


@question("limits", "With too few files or threads, gRPC ends the process or waits without an end.")
def limits(node: Node) -> Answer:
    """Are the limits of a process wide enough?"""
    try:
        check_limits()
    except ConfigurationError as error:
        return failed(message_of(error), "see the limits of this process: cat /proc/self/limits")
    return ok("files, threads, and address space are enough")


def _groups(node: Node) -> list[Path]:
    """Return where the files of this process's memory controller may be."""
    found = [node.cgroups, node.cgroups / "memory"]
    for line in text_of(node.own / "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "", "")[:3]
        if controllers == "":
            found.insert(0, node.cgroups / path.lstrip("/"))
        elif "memory" in controllers.split(","):
            found.insert(0, node.cgroups / "memory" / path.lstrip("/"))
    return found


def _memory(node: Node) -> tuple[int, int, Path] | None:
    """Return use and limit of memory in bytes, and the control group; None: there is no limit."""
    for group in _groups(node):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = number_of(group / limit), number_of(group / used)
            if most is not None and now is not None and most < 1 << 60:
                return max(0, now - _cache(group)), most, group
    return None


def _cache(group: Path) -> int:
    """Return the bytes of a control group's page cache that the kernel takes back when it needs room."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", text_of(group / "memory.stat"), re.MULTILINE)
    return int(found[1]) if found else 0


def free_memory(node: Node) -> int | None:
    """Return how many bytes this control group may still use; None: there is no limit."""
    found = _memory(node)
    return None if found is None else max(0, found[1] - found[0])


@question("memory", "The kernel kills the plugin when its container has no memory left.")
def memory(node: Node) -> Answer:
    """Is there memory left in this container?"""
    found = _memory(node)
    if found is None:
        return ok("this control group has no limit of memory")
    used, most, group = found
    seen = f"{used >> 20} of {most >> 20} MiB are used"
    remedy = give_memory(*daemonset_of(node), most)
    killed = re.search(r"^oom_kill (\d+)$", text_of(group / "memory.events"), re.MULTILINE)
    if killed and int(killed[1]):
        return warning(f"{seen}; processes that the kernel killed for lack of it: {killed[1]}", remedy)
    return warning(seen, remedy) if used > most * _FULL else ok(seen)


@question("inotify", "Without inotify a plugin looks every second, and registers later after a restart of the kubelet.")
def inotify(node: Node) -> Answer:
    """Can a plugin watch directories?"""
    number = try_watch(node.paths.device_plugin_dir)
    instances = number_of(node.sys / "fs/inotify/max_user_instances")
    watches = number_of(node.sys / "fs/inotify/max_user_watches")
    if number == errno.EMFILE:
        seen = (
            f"all {instances} inotify instances of user {os.geteuid()} are in use, or this process has too many files"
        )
        return warning(seen, "raise the limit on the node: sysctl -w fs.inotify.max_user_instances=8192")
    if number == errno.ENOSPC:
        seen = f"all {watches} inotify watches of user {os.geteuid()} are in use"
        return warning(seen, "raise the limit on the node: sysctl -w fs.inotify.max_user_watches=524288")
    if number in (errno.EPERM, errno.ENOSYS):
        return warning("the system refuses inotify", "allow inotify_init1 in the container's seccomp profile")
    return ok(f"the limits are {instances} instances and {watches} watches, and one more could be made")


def try_watch(directory: Path) -> int:
    """Make an inotify instance and a watch, close it, and return the error's number; 0: both can be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return ctypes.get_errno()
    try:
        place = os.fsencode(directory if os.path.isdir(directory) else "/")
        return ctypes.get_errno() if libc.inotify_add_watch(descriptor, place, 0x100) < 0 else 0
    finally:
        os.close(descriptor)


@question("clock", "A clock that was set back makes ages wrong: of the kubelet, and of what pods hold.")
def clock(node: Node) -> Answer:
    """Is the clock right?"""
    now = time.time()
    times: dict[str, float] = {}
    for path in (node.paths.kubelet_socket, node.paths.pod_resources_socket, node.state_dir, *node.sockets):
        with contextlib.suppress(OSError):
            times[str(path)] = os.lstat(path).st_mtime if path else 0.0
    newer = {path: made - now for path, made in times.items() if made > now + _SKEW}
    if newer:
        newest = max(newer, key=lambda each: newer[each])
        seen = f"{newest} is {newer[newest]:.0f} s newer than the clock, which was set back"
        return warning(seen, "set the clock, then restart the plugin: timedatectl; chronyc tracking")
    if not times:
        return not_known("there is no file to compare the clock with")
    return ok("no file is newer than the clock")


@question("confinement", "They can refuse the kubelet's sockets to the plugin, and device nodes to the pods.")
def confinement(node: Node) -> Answer:
    """Does SELinux or AppArmor confine the plugin?"""
    label = text_of(node.own / "attr/current").strip("\0")
    filesystem = Path(node.host.path("/sys/fs/selinux"))
    if selinux.is_enforcing(filesystem):
        return _by_selinux(node, filesystem, _label_of_plugin(node) or label)
    if label.count(":") >= _PARTS_OF_LABEL and not filesystem.exists():  # a container does not see the policy
        return _in_container(node, label)
    if label.endswith("(enforce)") and not label.startswith("unconfined"):
        seen = f"AppArmor confines this process by profile {label.removesuffix(' (enforce)')}"
        if _is_default(label):
            return ok(f"{seen}, which allows sockets and device nodes")
        return warning(
            seen, "look for refusals on the node: dmesg | grep apparmor; or appArmorProfile.type: Unconfined"
        )
    return ok("neither SELinux nor AppArmor confines this process")


def _by_selinux(node: Node, filesystem: Path, label: str) -> Answer:
    """Answer with the decision of the node's policy."""
    name = selinux.type_of(label)
    if name == "container_t":
        booleans = text_of(filesystem / "booleans/container_use_devices").split()
        if booleans[:1] == ["0"]:
            seen = "SELinux enforces, and containers may not use device nodes (container_use_devices is off)"
            return warning(seen, "allow it on the node: setsebool -P container_use_devices on")
        seen = f"SELinux confines this process as {label}, which may not use the kubelet's sockets"
        return warning(seen, "give the container another type: securityContext.seLinuxOptions.type: spc_t")
    try:
        lacking = [each for each in _kept_in(node) if selinux.refused(filesystem, label, each)]
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        return not_known(f"SELinux enforces, and did not say what the plugin may write as {name or 'nobody'}: {why}")
    return _refused(node, name, lacking)


def _in_container(node: Node, label: str) -> Answer:
    return _refused(
        node, selinux.type_of(label), [each for each in _kept_in(node) if not os.access(each, os.W_OK | os.X_OK)]
    )


def _refused(node: Node, name: str, lacking: Sequence[Path]) -> Answer:
    if not lacking:
        places = " and ".join(map(str, _kept_in(node)))
        return ok(f"SELinux lets the plugin write as {name}{f' in {places}' if places else ''}")
    mend = " && ".join(
        f"semanage fcontext -a -t container_file_t {quoted(f'{each}(/.*)?')} && restorecon -R {quoted(each)}"
        for each in lacking
    )
    return failed(
        f"SELinux lets the plugin keep nothing in {' and '.join(map(str, lacking))} as {name}",
        f"give its container the type spc_t: kdp manifests --selinux-type spc_t; or on the node: {mend}",
    )


def _kept_in(node: Node) -> list[Path]:
    """Return the directories in which a plugin keeps files, apart from the kubelet's."""
    return [each for each in (node.state_dir, node.cdi_dir) if each is not None and os.path.isdir(each)]


def _label_of_plugin(node: Node) -> str:
    """Return the label of a plugin's process, which the kernel notes at its socket; "" if no process answers."""
    for path in node.sockets:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(PATIENCE)
            client.connect(os.fspath(path))
            return client.getsockopt(socket.SOL_SOCKET, _PEER_LABEL, 1024).decode(errors="replace").strip("\0")
    return ""


def _is_default(label: str) -> bool:
    return label.startswith(("cri-containerd.apparmor.d", "crio-default", "docker-default", "containers-default"))


@question(
    "package", "The name kdp belongs to another project on the package index, which overwrites the same directory."
)
def package(node: Node) -> Answer:
    """Is the package kdp that of kdp-sdk?"""
    found: dict[str, str] = {}
    for place in node.import_path:
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):
                if match := _DIST_INFO.match(name):
                    found.setdefault(re.sub(r"[-_.]+", "-", match[1].lower()), match[2])
    where = os.path.dirname(_imported or "")
    repair = "pip uninstall --yes kdp kdp-sdk; pip install 'kdp-sdk[cli]'"
    if "kdp" in found:
        seen = f"the distribution kdp {found['kdp']} is installed, which is another project with the same import name"
        return failed(seen, repair)
    if "kdp-sdk" not in found:
        return warning(f"kdp is imported from {where}, and kdp-sdk is not installed", "pip install 'kdp-sdk[cli]'")
    if found["kdp-sdk"] != __version__:
        seen = f"kdp-sdk {found['kdp-sdk']} is installed, and kdp {__version__} is imported from {where}"
        return warning(seen, f"remove the other copy from PYTHONPATH, or install anew: {repair}")
    return ok(f"kdp-sdk {__version__}, imported from {where}")


@question("version", "Another version may have other settings and other fields in its status.")
def version(node: Node) -> Answer:
    """Does the plugin run the version of this command?"""
    plugins = node.answering()
    if not plugins:
        return not_known(NO_PLUGIN)
    other = [
        f"{each.label} runs {each.status.version or 'an unknown version'}"
        for each in plugins
        if each.status.version != __version__
    ]
    if other:
        seen = f"this is kdp {__version__}, and {some(other)}"
        first = next(each for each in plugins if each.status.version != __version__)
        inside = kubectl(node, first.socket, "exec", "-- kdp doctor")
        return warning(seen, f"run the command of that version, in the plugin's container: {inside}")
    return ok(f"both are kdp {__version__}")


QUESTIONS: Final = (limits, memory, inotify, clock, confinement, package, version)
