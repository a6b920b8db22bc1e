"""The values that a class keeps (`DeviceBackend.store`), in processes and in tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from typing_extensions import override

import kdp
from kdp.testing import SimulatedKubelet, SysfsTree
from kdp_testkit.dra.cluster import SimulatedCluster

Start = Callable[..., AbstractAsyncContextManager[Any]]

RESOURCE = "example.com/pump"

PUMPS = """
import kdp
import kdp.hardware

class Pumps(kdp.DeviceBackend):
    resource = "example.com/pump"

    def __init__(self, host: kdp.hardware.Host, leaks: bool = False) -> None:
        self.leaks = leaks

    def discover(self):
        if self.leaks:
            self.store["latched"] = ["a"]
        health = kdp.Health.unhealthy("it has leaked") if self.store.get("latched") else kdp.Health.healthy()
        return [kdp.Device(id="a", health=health)]
"""


class Counted(kdp.DeviceBackend):
    resource = RESOURCE

    @override
    def discover(self) -> list[kdp.Device]:
        self.store["times"] = self.store.get("times", 0) + 1
        return [kdp.Device(id="a")]


async def test_a_latched_fault_was_forgotten_where_the_kubelet_is_in_its_usual_place(
    start: Start, kubelet: SimulatedKubelet
) -> None:
    """The tests' kubelets are elsewhere, so that the names of the files differed."""
    usual = {"KDP_KUBELET_ROOT": "/var/lib/kubelet"}
    async with start(PUMPS, "Pumps", "--set", "leaks=true", **usual):
        await kubelet.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 0})
    async with start(PUMPS, "Pumps", **usual) as plugin:
        await kubelet.until(streaming=RESOURCE)
        await kubelet.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 0})
        assert "set aside" not in plugin.log


def test_a_command_wrote_another_nodes_faults_into_the_store_of_this_node(tmp_path: Path) -> None:
    (tmp_path / "pumps.py").write_text(PUMPS)
    tree = SysfsTree(tmp_path / "node")
    tree.write("/sys/class/pump/a/leaks", 1)
    tree.save(tmp_path / "node.tar.gz")
    state = tmp_path / "state"
    environment = {**os.environ, "KDP_STATE_DIR": str(state)}

    def devices(*options: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "kdp", "devices", "pumps.py:Pumps", "--discover", "--format=json", *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        (found,) = json.loads(done.stdout)["resources"][RESOURCE]
        return dict(found)

    assert devices("--set=leaks=true")["health"] != "Healthy"
    assert devices("--set=leaks=true", "--snapshot=node.tar.gz")["health"] != "Healthy"
    assert not [*state.glob("*.store.json")]
    assert devices()["health"] == "Healthy"


async def test_a_tests_kubelet_kept_no_values(kubelet: SimulatedKubelet, cluster: SimulatedCluster) -> None:
    first, later = Counted(), Counted()
    async with kubelet.serving(first):
        await kubelet.until(allocatable={RESOURCE: 1})
    async with kubelet.serving(later):
        await kubelet.until(allocatable={RESOURCE: 1})
    assert later.store["times"] >= 2

    driver, again = Counted(), Counted()
    async with cluster.serving(driver):
        assert await cluster.devices()
    async with cluster.serving(again):
        assert again.store["times"] >= 2
