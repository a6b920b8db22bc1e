"""Runs the checks of DRA drivers: each on a node of its own with a kubelet and an API server, some beside one another.

A driver that cannot be met is judged by failures that say what happened instead.
"""

from __future__ import annotations

import socket
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from kdp.kubelet.paths import KubeletPaths

from ...dra import objects
from ...dra.profiles import DEFAULT_PROFILE, profile_named
from ...dra.server import SimulatedApiServer, write_kubeconfig
from ...events import PluginInfoReceived
from ..runner import Progress, Runner
from .catalogue import CHECKS
from .scene import NODE, DraScene, dra_kubelet
from .subject import DraNode, DraSubject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from ...events import Event
    from ..checks import Check
    from ..reports import ConformanceReport


@asynccontextmanager
async def playing(
    subject: DraSubject,
    folder: Path,
    *,
    profile: str,
    patience: float = 1.0,
) -> AsyncGenerator[DraScene]:
    """Make a node with a kubelet and an API server, without a driver.

    Args:
        subject: The driver under test.
        folder: An empty directory for the node, with a short path.
        profile: Which Kubernetes.
        patience: Factor on every verdict's limit; for the kit's own tests.
    """
    scenes: list[DraScene] = []

    def listener(event: Event) -> None:
        """Look in the very moment in which the driver says where it can be called."""
        if isinstance(event, PluginInfoReceived) and scenes and scenes[0].endpoint_answered is None and event.endpoint:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                scenes[0].endpoint_answered = probe.connect_ex(event.endpoint) == 0

    server = SimulatedApiServer(profile)
    await server.ask("POST", objects.NODES, objects.node(NODE))  # it is there before its kubelet
    async with (
        server,
        dra_kubelet(server, folder / "k", profile=profile, listener=listener) as kubelet,
        anyio.create_task_group() as tasks,
    ):
        for name in ("cdi", "state"):
            (folder / name).mkdir()
        node = DraNode(
            name=NODE,
            paths=KubeletPaths.simulated(kubelet.root),
            kubeconfig=write_kubeconfig(folder, server.url),
            cdi=folder / "cdi",
            state=folder / "state",
        )
        try:
            scenes.append(DraScene(subject, node, kubelet, server, tasks, profile=profile, patience=patience))
            yield scenes[0]
        finally:
            server.faults.clear()
            tasks.cancel_scope.cancel()


_WIDTH = 4
"""So many checks run beside one another: each has a kubelet and an API server of its own."""


async def run_dra_checks(
    subject: DraSubject,
    *,
    profile: str = DEFAULT_PROFILE,
    only: Iterable[int] | None = None,
    skip: Iterable[int] = (),
    quick: bool = False,
    jobs: int | None = None,
    patience: float = 1.0,
    progress: Progress | None = None,
) -> ConformanceReport:
    """Run checks against a driver.

    Args:
        subject: The driver.
        profile: Which Kubernetes.
        only: Ids; default: all.
        skip: Ids to leave out.
        quick: Leave out those that must wait long.
        jobs: Number of parallel checks; default: 4.
        patience: Factor on every verdict's limit; for the kit's own tests.
        progress: Follows the run.

    Raises:
        ValueError: There is no such profile or check, or no check to run.
    """
    name = profile_named(profile).name
    runner = Runner(CHECKS, profile=name, only=only, skip=skip, quick=quick, progress=progress)
    await runner.judge_all(
        partial(_play, subject, name, patience), jobs=jobs or _WIDTH, shares_hardware=subject.shares_hardware
    )
    return runner.report()


async def _play(subject: DraSubject, profile: str, patience: float, check: Check[DraScene]) -> str:
    with tempfile.TemporaryDirectory(prefix="kdp-") as folder:
        async with playing(subject, Path(folder), profile=profile, patience=patience) as scene:
            await scene.start()
            await scene.wait_until_ready()
            return await check.play(scene)
    raise AssertionError
