"""`Kubelet`: a whole kubelet with containerd, as processes in namespaces of their own on this machine.

The kubelet runs standalone: its pods are manifests in a folder. What it writes lies below one temporary folder, of
which the test sees the same files; its processes end with the first one of their namespace, and its cgroups lie below
one of their own, so that nothing is left behind. Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Self

import anyio
import anyio.to_thread
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.kubelet import KubeletPaths

from .devmgr import NotReached
from .image import busybox
from .tools import BIN, Missing, tool

__all__ = ["IMAGE", "Containerd", "Kubelet"]

Containerd = Literal["containerd-1", "containerd-2"]

IMAGE: Final = "docker.io/kdp/busybox:1"
_PAUSE: Final = "docker.io/kdp/pause:1"
_NAMESPACE: Final = Path(__file__).resolve().parent.parent / "namespace.sh"
_CGROUPS: Final = Path("/sys/fs/cgroup")


class Kubelet(AsyncContextManagerMixin):
    """A kubelet and its container runtime.

    An async context manager (asyncio only): started on entry; on exit everything of it is gone.

    Args:
        containerd: Which of the unpacked container runtimes.
        settings: More lines of the kubelet's configuration, as YAML.

    Attributes:
        containerd: Which container runtime it has.
        paths: Its directories, as the test sees them.
        cdi: What the node sees as /etc/cdi.
        pods_dir: Where manifests are put.
    """

    def __init__(self, containerd: Containerd = "containerd-2", *, settings: str = "") -> None:
        if os.geteuid() != 0:
            raise Missing("a whole kubelet needs root: run `make test-node` as root")
        self._kubelet = tool("kubelet")
        self._runtime = _program("containerd", BIN / containerd / "usr/bin")
        self._ctr = _program("ctr", self._runtime.parent)
        self._runc = _program("runc", BIN / "runtime/usr/sbin")
        self._busybox = _program("busybox", BIN / "runtime/bin")
        self._settings = settings
        self.containerd = containerd
        # Short, because a socket's whole path has 107 bytes.
        self._work = Path(tempfile.mkdtemp(prefix="kdp-"))
        self._cgroup = self._work.name
        self.paths = KubeletPaths.under(self._work / "lib/kubelet")
        self.cdi = self._work / "cdi"
        self.pods_dir = self._work / "pods"
        self._port = 0
        self._first: asyncio.subprocess.Process | None = None
        self._inside: list[str] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            await self._lay_out()
            await self._start_containerd()
            await self.start()
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await self._clean_up()

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def _lay_out(self) -> None:
        for name in (
            "sys",
            "etc",
            "etc.work",
            "cdi",
            "lib/kubelet",
            "lib/containerd",
            "log/pods",
            "run/lock",
            "pods",
            "bin",
            "cni",
        ):
            (self._work / name).mkdir(parents=True)
        (self._work / "bin/runc").symlink_to(self._runc)
        for controller in _controllers():
            (controller / self._cgroup).mkdir()
        with (self._work / "namespace.log").open("wb") as log:
            first = self._first = await asyncio.create_subprocess_exec(
                *("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"),
                *("--propagation=private", "sh", _NAMESPACE, self._work),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert first.stdout is not None
        if await first.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the node's namespaces cannot be made: {(self._work / 'namespace.log').read_text()}")
        self._inside = ["nsenter", f"--target={_child(first.pid)}", "--mount", "--pid", "--wd=/", "--"]

    async def run(self, *command: str | Path) -> str:
        """Run a command on the node and return what it prints.

        Raises:
            RuntimeError: It failed.
        """
        process = await asyncio.create_subprocess_exec(
            *self._inside,
            *command,
            env=self._environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {said.decode(errors='replace')}")
        return said.decode(errors="replace")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self._work}/bin:{self._runtime.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}

    async def _spawn(self, name: str, *command: str | Path) -> None:
        with (self._work / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *self._inside,
                *command,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(_child(process.pid), signal.SIGKILL)
        await process.wait()

    async def _clean_up(self) -> None:
        for name in list(self._processes):
            await self._kill(name)
        if self._first is not None:
            assert self._first.stdin is not None
            self._first.stdin.close()
            with suppress(ProcessLookupError):
                self._first.kill()
            await self._first.wait()
        for _ in range(200):
            if self._remove_cgroups():
                break
            await anyio.sleep(0.05)
        shutil.rmtree(self._work, ignore_errors=True)

    def _remove_cgroups(self) -> bool:
        """Remove the node's cgroups, the innermost first; false: a process is still dying in one."""
        done = True
        for controller in _controllers():
            for folder, _, _ in os.walk(controller / self._cgroup, topdown=False):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    pass
                except OSError:
                    done = False
        return done

    # -- containerd ----------------------------------------------------------------------------------------------------

    async def _start_containerd(self) -> None:
        config, socket_path = self._work / "containerd.toml", self._work / "run/containerd.sock"
        common = f'root = "/var/lib/containerd"\nstate = "/run/containerd"\n[grpc]\naddress = "{socket_path}"\n'
        if self.containerd == "containerd-2":
            config.write_text(f"""version = 3
{common}
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
conf_dir = "{self._work}/cni"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{_PAUSE}"
""")
        else:
            config.write_text(f"""version = 2
{common}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{_PAUSE}"
disable_apparmor = true
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{self._work}/cni"
""")
        await self._spawn("containerd", self._runtime, "--config", config)
        await self._until(socket_path.is_socket, "containerd's socket is there")
        for name, command in ((IMAGE, ["/bin/sh"]), (_PAUSE, ["/bin/sleep", "1000000"])):
            archive = self._work / "image.tar"
            busybox(archive, name, self._busybox, command=command)
            await self.run(self._ctr, "--address", socket_path, "--namespace", "k8s.io", "images", "import", archive)
            archive.unlink()

    # -- the kubelet ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the kubelet; returns when kubelet.sock is listened at."""
        self._port = self._port or _free_port()
        config = self._work / "kubelet.yaml"
        config.write_text(f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {self.pods_dir}
podLogsDir: /var/log/pods
containerRuntimeEndpoint: unix://{self._work}/run/containerd.sock
fileCheckFrequency: 1s
address: 127.0.0.1
port: {_free_port()}
readOnlyPort: {self._port}
healthzPort: 0
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupRoot: /{self._cgroup}
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {{memory.available: 10Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}}
{self._settings}
""")
        await self._spawn("kubelet", self._kubelet, "--config", config, "--hostname-override=node0", "--v=2")
        await self._until(lambda: _is_listening(self.paths.kubelet_socket), "the kubelet listens")

    async def crash(self) -> None:
        """Kill the kubelet by SIGKILL; containerd and the containers run on."""
        await self._kill("kubelet")

    async def restart(self) -> None:
        """Kill the kubelet and start it again."""
        await self.crash()
        await self.start()

    # -- pods ----------------------------------------------------------------------------------------------------------

    def put(self, name: str, limits: Mapping[str, int], script: str, *, restart: str = "Never") -> None:
        """Put the manifest of a pod with one container, which runs a shell script."""
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "hostNetwork": True,
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["/bin/sh", "-c", script],
                        "resources": {"limits": {resource: str(count) for resource, count in limits.items()}},
                    }
                ],
            },
        }
        written = self._work / "manifest"
        written.write_text(json.dumps(manifest))
        written.rename(self.pods_dir / f"{name}.json")

    def remove(self, name: str) -> None:
        """Take a pod's manifest away."""
        (self.pods_dir / f"{name}.json").unlink()

    async def pod(self, name: str) -> dict[str, Any] | None:
        """Return what the kubelet says of a pod; None: it knows none of this name, or does not answer."""

        def ask() -> dict[str, Any] | None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/pods", timeout=5) as answer:
                    pods = json.load(answer)
            except OSError:
                return None
            found = [pod for pod in pods["items"] or () if pod["metadata"]["name"] == f"{name}-node0"]
            return found[0] if found else None

        return await anyio.to_thread.run_sync(ask)

    async def until_pod(self, name: str, phase: str, *, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until a pod is in this phase, and return what the kubelet says of it."""
        pod: dict[str, Any] | None = None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pod = await self.pod(name)
            if pod is not None and pod["status"].get("phase") == phase:
                return pod
            await anyio.sleep(0.05)
        raise NotReached(
            f"pod {name} was not {phase} in {seconds:g} s: {json.dumps(pod and pod['status'])}\n{self.story()}"
        )

    def said(self, name: str) -> str:
        """Return what the pod's container printed."""
        files = sorted((self._work / "log/pods").glob(f"default_{name}-node0_*/main/*.log"))
        lines = (line for file in files for line in file.read_text().splitlines())
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    async def until_said(self, name: str, text: str, *, seconds: float = 60.0) -> str:
        """Wait until the pod's container has printed this, and return all that it printed."""
        await self._until(lambda: text in self.said(name), f"pod {name} says {text!r}", seconds=seconds)
        return self.said(name)

    # -- waiting, telling ----------------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [name for name, process in self._processes.items() if process.returncode is not None]
            if ended or time.monotonic() > deadline:
                why = f"{', '.join(ended)} ended" if ended else f"not in {seconds:g} s"
                raise NotReached(f"waited until {what}: {why}\n{self.story()}")
            await anyio.sleep(0.01)

    def log(self, name: str = "kubelet") -> str:
        """Return the log of ``kubelet`` or ``containerd``."""
        try:
            return (self._work / f"{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def story(self) -> str:
        """Return what a failed test needs."""
        return "\n".join(
            f"--- {name}\n" + "\n".join(self.log(name).splitlines()[-60:]) for name in ("containerd", "kubelet")
        )


def _program(name: str, folder: Path) -> Path:
    found = shutil.which(name, path=str(folder)) or shutil.which(name)
    if found is None:
        raise Missing(f"{name} is missing: run `make node-tools`, or install it")
    return Path(found)


def _controllers() -> Sequence[Path]:
    """Return where cgroups can be made: each hierarchy of the first version, or the one of the second."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [each for each in _CGROUPS.iterdir() if each.is_dir() and not each.is_symlink()]


def _child(pid: int) -> int:
    """Return the process that this one waits for."""
    deadline = time.monotonic() + 5
    while not (children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        if time.monotonic() > deadline:
            raise ProcessLookupError(f"process {pid} has no child")
        time.sleep(0.005)
    return int(children[0])


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True
