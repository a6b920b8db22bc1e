"""What runs between start and stop, in a process of ours or inside somebody's program.

`Daemon` holds one `PluginManager` at a time, or one `DraDriver`, or one `PoolController`. Reading the configuration
again keeps it and its streams, unless a setting or a backend's parameter changed that only a new one can take; then the
old one stops in order and a new one starts, in the same process.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import time
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack, final

import attrs

from ..concurrency import threads
from ..errors import ConfigurationError, InvalidValueError, KdpError, kind_of
from ..hardware import Host
from ..model.backend import DeviceBackend
from ..model.health_policy import policy_of
from ..supervision.backend_validation import check_attributes
from ..supervision.shared_state import SharedState, states_for
from .mode_lock import ModeLock, key_of
from .own_socket import path_in
from .settings import SETTINGS, ServeOptions, Settings
from .sources import from_environment, from_keywords, resolve, warn_of_slips

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from ..cluster.api import ClusterApi
    from ..deviceplugin.cdi import CdiOptions
    from ..deviceplugin.manager import PluginManager
    from ..dra.controller import PoolController
    from ..dra.driver import DraDriver
    from ..supervision.health import DeviceHealth
    from ..supervision.service import BaseStatus, Service
    from .probes import Readiness

logger = logging.getLogger(__name__)


def check_backends(backends: Sequence[object]) -> tuple[DeviceBackend, ...]:
    """Return the backends if one process can serve them.

    Raises:
        ConfigurationError: There is none, one is no object of a `DeviceBackend`, or two name the same resource.
    """
    if not backends:
        raise ConfigurationError("no backend was given; valid is kdp.run(Widgets())")
    checked: list[DeviceBackend] = []
    owners: dict[str, str] = {}
    for backend in backends:
        if isinstance(backend, type):
            name = backend.__name__
            raise ConfigurationError(f"backend {name}: this is the class; give an object of it, {name}()")
        if not isinstance(backend, DeviceBackend):
            raise ConfigurationError(
                f"backend {backend!r}: must be an object of a subclass of kdp.DeviceBackend, this is {kind_of(backend)}"
            )
        owner = type(backend).__name__
        if any(backend is other for other in checked):
            raise ConfigurationError(f"backend {owner}: the same object was given twice")
        check_attributes(backend)
        if backend.resource in owners:
            raise ConfigurationError(
                f"resource {backend.resource!r} is named by two backends, {owners[backend.resource]} and {owner}; "
                f"a resource belongs to one backend"
            )
        if backend.resource is not None:
            owners[backend.resource] = owner
        checked.append(backend)
    return tuple(checked)


@final
@attrs.frozen
class Plan:
    """What is to be served, and how.

    Attributes:
        backends: The vendors' objects, checked by `check_backends`.
        settings: The settings, checked by `resolve`.
        host: The node's files that the backends were made with, where kdp made them; None: as the settings say.
        states: For each backend what those who served it before have left, such as a hook that still runs.

    Raises:
        ConfigurationError: The settings contradict what a backend says of itself.
    """

    backends: tuple[DeviceBackend, ...]
    settings: Settings
    host: Host | None = None
    states: tuple[SharedState, ...] = attrs.field(
        eq=False, repr=False, default=attrs.Factory(lambda plan: states_for(plan.backends), takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        for backend in self.backends:
            policy_of(backend, self.settings.health_policy or {})

    def served(self) -> tuple[DeviceBackend, ...]:
        """Return the backends as they are served: shared, if the settings say so."""
        sharing = self.settings.sharing
        if sharing is None:
            return self.backends
        from ..allocation import share

        return tuple(share(backend, sharing) for backend in self.backends)

    @property
    def keys(self) -> tuple[str, ...]:
        """What this process's files in the state directory are named by, one for each backend."""
        return tuple(key_of(backend, self.settings.kubelet_root) for backend in self.backends)

    @property
    def socket(self) -> Path | None:
        """Where this process answers the commands of its node; None: nowhere."""
        if self.settings.socket is not ...:
            return self.settings.socket
        directory = self.settings.state_dir
        return None if directory is None else path_in(directory, self.settings.mode, self.keys)

    def following(self, old: Plan) -> Plan:
        """Return this plan with the states of those backends that the old one served, too."""
        known = [*zip(old.backends, old.states, strict=True)]
        return attrs.evolve(
            self,
            states=tuple(
                next((state for backend, state in known if backend is served), made)
                for served, made in zip(self.backends, self.states, strict=True)
            ),
        )

    def needs_new_manager(self, old: Plan) -> bool:
        """Return whether going from ``old`` to this takes more than another look at the hardware."""
        of_process = {each.name: getattr(self.settings, each.name) for each in SETTINGS.values() if each.of_process}
        return self.backends != old.backends or self.settings != attrs.evolve(old.settings, **of_process)


