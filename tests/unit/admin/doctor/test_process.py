"""The process and its surroundings: each limit and mistake, and what is in order."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from kdp import __version__
from kdp.admin.doctor import process, selinux
from kdp.errors import ConfigurationError

from .samples import dead, node_in, status, told, written


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(process.limits(node_in(tmp_path)))[0] == "ok"

    def refuse() -> None:
        raise ConfigurationError("only 7 threads can be started; give it 20")

    monkeypatch.setattr(process, "check_limits", refuse)
    verdict, text = told(process.limits(node_in(tmp_path)))
    assert (verdict, text.startswith("only 7 threads")) == ("failed", True)


def group(root: Path, **files: str) -> None:
    written(root / "self/cgroup", "0::/pod/c\n")
    for name, text in files.items():
        written(root / "cgroup/pod/c" / name.replace("_", ".", 1), text)


def test_memory(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    assert told(process.memory(node))[1] == "this control group has no limit of memory | "
    assert process.free_memory(node) is None
    group(tmp_path, memory_max=str(96 << 20), memory_current=str(50 << 20))
    assert told(process.memory(node)) == ("ok", "50 of 96 MiB are used | ")
    assert process.free_memory(node) == 46 << 20
    group(tmp_path, memory_current=str(95 << 20))
    verdict, text = told(process.memory(node))
    assert (
        verdict,
        "| give the container more memory: kubectl get daemonsets -A -o wide" in text,
    ) == ("warning", True)
    group(tmp_path, memory_stat=f"anon 1\ninactive_file {60 << 20}\n")
    assert told(process.memory(node))[0] == "ok"
    group(tmp_path, memory_events="oom 1\noom_kill 3\n")
    assert "killed for lack of it: 3" in told(process.memory(node))[1]
    group(tmp_path, memory_max="max")
    assert told(process.memory(node))[0] == "ok"


@pytest.mark.parametrize(
    ("number", "verdict", "said"),
    [
        (0, "ok", "128 instances and 9 watches"),
        (errno.EMFILE, "warning", "all 128 inotify instances"),
        (errno.ENOSYS, "warning", "refuses inotify | allow"),
    ],
)
def test_inotify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, verdict: str, said: str) -> None:
    written(tmp_path / "sys/fs/inotify/max_user_instances", "128\n")
    written(tmp_path / "sys/fs/inotify/max_user_watches", "9\n")
    monkeypatch.setattr(process, "try_watch", lambda directory: number)
    found, text = told(process.inotify(node_in(tmp_path)))
    assert (found, said in text) == (verdict, True)


def test_the_clock(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    assert told(process.clock(node))[0] == "not known"
    dead(node.paths.kubelet_socket)
    assert told(process.clock(node))[0] == "ok"
    later = time.time() + 3600
    os.utime(node.paths.kubelet_socket, (later, later))
    verdict, text = told(process.clock(node))
    assert (verdict, "s newer than the clock, which was set back | set the clock" in text) == ("warning", True)


SELINUX = "system_u:system_r:container_t:s0:c1,c2"


@pytest.mark.parametrize(
    ("label", "enforce", "boolean", "verdict", "said"),
    [
        ("unconfined", "", "", "ok", "neither SELinux nor AppArmor"),
        (SELINUX, "1", "0 0", "warning", "setsebool -P container_use_devices on"),
        (SELINUX, "1", "1 1", "warning", "seLinuxOptions.type: spc_t"),
        ("cri-containerd.apparmor.d (enforce)", "", "", "ok", "which allows sockets"),
        ("mine (enforce)", "", "", "warning", "by profile mine | look for refusals"),
    ],
)
def test_confinement(tmp_path: Path, label: str, enforce: str, boolean: str, verdict: str, said: str) -> None:
    written(tmp_path / "self/attr/current", label + "\0")
    written(tmp_path / "host/sys/fs/selinux/enforce", enforce)
    written(tmp_path / "host/sys/fs/selinux/booleans/container_use_devices", boolean)
    found, text = told(process.confinement(node_in(tmp_path)))
    assert (found, said in text) == (verdict, True), text


@pytest.mark.parametrize(
    ("names", "verdict", "said"),
    [
        ([f"kdp_sdk-{__version__}.dist-info", "kdp_testkit-0.1.0.dist-info"], "ok", f"kdp-sdk {__version__}"),
        (["kdp-1.2.dist-info", "kdp_sdk-0.1.0.dist-info"], "failed", "kdp 1.2 is installed, which is another project"),
        ([], "warning", "kdp-sdk is not installed"),
    ],
)
def test_the_package(tmp_path: Path, names: list[str], verdict: str, said: str) -> None:
    for name in names:
        (tmp_path / "site" / name).mkdir(parents=True)
    node = node_in(tmp_path, import_path=("/absent", str(tmp_path / "site")))
    found, text = told(process.package(node))
    assert (found, said in text) == (verdict, True), text


def test_the_version_of_the_plugin(tmp_path: Path) -> None:
    assert told(process.version(node_in(tmp_path)))[0] == "not known"
    assert told(process.version(node_in(tmp_path, status(kdp=__version__))))[0] == "ok"
    verdict, text = told(process.version(node_in(tmp_path, status(kdp="0.0.9"))))
    assert (verdict, "0.sock runs 0.0.9 | run the command of that version" in text) == ("warning", True)


PLUGIN = "system_u:system_r:container_device_plugin_t:s0"


@pytest.mark.parametrize(("writable", "verdict"), [(True, "ok"), (False, "failed")])
def test_a_container_that_selinux_confines_was_said_to_be_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool, verdict: str
) -> None:
    """A container does not see the policy, so only trying tells."""
    written(tmp_path / "self/attr/current", PLUGIN + "\0")
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    found, text = told(process.confinement(node_in(tmp_path)))
    assert (found, "as container_device_plugin_t" in text) == (verdict, True), text
    mend = f"semanage fcontext -a -t container_file_t '{tmp_path}/state(/.*)?' && restorecon -R {tmp_path}/state"
    assert (mend in text) is not writable


def test_what_selinux_says_of_the_plugin_is_the_kernels_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/hardware` asks a real kernel."""
    filesystem, state = tmp_path / "host/sys/fs/selinux", tmp_path / "state"
    state.mkdir()
    written(tmp_path / "self/attr/current", PLUGIN + "\0")
    written(filesystem / "enforce", "1")
    node = node_in(tmp_path)
    assert told(process.confinement(node))[0] == "not known", "nobody answers"
    written(filesystem / "class/dir/index", "7")
    written(filesystem / "class/dir/perms/add_name", "3")
    asked: list[str] = []

    def ask(place: Path, question: str) -> tuple[int, int]:
        asked.append(question)
        return 0b11, 0

    monkeypatch.setattr(selinux, "ask", ask)
    monkeypatch.setattr(selinux, "label_of", lambda directory: "system_u:object_r:var_lib_t:s0")
    found, text = told(process.confinement(node))
    assert asked[0] == f"{PLUGIN} system_u:object_r:var_lib_t:s0 7"
    assert (found, f"keep nothing in {state} as container_device_plugin_t" in text) == ("failed", True), text
    monkeypatch.setattr(selinux, "ask", lambda place, question: (0b111, 0))
    assert told(process.confinement(node))[0] == "ok"
    monkeypatch.setattr(selinux, "ask", lambda place, question: (0, 1))
    assert told(process.confinement(node))[0] == "ok", "the policy only watches this type"
