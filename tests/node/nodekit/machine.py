"""`Machine`: namespaces of their own on this machine, with containerd in them, as a node's operating system.

What is written lies below one temporary folder, of which the test sees the same files; the processes end with the first
one of their namespace, and the cgroups lie below one of their own, so that nothing is left behind. Needs root.
`Kubelet` and `Cluster` put the rest of a node into it.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal, Self

import anyio
import anyio.to_thread
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.kubelet import KubeletPaths
from kdp_testkit.patience import PATIENCE

from .devmgr import NotReached
from .image import busybox
from .tools import BIN, SPARE_THE_PROCESSOR, Missing, program

__all__ = ["HANDLER", "IMAGE", "Containerd", "Machine"]

Containerd = Literal["containerd-1", "containerd-2"]

IMAGE: Final = "docker.io/kdp/busybox:1"
_LIBC: Final = ctypes.CDLL(None)
_INOTIFY: Final = 16
"""Instances of inotify that must be free when a kubelet starts, which takes half of them."""
_PAUSE: Final = "docker.io/kdp/pause:1"
_NAMESPACE: Final = Path(__file__).resolve().parent.parent / "namespace.sh"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_NOISE: Final = re.compile(
    "Updated allocatable|operationExecutor|operation_generator|Volume detached|ClusterTrustBundle|Eviction "
    "manager|filesystem"
)
"""What the parts of a node say over and over, and what is no reason for anything here."""

HANDLER: Final = "wrapped"
"""A second runtime handler of containerd, for a RuntimeClass: it runs `Machine.wrapper` in place of runc."""

_FOLDERS: Final = (
    "sys",
    "etc",
    "etc.work",
    "cdi",
    "lib/kubelet",
    "lib/containerd",
    "log/pods",
    "run/lock",
    "bin",
    "cni",
)

KUBELET: Final = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: /var/log/pods
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 10Mi, nodefs.available: 0%, imagefs.available: 0%, \
nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}
"""
"""What every kubelet's configuration has here: it must not change the machine, nor mind that it is small."""

_SELDOM = 0.3
"""Seconds between two looks at what has not come for long."""


