"""Calls of a kubelet to a DRA driver, and a driver between a simulated API server and a simulated kubelet."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
from anyio.from_thread import start_blocking_portal

from kdp.kubelet import KubeletPaths
from kdp.proto import dra_v1_pb2 as pb
from kdp_testkit.dra import objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from pathlib import Path

    from .processes import Process

__all__ = ["ClaimCaller", "driver"]

_SERVICE: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_NAME: Final = "kdp.example.com"


class ClaimCaller:
    """Calls a driver as the kubelet does.

    Args:
        socket: The driver's socket.
        claims: The claims as a request has them, by the number of their devices.
    """

    def __init__(self, socket: Path, claims: Mapping[int, Any]) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")])
        grpc.channel_ready_future(self._channel).result(10.0)
        calls: list[Any] = []
        for method, message in (
            ("Prepare", pb.NodePrepareResourcesResponse),
            ("Unprepare", pb.NodeUnprepareResourcesResponse),
        ):
            calls.append(
                self._channel.unary_unary(f"{_SERVICE}Node{method}Resources", response_deserializer=message.FromString)
            )
        self._prepare, self._unprepare = calls
        self._claims = claims

    def time(self, count: int, times: int) -> list[float]:
        """Prepare and unprepare the claim with so many devices; return the seconds of each Prepare."""
        claim = self._claims[count]
        prepare = pb.NodePrepareResourcesRequest(claims=[claim]).SerializeToString()
        unprepare = pb.NodeUnprepareResourcesRequest(claims=[claim]).SerializeToString()
        found: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            answer = self._prepare(prepare).claims[claim.uid]
            found.append(time.perf_counter() - began)
            if answer.error or len(answer.devices) != count:
                raise RuntimeError(f"Prepare of {count} devices was answered: {answer}")
            if error := self._unprepare(unprepare).claims[claim.uid].error:
                raise RuntimeError(f"Unprepare was answered: {error}")
        return found

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


@contextmanager
def driver(root: Path, run: Callable[[list[str], Path], Process]) -> Generator[ClaimCaller]:
    """Run kdp's driver on a simulated node, and return the caller of a claim with one device.

    Args:
        root: An empty directory.
        run: Starts a command line below that directory.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_node(root)) as (command, ready),
        run(command, root),
    ):
        socket, claim = portal.call(ready)
        caller = ClaimCaller(socket, {1: claim})
        try:
            yield caller
        finally:
            caller.close()


@asynccontextmanager
async def _node(root: Path) -> AsyncGenerator[tuple[list[str], Callable[[], Any]]]:
    async with SimulatedApiServer() as server, SimulatedDraKubelet(server.ask, root) as kubelet:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        made = await server.ask("POST", _CLAIMS, objects.claim("one"))
        made["status"] = {"allocation": objects.allocation([objects.result(_NAME, "w0")])}
        await server.ask("PUT", f"{_CLAIMS}/one/status", made)

        async def ready() -> tuple[Path, Any]:
            await kubelet.until_registered(_NAME)
            [socket] = (KubeletPaths.simulated(root).plugins_dir / _NAME).glob("[!.]*.sock")
            return socket, pb.Claim(namespace="default", name="one", uid=made["metadata"]["uid"])

        options = {
            "mode": "dra",
            "node-name": "node0",
            "poll-interval": "none",
            "kubelet-root": root,
            "kubeconfig": write_kubeconfig(root, server.url),
            "state-dir": root / "state",
            "cdi-dir": root / "cdi",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        yield [sys.executable, "-m", "kdp", "run", "benchmarks.programs.dra_devices:Devices", *words], ready
