"""`kdp uninstall --stay` in the pod of a driver: the pods that hold claims must be able to end."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import pytest
from tests.waiting import until

from kdp.kubelet import KubeletPaths
from kdp_testkit.dra.cluster import SimulatedCluster
from kdp_testkit.dra.pods import PodStopError
from kdp_testkit.dra.server import write_kubeconfig
from kdp_testkit.patience import PATIENCE

DRIVER = "slot.example.com"

SLOTS = """
from pathlib import Path
import kdp

class Slots(kdp.DeviceBackend):
    resource = "example.com/slot"
    def __init__(self, count: int = 1) -> None: self.count = count
    def discover(self): return kdp.Device.counted("slot", self.count, edits=kdp.ContainerEdits(env={"SLOT": "1"}))
    def released(self, devices): Path("released").touch()
"""


async def test_a_cleanup_of_a_driver_kept_its_pods_from_ending(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It replaced the driver by a process that waited for claims, which only a driver can unprepare."""
    root = tmp_path_factory.mktemp("d")  # short: a socket's whole path has 107 bytes
    (tmp_path / "slots.py").write_text(SLOTS)
    async with SimulatedCluster(root) as cluster:
        paths = KubeletPaths.simulated(cluster.kubelet.root)
        config = write_kubeconfig(tmp_path, cluster.server.url)
        environment = {
            **os.environ,
            "KDP_KUBECONFIG": str(config),
            "KDP_NODE_NAME": "node0",
            "KDP_KUBELET_ROOT": str(cluster.kubelet.root),
            "KDP_PLUGINS_REGISTRY_DIR": str(paths.plugins_registry_dir),
            "KDP_CDI_DIR": str(cluster.cdi),
            "KDP_STATE_DIR": str(tmp_path / "state"),
        }
        target = ("slots.py:Slots", "--set", "count=2")
        claims = paths.plugins_dir / DRIVER / "claims"
        with ExitStack() as ended:

            def run(*arguments: str) -> subprocess.Popen[bytes]:
                with (tmp_path / f"{arguments[0]}.log").open("wb") as log:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "kdp", *arguments],
                        cwd=tmp_path,
                        env=environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                ended.callback(process.wait)
                ended.callback(process.kill)
                return process

            driver = run("run", *target, "--mode=dra")
            await cluster.kubelet.until_registered(DRIVER)
            with anyio.fail_after(PATIENCE):
                while "slot-0" not in await cluster.devices():  # noqa: ASYNC110 - the API server tells by requests only
                    await anyio.sleep(0.01)
            pod = await cluster.pod("slot-0")
            await cluster.start(pod)
            assert any(claims.glob("*.json"))
            driver.terminate()
            assert driver.wait(PATIENCE) == 0

            cleanup = run("uninstall", *target, "--stay")
            with anyio.fail_after(PATIENCE):
                while True:
                    with suppress(PodStopError):  # as a kubelet, it tries again
                        await cluster.stop(pod)
                        break
                    await anyio.sleep(0.1)
            await until(lambda: not claims.parent.exists())
            assert (tmp_path / "released").exists()
            cleanup.terminate()
            assert cleanup.wait(PATIENCE) == 0
            said = (tmp_path / "uninstall.log").read_text()
            assert "pods hold claims: the driver serves until the last one is unprepared; end these pods" in said
            assert "staying until asked to stop" in said
            assert not any((tmp_path / "state").glob("*.lock"))
