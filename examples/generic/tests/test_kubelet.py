"""The whole way: a configuration file, real device nodes, kdp, and a kubelet. No test here polls."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

import kdp
import kdp.hardware
from kdp.testing import Pod, SimulatedKubelet
from kdp_example_generic import Generic

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

Figure = Callable[[str, float], None]

BURST = 0.2
"""Seconds of quiet before what is measured: kdp answers the first change at once and puts together those of a burst."""


@contextlib.contextmanager
def _terminal() -> Generator[str]:
    leader, follower = os.openpty()
    try:
        yield os.ttyname(follower)
    finally:
        os.close(leader)
        os.close(follower)


def _config(path: Path, resources: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "new").write_text(f"resources: [{resources}]")
    (path / "new").replace(path / "config.yaml")
    return path / "config.yaml"


PTS = "{name: example.com/terminal, groups: [{paths: [{regex: '/dev/pts/(?P<n>[0-9]+)', mountPath: '/dev/tty{n}'}]}]}"


async def test_a_real_terminal_is_admitted_unplugged_and_plugged_in_again(tmp_path: Path, figure: Figure) -> None:
    resource = "example.com/terminal"

    def is_offered(terminal: str) -> bool:
        entry = kubelet.devices(resource).get(f"terminal-pts-{terminal.rpartition('/')[2]}")
        return entry is not None and entry.health == "Healthy"

    with _terminal() as first:
        backend = Generic(_config(tmp_path / "config", PTS), kdp.hardware.Host())
        async with SimulatedKubelet() as kubelet, kubelet.serving(backend, poll_interval=3600):
            await kubelet.until(registered=resource, streaming=resource)
            await kubelet.until(lambda: is_offered(first))

            await anyio.sleep(BURST)
            with _terminal() as second:
                start = time.perf_counter()
                await kubelet.until(lambda: is_offered(second))
                figure("a new terminal reaches the kubelet after", (time.perf_counter() - start) * 1000)
                pod = await kubelet.admit(Pod.asking({resource: kubelet.allocatable()[resource]}))
                nodes = {node.host_path: node.container_path for node in pod.reply("main").devices}
                assert nodes[second] == second.replace("/pts/", "/tty")
                await anyio.sleep(BURST)
            start = time.perf_counter()
            await kubelet.until(lambda: not is_offered(second))
            figure("an unplugged terminal reaches the kubelet after", (time.perf_counter() - start) * 1000)


async def test_a_changed_file_brings_and_takes_resources(tree: Tree, tmp_path: Path, figure: Figure) -> None:
    if not tree.real_nodes:
        pytest.skip("a node that kdp takes for a device needs the right to make it (CAP_MKNOD)")
    one = "{name: example.com/one, groups: [{paths: [{path: /dev/one}]}]}"
    two = "{name: example.com/two, groups: [{count: 3, paths: [{path: /dev/two}]}]}"
    tree.node("/dev/one", "/dev/two")
    backend = Generic(_config(tmp_path / "config", one), tree.host)
    async with SimulatedKubelet() as kubelet, kubelet.serving(backend, host=tree.host, poll_interval=3600):
        await kubelet.until(allocatable={"example.com/one": 1})

        await anyio.sleep(BURST)
        start = time.perf_counter()
        _config(tmp_path / "config", f"{one}, {two}")
        await kubelet.until(allocatable={"example.com/one": 1, "example.com/two": 3})
        figure("a new resource in the file reaches the kubelet after", (time.perf_counter() - start) * 1000)

        assert kubelet.streams("example.com/one") == 1
