"""A small client of a DRA driver, over its real sockets, and a driver to call."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
from tests.unit.dra.claims.claims_world import Claims
from tests.waiting import until

import kdp
from kdp.concurrency.observable import Observable
from kdp.daemon.serving import serve
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.dra.publishing import feed
from kdp.dra.publishing.actions import PublisherStatus
from kdp.kubelet import KubeletPaths
from kdp.kubelet.server import open_channel
from kdp.model.claims import Claim
from kdp.proto import dra_v1_pb2 as v1
from kdp.proto import dra_v1beta1_pb2 as v1beta1
from kdp.proto import drahealth_v1_pb2 as health
from kdp.proto import pluginregistration_v1_pb2 as watcher
from kdp_testkit.dra import objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

__all__ = ["CLAIMS", "DRIVER", "SLICES", "Driver", "Publisher", "Served", "heard", "running", "serving"]

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "widget.example.com"
SERVICE = "k8s.io.kubelet.pkg.apis.dra"


class Publisher:
    """Remembers what is published, and says that it is."""

    def __init__(self) -> None:
        self.status = Observable(PublisherStatus())
        self.answer = PublisherStatus(generation=1, slices=1, is_current=True)
        self.published: list[tuple[kdp.Device, ...]] = []
        self.more: list[tuple[Any, Any]] = []

    def publish(
        self,
        devices: Sequence[kdp.Device],
        *,
        counters: Mapping[str, Any] | None = None,
        standard: Mapping[str, Any] | None = None,
    ) -> None:
        self.published.append(tuple(devices))
        self.more.append((counters, standard))
        self.status.set(self.answer)

    async def run(self) -> None:
        await anyio.sleep_forever()


class Driver:
    """What the kubelet sees of a driver, and the parts of the test."""

    def __init__(self, paths: KubeletPaths, api: Claims, cdi: Path, publisher: Publisher, driver: DraDriver) -> None:
        self.paths = paths
        self.api = api
        self.cdi = cdi
        self.publisher = publisher
        self.driver = driver
        self.endpoint: Path | None = None

    def sockets(self) -> list[str]:
        """Return the names in the plugin watcher's directory."""
        return sorted(path.name for path in self.paths.plugins_registry_dir.glob("[!.]*"))

    @property
    def registration(self) -> Path:
        [found] = self.paths.plugins_registry_dir.glob("[!.]*")
        return found

    @property
    def service(self) -> Path:
        """Where calls go: the driver's own socket, or the one of two that a test has chosen."""
        if self.endpoint is not None:
            return self.endpoint
        [found] = (self.paths.plugins_dir / DRIVER).glob("[!.]*.sock")
        return found

    async def info(self, path: Path | None = None) -> watcher.PluginInfo:
        """Ask as the plugin watcher does."""
        async with open_channel(path or self.registration) as channel:
            call: Any = channel.unary_unary("/pluginregistration.Registration/GetInfo")
            answer: bytes = await call(b"", timeout=PATIENCE)
            return watcher.PluginInfo.FromString(answer)

    async def notify(self, error: str | None = None) -> None:
        """Say what has become of the registration."""
        status = watcher.RegistrationStatus(plugin_registered=error is None, error=error or "")
        async with open_channel(self.registration) as channel:
            call: Any = channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")
            await call(status.SerializeToString(), timeout=PATIENCE)

    async def prepare(self, *claims: Claim, version: str = "v1") -> Any:
        """Call NodePrepareResources and return the answer's message."""
        module: Any = {"v1": v1, "v1beta1": v1beta1}[version]
        answer = await self.call(f"{SERVICE}.{version}.DRAPlugin/NodePrepareResources", claims)
        return module.NodePrepareResourcesResponse.FromString(answer)

    async def unprepare(self, *claims: Claim, version: str = "v1") -> dict[str, str]:
        """Call NodeUnprepareResources and return the errors by UID."""
        answer = await self.call(f"{SERVICE}.{version}.DRAPlugin/NodeUnprepareResources", claims)
        found = v1.NodeUnprepareResourcesResponse.FromString(answer)
        return {uid: each.error for uid, each in found.claims.items()}

    async def call(self, method: str, claims: Iterable[Claim]) -> bytes:
        """Call any method with claims."""
        request = v1.NodePrepareResourcesRequest(
            claims=[v1.Claim(namespace=each.namespace, name=each.name, uid=each.uid) for each in claims]
        )
        async with open_channel(self.service) as channel:
            call: Any = channel.unary_unary(f"/{method}")
            answer: bytes = await call(request.SerializeToString(), timeout=PATIENCE)
            return answer

    @asynccontextmanager
    async def health(self, version: str = "v1") -> AsyncIterator[Any]:
        """Have a stream of the devices' health; ``read`` it for the next message."""
        async with open_channel(self.service) as channel:
            method: Any = channel.unary_stream(f"/{version}.DRAResourceHealth/NodeWatchResources")
            call = method(b"")
            try:
                yield call
            finally:
                call.cancel()


