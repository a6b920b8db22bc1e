"""What changes is seen by inotify: no test here polls, and the times are printed.

`Node` does what kdp does with a backend, no more: one discovery at the start, and one for each `rescan`.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

import kdp
import kdp.hardware
from kdp_example_generic import Generic

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

Figure = Callable[[str, float], None]

DEADLINE = 5.0
"""Seconds; the target is a tenth of one."""


class Node:
    """A reporter, and the devices of the newest discovery."""

    def __init__(self, backend: Generic) -> None:
        self.backend = backend
        self.stopping = threading.Event()
        self.devices: list[kdp.Device] = []
        self.discoveries = 0
        self._asked = anyio.Event()
        self._changed = anyio.Event()

    def rescan(self) -> None:
        self._asked.set()

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        raise AssertionError("the backend reports no faults")

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        raise AssertionError("the backend reports no faults")

    async def discoveries_on_demand(self) -> None:
        while True:
            self.devices = await anyio.to_thread.run_sync(self.backend.discover)
            self.discoveries += 1
            self._changed.set()
            self._changed = anyio.Event()
            await self._asked.wait()
            self._asked = anyio.Event()

    @property
    def ids(self) -> list[str]:
        return [device.id for device in self.devices]

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait until the condition holds, and return how long it took in milliseconds."""
        start = time.perf_counter()
        with anyio.fail_after(DEADLINE):
            while not condition():
                await self._changed.wait()
        return (time.perf_counter() - start) * 1000

    async def quiet(self) -> None:
        """Wait until the backend has armed its watches: its first rescan was answered."""
        await self.until(lambda: self.discoveries >= 2)


@contextlib.asynccontextmanager
async def _running(backend: Generic) -> AsyncGenerator[Node]:
    node = Node(backend)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.discoveries_on_demand)
        await node.until(lambda: node.discoveries == 1)
        tasks.start_soon(backend.watch, node)
        await node.quiet()
        yield node
        tasks.cancel_scope.cancel()


def _config(path: str, name: str = "example.com/widget") -> str:
    return f"resources: [{{name: {name}, groups: [{{id: '{{name}}', paths: [{{path: '{path}'}}]}}]}}]"


async def test_a_new_node_and_one_that_goes_are_seen(
    tree: Tree, backend: Callable[[str], Generic], figure: Figure
) -> None:
    tree.directory("/dev")
    async with _running(backend(_config("/dev/widget*"))) as node:
        tree.node("/dev/widget0")
        came = await node.until(lambda: node.ids == ["widget0"])
        tree.remove("/dev/widget0")
        went = await node.until(lambda: not node.ids)

    figure("a new node is discovered after", came)
    figure("a node that went is missed after", went)


async def test_a_node_in_directories_that_do_not_exist_yet_is_seen(
    tree: Tree, backend: Callable[[str], Generic], figure: Figure
) -> None:
    async with _running(backend(_config("/dev/a/b/c/widget*"))) as node:
        tree.node("/dev/a/b/c/widget0")
        came = await node.until(lambda: node.ids == ["widget0"])
        shutil.rmtree(tree.root / "dev/a")
        tree.stand_ins.clear()
        went = await node.until(lambda: not node.ids)
        tree.node("/dev/a/b/c/widget1")
        again = await node.until(lambda: node.ids == ["widget1"])

    figure("a node below three new directories is discovered after", came)
    figure("its directories gone, it is missed after", went)
    figure("it is discovered again after", again)


async def test_a_link_on_the_way_that_leads_elsewhere_left_the_watch_deaf(
    tree: Tree, backend: Callable[[str], Generic]
) -> None:
    tree.node("/dev/real/widget0", "/dev/other/widget1")
    tree.link("/dev/alias", "real")
    async with _running(backend(_config("/dev/alias/widget*"))) as node:
        tree.link("/dev/draft", "other")
        (tree.root / "dev/draft").rename(tree.root / "dev/alias")
        await node.until(lambda: node.ids == ["widget1"])
        tree.node("/dev/other/widget2")
        await node.until(lambda: node.ids == ["widget1", "widget2"])


async def test_a_directory_above_that_is_renamed_left_the_watch_deaf(
    tree: Tree, backend: Callable[[str], Generic]
) -> None:
    tree.node("/dev/a/b/widget0")
    async with _running(backend(_config("/dev/a/b/widget*"))) as node:
        (tree.root / "dev/a").rename(tree.root / "dev/gone")
        await node.until(lambda: not node.ids)
        tree.node("/dev/a/b/widget1")
        await node.until(lambda: node.ids == ["widget1"])


async def test_a_burst_of_nodes_is_few_discoveries_and_all_are_found(
    tree: Tree, backend: Callable[[str], Generic], figure: Figure
) -> None:
    tree.directory("/dev")
    async with _running(backend(_config("/dev/widget*"))) as node:
        before = node.discoveries
        tree.node(*(f"/dev/widget{i}" for i in range(200)))
        took = await node.until(lambda: len(node.ids) == 200)

        assert node.discoveries < before + 50
        figure(f"200 nodes at once are discovered, in {node.discoveries - before} discoveries, after", took)


async def test_a_config_map_that_is_swapped_is_in_force(tree: Tree, tmp_path: Path, figure: Figure) -> None:
    tree.node("/dev/widget0", "/dev/gadget0")
    volume = tmp_path / "volume"

    def publish(version: str, text: str) -> None:
        """Do what the kubelet does with a ConfigMap: a new directory, and one rename of a link to it."""
        old = (volume / "..data").resolve() if (volume / "..data").exists() else None
        (volume / version).mkdir(parents=True)
        (volume / version / "config.yaml").write_text(text)
        (volume / "..data_tmp").symlink_to(version)
        (volume / "..data_tmp").replace(volume / "..data")
        if old is not None:
            shutil.rmtree(old)

    publish("..2026_01_01", _config("/dev/widget*"))
    (volume / "config.yaml").symlink_to("..data/config.yaml")
    async with _running(Generic(volume / "config.yaml", tree.host)) as node:
        assert node.ids == ["widget0"]
        publish("..2026_01_02", _config("/dev/gadget*", "example.com/gadget"))
        took = await node.until(lambda: node.ids == ["gadget0"])
        # The directory of the new resource is watched as well, and the next swap is seen.
        tree.node("/dev/gadget1")
        await node.until(lambda: node.ids == ["gadget0", "gadget1"])
        publish("..2026_01_03", _config("/dev/*dget0"))
        await node.until(lambda: node.ids == ["gadget0", "widget0"])

    figure("a swapped ConfigMap is in force after", took)


async def test_where_inotify_is_refused_it_says_so_once_and_polling_goes_on(
    tree: Tree, backend: Callable[[str], Generic], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree.directory("/dev")

    def refuse(watch: kdp.hardware.DirectoryWatch, directory: str, *, writes: bool = False) -> bool:
        watch.refused = "inotify is refused: no space left on device"
        return False

    monkeypatch.setattr(kdp.hardware.DirectoryWatch, "watch", refuse)
    async with _running(backend(_config("/dev/widget*"))) as node:
        tree.node("/dev/widget0")
        node.rescan()
        await node.until(lambda: node.ids == ["widget0"])

    assert [record.getMessage() for record in caplog.records] == [
        "inotify is refused: no space left on device; new nodes are seen every 5.0 s"
    ]