@final
class Daemon:
    """Serves a plan until it is cancelled, which is the orderly stop.

    Args:
        read_again: Reads the configuration again, for `reload`. Called in a thread of its own, because it may run code
            of the vendor. None: the plan stays as it is.
        changed: Told of a new plan before it is taken.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        read_again: Callable[[], Plan] | None = None,
        changed: Callable[[Plan], object] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._read_again = read_again
        self._changed = changed
        self._manager: Service | None = None
        self._waiting: ModeLock | None = None
        self._has_served = False
        self._reload_asked = asyncio.Event()

    def reload(self) -> None:
        """Read the configuration again and discover again. Call it in the event loop; many calls count as one."""
        self._reload_asked.set()

    def status(self) -> BaseStatus | None:
        """Return where everything stands now; None: nothing runs yet, or not any more. Call it in the event loop."""
        return None if self._manager is None else self._manager.status()

    async def serve(self) -> NoReturn:
        """Serve until cancelled.

        Raises:
            PluginDirectoryGoneError: Only a new process can help.
            ConfigurationError: The probes cannot listen where they are told to.
        """
        warn_of_slips(os.environ)
        while True:
            plan = self._plan
            try:
                with self._probes(plan):
                    async with self._alone(plan), _managing(plan) as self._manager:
                        self._has_served = True
                        await self._until_changed(self._manager, plan)
            except ExceptionGroup as group:
                raise _cause(group) from group
            finally:
                self._manager = None
            logger.info("starting anew with the changed configuration")

    @asynccontextmanager
    async def _alone(self, plan: Plan) -> AsyncGenerator[None]:
        """Keep the other mode out, for as long as this one serves."""
        settings = plan.settings
        if settings.state_dir is None or settings.mode == "dra-controller":  # which serves no device of this node
            yield
            return
        self._waiting = ModeLock(settings.state_dir, settings.mode, plan.keys)
        async with self._waiting:
            yield

    async def _until_changed(self, manager: Service, plan: Plan) -> None:
        import anyio

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.failed)
            while not self._plan.needs_new_manager(plan):
                await self._reload_asked.wait()
                self._reload_asked.clear()
                await self._read_plan()
                if not self._plan.needs_new_manager(plan):
                    manager.rescan()
            tasks.cancel_scope.cancel()

    async def _read_plan(self) -> None:
        if self._read_again is None:
            logger.info("discovering again, as asked")
            return
        try:
            self._plan = (await threads.run(self._read_again, name="kdp-reload")).following(self._plan)
        except (ConfigurationError, InvalidValueError) as error:
            logger.error("the configuration of before stays in force: %s", error)
        except Exception:
            logger.exception("the configuration of before stays in force: reading it again failed")
        else:
            self._changed(self._plan)
            logger.info("configuration read again")

    def _probes(self, plan: Plan) -> AbstractContextManager[object]:
        settings, path = plan.settings, plan.socket
        if settings.http is None and path is None:
            return nullcontext()
        from .probes import Probes

        make = functools.partial(Probes, readiness=self._readiness, path=path, shows_all=settings.http_details == "all")
        try:
            return closing(make(settings.http))
        except ConfigurationError as error:
            if not self._has_served:
                raise
            logger.error("going on without probes: %s", error)
            return nullcontext() if path is None else closing(make(None))

    def _readiness(self) -> Readiness:
        from .probes import Readiness

        status = self.status()
        if status is None:
            reason = None if self._waiting is None else self._waiting.problem
            return Readiness(False, {"reason": reason or "the plugins are starting or stopping"})
        kind = "resources" if self._plan.settings.mode == "device-plugin" else "drivers"
        return Readiness(
            status.is_ready,
            {
                kind: {
                    name: {
                        "state": held.state,
                        "reason": held.reason,
                        "devices": held.devices,
                        "healthy": held.healthy,
                        **_faults(held.faults),
                        **held.details,
                    }
                    for name, held in status.parts.items()
                },
                "backends": [{"class": label, "reason": problem} for label, problem in status.backends],
            },
        )


def host_of(settings: Settings) -> Host | None:
    """Return the node's files as the settings say; None: they say nothing.

    Raises:
        ConfigurationError: The snapshot cannot be used.
    """
    if settings.snapshot is not None:
        return Host.of_snapshot(settings.snapshot)
    return Host(settings.host_root) if settings.host_root != Path("/") else None


def _faults(faults: Mapping[str, DeviceHealth]) -> dict[str, object]:
    """Return what the probe says of devices that are not simply healthy: the first of them, since when and why."""
    from datetime import UTC, datetime

    from ..supervision.service import MAX_LISTED  # late: it loads gRPC

    began = time.time() - time.monotonic()
    listed = {
        device_id: {
            "state": health.state.value,
            "since": datetime.fromtimestamp(began + health.since, UTC).isoformat(timespec="seconds"),
            "reason": health.reason,
        }
        for device_id, health in itertools.islice(faults.items(), MAX_LISTED)
    }
    return {"faults": listed} if listed else {}


@asynccontextmanager
async def _managing(plan: Plan) -> AsyncGenerator[Service]:
    settings = plan.settings
    if settings.snapshot is not None:
        logger.warning("hardware is that of %s: what pods are given need not exist on this node", settings.snapshot)
    if settings.mode == "device-plugin":
        async with _plugins(plan) as manager:
            yield manager
        return
    from ..cluster.client import KubeApi

    async with KubeApi(settings.kubeconfig) as api, _driver_or_controller(plan, api) as manager:
        yield manager


def _plugins(plan: Plan) -> PluginManager:
    # Loads gRPC: late, so that settings and targets are checked before anything is paid for.
    from ..deviceplugin.manager import PluginManager
    from ..deviceplugin.options import ManagerOptions

    settings = plan.settings
    options = ManagerOptions(
        paths=settings.paths,
        registration=settings.registration,
        host=plan.host or host_of(settings),
        state_dir=settings.state_dir,
        poll_interval=settings.poll_interval,
        cdi=_cdi(settings),
        health_policy=settings.health_policy,
        policy=settings.policy,
    )
    return PluginManager(plan.served(), options, states=plan.states)


def _driver_or_controller(plan: Plan, api: ClusterApi) -> DraDriver | PoolController:
    settings = plan.settings
    host = plan.host or host_of(settings)
    if settings.mode == "dra-controller":
        from ..dra.controller import PoolController
        from ..dra.options import ControllerOptions

        assert settings.pool is not None  # `resolve` has seen to it
        controller = ControllerOptions(
            api=api,
            pool=settings.pool,
            labels=dict(settings.pool_nodes),
            name=settings.driver_name,
            host=host,
            poll_interval=settings.poll_interval,
            health_taint=settings.health_taint,
            health_policy=settings.health_policy,
        )
        return PoolController(plan.served(), controller, states=plan.states)
    from ..dra.driver import DraDriver
    from ..dra.options import DriverOptions

    assert settings.node_name is not None  # `resolve` has seen to it
    options = DriverOptions(
        api=api,
        pool=settings.pool,
        name=settings.driver_name,
        host=host,
        poll_interval=settings.poll_interval,
        health_taint=settings.health_taint,
        health_policy=settings.health_policy,
        node=settings.node_name,
        paths=settings.paths,
        pod_uid=settings.pod_uid,
        cdi=settings.cdi_dir,
        device_status=settings.device_status == "on",
        device_metadata=settings.device_metadata == "on",
    )
    return DraDriver(plan.served(), options, states=plan.states)


def _cdi(settings: Settings) -> CdiOptions | None:
    if settings.cdi == "off":
        return None
    from ..deviceplugin.cdi import CdiOptions

    return CdiOptions(directory=settings.cdi_dir, only=settings.cdi == "only", names=settings.cdi_names)


def _cause(group: ExceptionGroup[Exception]) -> Exception:
    """Return the one error of a group that says most: kdp's own before others."""
    leaves: list[Exception] = []
    todo: list[Exception] = [group]
    while todo:
        error = todo.pop(0)
        if isinstance(error, ExceptionGroup):
            todo.extend(error.exceptions)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        else:
            leaves.append(error)
    return next((error for error in leaves if isinstance(error, KdpError)), leaves[0] if len(leaves) == 1 else group)


async def serve(*backends: DeviceBackend, **options: Unpack[ServeOptions]) -> NoReturn:
    """Serve backends inside a running asyncio program, until cancelled.

    Cancelling it is the orderly stop: streams end first, calls in flight get 1.5 s, the sockets are removed. It leaves
    signals, logging and environment of the program alone; gRPC's C core writes to stderr as it likes unless the
    program sets ``GRPC_VERBOSITY=NONE`` before it imports grpc.

    Args:
        *backends: Objects of subclasses of `DeviceBackend`.
        **options: As in `kdp.daemon.settings.ServeOptions`; what is not given comes from the variables ``KDP_*``.

    Raises:
        ConfigurationError: An option or a backend is wrong, or this is not asyncio.
        PluginDirectoryGoneError: The plugin directory is unlinked under us; only a new process (a new mount) helps.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "kdp.serve was awaited outside asyncio; gRPC knows no other event loop, so use asyncio.run or anyio.run"
        ) from None
    layers = [from_keywords(options, function="kdp.serve"), from_environment(os.environ)]
    await Daemon(Plan(check_backends(backends), resolve(layers))).serve()
