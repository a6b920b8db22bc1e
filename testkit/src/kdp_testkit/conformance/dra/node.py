"""The node of a check of a DRA driver: simulated API server, simulated kubelet, and their directories."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from kdp.kubelet.paths import KubeletPaths

from ...dra import objects
from ...dra.kubeconfig import write_kubeconfig
from ...dra.server import SimulatedApiServer
from ...events import PluginInfoReceived
from .scene import NODE, DraScene, dra_kubelet
from .subject import DraNode, DraSubject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from ...events import Event

NODES = "/api/v1/nodes"


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
    await server.ask("POST", NODES, objects.node(NODE))  # it is there before its kubelet
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
