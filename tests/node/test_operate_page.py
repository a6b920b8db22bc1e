"""docs/how-to/operate.md in a real cluster: each of its commands as it stands there, in the page's order.

The test is the administrator: it types what the page says, with the real kubectl and the command kdp, into one shell,
and compares what is printed with what the page shows. Between two blocks it is the rest of the world: it breaks what
the page mends, and has a pod that holds a device.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from tests.docs.blocks import ROOT, Block, blocks_of, differences

from kdp.kubelet.sockets import PREFIX
from kdp_testkit.patience import PATIENCE

from .backend import Figure
from .conftest import MakeCluster
from .deploy import IMAGE
from .nodekit import Cluster
from .nodekit.image import STAY
from .nodekit.machine import IMAGE as BUSYBOX
from .nodekit.tools import tool
from .test_manifests import required

PAGE: Final = ROOT / "docs/how-to/operate.md"
REPOSITORY: Final = "registry.example.com/kdp-example-minimal"
RELEASES: Final = ("0.1.0", "0.1.1")
"""The tags of the page's image that a node can have."""

RESOURCE: Final = "example.com/fuse"
NAME: Final = "kdp-minimal"
HOLDER: Final = "trainer-0"


LOOKS: Final = re.compile(
    r"kubectl .*\b(get|describe|logs|history|debug) |kubectl .* exec .* -- (kdp (probe|status|doctor)|cat) ?|kdp nodes"
)
"""Commands that change nothing."""

SHELL: Final = """\
cd {folder} || exit
[ ! -f .shell ] || . ./.shell
{{
{command}
}} 2>&1
code=$?
{{ declare -p NODE; declare -f pod; }} > .shell 2> /dev/null
printf '\\0%s' "$code"
"""
"""One command. What the page has the reader define lives on, as in a terminal."""


@attrs.define
class Administrator:
    """Reads the page, and does what it says.

    Attributes:
        cluster: Where.
        folder: The directory of the shell.
        page: Which page.
        left: The blocks that are still to be read.
    """

    cluster: Cluster
    folder: Path
    page: Path = PAGE
    left: list[Block] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.left = blocks_of(self.page)

    async def read(self, section: str, blocks: int | None = None) -> None:
        """Do the next blocks of a section; None: the rest of it."""
        done = 0
        while self.left and self._section(self.left[0]) == section and done != blocks:
            await self._do(self.left.pop(0))
            done += 1
        assert done == blocks or (blocks is None and done), f"{section}: {done} blocks were read"

    def _section(self, block: Block) -> str:
        above = self.page.read_text().splitlines()[: block.line]
        return next((line[3:] for line in reversed(above) if line.startswith("## ")), "")

    async def _do(self, block: Block) -> None:
        if "file" in block.marks:
            (self.folder / block.marks["file"]).write_text(block.text)
            return
        assert block.language == "console", f"{block.where}: a block of {block.language} without a file's name"
        nothing, *commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        assert not nothing, f"{block.where}: a console block begins with '$ '"
        for position, each in enumerate(commands):
            command, _, shown = each.partition("\n")
            is_last = position == len(commands) - 1
            code = int(block.marks.get("exit", "0")) if is_last else 0
            await self._type(f"{block.where}: {command}", command, code, shown)

    async def _type(self, where: str, command: str, code: int, shown: str) -> None:
        until = time.monotonic() + (PATIENCE if LOOKS.match(command) else 0.0)
        while True:
            got, printed = await self._run(command)
            wrong = differences(shown, printed) if shown.strip() else []
            if got != code:
                wrong = [f"exit code {got}, not {code}", *wrong]
            if not wrong:
                return
            assert time.monotonic() < until, "\n".join([where, *wrong, "", printed])
            await asyncio.sleep(0.3)

    async def _run(self, command: str) -> tuple[int, str]:
        script = SHELL.format(folder=self.folder, command=command)
        settings = ("COLUMNS=120", "NO_COLOR=1", "PYTHONDONTWRITEBYTECODE=1")
        printed = await self.cluster.run("env", *settings, "bash", "-o", "pipefail", "-c", script)
        text, _, code = printed.rpartition("\0")
        return int(code), text


def equipped(made: Cluster) -> Cluster:
    """Have the commands kubectl and kdp in a cluster's shell."""
    (made.work / "bin/kubectl").symlink_to(tool("kubectl"))
    command = made.work / "bin/kdp"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kdp "$@"\n')
    command.chmod(0o755)
    return made


