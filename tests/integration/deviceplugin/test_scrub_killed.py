"""Pods write secrets on devices and look for those of others, while the plugin is killed again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from kdp.testing import AdmissionError, AdmittedPod, ContainerStartError, Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

RESOURCE = "example.com/scratch"
PROGRAM = Path(__file__).parents[2] / "node/scratches.py"
SEED = int(os.environ.get("KDP_TEST_SEED", "0"))


class Node:
    """Pods on scratch directories. Who has a directory while another one comes shares its epoch with that one."""

    def __init__(self, kubelet: SimulatedKubelet, folder: Path, mode: str) -> None:
        self.kubelet = kubelet
        self.folder = folder
        self.mode = mode
        self.pods: list[AdmittedPod] = []
        self.epochs: dict[str, int] = {}
        self.leaks: list[str] = []
        self.process = self.spawn()

    def spawn(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.folder), "2", "0.0", self.mode, str(self.kubelet.paths.device_plugin_dir.parent)]
        return subprocess.Popen([sys.executable, PROGRAM, *arguments], stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    @staticmethod
    def place(pod: AdmittedPod) -> str:
        return pod.devices(RESOURCE)[0].partition("::")[0]

    async def admit(self) -> AdmittedPod:
        """Admit a pod as soon as a device is free; the plugin may just be starting."""
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    pod = await self.kubelet.admit(Pod.asking({RESOURCE: 1}), start=False)
                except AdmissionError:
                    await anyio.sleep(0.02)
                    continue
                self.pods.append(pod)
                return pod

    async def start(self, pod: AdmittedPod) -> None:
        """Start its container as often as it takes, and look what is there."""
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    await self.kubelet.start_container(pod.pod)
                    break
                except ContainerStartError:
                    await anyio.sleep(0.05)
        place = self.place(pod)
        secret, epoch = self.folder / place / "secret", str(self.epochs.setdefault(place, 0))
        if secret.exists() and secret.read_text() != epoch:
            self.leaks.append(f"{place}, epoch {epoch}: a secret of epoch {secret.read_text()}")
        secret.write_text(epoch)

    async def end(self, pod: AdmittedPod) -> None:
        self.pods.remove(pod)
        await self.kubelet.delete(pod.pod)
        if self.place(pod) not in map(self.place, self.pods):
            self.epochs[self.place(pod)] = self.epochs.get(self.place(pod), 0) + 1


@pytest.mark.parametrize("mode", ["plugin", "shared"])
@pytest.mark.parametrize("pods", [20, pytest.param(500, marks=pytest.mark.slow)])
async def test_no_pod_finds_a_secret_whenever_the_plugin_is_killed(
    kubelet: SimulatedKubelet, tmp_path: Path, mode: str, pods: int
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - no secret
    began = time.monotonic()
    node = Node(kubelet, tmp_path, mode)
    kills = 0
    try:
        await kubelet.until(streaming=RESOURCE)
        for _ in range(pods):
            pod = await node.admit()
            if rng.random() < 0.15:
                kills += 1
                node.kill()
                node.process = node.spawn()
            await node.start(pod)
            while len(node.pods) > rng.choice([0, 0, 1, 1]):
                await node.end(rng.choice(node.pods))
    finally:
        node.kill()
    print(f"{pods} pods, {kills} kills, {time.monotonic() - began:.0f} s")
    assert node.leaks == []