async def heard(stream: Any) -> dict[str, tuple[int, str]]:
    """Return the next message of a stream of health: the state and the message by device."""
    with anyio.fail_after(PATIENCE):
        message = health.NodeWatchResourcesResponse.FromString(await stream.read())
    return {each.device.device_name: (each.health, each.message) for each in message.devices}


@asynccontextmanager
async def running(folder: Path, backend: kdp.DeviceBackend, *, wait: bool = True, **more: Any) -> AsyncIterator[Driver]:
    """Run a backend as a driver below a folder, until it can be called."""
    paths, api, publisher = KubeletPaths.simulated(folder), Claims(), Publisher()
    paths.plugins_registry_dir.mkdir(exist_ok=True)
    with mock.patch.object(feed, "Publisher", return_value=publisher):
        made = DraDriver(
            [backend],
            DriverOptions(
                api=api,  # type: ignore[arg-type]
                node="node0",
                paths=paths,
                cdi=folder / "cdi",
                **more,
            ),
        )
    async with made:
        driver = Driver(paths, api, folder / "cdi", publisher, made)
        if wait:
            await until(driver.sockets)
        yield driver


class Served:
    """A driver that runs as its program does, between a simulated API server and a simulated kubelet."""

    def __init__(self, folder: Path, server: SimulatedApiServer, kubelet: SimulatedDraKubelet) -> None:
        self.folder = folder
        self.server = server
        self._plugins = KubeletPaths.simulated(kubelet.root).plugins_dir

    async def claim(self, name: str, device: str) -> str:
        """Make a claim as if the scheduler had allocated the device to it; return its UID."""
        made = await self.server.ask("POST", CLAIMS, objects.claim(name))
        made["status"] = {"allocation": objects.allocation([objects.result(DRIVER, device)])}
        await self.server.ask("PUT", f"{CLAIMS}/{name}/status", made)
        uid: str = made["metadata"]["uid"]
        return uid

    async def call(self, method: str, name: str, uid: str) -> None:
        """Call a method of the driver with a claim, as the kubelet does."""
        [service] = (self._plugins / DRIVER).glob("[!.]*.sock")
        request = v1.NodePrepareResourcesRequest(claims=[v1.Claim(namespace="default", name=name, uid=uid)])
        async with open_channel(service) as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}.v1.DRAPlugin/{method}")
            await call(request.SerializeToString(), timeout=PATIENCE)


def driver_options(folder: Path, server: SimulatedApiServer, kubelet: SimulatedDraKubelet) -> dict[str, Any]:
    """Return options of `kdp.serve` for a DRA driver in a folder."""
    return {
        "mode": "dra",
        "node_name": "node0",
        "kubelet_root": kubelet.root,
        "kubeconfig": write_kubeconfig(folder, server.url),
        "state_dir": folder / "state",
        "cdi_dir": folder / "cdi",
    }


@asynccontextmanager
async def serving(
    folder: Path, backend: kdp.DeviceBackend, *, node: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Run a backend with `kdp.serve` on a node of a simulated cluster."""
    async with (
        SimulatedApiServer() as server,
        SimulatedDraKubelet(server.ask, folder) as kubelet,
        anyio.create_task_group() as tasks,
    ):
        await server.ask("POST", "/api/v1/nodes", node or objects.node())
        run = functools.partial(
            serve,
            backend,
            **driver_options(folder, server, kubelet),
            **options,
        )
        tasks.start_soon(run)
        yield Served(folder, server, kubelet)
        tasks.cancel_scope.cancel()
