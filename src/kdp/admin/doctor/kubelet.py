"""Questions about the kubelet's directory: is it there, is it the right one, and can a plugin write to it?

Only the plugin directory does not follow the kubelet's ``--root-dir`` (`kdp.kubelet.paths`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...kubelet.paths import DEFAULT_ROOT, DEVICE_PLUGIN_DIR
from ...storage.mounts import how_to_write
from .answers import Answer, Verdict, failed, not_known, ok, question, quoted, warning
from .commands import kubectl
from .directories import AS_ROOT, is_read_only, let_write, may_write
from .node import Node, text_of
from .resources import SERVED, resources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KNOWN_PLACES: Final = (DEVICE_PLUGIN_DIR, Path("/var/snap/microk8s/current/kubelet/device-plugins"))
"""Where the node sees the plugin directory. A strictly confined MicroK8s has a mount of its own at /var/lib/kubelet."""

_PROGRAMS: Final = {"kubelet", "kubelite", "k3s", "rke2", "k0s"}
_FLAGS: Final = ("--root-dir", "root-dir", "--kubelet-arg=root-dir")


def for_device_plugin(
    needs: Callable[[Node], bool],
) -> Callable[[Callable[[Node], Answer]], Callable[[Node], Answer | None]]:
    """Leave a question out if its answer is bad, and no plugin here needs what it asks for."""

    def wrap(ask: Callable[[Node], Answer]) -> Callable[[Node], Answer | None]:
        @functools.wraps(ask)
        def asked(node: Node) -> Answer | None:
            answer = ask(node)
            return answer if answer.verdict is Verdict.OK or needs(node) else None

        return asked

    return wrap


def running_roots(node: Node) -> Iterator[tuple[int, str | None]]:
    """Return the processes that look like a kubelet, each with its ``--root-dir`` if it has one."""
    proc = node.host.path("/proc")
    with contextlib.suppress(OSError):
        for name in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
            words = text_of(proc / name / "cmdline").split("\0")
            if os.path.basename(words[0]) in _PROGRAMS:
                yield int(name), _root_of(words)


def _root_of(words: list[str]) -> str | None:
    for position, word in enumerate(words):
        flag, equals, value = word.rpartition("=")
        if equals and flag in _FLAGS and value:
            return value
        if word == "--root-dir" and position + 1 < len(words):
            return words[position + 1]
    return None


def _elsewhere(node: Node) -> str:
    """Return where a plugin directory with a kubelet.sock is instead, as a sentence's end; empty: nowhere."""
    given = node.paths.device_plugin_dir
    for place in KNOWN_PLACES:
        found = node.host.path(place)
        if found != given and os.path.lexists(found / "kubelet.sock"):
            return str(found)
    return ""


@question("kubelet-directory", "The kubelet takes registrations in this directory only.")
@for_device_plugin(Node.needs_plugin_directory)
def directory(node: Node) -> Answer:
    """Is the plugin directory there?"""
    path = node.paths.device_plugin_dir
    return _fault(path, lambda: _absence(node, path)) or ok(f"{path} is a directory")


def _absence(node: Node, path: Path) -> Answer:
    """Return the answer if there is no plugin directory."""
    if elsewhere := _elsewhere(node):
        use = f"mount that directory into the plugin's container, or give it: --device-plugin-dir {quoted(elsewhere)}"
        return failed(f"{path} does not exist, and a kubelet.sock is in {elsewhere}", use)
    if node.is_pod:
        remedy = f"mount the node's {DEVICE_PLUGIN_DIR} there, as the DaemonSet of kdp manifests has it"
        return failed(f"{path} does not exist in this container", remedy)
    remedy = "start the kubelet, or name its directory: kdp doctor --device-plugin-dir DIR"
    return failed(f"{path} does not exist, so no kubelet runs here", remedy)


