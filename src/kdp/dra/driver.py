"""`DraDriver`: backends as DRA drivers, one driver for each; the counterpart of `kdp.deviceplugin.manager.PluginManager`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs
from typing_extensions import override

from ..errors import ConfigurationError
from ..hardware.boot_id import boot_id_of
from ..hardware.shared_host import agreed
from ..kubelet import KubeletPaths
from ..supervision.service import BaseStatus, Service
from ..supervision.shared_state import SharedState
from ..supervision.supervisor import Supervisor
from .claims.cdi_specs import check_edits
from .claims.parameters import check_declared
from .names import check_driver_name, driver_name
from .plugin import COLLECT_GRACE, DraPlugin, DriverStatus
from .publishing.publisher import Publisher
from .publishing.slices import Pool

if TYPE_CHECKING:
    from types import EllipsisType

    from ..cluster.api import ClusterApi
    from ..hardware import Host
    from ..model.backend import DeviceBackend
    from ..model.claims import TaintEffect
    from ..model.devices import Device
    from ..supervision.health import HealthChange
    from ..supervision.supervisor import Deadlines
    from .publishing.feed import SlicePublisher

__all__ = ["DraDriver", "Status", "check_devices", "driver_of"]

CDI_DIRECTORY = Path("/var/run/cdi")


@attrs.frozen(kw_only=True)
class Status(BaseStatus):
    """Where everything stands.

    Attributes:
        drivers: Each driver by its name.
        backends: For each backend, in the order given, its class's name and why it is not ready (None: it is).
    """

    drivers: Mapping[str, DriverStatus]

    @property
    @override
    def parts(self) -> Mapping[str, DriverStatus]:
        """What is served: the drivers; one is ready when the kubelet has registered it and its devices were published."""
        return self.drivers


class DraDriver(Service):
    """Runs backends as DRA drivers; an async context manager (asyncio only).

    Leaving the context is the orderly stop: calls in flight get 1.5 s, streams end, own sockets are unlinked, slices stay,
    backends are closed. Cancellation of the body counts as leaving.

    Args:
        backends: The vendors' objects; each is one driver.
        api: The API server.
        node: The node's name, as the API server has it.
        pool: The pool of devices that are no node's own, of which a `PoolController` publishes the slices; None: the devices are
            those of the node, and their slices are published here.
        publisher: Makes who writes a pool's slices, which belong to the node of this name; default: `Publisher`.
        name: The driver's name, of a single backend; None: it is made of its ``resource``.
        paths: The kubelet's directories; default: those of a normal kubelet. They must be the same for the kubelet.
        pod_uid: The UID of the pod that this runs in, so that it and its successor can overlap in a rolling update; None:
            there is one process at a time.
        host: The node's files; default: what the backends were made with, else this machine's.
        cdi: Where container runtimes find specs.
        poll_interval: Seconds between discoveries, over every backend's own; None: only on events; ``...``: as the
            backends say.
        deadlines: What hooks get.
        health: Whether the kubelet is told of the devices' health, for the pods' status.
        health_taint: The effect of the taint that an unhealthy device has; None: it has none.
        device_status: Whether claims say in ``status.devices`` that their devices are ready (`kdp.dra.claims.status`). It needs
            more permissions: DRA contract section 3.5.
        device_metadata: Whether containers get a file that describes their devices (`kdp.dra.claims.metadata`).
        health_policy: Thresholds of health that differ from the backends' own (`kdp.HealthPolicy`), by name.
        observe: Called on the loop with each change of a device's health; must not block. What it raises is logged.
        boot_id: Which boot of the node this is; None: as the kernel says.
        claim_grace: Seconds that a claim must be gone from the API before it is undone although the kubelet did not ask.
        states: What was handed on of each backend by whoever served it before; empty: nobody did.

    Raises:
        ConfigurationError: No backend, a name that is missing or there twice, or thresholds that contradict each other.
        InvalidNameError: A driver's name breaks the rules, or its sockets' paths would be too long.
    """

    def __init__(
        self,
        backends: Sequence[DeviceBackend],
        *,
        api: ClusterApi,
        node: str,
        pool: str | None = None,
        publisher: Callable[[ClusterApi, Pool, str], SlicePublisher] | None = None,
        name: str | None = None,
        paths: KubeletPaths | None = None,
        pod_uid: str | None = None,
        host: Host | None = None,
        cdi: Path = CDI_DIRECTORY,
        poll_interval: float | EllipsisType | None = ...,
        deadlines: Deadlines | None = None,
        health: bool = True,
        health_taint: TaintEffect | None = "NoSchedule",
        device_status: bool = False,
        device_metadata: bool = False,
        health_policy: Mapping[str, float | None] | None = None,
        observe: Callable[[HealthChange], object] | None = None,
        boot_id: str | None = None,
        claim_grace: float = COLLECT_GRACE,
        states: Sequence[SharedState] = (),
    ) -> None:
        super().__init__()
        if not backends:
            raise ConfigurationError("there is no backend to run: give at least one kdp.DeviceBackend")
        if name is not None and len(backends) > 1:
            raise ConfigurationError(f"name {name!r}: {len(backends)} backends cannot be one driver; leave it out")
        found = agreed(backends, host)
        self._plugins: dict[str, DraPlugin] = {}
        for backend, state in zip(backends, states or [SharedState() for _ in backends], strict=True):
            driver = driver_of(backend, name)
            if driver in self._plugins:
                raise ConfigurationError(f"two backends are the driver {driver}; give one of them another resource")
            check_declared(backend.config)
            supervisor = Supervisor(
                backend,
                host=found,
                poll_interval=poll_interval,
                check=check_devices,
                deadlines=deadlines,
                health_policy=health_policy,
                observe=observe,
                state=state,
                polls_links=False,
            )
            its_pool = Pool.of_node(driver, node)
            if pool is not None:
                its_pool = attrs.evolve(its_pool, name=pool)
            self._plugins[driver] = DraPlugin(
                driver,
                supervisor=supervisor,
                paths=paths or KubeletPaths.under(),
                api=api,
                pool=its_pool,
                publisher=(publisher or _publisher)(api, its_pool, node) if pool is None else None,
                host=found,
                cdi=cdi,
                boot_id=boot_id_of(found) if boot_id is None else boot_id,
                pod_uid=pod_uid,
                health=health,
                health_taint=health_taint,
                device_status=device_status,
                device_metadata=device_metadata,
                claim_grace=claim_grace,
            )
            self._supervisors.append(supervisor)

    @override
    def status(self) -> Status:
        """Return where everything stands now."""
        return Status(
            drivers={driver: plugin.status for driver, plugin in self._plugins.items()},
            backends=self._problems,
        )

    @override
    def _begin(self) -> None:
        for plugin in self._plugins.values():
            self._tasks.start_soon(plugin.run)

    @override
    async def _end(self, until: float) -> None:
        await self._discovered.wait()
        async with anyio.create_task_group() as stopping:
            for plugin in self._plugins.values():
                stopping.start_soon(plugin.stop)


def _publisher(api: ClusterApi, pool: Pool, node: str) -> SlicePublisher:
    return Publisher(api, pool, owner=node)


def driver_of(backend: DeviceBackend, name: str | None) -> str:
    """Return the name of a backend's driver.

    Raises:
        ConfigurationError: It has none.
        InvalidNameError: The one that is given breaks the rules.
    """
    if name is not None:
        return check_driver_name(name)
    if backend.resource is None:
        raise ConfigurationError(
            f"{type(backend).__name__}.resource is None, so the driver has no name; give one as 'widget.example.com'"
        )
    return driver_name(backend.resource)


def check_devices(devices: Sequence[Device], _: Sequence[str]) -> None:
    """Refuse devices that this protocol cannot serve. In a hook's thread."""
    for device in devices:
        check_edits(device.edits)
