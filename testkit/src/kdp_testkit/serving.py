"""How a test serves backends on a simulated kubelet: in this process, with all directories those of the test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from kdp.daemon.mode_lock import key_of
from kdp.daemon.plan import check_backends
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.deviceplugin.options import Pace
from kdp.supervision.backend_store import give_store, store_name

from . import events
from .lifetime import ungrouped
from .protocol.pods import NotReached

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from kdp.hardware import Host
    from kdp.model.backend import DeviceBackend
    from kdp.supervision.service import Service

    from .devicemanager.kubelet_core import KubeletCore

_NODE: Final = Pace()


@asynccontextmanager
async def serving(
    kubelet: KubeletCore,
    backends: Sequence[DeviceBackend],
    *,
    host: Host | None,
    ready: bool,
    seconds: float,
    speed: float,
    options: dict[str, Any],
) -> AsyncGenerator[PluginManager]:
    """See `SimulatedKubelet.serving`."""
    check_backends(backends)
    pace = Pace(
        gap=_NODE.gap / speed,
        admission=_NODE.admission / speed,
        look=_NODE.look / speed,
        settled=_NODE.settled / speed,
        between=_NODE.between / speed,
        retry=_NODE.retry / speed,
        absent=_NODE.absent / speed,
    )
    state_dir = kubelet.paths.device_plugin_dir.parent / "kdp"
    usual = ManagerOptions(paths=kubelet.paths, host=host, pace=pace, state_dir=state_dir)
    chosen = attrs.evolve(usual, **options)
    give_stores(backends, chosen.state_dir, kubelet.paths.device_plugin_dir.parent)
    with ungrouped():
        async with PluginManager(backends, chosen) as manager:

            def is_listed() -> bool:
                listed = {event.resource for event in kubelet.events.of(events.ListReceived)}
                return manager.status().resources.keys() <= listed

            if ready:
                await until_ready(manager, kubelet.events, seconds, is_listed)
            yield manager


def give_stores(backends: Sequence[DeviceBackend], state_dir: Path | None, kubelet_root: Path) -> None:
    """Give backends the stores that they have in a process of their own: the values outlive an object of a class."""
    for backend in backends:
        name = store_name(key_of(backend, kubelet_root))
        give_store(backend, None if state_dir is None else state_dir / name)


async def until_ready(
    service: Service, log: events.EventLog, seconds: float, is_seen: Callable[[], bool] = lambda: True
) -> None:
    """Wait until what is served is ready, and the other side sees it.

    Raises:
        NotReached: It is not in time; the text tells why, and what happened.
    """

    def is_ready() -> bool:
        return service.is_ready and is_seen()

    with anyio.move_on_after(seconds):
        while not is_ready():
            # Its last step is not the kubelet's, so there is no event of it.
            with anyio.move_on_after(0.01):
                await log.change()
    if not is_ready():
        status = service.status()
        reasons = [f"{name}: {reason}" for name, reason in status.backends if reason]
        reasons += [f"{name} is {held.state}: {held.reason or 'no reason'}" for name, held in status.parts.items()]
        raise NotReached(
            f"not ready in {seconds:g} s: {'; '.join(reasons) or 'no resource'}. What happened:\n{log.story()}"
        )