def _fault(path: Path, absence: Callable[[], Answer]) -> Answer | None:
    """Return why there is no directory that can be looked at; None: there is one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return absence()
    except OSError as error:
        return failed(f"{path} cannot be examined: {error.strerror}", AS_ROOT)
    if not stat.S_ISDIR(mode):
        return failed(f"{path} is no directory", f"remove it, and restart the kubelet: rm {quoted(path)}")
    return None


@question(
    "kubelet-directory-pinned",
    "A mount keeps a directory that was removed on the node, and the kubelet makes another one.",
)
@for_device_plugin(Node.needs_plugin_directory)
def pinned(node: Node) -> Answer:
    """Is the mounted plugin directory still the node's?"""
    path = node.paths.device_plugin_dir
    try:
        links = os.stat(path).st_nlink
    except OSError:
        return not_known(f"{path} cannot be examined")
    return ok(f"{path} is not unlinked") if links else _unlinked(node, path)


def _unlinked(node: Node, path: Path) -> Answer:
    seen = f"{path} was removed on the node, and this container still has the old one"
    return failed(seen, f"make a new container: {kubectl(node, None, 'delete pod')}")


@question("kubelet-directory-writable", "Without its own socket a plugin cannot be called by the kubelet.")
@for_device_plugin(Node.needs_plugin_directory)
def writable(node: Node) -> Answer:
    """Can a plugin make its socket there?"""
    path = node.paths.device_plugin_dir
    fault = _fault(path, lambda: _absence(node, path))
    return _writing(path) if fault is None else not_known(fault.seen)


def _writing(path: Path) -> Answer:
    if is_read_only(path):
        return failed(f"{path} is on a read-only file system", how_to_write(path))
    if not may_write(path):
        seen = f"user {os.geteuid()} may not write to {path}"
        if os.geteuid() == 0:
            return failed(seen, let_write(path))
        return failed(seen, "run the plugin as root, because the kubelet's directories belong to root: runAsUser: 0")
    return ok(f"user {os.geteuid()} may write to {path}")


@question(
    "plugins-registry",
    "The kubelet finds a DRA driver by its socket in this directory, also a plugin that registers by watcher.",
)
def registry(node: Node) -> Answer | None:
    """Can a driver make its socket in the plugin watcher's directory?"""
    answers = [_of_registry(node, path) for path in node.registries()]
    return max(answers, key=lambda answer: [*Verdict].index(answer.verdict)) if answers else None


def _of_registry(node: Node, path: Path) -> Answer:
    remedy = "start the kubelet, which makes it: systemctl restart kubelet; if it has another --root-dir, give it: "
    absence = failed(f"{path} does not exist", f"{remedy}kdp doctor --kubelet-root DIR")
    if node.is_pod:
        mount = f"mount the node's directory: hostPath: {quoted(path)}"
        absence = failed(f"{path} does not exist in this container", mount)
    if (fault := _fault(path, lambda: absence)) is not None:
        return fault
    return _writing(path) if os.stat(path).st_nlink else _unlinked(node, path)


@question("kubelet-root", "The pod-resources API and the plugin watcher follow the kubelet's --root-dir.")
def root(node: Node) -> Answer | None:
    """Does the kubelet use the directory that kdp was given?"""
    found = dict(running_roots(node))
    if not found:
        if any(each.state in SERVED for each in resources_of(node)):
            return ok("no process of a kubelet is visible from here, but one has registered the plugin")
        if node.is_pod:
            return None
        return not_known(
            "no process of a kubelet is visible from here", "ask on the node itself: ps -C kubelet -o args"
        )
    given = {each for each in found.values() if each}
    used = node.paths.pod_resources_dir.parent
    given = given or {str(DEFAULT_ROOT)}
    for each in given:
        with contextlib.suppress(OSError):
            if node.host.path(each) == used or os.path.samefile(node.host.path(each), used):
                return ok(f"the kubelet, process {min(found)}, uses {each}")
    other = min(given)
    seen = f"the kubelet, process {min(found)}, uses {other}, and kdp looks in {used}"
    return warning(seen, f"give the plugin and this command --kubelet-root {quoted(other)}")


QUESTIONS: Final = (directory, pinned, writable, registry, root)
