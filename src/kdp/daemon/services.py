"""Makes what serves a plan: device plugins, a DRA driver, or the controller of a pool.

What a mode needs is loaded late, so that settings and targets are checked before anything is paid for.
"""

from __future__ import annotations

import logging
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .plan import host_of
from .sources import asking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from ..cluster.api import ClusterApi
    from ..cluster.client import KubeApi
    from ..concurrency.history import History
    from ..deviceplugin.cdi import CdiOptions
    from ..deviceplugin.manager import PluginManager
    from ..dra.controller import PoolController
    from ..dra.driver import DraDriver
    from ..kubelet.calls import CallCounts
    from ..operations.cluster_reporter import ClusterCounts
    from ..supervision.health import HealthChange
    from ..supervision.service import Service
    from .plan import ServingPlan
    from .settings import Settings

logger = logging.getLogger(__name__)


def check_client(settings: Settings) -> None:
    """Refuse to start if what asks the API server is not installed; a device plugin loads it later.

    Raises:
        ConfigurationError: It is not.
    """
    if settings.mode != "device-plugin" or not settings.asks_cluster:
        return
    from importlib.util import find_spec

    for name in ("lightkube", "httpx2"):
        if find_spec(name) is None:
            raise ConfigurationError(
                f"{asking(settings)} needs {name}, which comes with the extra 'kube': pip install 'kdp-sdk[kube]'"
            )


@asynccontextmanager
async def managing(
    plan: ServingPlan,
    counts: CallCounts | None,
    history: History | None = None,
    rejection: Callable[[], str | None] = lambda: None,
    told: ClusterCounts | None = None,
) -> AsyncGenerator[Service]:
    """Serve a plan while the context lives.

    Args:
        plan: The plan.
        counts: Where calls are counted; None: they are counted for nobody.
        history: Takes events. `None` if no command can ask for them.
        rejection: Returns why the configuration is not in force; None: it is.
        told: Where it is counted what a device plugin does in the cluster; None: nobody reads it.
    """
    settings = plan.settings
    if settings.snapshot is not None:
        logger.warning("hardware is that of %s: what pods are given need not exist on this node", settings.snapshot)
    if settings.mode == "device-plugin":
        if settings.asks_cluster:
            async with _reported_plugins(plan, counts, history, rejection, told) as manager:
                yield manager
        else:
            async with _plugins(plan, counts, history) as manager:
                yield manager
        return
    from ..cluster.client import KubeApi

    async with KubeApi(settings.kubeconfig) as api, _driver_or_controller(plan, api, counts, history) as manager:
        yield manager


@asynccontextmanager
async def _reported_plugins(
    plan: ServingPlan,
    counts: CallCounts | None,
    history: History | None,
    rejection: Callable[[], str | None],
    told: ClusterCounts | None,
) -> AsyncGenerator[PluginManager]:
    """Serve device plugins, and tell the cluster of them."""
    import anyio

    from ..cluster.eviction import EvictionPolicy
    from ..operations.cluster_reporter import ClusterReporter, ReportOptions

    settings, directory = plan.settings, plan.settings.state_dir
    policy = None
    if settings.on_unhealthy == "evict":
        is_dry = settings.evict_dry_run == "on"
        policy = EvictionPolicy(after=settings.evict_after, limit=settings.evict_limit, is_dry=is_dry)
    assert settings.node_name is not None  # `resolve` has seen to it

    def connect() -> KubeApi:
        from ..cluster.client import KubeApi

        return KubeApi(settings.kubeconfig)

    reporter = ClusterReporter(
        ReportOptions(
            node=settings.node_name,
            events=settings.events == "on",
            eviction=policy,
            startup_taint=settings.startup_taint,
            record=None if policy is None or directory is None else directory / record_name("evictions", plan.keys),
            told=None if directory is None else directory / record_name("told", plan.keys),
        ),
        connect=connect,
        rejection=rejection,
        counts=told,
    )
    async with _plugins(plan, counts, history, reporter.changed) as manager, anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.run, manager)
        try:
            yield manager
        finally:
            tasks.cancel_scope.cancel()


def record_name(what: str, keys: Iterable[str]) -> str:
    """Return the name of the file in which a process with these backends keeps a record."""
    return f"{what}-{zlib.crc32(repr(sorted(keys)).encode()):08x}.json"


def _plugins(
    plan: ServingPlan,
    counts: CallCounts | None,
    history: History | None,
    observe: Callable[[HealthChange], object] | None = None,
) -> PluginManager:
    from ..deviceplugin.counts import PluginCounts
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
        release_policy=settings.release_policy,
        counts=counts if isinstance(counts, PluginCounts) else PluginCounts(),
        observe=observe,
        history=history,
        follows_pods=settings.asks_holders,
        measures=settings.metrics != "off",
        wants_labels=settings.labels != "off",
    )
    return PluginManager(plan.served(), options, states=plan.states)


def _driver_or_controller(
    plan: ServingPlan, api: ClusterApi, counts: CallCounts | None, history: History | None
) -> DraDriver | PoolController:
    from ..kubelet.calls import CallCounts

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
            measures=settings.metrics != "off",
            history=history,
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
        calls=counts or CallCounts(),
        measures=settings.metrics != "off",
        wants_labels=settings.labels != "off",
        release_policy=settings.release_policy,
        history=history,
        node=settings.node_name,
        paths=settings.paths,
        pod_uid=settings.pod_uid,
        cdi=settings.cdi_dir,
        device_status=settings.device_status == "on",
        device_metadata=settings.device_metadata == "on",
        follows_pods=settings.metrics == "pods",
        replaces=() if settings.replaces is None else (settings.replaces,),
    )
    return DraDriver(plan.served(), options, states=plan.states)


def _cdi(settings: Settings) -> CdiOptions | None:
    if settings.cdi == "off":
        return None
    from ..deviceplugin.cdi import CdiOptions

    return CdiOptions(directory=settings.cdi_dir, only=settings.cdi == "only", names=settings.cdi_names)
