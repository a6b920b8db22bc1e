"""Runs in a guest with SELinux: the policy is small, and the kernel that decides is Debian's."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.admin.doctor.samples import node_in, told

from kdp.admin.doctor import process, selinux
from kdp.hardware import Host

FILESYSTEM = Path("/sys/fs/selinux")
STATE = Path("/run/state")
OWN = Path("/run/own")
PLUGIN = "system_u:system_r:container_device_plugin_t"
OPEN = "system_u:system_r:spc_t:s0"

MADE, LABELLED, ANOTHERS = "container_var_lib_t:s0", "container_file_t:s0", "container_file_t:s0:c1"
"""Labels of a directory: as a kubelet makes it, as an administrator labels it, and as a container with a category."""

TRY = """
import os, sys
label, path = sys.argv[1:]
with open("/proc/self/attr/current", "w") as current:
    current.write(label)
try:
    os.close(os.open(f"{path}/file", os.O_CREAT | os.O_WRONLY))
    os.unlink(f"{path}/file")
except OSError as error:
    sys.exit(error.errno)
sys.exit(0 if os.access(path, os.W_OK | os.X_OK) else 100)
"""

LISTEN = """
import socket, sys
label, path = sys.argv[1:]
with open("/proc/self/attr/current", "w") as current:
    current.write(label)
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen()
print("listens", flush=True)
listening.accept()
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def policy() -> Iterator[None]:
    for kind, place in (("selinuxfs", FILESYSTEM), ("tmpfs", STATE), ("tmpfs", OWN)):
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", kind, "none", place], check=True)
    (FILESYSTEM / "load").write_bytes(Path(os.environ["KDP_SELINUX_POLICY"]).read_bytes())
    (FILESYSTEM / "enforce").write_text("1")
    yield
    (FILESYSTEM / "enforce").write_text("0")


def label(place: Path, name: str) -> None:
    os.setxattr(place, "security.selinux", f"system_u:object_r:{name}".encode())


@pytest.mark.parametrize("directory", [MADE, LABELLED, ANOTHERS])
@pytest.mark.parametrize("plugin", [f"{PLUGIN}:s0", OPEN])
def test_the_kernels_answer_is_what_happens(directory: str, plugin: str) -> None:
    label(STATE, directory)
    lacking = selinux.refused(FILESYSTEM, plugin, STATE)
    happened = subprocess.run([sys.executable, "-c", TRY, plugin, STATE], check=False).returncode
    assert happened == (errno.EACCES if lacking else 0)
    assert bool(lacking) == (plugin != OPEN and directory != LABELLED)


def test_a_label_that_the_policy_lacks_is_no_answer() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        selinux.refused(FILESYSTEM, "system_u:system_r:nobody_t:s0", STATE)


@pytest.mark.parametrize(
    ("directory", "verdict", "said"),
    [
        (MADE, "failed", f"SELinux lets the plugin keep nothing in {STATE} as container_device_plugin_t"),
        (LABELLED, "ok", f"SELinux lets the plugin write as container_device_plugin_t in {STATE}"),
    ],
)
def test_doctor_asks_for_the_plugin_and_not_for_itself(tmp_path: Path, directory: str, verdict: str, said: str) -> None:
    label(STATE, directory)
    path = OWN / f"{verdict}.sock"
    command: list[str | Path] = [sys.executable, "-c", LISTEN, f"{PLUGIN}:s0", path]
    label(OWN, LABELLED)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as plugin:
        assert plugin.stdout is not None
        assert plugin.stdout.readline() == b"listens\n"
        node = node_in(tmp_path, host=Host(), state_dir=STATE, own=Path("/proc/self"), sockets=(path,))
        found, text = told(process.confinement(node))
        plugin.kill()
    assert (found, said in text) == (verdict, True), text
