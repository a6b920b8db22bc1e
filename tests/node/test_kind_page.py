"""docs/how-to/try-on-kind.md in a real cluster, with an image as the first tutorial's Dockerfile makes it.

Commands of kind, minikube, and Docker are left out: the cluster of the tests stands in for theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.docs.blocks import ROOT, blocks_of

from .conftest import MakeCluster
from .nodekit import Cluster, image
from .nodekit.machine import IMAGE as BUSYBOX
from .test_operate_page import Administrator, equipped

PAGE: Final = ROOT / "docs/how-to/try-on-kind.md"
NAME: Final = "registry.example.com/entropy:0.1.0"
BUSYBOX_OF_THE_PAGE: Final = "docker.io/library/busybox:1.37"


async def test_the_page_ends_with_a_pod_that_has_a_device(
    make_cluster: MakeCluster, system_layer: image.Layer, tmp_path: Path
) -> None:
    cluster: Cluster = equipped(await make_cluster())
    admin = Administrator(cluster, cluster.work / "run/page", PAGE)
    admin.folder.mkdir()
    admin.left = [each for each in blocks_of(PAGE) if "needs" not in each.marks.get("level", "")]
    [plugin] = [each.text for each in admin.left if each.marks.get("file") == "entropy.py"]
    files: dict[str, bytes | Path] = {
        "usr/bin/kdp": b'#!/bin/sh\nexec python3 -m kdp "$@"\n',
        "app/entropy.py": plugin.encode(),
    }
    archive = tmp_path / "entropy.tar"
    command = ["kdp", "run", "entropy.py:Entropy"]
    image.python(archive, NAME, ["kdp-sdk[cli]"], system_layer, command=command, files=files, directory="/app")
    await cluster.load(archive)
    await cluster.ctr("images", "tag", BUSYBOX, BUSYBOX_OF_THE_PAGE)

    for section in ("2. The plugin", "3. A pod", "4. A kubelet that restarts", "5. Clean up"):
        await admin.read(section)

    assert not admin.left
