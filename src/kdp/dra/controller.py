"""`PoolController`: publishes a pool of devices that are no node's own, as those of a network or a fabric.

One process in the cluster discovers the devices and writes their slices, which say by labels which nodes can use them.
On those nodes a `DraDriver` for the same pool prepares claims; it publishes nothing. The slices belong to no Node, so
nothing removes them by itself: neither the kubelet, nor the garbage collector, nor the end of this process, after which
the next version takes them over. `remove_pool` does, at uninstall.

Only one controller may serve a pool at a time: a Deployment of one replica that is ended before it is replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import anyio
import attrs
from typing_extensions import override

from ..errors import ConfigurationError
from ..supervision.backend_validation import agreed_host
from ..supervision.service import Service
from ..supervision.shared_state import SharedState, states_for
from .driver import Status, driver_of, supervisor_of
from .names import check_pool_name
from .plugin import DriverStatus
from .publishing.feed import Feed
from .publishing.publisher import Publisher
from .publishing.slices import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..cluster.api import ClusterApi
    from ..model.backend import DeviceBackend
    from .options import ControllerOptions


@final
class PoolController(Service):
    """Publishes one backend's devices as a pool that is no node's; an async context manager (asyncio only).

    Leaving the context ends the writing; the slices stay.

    Args:
        backends: The vendor's object; just one.
        options: See `ControllerOptions`.
        states: Each backend's state, handed on by its previous supervisor. Empty: there was none.

    Raises:
        ConfigurationError: There is not just one backend, or it has no name.
        InvalidNameError: A name breaks the rules.
    """

    def __init__(
        self, backends: Sequence[DeviceBackend], options: ControllerOptions, *, states: Sequence[SharedState] = ()
    ) -> None:
        super().__init__()
        if len(backends) != 1:
            raise ConfigurationError(
                f"pool {options.pool!r}: has one backend, here are {len(backends)}; run a controller for each"
            )
        [backend] = backends
        [state] = states_for(backends, states)
        agreed_host(backends, options.host)
        self._api = options.api
        self._driver = driver_of(backend, options.name)
        pool = Pool.of_network(self._driver, check_pool_name(options.pool), options.labels)
        self._supervisor = supervisor_of(backend, options, host=None, state=state)
        # Standard attributes are those of a node's own devices: where this process runs means nothing for others.
        self._feed = Feed(self._supervisor, pool, options)
        self._writing: anyio.CancelScope
        self._supervisors.append(self._supervisor)

    @override
    def status(self) -> Status:
        """Return where everything stands now."""
        known = DriverStatus.of(self._driver, self._supervisor.discovery.value, self._feed)
        driver = attrs.evolve(known, serves=False, claims=None)
        return Status(drivers={self._driver: driver}, backends=self._problems, absent=self._absent)

    @property
    def requests(self) -> Mapping[tuple[str, ...], int]:
        """Requests to the API server; see `kdp.cluster.api.ClusterApi`."""
        return self._api.requests

    @override
    def _begin(self) -> None:
        self._writing = anyio.CancelScope()
        self._tasks.start_soon(self._write)

    async def _write(self) -> None:
        with self._writing:
            await self._feed.run()

    @override
    async def _end(self, until: float) -> None:
        self._writing.cancel()  # what is written is written, and the rest the next version writes
        await self._discovered.wait()


async def remove_pool(api: ClusterApi, driver: str, pool: str) -> int:
    """Delete the slices of a pool that is no node's, when its controller is gone; returns how many there were.

    A node's own slices are left alone, also if the node has the pool's name.

    Raises:
        ApiError: The server did not do so, for half a minute.
        InvalidNameError: A name breaks the rules.
    """
    return await Publisher(api, Pool.of_network(driver, check_pool_name(pool), {})).remove()