class Machine(AsyncContextManagerMixin):
    """A mount and a PID namespace, cgroups, containerd, and on request a network namespace.

    An async context manager (asyncio only): containerd runs on entry; on exit everything of it is gone.

    Args:
        containerd: Which of the unpacked container runtimes.
        network_plugins: A folder of CNI plugins: have a network namespace too; None: the network is the machine's.

    Attributes:
        containerd: Which container runtime it has.
        work: The folder of everything; /run of the node is its folder ``run``, /var/lib is ``lib``, /var/log ``log``.
        paths: The kubelet's directories, as the test sees them.
        cdi: What the node sees as /etc/cdi.
        wrapper: The program behind the runtime handler `HANDLER`, for whoever puts one there; it finds runc in its
            PATH.
        first_process: The process that keeps its namespaces, as this machine counts; 0: there is none yet.
    """

    def __init__(self, containerd: Containerd = "containerd-2", *, network_plugins: Path | None = None) -> None:
        if os.geteuid() != 0:
            raise Missing("a whole kubelet needs root: run `make test-node` as root")
        self._runtime = program("containerd", BIN / containerd / "usr/bin")
        self._ctr = program("ctr", self._runtime.parent)
        self._runc = program("runc", BIN / "runtime/usr/sbin")
        self._busybox = program("busybox", BIN / "runtime/bin")
        self._network_plugins = network_plugins
        self.containerd = containerd
        # Short, because a socket's whole path has 107 bytes.
        self.work = Path(tempfile.mkdtemp(prefix="kdp-"))
        self.paths = KubeletPaths.simulated(self.work / "lib/kubelet")
        self.cdi = self.work / "cdi"
        self.wrapper = self.work / "bin/wrapper"
        self._cgroup = self.work.name
        self._first: asyncio.subprocess.Process | None = None
        self.first_process = 0
        self._inside: list[str] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._loaded: set[tuple[Path, int]] = set()

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            await self._lay_out()
            await self.start_containerd()
            await self.boot()
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def boot(self) -> None:
        """Start what the node has besides containerd."""

    @property
    def options(self) -> Sequence[str]:
        """What `kdp run` must be given to find the kubelet from outside the node's namespaces."""
        directory = self.paths.device_plugin_dir
        return [f"--kubelet-root={self.paths.plugins_dir.parent}", f"--device-plugin-dir={directory}"]

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def _lay_out(self) -> None:
        for name in _FOLDERS:
            (self.work / name).mkdir(parents=True)
        (self.work / "bin/runc").symlink_to(self._runc)
        for controller in _controllers():
            (controller / self._cgroup).mkdir()
        network = ("--net",) if self._network_plugins else ()
        with (self.work / "namespace.log").open("wb") as log:
            first = self._first = await asyncio.create_subprocess_exec(
                *("unshare", "--mount", "--pid", *network, "--fork", "--kill-child=SIGKILL", "--mount-proc"),
                *("--propagation=private", "sh", _NAMESPACE, self.work),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert first.stdout is not None
        if await first.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the node's namespaces cannot be made: {(self.work / 'namespace.log').read_text()}")
        self.first_process = _child(first.pid)
        self._inside = ["nsenter", f"--target={self.first_process}", "--mount", "--pid", *network, "--wd=/", "--"]

    async def run(self, *command: str | Path, stdin: str | None = None) -> str:
        """Run a command on the node and return what it prints.

        Args:
            command: The program with its arguments.
            stdin: What it reads.

        Raises:
            RuntimeError: It failed; the text has all that it printed.
        """
        process = await asyncio.create_subprocess_exec(
            *self._inside,
            *command,
            env=self.environment(),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, complained = await process.communicate(None if stdin is None else stdin.encode())
        if process.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {(said + complained).decode(errors='replace')}")
        return said.decode(errors="replace")

    def environment(self) -> dict[str, str]:
        """Return the environment of the node's processes."""
        path = f"{self.work}/bin:{self._runtime.parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**os.environ, **SPARE_THE_PROCESSOR, "PATH": path}

    async def spawn(self, name: str, *command: str | Path) -> None:
        """Start a process of the node that runs on; its log is of this name (see `log`)."""
        if name == "kubelet":
            # A kubelet that gets none ends. All that runs on this machine shares the kernel's 128.
            await self.until(_has_inotify, f"{_INOTIFY} instances of inotify are free", every=0.1)
        with (self.work / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *self._inside,
                *command,
                env=self.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def kill(self, name: str) -> None:
        """Kill a process of the node by SIGKILL and wait for its end; one that is not there is none."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(_child(process.pid), signal.SIGKILL)
        await process.wait()

    async def terminate(self, name: str, *, seconds: float = PATIENCE) -> None:
        """Ask a process of the node to end by SIGTERM, wait for that, and kill it after so many seconds."""
        process = self._processes[name]
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(_child(process.pid), signal.SIGTERM)
        with anyio.move_on_after(seconds):
            await process.wait()
        await self.kill(name)

    def freeze(self, name: str) -> None:
        """Stop a process of the node by SIGSTOP, and the one that waits for it."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a process of the node go on."""
        os.kill(self.pid(name), signal.SIGCONT)
        self._processes[name].send_signal(signal.SIGCONT)  # nsenter stops with its child

    def pid(self, name: str) -> int:
        """Return the id of a process of the node, as this machine counts."""
        return _child(self._processes[name].pid)

    async def close(self) -> None:
        """End all of it and remove its files; the end of the context does the same."""
        for name in list(self._processes):
            await self.kill(name)
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
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self.work, ignore_errors=True))

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

    @property
    def runtime_socket(self) -> Path:
        """Where containerd listens."""
        return self.work / "run/containerd.sock"

    async def start(self) -> None:
        """Start the kubelet; returns when kubelet.sock is listened at."""
        raise NotImplementedError

    async def crash(self) -> None:
        """Kill the kubelet by SIGKILL; containerd and the containers run on."""
        await self.kill("kubelet")

    async def restart(self) -> None:
        """Kill the kubelet and start it again."""
        await self.crash()
        await self.start()

    async def start_containerd(self) -> None:
        """Start containerd and give it the images that every node has."""
        config = self.work / "containerd.toml"
        common = f'root = "/var/lib/containerd"\nstate = "/run/containerd"\n[grpc]\naddress = "{self.runtime_socket}"\n'
        handler = f'.containerd.runtimes.{HANDLER}]\nruntime_type = "io.containerd.runc.v2"\n'
        binary = f'.containerd.runtimes.{HANDLER}.options]\nBinaryName = "{self.wrapper}"\n'
        cni = f'conf_dir = "{self.work}/cni"\nbin_dir = "{self._network_plugins or "/opt/cni/bin"}"\n'
        if self.containerd == "containerd-2":
            config.write_text(f"""version = 3
{common}
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
{cni}
[plugins."io.containerd.cri.v1.runtime"{handler}
[plugins."io.containerd.cri.v1.runtime"{binary}
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
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri"{handler}
[plugins."io.containerd.grpc.v1.cri"{binary}
[plugins."io.containerd.grpc.v1.cri".cni]
{cni}
""")
        await self.spawn("containerd", self._runtime, "--config", config)
        await self.until(self.runtime_socket.is_socket, "containerd's socket is there")
        for name, command in ((IMAGE, ["/bin/sh"]), (_PAUSE, ["/bin/sleep", "1000000"])):
            archive = self.work / "image.tar"
            busybox(archive, name, self._busybox, command=command)
            await self.load(archive)
            archive.unlink()

    async def load(self, archive: Path) -> None:
        """Give containerd an image (see `nodekit.image`), for pods with ``imagePullPolicy: Never``; once is enough."""
        version = (archive, (await anyio.Path(archive).stat()).st_mtime_ns)
        if version not in self._loaded:
            await self.ctr("images", "import", archive)
            self._loaded.add(version)

    async def ctr(self, *arguments: str | Path) -> str:
        """Ask containerd by its own command and return what that prints."""
        return await self.run(self._ctr, "--address", self.runtime_socket, "--namespace=k8s.io", *arguments)

    async def kill_containers(self) -> None:
        """Kill all containers by SIGKILL, those of the pods themselves too, and wait for their end."""
        running = (await self.ctr("tasks", "list", "--quiet")).split()
        for container in running:
            await self.ctr("tasks", "kill", "--signal=SIGKILL", container)

        async def is_over() -> bool:
            return "RUNNING" not in await self.ctr("tasks", "list")

        await self.until(is_over, "no container runs", every=0.05)

    # -- waiting, telling ----------------------------------------------------------------------------------------------

    async def until(
        self,
        condition: Callable[[], object],
        what: str | Callable[[], str | Awaitable[str]],
        *,
        seconds: float = 60.0,
        every: float = 0.01,
    ) -> None:
        """Wait until a condition holds.

        Args:
            condition: A function or coroutine function; what it returns is true or not.
            what: The condition in words, for the error; a function or coroutine function is asked for them then.
            seconds: The deadline.
            every: Seconds between the first two looks. The longer it takes, the longer the pauses, to a tenth of the
                time so far: looking is work, and most of what is waited for needs the processor as well.

        Raises:
            NotReached: It did not come about, or a process of the node ended; the text has the logs.
        """
        began = time.monotonic()
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            ended = [name for name, process in self._processes.items() if process.returncode is not None]
            waited = time.monotonic() - began
            if ended or waited > seconds:
                why = f"{', '.join(ended)} ended" if ended else f"not in {seconds:g} s"
                words = what if isinstance(what, str) else what()
                if not isinstance(words, str):
                    words = await words
                raise NotReached(f"waited until {words}: {why}\n{self.story()}")
            await anyio.sleep(max(every, min(waited / 10, _SELDOM)))

    def log(self, name: str) -> str:
        """Return the log of a process of the node, as ``kubelet`` or ``containerd``."""
        try:
            return (self.work / f"{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def story(self) -> str:
        """Return what a failed test needs: the end of each process's log."""
        names = sorted(path.stem for path in self.work.glob("*.log"))
        told = {name: [line for line in self.log(name).splitlines() if not _NOISE.search(line)] for name in names}
        return "\n".join(f"--- {name}\n" + "\n".join(told[name][-60:]) for name in names)


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


def _has_inotify() -> bool:
    """Return whether enough instances of inotify are free."""
    made: list[int] = []
    try:
        while len(made) < _INOTIFY:
            descriptor = _LIBC.inotify_init1(os.O_CLOEXEC)
            if descriptor < 0:
                return False
            made.append(descriptor)
    finally:
        for each in made:
            os.close(each)
    return True
