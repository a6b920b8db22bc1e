"""Where claims live in tests: an API server's memory, a backend that remembers its calls, and a node's directories."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
from typing_extensions import override

import kdp
from kdp.cdi import CdiDirectory, CdiSpec, parse_spec
from kdp.cluster.api import ApiError
from kdp.dra.claims.prepare import Preparer
from kdp.dra.options import DriverOptions
from kdp.hardware import Host
from kdp.kubelet import KubeletPaths
from kdp.model.claims import Claim
from kdp.supervision.supervisor import Deadlines, Supervisor

from .claim_objects import DRIVER, POOL, claim_object

__all__ = ["Claims", "Mode", "Widgets", "World", "running"]

Object = dict[str, Any]


@attrs.frozen(kw_only=True)
class Mode:
    """Parameters of a claim."""

    speed: int = 1


class Claims:
    """The claims and the node of an API server. Of `ClusterApi` it has what `Preparer` and `DraPlugin` ask for."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str], Object] = {}
        self.asked: list[str] = []
        self.failure: ApiError | None = None
        self.hangs = False
        self.allocatable: dict[str, str] = {}
        self.nodes_asked = 0
        self.events: list[Object] = []

    async def create_event(self, event: Any) -> Object:
        if self.failure is not None:
            raise self.failure
        self.events.append(event)
        return dict(event)

    async def node(self, name: str) -> Object:
        self.nodes_asked += 1
        if self.failure is not None:
            raise self.failure
        return {"metadata": {"name": name, "uid": "uid-of-node"}, "status": {"allocatable": dict(self.allocatable)}}

    def put(self, names: Claim, results: list[Object] | None, *config: Object) -> Claim:
        """Have a claim."""
        self.items[names.namespace, names.name] = claim_object(names, results, *config)
        return names

    def drop(self, names: Claim) -> None:
        """Have it no more."""
        del self.items[names.namespace, names.name]

    async def claim(self, namespace: str, name: str) -> Object:
        self.asked.append(name)
        if self.hangs:
            await anyio.sleep_forever()
        if self.failure is not None:
            raise self.failure
        try:
            return self.items[namespace, name]
        except KeyError:
            raise ApiError(f'resourceclaims "{name}" not found', status=404, reason="NotFound") from None


class Widgets(kdp.DeviceBackend):
    """Devices that all are /dev/null. ``given`` is the hardware: which claims and requests have it."""

    resource = "example.com/widget"
    poll_interval: float | None = None
    joined_env: Mapping[str, str] = {"WIDGETS": ","}
    config = Mode

    def __init__(self, *ids: str) -> None:
        self.devices = [kdp.Device(id=each, edits=_edits(each)) for each in ids or ("w0", "w1", "w2", "w3")]
        self.calls: list[tuple[str, str, str, tuple[str, ...]]] = []
        self.given: set[tuple[str, str, tuple[str, ...]]] = set()
        self.allocations: list[kdp.Allocation] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.text = ""

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return self.devices

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        key = self._told("allocate", devices)
        self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        self.given.add(key)
        devices.state["times"] = devices.state.get("times", 0) + 1
        merged = kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)
        return attrs.evolve(merged, env={**merged.env, "WIDGETS": self.text or ",".join(devices.ids)})

    @override
    def released(self, devices: kdp.Allocation) -> None:
        key = self._told("released", devices)
        if self.failure is not None:
            raise self.failure
        self.given.discard(key)

    def _told(self, hook: str, devices: kdp.Allocation) -> tuple[str, str, tuple[str, ...]]:
        assert devices.claim is not None
        self.allocations.append(devices)
        self.calls.append((hook, devices.claim.name, devices.request, devices.ids))
        return devices.claim.name, devices.request, devices.ids


def _edits(device_id: str) -> kdp.ContainerEdits:
    node = kdp.DeviceNode(host_path="/dev/null", container_path=f"/dev/{device_id}")
    return kdp.ContainerEdits(device_nodes=[node], env={f"WIDGET_{device_id.upper().replace('-', '_')}": "1"})


class World:
    """One driver's claims on one node; a killed and started driver is another `Preparer` on the same files."""

    def __init__(self, folder: Path, api: Claims, supervisor: Supervisor) -> None:
        self.folder = folder
        self.api = api
        self.supervisor = supervisor
        self.data = folder / DRIVER
        self.cdi = CdiDirectory(folder / "cdi")
        self.boot_id = "boot-1"
        self.metadata = False
        self.scrubs = False
        self._started: list[Preparer] = []
        self.preparer = self.start()

    def start(self) -> Preparer:
        """Start the driver anew."""
        options = DriverOptions(
            api=self.api,  # type: ignore[arg-type]
            node=POOL,
            paths=KubeletPaths.under(plugins_dir=self.folder),
            cdi=self.cdi.path,
            boot_id=self.boot_id,
            device_metadata=self.metadata,
            release_policy="scrub" if self.scrubs else None,
        )
        self.preparer = Preparer(DRIVER, supervisor=self.supervisor, host=Host(), options=options)
        self._started.append(self.preparer)
        return self.preparer

    async def close(self) -> None:
        """End all drivers."""
        for each in self._started:
            await each.close(0)

    async def restart(self, boot_id: str | None = None) -> None:
        """End the driver, and start it anew, after a reboot if a boot is given; what an earlier one owed goes on."""
        await self.close()
        self.boot_id = boot_id or self.boot_id
        await self.start().recover()

    def spec(self, names: Claim) -> CdiSpec | None:
        """Return a claim's CDI spec as a runtime reads it."""
        file = self.cdi.file(f"{DRIVER}/claim", names.uid)
        return parse_spec(file.read_bytes(), where=str(file)) if file.exists() else None

    @property
    def files(self) -> list[str]:
        """What is left on the disk, of claims, of specs and of metadata."""
        folders = (self.data / "claims", self.folder / "cdi", self.data / "metadata")
        return sorted(file.name for folder in folders if folder.exists() for file in folder.iterdir())


@asynccontextmanager
async def running(
    folder: Path, backend: kdp.DeviceBackend, *, deadlines: Deadlines | None = None
) -> AsyncIterator[World]:
    """Have a world whose backend is open."""
    supervisor = Supervisor(backend, host=Host(), deadlines=deadlines)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        try:
            world = World(folder, Claims(), supervisor)
            try:
                yield world
            finally:
                with anyio.CancelScope(shield=True):
                    await world.close()
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await supervisor.shutdown(5)
