"""kubernetes#137534 on the real device managers: no List of kdp makes the kubelet give a device to two pods."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import grpc.aio
import pytest
from anyio.abc import TaskStatus
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.dra.holders import ClaimHolders
from kdp.kubelet import list_guard
from kdp.kubelet.podresources import PodResources, rival_pods
from kdp.kubelet.server import open_channel
from kdp.testing import AdmissionError, AdmittedPod, Pod

from . import slow_plugin
from .backend import RESOURCE, eventually, running
from .nodekit import DeviceManager
from .test_release import QUICK

IDS = [f"w{n}" for n in range(slow_plugin.DEVICES)]

List = Callable[[], Awaitable[object]]
"""Have a List sent, or learn that the guard keeps it from being sent."""


class Watching(slow_plugin.Slow):
    """Widgets whose plugin owes the news of each release, so it Lists."""

    @override
    def released(self, devices: kdp.Allocation) -> None:
        pass


async def twice(devmgr: DeviceManager, directory: Path, lister: List, *, between: List | None = None) -> set[str]:
    """Return the devices that two pods got, because a List came while an Allocate ran and a pod had ended.

    ``between`` runs before the second pod is admitted.
    """
    first = await devmgr.admit(Pod.asking({RESOURCE: 1}))
    admitted: dict[str, AdmittedPod] = {}

    async def admit_slowly() -> None:
        admitted["slow"] = await devmgr.admit(Pod.asking({RESOURCE: 3}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admit_slowly)
        await eventually((directory / "entered").exists)
        await devmgr.delete(first.pod)
        await lister()
        (directory / "go-on").touch()
    if between is not None:
        await between()
    further = await devmgr.admit(Pod.asking({RESOURCE: 5}))
    return {*admitted["slow"].devices(RESOURCE)} & {*further.devices(RESOURCE)}


@asynccontextmanager
async def slow_process(devmgr: DeviceManager, directory: Path) -> AsyncIterator[None]:
    root = devmgr.paths.device_plugin_dir.parent
    process = subprocess.Popen([sys.executable, slow_plugin.__file__, root, directory])  # noqa: ASYNC220 - does not wait
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def unguarded(devmgr: DeviceManager) -> None:
    """List as another program of the node does."""
    async with open_channel(devmgr.paths.pod_resources_socket) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/v1.PodResourcesLister/List")
        await call(b"")


async def test_a_list_of_another_program_gives_a_device_to_two_pods(
    devmgr: DeviceManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So the other tests would notice. kdp names both pods, and offers the device to nobody until one has ended."""
    async with running(devmgr.paths, Watching(tmp_path), pace=QUICK) as manager:
        await devmgr.until(allocatable={RESOURCE: len(IDS)})
        both = await twice(devmgr, tmp_path, lambda: unguarded(devmgr))
        assert both
        await eventually(lambda: {*manager.status().resources[RESOURCE].doubles} == both)
        await devmgr.until(allocatable={RESOURCE: len(IDS) - len(both)})
        async with PodResources(devmgr.paths.pod_resources_socket).connect() as calls:
            report = await calls.list()
        pods = {rival_pods(report.holders[RESOURCE, device_id]) for device_id in both}
        [(one, other)] = pods
        assert f"two pods, {one[0]}/{one[1]} and {other[0]}/{other[1]}" in caplog.text
        await devmgr.delete(next(pod for pod in devmgr.pods.values() if (pod.namespace, pod.name) == one))
        await devmgr.until(allocatable={RESOURCE: len(IDS)})
        assert not manager.status().resources[RESOURCE].doubles


async def test_a_device_of_a_pod_that_a_list_has_named_is_given_to_no_second_pod(
    devmgr: DeviceManager, tmp_path: Path
) -> None:
    """Get says so when the second Allocate comes, and the failed Allocate mends the kubelet's table."""
    async with running(devmgr.paths, Watching(tmp_path), pace=QUICK) as manager:
        await devmgr.until(allocatable={RESOURCE: len(IDS)})

        async def refuse() -> None:
            await eventually(lambda: len(manager.holders(RESOURCE) or {}) == 3)
            with pytest.raises(AdmissionError, match=r"is held by default/\S+, and the kubelet gave it to a second"):
                await devmgr.admit(Pod.asking({RESOURCE: 5}))

        assert not await twice(devmgr, tmp_path, lambda: unguarded(devmgr), between=refuse)


@pytest.mark.parametrize("lister", ["this plugin", "another plugin", "the same plugin", "a DRA driver"])
async def test_kdp_lists_during_no_allocate(
    devmgr: DeviceManager,
    tmp_path: Path,
    lister: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(list_guard, "PATIENCE", 0.2)

    async def wants_to_list() -> None:
        await eventually(lambda: "Allocates have run on this node" in caplog.text)

    manager: PluginManager
    async with anyio.create_task_group() as tasks:
        if lister == "a DRA driver":
            tasks.start_soon(ClaimHolders(devmgr.paths.pod_resources_socket, "node", period=0.05).run)
        else:
            own = "example.com/other" if lister == "another plugin" else RESOURCE

            async def run(*, task_status: TaskStatus[PluginManager]) -> None:
                async with running(devmgr.paths, Watching(tmp_path, own), pace=QUICK) as manager:
                    await devmgr.until(allocatable={own: len(IDS)})
                    task_status.started(manager)
                    await anyio.sleep_forever()

            manager = await tasks.start(run)
        if lister == "this plugin":
            assert not await twice(devmgr, tmp_path, wants_to_list)
        else:
            async with slow_process(devmgr, tmp_path):
                await devmgr.until(allocatable={RESOURCE: len(IDS)})
                if lister == "the same plugin":
                    await eventually(lambda: manager.status().resources[RESOURCE].rival)
                assert not await twice(devmgr, tmp_path, wants_to_list)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("command", ["devices", "doctor"])
async def test_no_command_lists_during_an_allocate(devmgr: DeviceManager, tmp_path: Path, command: str) -> None:
    """It gives up, or ends without a List, before the Allocate is answered."""
    (tmp_path / "widgets.py").write_text(
        "import kdp\n"
        "class Widgets(kdp.DeviceBackend):\n"
        f"    resource = {RESOURCE!r}\n"
        f"    def discover(self): return [kdp.Device(id=i) for i in {IDS!r}]\n"
    )
    root = devmgr.paths.device_plugin_dir.parent
    line = [sys.executable, "-m", "kdp", command, f"{tmp_path}/widgets.py:Widgets", "--kubelet-root", str(root)]
    if command == "doctor":
        line += ["--device-plugin-dir", str(devmgr.paths.device_plugin_dir)]
    said = b""

    async def run_command() -> None:
        nonlocal said
        done = await anyio.run_process(line, check=False, env={**os.environ, "KDP_STATE_DIR": str(tmp_path)})
        said = done.stdout + done.stderr

    async with slow_process(devmgr, tmp_path):
        await devmgr.until(allocatable={RESOURCE: len(IDS)})
        assert not await twice(devmgr, tmp_path, run_command)
    if command == "devices":
        assert b"Allocates have run on this node" in said