@pytest.fixture
async def cluster(make_cluster: MakeCluster, generic_image: Path) -> Cluster:
    """A cluster of its own, because the page says what else there is: commands, and an image with two tags."""
    required("/dev/fuse")
    made = equipped(await make_cluster())
    await made.load(generic_image)
    for release in RELEASES:
        await made.ctr("images", "tag", IMAGE, f"{REPOSITORY}:{release}")
    return made


def holder() -> dict[str, Any]:
    """Return what has a pod with one device, which its controller makes again: it is `HOLDER`."""
    name = HOLDER.removesuffix("-0")
    labels = {"app": name}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f": <> /dev/fuse && echo opened; {STAY}"],
        "resources": {"limits": {RESOURCE: "1"}},
    }
    spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def container_of(cluster: Cluster) -> tuple[str, int]:
    """Return which container the holder has, and how often it was started again."""
    [status] = (await cluster.until_pod(HOLDER, "Running"))["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


@asynccontextmanager
async def without_kubelets_socket(cluster: Cluster) -> AsyncIterator[None]:
    """Have no kubelet.sock, and a plugin that was started after it had gone."""
    path = cluster.paths.kubelet_socket
    path.rename(path.with_name("kubelet.gone"))
    try:
        selector = f"app.kubernetes.io/name={NAME}"
        for pod in await cluster.list("v1/pods", namespace="kube-system", selector=selector):
            await cluster.delete("v1/pods", pod["metadata"]["name"], namespace="kube-system")
        await cluster.until_said(f"{NAME}-*", "there is no kubelet.sock", namespace="kube-system")
        yield
    finally:
        path.with_name("kubelet.gone").rename(path)


@asynccontextmanager
async def broken_devices(cluster: Cluster) -> AsyncIterator[None]:
    """Have the plugin see a plain file in the place of the device node; pods that run have theirs."""
    [pod] = await cluster.list("v1/pods", namespace="kube-system", selector=f"app.kubernetes.io/name={NAME}")
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    [line] = [each for each in (await cluster.ctr("tasks", "list")).splitlines() if each.startswith(container)]
    inside = ("nsenter", f"--target={line.split()[1]}", "--mount", "/bin/busybox")
    await cluster.run(*inside, "mount", "--bind", "/etc/kdp/config.yaml", "/dev/fuse")
    try:
        yield
    finally:
        await cluster.run(*inside, "umount", "/dev/fuse")


async def until_given_back(cluster: Cluster, times: int) -> None:
    """Wait for the plugin to note so many pods' ends: it notes none if the device is given to the next pod before."""
    await cluster.until_said(f"{NAME}-*", "given back: ", times=times, namespace="kube-system")


@asynccontextmanager
async def gaps(cluster: Cluster) -> AsyncIterator[list[float]]:
    """Find for how long no plugin has a socket beside the kubelet's; the longest time is the last of the list."""
    found: list[float] = []

    async def look() -> None:
        since: float | None = None
        while True:
            if any(cluster.paths.device_plugin_dir.glob(f"{PREFIX}*.sock")):
                since = None
            else:
                since = since or time.monotonic()
                found.append(time.monotonic() - since)
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield found
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        found.sort()


async def test_every_command_of_the_page_does_what_the_page_says(cluster: Cluster, figure: Figure) -> None:
    folder = cluster.work / "run/page"
    folder.mkdir()
    admin = Administrator(cluster, folder)

    await admin.read("")
    await cluster.apply(holder())
    held = await container_of(cluster)
    await admin.read("1. Is it serving?")

    await admin.read("2. Read `/readyz`", 1)
    async with without_kubelets_socket(cluster):
        await admin.read("2. Read `/readyz`")
    await cluster.until_rolled_out(NAME, namespace="kube-system")

    await admin.read("3. Change the configuration")
    async with gaps(cluster) as seen:
        await admin.read("4. Update the image")
    assert seen
    figure("cluster: no plugin is there while it is updated", seen[-1], "s")
    await admin.read("5. Try a version on some nodes first")
    await admin.read("6. Roll back")
    assert await container_of(cluster) == held, "a pod that runs notices nothing of all that"

    async with broken_devices(cluster):
        await admin.read("7. Service a node", 2)
        await until_given_back(cluster, 1)
    await cluster.until_pod(HOLDER, "Running")
    await admin.read("7. Service a node", 1)
    await until_given_back(cluster, 2)
    await admin.read("7. Service a node")
    await admin.read("8. Debug")
    await cluster.delete("apps/v1/statefulsets", "trainer", namespace="default")
    await cluster.clear_pods("default")
    await admin.read("9. Uninstall")
    assert not admin.left, "sections that this test does not read"
    assert not [*(cluster.work / "lib/kdp").iterdir()]
