"""`SimulatedCluster`: what a vendor's test of a DRA driver needs, in one object."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.cdi import CdiEdits, parse_spec
from kdp.cluster.client import KubeApi
from kdp.daemon.plan import check_backends
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.kubelet import KubeletPaths
from kdp.model.edits import ContainerEdits, DeviceNode, Mount

from ..lifetime import Entered, ungrouped
from ..patience import PATIENCE
from ..protocol.pods import ScenarioError
from ..serving import give_stores, until_ready
from . import objects
from .kubelet import SimulatedDraKubelet
from .pods import DraPod
from .profiles import DEFAULT_PROFILE, DraProfile, DraTimings
from .server import SimulatedApiServer, write_kubeconfig

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from typing import Self

    from kdp.hardware import Host
    from kdp.model.backend import DeviceBackend

_QUICK: Final = DraTimings(watcher=0.1)
"""The kubelet's own look for sockets is every second."""


class SimulatedCluster(AsyncContextManagerMixin):
    """An API server and one node's kubelet, to test DRA drivers with.

    An async context manager; asyncio only, because gRPC is. The scheduler's work is the test's: `pod` says which
    devices it gets.

    Args:
        root: The kubelet's root directory; a temporary one, removed at the end, if it is not given.
        profile: Which version: ``k134``, ``k136``, ``k137`` or a `DraProfile`.
        node: The node's name.

    Attributes:
        server: The API server (`SimulatedApiServer`).
        kubelet: The kubelet (`SimulatedDraKubelet`).
        served: All that `serving` has returned.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        profile: str | DraProfile = DEFAULT_PROFILE,
        node: str = "node0",
    ) -> None:
        self._numbers = itertools.count()
        self.served: list[Entered[Any]] = []
        self.server = SimulatedApiServer(profile)
        self.kubelet = SimulatedDraKubelet(self.server.ask, root, node=node, profile=profile, timings=_QUICK)

    @property
    def cdi(self) -> Path:
        """The directory of the CDI specs."""
        return self.kubelet.root / "cdi"

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with self.server:
            await self.server.ask("POST", objects.NODES, objects.node(self.kubelet.node))
            async with self.kubelet:
                yield self

    def serving(
        self, *backends: DeviceBackend, host: Host | None = None, timeout: float = PATIENCE, **options: Any
    ) -> AbstractAsyncContextManager[DraDriver]:
        """Serve backends as DRA drivers of the node, in this process, while the context lasts.

        All directories are this kubelet's: nothing of the machine's own is touched.

        Args:
            backends: The vendor's objects; each is one driver.
            host: The node's files, for instance ``sysfs_tree.host``.
            timeout: Seconds to wait until they are registered and their devices published.
            options: Fields of `kdp.dra.options.DriverOptions`.

        Raises:
            ConfigurationError: A backend is a class, and no object of it.
            NotReached: They are not in time; the text tells why, and what happened.
        """
        return Entered(self._serving(backends, host, timeout, options), self.served)

    @asynccontextmanager
    async def _serving(
        self, backends: Sequence[DeviceBackend], host: Host | None, seconds: float, options: Mapping[str, Any]
    ) -> AsyncGenerator[DraDriver]:
        check_backends(backends)
        give_stores(backends, self.kubelet.root / "kdp", self.kubelet.root)
        paths, config = KubeletPaths.simulated(self.kubelet.root), write_kubeconfig(self.kubelet.root, self.server.url)
        with ungrouped():
            async with KubeApi(config) as api:
                usual = DriverOptions(api=api, node=self.kubelet.node, paths=paths, cdi=self.cdi, host=host)
                chosen = attrs.evolve(usual, **options)
                async with DraDriver(backends, chosen) as driver:
                    await until_ready(driver, self.kubelet.events, seconds)
                    yield driver

    async def devices(self) -> dict[str, dict[str, Any]]:
        """Return the devices in the node's slices by name: ``attributes``, ``capacity``, and so on."""
        return {device["name"]: device for _, device in await self._published()}

    async def pod(self, *devices: str, parameters: Mapping[str, object] | None = None) -> DraPod:
        """Return a pod with a claim, for which the scheduler has chosen devices.

        Args:
            devices: Their names in the slices. Each is of a request of its own: ``r0``, ``r1``, and so on.
            parameters: What the claim says to the driver; ``kind`` names the class, and ``apiVersion`` is the
                driver's unless it is given.

        Raises:
            ScenarioError: No slice has such a device, or none is named.
        """
        if not devices:
            raise ScenarioError("the pod's claim asks for no device: name at least one, for example pod('card0')")
        published = {device["name"]: spec for spec, device in await self._published()}
        for name in devices:
            if name not in published:
                raise ScenarioError(f"no slice has the device {name!r}: there are {', '.join(published) or 'none'}")
        requests = [f"r{number}" for number in range(len(devices))]
        name = f"pod-{next(self._numbers)}"
        pod = DraPod(claims={"devices": name}, name=name)
        results = [
            objects.result(published[device]["driver"], device, request=request, pool=published[device]["pool"]["name"])
            for device, request in zip(devices, requests, strict=True)
        ]
        config: Sequence[dict[str, Any]] = ()
        if parameters is not None:
            driver = published[devices[0]]["driver"]
            held = {"apiVersion": f"{driver}/v1", **parameters}
            config = [{"source": "FromClaim", "requests": requests, "opaque": {"driver": driver, "parameters": held}}]
        await objects.allocated_claim(self.server.ask, name, results, config=config, pods=[pod], node=self.kubelet.node)
        return pod

    async def start(self, pod: DraPod) -> ContainerEdits:
        """Have the driver prepare a pod's claim, and return what its container gets.

        Raises:
            PodStartError: The driver refuses; the text is that of the pod's event. The kubelet tries again, and so may
                the test.
        """
        given = await self.kubelet.start_pod(pod)
        return ContainerEdits.merge((name, self._edits(name)) for names in given.values() for name in names)

    async def stop(self, pod: DraPod) -> None:
        """End a pod and delete its claim.

        Raises:
            PodStopError: The driver cannot undo the claim.
        """
        await self.kubelet.stop_pod(pod)
        await self.server.ask("DELETE", objects.claims(pod.name))

    async def _published(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return each device behind its slice."""
        slices = (await self.server.ask("GET", objects.SLICES))["items"]
        return [(each["spec"], device) for each in slices for device in each["spec"].get("devices") or ()]

    def _edits(self, name: str) -> ContainerEdits:
        """Return what a runtime gives for a CDI device's qualified name."""
        kind, _, device_name = name.partition("=")
        for file in sorted(self.cdi.glob("*.json")):
            spec = parse_spec(file.read_bytes(), where=str(file))
            for device in spec.devices:
                if (spec.kind, device.name) == (kind, device_name):
                    return ContainerEdits.merge([(name, _plain(spec.edits)), (name, _plain(device.edits))])
        raise ScenarioError(f"no spec in {self.cdi} has the CDI device {name}")


def _plain(edits: CdiEdits) -> ContainerEdits:
    nodes = [
        DeviceNode(host_path=node.host_path or node.path, container_path=node.path, permissions=node.permissions)
        for node in edits.device_nodes
    ]
    mounts = [
        Mount(host_path=each.host_path, container_path=each.container_path, read_only="ro" in each.options)
        for each in edits.mounts
    ]
    env = dict(variable.split("=", 1) for variable in edits.env)
    return ContainerEdits(env=env, device_nodes=nodes, mounts=mounts, hooks=edits.hooks)
