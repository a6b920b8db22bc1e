"""`DraDriver`: backends as DRA drivers, one driver each; the counterpart of `PluginManager`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import attrs
from typing_extensions import override

from ..errors import ConfigurationError
from ..model.backend import tell_holdings, tell_mode
from ..supervision.backend_validation import agreed_host, check_pre_start
from ..supervision.service import BaseStatus, Service
from ..supervision.shared_state import SharedState, states_for
from ..supervision.supervisor import Supervisor
from .claims.cdi_specs import check_edits
from .claims.parameters import check_declared
from .names import check_driver_name, driver_name
from .plugin import DraPlugin, DriverStatus

if TYPE_CHECKING:
    from ..hardware import Host
    from ..kubelet.podresources import Holder
    from ..model.backend import DeviceBackend
    from ..model.devices import Device
    from .holders import ClaimHolders
    from .options import BaseOptions, DriverOptions

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Status(BaseStatus):
    """Where everything stands.

    Attributes:
        drivers: Each driver by its name.
        backends: For each backend, in the order given, its class's name and why it is not ready (None: it is).
        absent: For each backend of which the node has no hardware, the sentence. It counts as ready.
        kubelet: What is seen of the kubelet; None: nothing is.
        kubelet_restarts: How often another kubelet took its place.
    """

    drivers: Mapping[str, DriverStatus]

    @property
    @override
    def parts(self) -> Mapping[str, DriverStatus]:
        """What is served. A driver is ready when the kubelet has registered it and its devices are published."""
        return self.drivers


class DraDriver(Service):
    """Runs backends as DRA drivers; an async context manager (asyncio only).

    Leaving the context is the orderly stop: calls in flight get 1.5 s, streams end, own sockets are unlinked, slices
    stay, backends are closed. Cancellation of the body counts as leaving.

    Args:
        backends: The vendors' objects; each is one driver.
        options: See `DriverOptions`.
        states: Each backend's state, handed on by its previous supervisor. Empty: there was none.

    Raises:
        ConfigurationError: No backend, a name that is missing or there twice, thresholds that contradict each other, or
            a hook that must run before every start of a container.
        InvalidNameError: A driver's name breaks the rules, or its sockets' paths would be too long.
    """

    def __init__(
        self, backends: Sequence[DeviceBackend], options: DriverOptions, *, states: Sequence[SharedState] = ()
    ) -> None:
        super().__init__()
        if not backends:
            raise ConfigurationError("there is no backend to run: give at least one kdp.DeviceBackend")
        if options.name is not None and len(backends) > 1:
            raise ConfigurationError(
                f"name {options.name!r}: {len(backends)} backends cannot be one driver; leave it out"
            )
        host = agreed_host(backends, options.host)
        self._api = options.api
        self._holders: ClaimHolders | None = None
        if options.follows_pods:
            from .holders import ClaimHolders  # late: few drivers pay for it

            self._holders = ClaimHolders(options.paths.pod_resources_socket, options.pool or options.node)
        self._plugins: dict[str, DraPlugin] = {}
        for backend, state in zip(backends, states_for(backends, states), strict=True):
            driver = driver_of(backend, options.name)
            if driver in self._plugins:
                raise ConfigurationError(f"two backends are the driver {driver}; give one of them another resource")
            check_declared(backend.config)
            supervisor = supervisor_of(backend, options, host=host, state=state)
            warning = check_pre_start(backend)
            if warning is not None:
                logger.warning(warning)
            plugin = self._plugins[driver] = DraPlugin(driver, supervisor=supervisor, host=host, options=options)
            tell_holdings(backend, plugin.preparer.holdings)
            self._supervisors.append(supervisor)

    @override
    def status(self) -> Status:
        """Return where everything stands now."""
        return Status(
            drivers={driver: plugin.status for driver, plugin in self._plugins.items()},
            backends=self._problems,
            absent=self._absent,
        )

    @property
    def requests(self) -> Mapping[tuple[str, ...], int]:
        """Requests to the API server; see `kdp.cluster.api.ClusterApi`."""
        return self._api.requests

    def holders(self, driver: str, ids: Iterable[str]) -> Sequence[tuple[str, Holder]] | None:
        """Return which containers have these devices of a driver; None: that is not known (`ClaimHolders.of`)."""
        return None if self._holders is None else self._holders.of(driver, ids)

    @override
    def _begin(self) -> None:
        if self._holders is not None:
            self._tasks.start_soon(self._holders.run)
        for plugin in self._plugins.values():
            self._tasks.start_soon(plugin.run)

    @override
    async def _end(self, until: float) -> None:
        await self._discovered.wait()
        async with anyio.create_task_group() as stopping:
            for plugin in self._plugins.values():
                stopping.start_soon(plugin.stop)


def supervisor_of(backend: DeviceBackend, options: BaseOptions, *, host: Host | None, state: SharedState) -> Supervisor:
    """Return the supervisor of a backend that is served by DRA, where no protocol asks which devices to prefer."""
    tell_mode(backend, is_dra=True)
    return Supervisor(
        backend,
        host=host,
        poll_interval=options.poll_interval,
        check=check_devices,
        deadlines=options.deadlines,
        health_policy=options.health_policy,
        observe=options.observe,
        state=state,
        polls_links=False,
        measures=options.measures,
        wants_labels=options.wants_labels,
    )


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
            f"{type(backend).__name__}.resource is None, so the driver has no name; give one, as "
            "--driver-name widget.example.com"
        )
    return driver_name(backend.resource)


def check_devices(devices: Sequence[Device], _: Sequence[str]) -> None:
    """Refuse devices that this protocol cannot serve. In a hook's thread."""
    for device in devices:
        check_edits(device.edits)
