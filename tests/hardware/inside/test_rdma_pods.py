"""Runs in a guest: a whole kubelet with containerd, examples/rdma beside it, and two pods that speak RDMA together.

Both pods hold a slot of one adapter, each in a container that has no device nodes but those of the plugin's reply.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from tests.hardware.vm.tools import BIN
from tests.node.nodekit import Kubelet, image
from tests.node.nodekit.machine import IMAGE
from typing_extensions import override

import kdp
import kdp.hardware
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp_rdma import Rdma

Figure = Callable[[str, float, str], None]

RESOURCE = "rdma/hca"
ADDRESS = "198.51.100.1"
CONTROLLERS = "+cpu +cpuset +memory +pids +io +hugetlb"
DEADLINE = 240.0

TOOL = BIN / "verbs/usr/bin/ibv_rc_pingpong"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def do(*words: str) -> None:
    subprocess.run(words, check=True, timeout=DEADLINE)


class Node(Kubelet):
    """A kubelet on a machine with cgroups of the second version, whose pods have ibv_rc_pingpong."""

    @override
    async def boot(self) -> None:
        for folder in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup") / self.work.name):
            (folder / "cgroup.subtree_control").write_text(CONTROLLERS)
        archive = self.work / "verbs.tar"
        image.pack(archive, IMAGE, _files(self._busybox), command=["/bin/sh"])
        await self.load(archive)
        archive.unlink()
        await super().boot()


def _files(busybox: Path) -> dict[str, bytes | Path]:
    """Return an image's files: a shell, the program, and its libraries, the verbs provider's included."""
    verbs = BIN / "verbs"
    provider = f"{LIBRARIES}/libibverbs/librxe-rdmav34.so"
    places = ":".join(str(verbs / place) for place in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
    said = subprocess.run(
        [shutil.which("ldd") or "ldd", TOOL, verbs / provider[1:]],
        env={"LD_LIBRARY_PATH": places},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = {word for line in said.splitlines() if line.startswith("\t") for word in line.split() if word[0] == "/"}
    libraries = {f"{LIBRARIES}/{Path(word).name}": Path(word) for word in words if "ld-linux" not in word}
    loader = next(Path(word) for word in words if "ld-linux" in word)
    return {
        **{f"{name}/": b"" for name in ("bin", "dev", "proc", "sys", "tmp")},
        "bin/sh": busybox,
        "bin/busybox": busybox,
        str(loader): loader.resolve(),
        **libraries,
        provider: verbs / provider[1:],
        "etc/libibverbs.d/rxe.driver": verbs / "etc/libibverbs.d/rxe.driver",
        "bin/ibv_rc_pingpong": TOOL,
    }


@pytest.fixture(scope="module", autouse=True)
def _adapter() -> Iterator[None]:
    do("ip", "address", "add", f"{ADDRESS}/24", "dev", "eth0")
    do("ip", "link", "set", "eth0", "up")
    do("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    yield
    do("rdma", "link", "del", "rxe0")


def _gid() -> int:
    """Return the index of the adapter's GID for the IPv4 address."""
    wanted = "0000:0000:0000:0000:0000:ffff:" + ":".join(
        "".join(f"{int(part):02x}" for part in pair) for pair in (ADDRESS.split(".")[:2], ADDRESS.split(".")[2:])
    )
    gids = kdp.hardware.Host().directory("/sys/class/infiniband/rxe0/ports/1/gids")
    return next(number for number in range(8) if gids.text(str(number)).value == wanted)


async def test_two_pods_speak_rdma_over_the_adapter_that_the_plugin_gave_them(figure: Figure) -> None:
    ping = f"/bin/ibv_rc_pingpong -d $RDMA_DEVICES -g {_gid()} -n 100"
    looks = "/bin/busybox ls /dev/infiniband; "
    began = time.monotonic()
    async with Node() as kubelet:
        figure("containerd and the kubelet are up", time.monotonic() - began, "s")
        backend = Rdma(kdp.hardware.Host(), mode="hca", slots=3)
        backend.poll_interval = 3600
        async with PluginManager([backend], ManagerOptions(paths=kubelet.paths)):
            await kubelet.until(
                lambda: "totalCount=3 healthyCount=3" in kubelet.log("kubelet"), "three slots", seconds=DEADLINE
            )
            began = time.monotonic()
            kubelet.put("server", {RESOURCE: 1}, f"{looks}{ping}; echo ended $?")
            await kubelet.until_said(
                "server", "uverbs0", seconds=DEADLINE
            )  # what the program says it keeps until its end
            figure("a pod has its adapter's nodes after its manifest", time.monotonic() - began, "s")
            kubelet.put("client", {RESOURCE: 1}, f"{looks}{ping} {ADDRESS}; echo ended $?")
            for pod in ("server", "client"):
                said = await kubelet.until_said(pod, "ended", seconds=DEADLINE)
                assert "ended 0" in said, said
                assert "100 iters in" in said, said
                assert {"uverbs0", "rdma_cm"} <= {*said.split()}
            figure("two pods have exchanged 100 messages after", time.monotonic() - began, "s")
            print(kubelet.said("client"))

            # The third slot is of the same adapter: with the port down no pod gets it.
            began = time.monotonic()
            await anyio.to_thread.run_sync(do, "ip", "link", "set", "eth0", "down")
            await kubelet.until(
                lambda: "totalCount=3 healthyCount=0" in kubelet.log("kubelet"), "no slot is healthy", seconds=DEADLINE
            )
            figure("a real kubelet's list after ip link set eth0 down", time.monotonic() - began, "s")
            kubelet.put("late", {RESOURCE: 1}, "true")
            refused = (await kubelet.until_pod("late", "Failed", seconds=DEADLINE))["status"]
            assert refused["reason"] == "UnexpectedAdmissionError"
