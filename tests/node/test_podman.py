"""CDI files in podman, which reads them without a kubelet: what kdp writes is what a container gets.

podman works in a mount namespace of its own, whose /run has the files; Debian's is one of the oldest with CDI, and
takes no version of the specification above 0.5.0.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import kdp
from kdp.cdi import CdiDevice, CdiDirectory, CdiEdits, CdiNode, CdiSpec, render_device
from kdp.hardware import Host

from .nodekit import Missing
from .nodekit.tools import BIN, program
from .test_cdi import SPECS

CONFIGURATION = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
conmon_path = ["{conmon}"]
conmon_env_vars = ["PATH={path}", "LD_LIBRARY_PATH={libraries}"]
[engine.runtimes]
runc = ["{runc}"]
"""

# The machine's /run and /dev/shm stay as they are.
NAMESPACE = """set -e
for folder in /run /dev/shm; do mount -t tmpfs own $folder; done
mkdir /run/lock /run/cdi
mount --bind "$1" /run/cdi
shift
exec "$@"
"""


@attrs.frozen
class Podman:
    """podman, unpacked or installed.

    Attributes:
        work: A folder of its own.
        cdi: What it sees as /var/run/cdi.
        group: The cgroup of its containers.
    """

    work: Path
    cdi: CdiDirectory
    group: str

    def run(self, devices: list[str], script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script in a container with these CDI devices."""
        podman = program("podman", BIN / "podman/usr/bin")
        configuration = self.work / "containers.conf"
        conmon, runc = program("conmon", podman.parent), program("runc", BIN / "runtime/usr/sbin")
        libraries = ":".join(map(str, (BIN / "podman").glob("**/*-linux-gnu")))
        configuration.write_text(
            CONFIGURATION.format(conmon=conmon, runc=runc, path=os.environ["PATH"], libraries=libraries)
        )
        return subprocess.run(
            [
                *("unshare", "--mount", "--propagation=private", "sh", "-c", NAMESPACE, "sh", self.cdi.path),
                *(podman, "--root", self.work / "store", "--runroot", "/run/podman", "--storage-driver=vfs"),
                *("--runtime=runc", "run", "--rm", "--network=none", "--security-opt=seccomp=unconfined"),
                # Its own limits are above those that a process may set which lacks a capability, as in a container.
                *("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", f"--cgroup-parent=/{self.group}"),
                *(f"--device={device}" for device in devices),
                *("--rootfs", self.work / "root", "/bin/sh", "-c", script),
            ],
            env={**os.environ, "CONTAINERS_CONF": str(configuration), "LD_LIBRARY_PATH": libraries},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )


def _remove(group: str) -> None:
    """Remove a cgroup as soon as conmon, which outlives its container for a moment, is gone from it."""
    until = time.monotonic() + 30
    while True:
        try:
            return os.rmdir(group)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    """podman with a container's files: a shell."""
    try:
        if os.geteuid() != 0:
            raise Missing("podman needs root here: run `make test-node` as root")
        program("podman", BIN / "podman/usr/bin")
        shell = program("busybox", BIN / "runtime/bin")
    except Missing as missing:
        pytest.skip(str(missing))
    for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    shutil.copy(shell, tmp_path / "root/bin/busybox")
    (tmp_path / "root/bin/sh").symlink_to("busybox")
    made = Podman(tmp_path, CdiDirectory(tmp_path / "cdi"), f"kdp-{secrets.token_hex(4)}")
    try:
        yield made
    finally:
        for pattern in (made.group, f"*/{made.group}"):
            for top in Path("/sys/fs/cgroup").glob(pattern):
                for folder, _, _ in os.walk(top, topdown=False):
                    _remove(folder)


def test_a_container_gets_what_a_device_needs(podman: Podman, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/file").write_text("from the node\n")
    edits = kdp.ContainerEdits(
        env={"WIDGET": "0"},
        device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path="/dev/widget")],
        mounts=[kdp.Mount(host_path=str(tmp_path / "given"), container_path="/given", read_only=True)],
    )
    rendered = render_device(kdp.Device(id="w/0", edits=edits), Host())
    assert rendered is not None
    spec = CdiSpec(kind="kdp.example.com/widget", devices=[rendered])
    podman.cdi.write(spec)

    script = "echo $WIDGET; busybox stat -c %t:%T /dev/widget; cat /given/file; : > /given/new"
    done = podman.run([f"{spec.kind}={rendered.name}"], f"busybox --install -s /bin; {script}")

    assert done.stdout.splitlines() == ["0", "1:3", "from the node"], done.stderr
    assert "Read-only file system" in done.stderr


def test_the_lowest_versions_are_taken(podman: Podman) -> None:
    """By one container with a device of each kind; with the newest version everywhere it would have got none."""
    names: list[str] = []
    for number, (what, edits) in enumerate(SPECS.items()):
        if what == "a typed mount":
            continue  # of a file system that no kernel has: it is for the judgement of files alone
        spec = CdiSpec(kind=f"example.com/w{number}", devices=[CdiDevice(name="w", edits=edits)])
        if tuple(map(int, spec.version.split("."))) <= (0, 5, 0):
            podman.cdi.write(spec)
            names.append(f"{spec.kind}=w")
    assert len(names) >= 5

    done = podman.run(names, "echo $WIDGET; echo started")

    assert done.stdout == "0\nstarted\n", done.stderr


def test_a_name_that_nobody_describes_and_a_node_that_is_gone_start_nothing(podman: Podman) -> None:
    node = CdiNode(path="/dev/w", host_path="/dev/kdp-gone")
    podman.cdi.write(
        CdiSpec(kind="example.com/widget", devices=[CdiDevice(name="w", edits=CdiEdits(device_nodes=[node]))])
    )

    unknown, gone = (
        podman.run(["example.com/widget=x"], "echo started"),
        podman.run(["example.com/widget=w"], "echo started"),
    )

    assert "unresolvable CDI devices example.com/widget=x" in unknown.stderr
    assert (unknown.stdout, gone.stdout) == ("", "")
    assert "/dev/kdp-gone" in gone.stderr
