"""`Kubelet`: a whole kubelet with containerd, as processes in namespaces of their own on this machine.

The kubelet runs standalone: its pods are manifests in a folder. Needs root.
"""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from typing_extensions import override

from kdp.kubelet import KubeletPaths

from .devmgr import NotReached
from .machine import IMAGE, KUBELET, Containerd, Machine
from .tools import tool

__all__ = ["IMAGE", "Containerd", "Kubelet", "is_listening"]


class Kubelet(Machine):
    """A kubelet and its container runtime.

    An async context manager (asyncio only): started on entry; on exit everything of it is gone.

    Args:
        containerd: Which of the unpacked container runtimes.
        settings: More lines of the kubelet's configuration, as YAML.
        root: The kubelet's ``--root-dir``, a path below ``/var/lib``.

    Attributes:
        pods_dir: Where manifests are put.
    """

    def __init__(
        self, containerd: Containerd = "containerd-2", *, settings: str = "", root: str = "/var/lib/kubelet"
    ) -> None:
        self._kubelet = tool("kubelet")
        super().__init__(containerd)
        self._root = root
        self.paths = KubeletPaths.under(
            f"{self.work}{root.removeprefix('/var')}", device_plugin_dir=self.paths.device_plugin_dir
        )
        self._settings = settings
        self.pods_dir = self.work / "pods"
        self._port = 0

    @override
    async def boot(self) -> None:
        self.pods_dir.mkdir()
        await self.start()

    # -- the kubelet ---------------------------------------------------------------------------------------------------

    @override
    async def start(self) -> None:
        # The kernel may give one port twice, and then the kubelet does not begin.
        own = _free_port(besides=self._port)
        self._port = self._port or _free_port(besides=own)
        config = self.work / "kubelet.yaml"
        config.write_text(f"""{KUBELET}
staticPodPath: {self.pods_dir}
containerRuntimeEndpoint: unix://{self.runtime_socket}
fileCheckFrequency: 1s
address: 127.0.0.1
port: {own}
readOnlyPort: {self._port}
healthzPort: 0
cgroupRoot: /{self.work.name}
{self._settings}
""")
        options = ("--config", config, f"--root-dir={self._root}", "--hostname-override=node0", "--v=2")
        await self.spawn("kubelet", self._kubelet, *options)
        await self.until(lambda: is_listening(self.paths.kubelet_socket), "the kubelet listens")

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
        written = self.work / "manifest"
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
        files = sorted((self.work / "log/pods").glob(f"default_{name}-node0_*/main/*.log"))
        lines = (line for file in files for line in file.read_text().splitlines())
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    async def until_said(self, name: str, text: str, *, seconds: float = 60.0) -> str:
        """Wait until the pod's container has printed this, and return all that it printed."""
        await self.until(lambda: text in self.said(name), f"pod {name} says {text!r}", seconds=seconds)
        return self.said(name)


def _free_port(besides: int = 0) -> int:
    """Return a port that is free, and another one than that."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
        if port != besides:
            return port


def is_listening(path: Path) -> bool:
    """Whether somebody listens at this socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True
