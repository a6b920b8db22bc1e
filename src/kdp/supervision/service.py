"""`Service`: how what serves devices begins and ends, whether by device plugins or as DRA drivers.

Around it are the supervisors: discovery begins with it and ends before it, and the backends are closed at the very end.
"""

from __future__ import annotations

import abc
import logging
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol, Self, final

import anyio
import attrs
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from ..concurrency.backoff import Backoff
from ..errors import ConfigurationError
from ..kubelet.server import hold_core
from ..startup import shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from ..kubelet.watch import KubeletView  # noqa: TC004 - attrs reads no annotation
    from ..model.devices import Device
    from .health import DeviceHealth
    from .supervisor import Supervisor


logger = logging.getLogger(__name__)

DRAIN_SECONDS = 1.5
"""What calls in flight get at the stop (docs/explanation/architecture.md)."""

STOP_BUDGET = DRAIN_SECONDS + 0.3
"""Seconds for the whole stop; the backends' ``close`` gets what the others have left of it."""

PATIENCE = 1.0
"""Seconds beyond the budget after which answers that are still being sent are given up.

On a busy node the last answers come late. A caller that needs a certain end has its own clock, like `kdp.run`.
"""


MAX_LISTED = 20
"""The largest number of devices that the readiness probe names for one reason."""


@final
@attrs.frozen(kw_only=True)
class HeldClaim:
    """A claim that has devices.

    Attributes:
        name: Its name, as ``namespace/name``.
        uid: Its UID.
        devices: The ids of its devices.
        is_prepared: Whether it is prepared; otherwise that is going on, or has failed.
        is_over: Whether it is unprepared, and ``released`` is still to succeed for its devices.
    """

    name: str
    uid: str
    devices: tuple[str, ...]
    is_prepared: bool
    is_over: bool = False


class ServicePart(Protocol):
    """Status of one part of what is served: a resource, or a driver."""

    @property
    def is_ready(self) -> bool:
        """Whether the kubelet can use it."""
        ...

    @property
    def state(self) -> str:
        """The state's name, for example ``connected``."""
        ...

    @property
    def reason(self) -> str | None:
        """Why it is not ready; None: it is."""
        ...

    @property
    def devices(self) -> int:
        """Number of devices."""
        ...

    @property
    def healthy(self) -> int:
        """Number of healthy devices."""
        ...

    @property
    def faults(self) -> Mapping[str, DeviceHealth]:
        """Health of the devices that are not simply healthy, by device id."""
        ...

    @property
    def listed(self) -> Mapping[str, Device]:
        """The devices by id, with those that have vanished and are still listed."""
        ...

    @property
    def holders(self) -> Mapping[str, str] | None:
        """Which pod holds a device, by its id; None: nobody has said."""
        ...

    @property
    def details(self) -> Mapping[str, object]:
        """Facts that only this protocol has, JSON-like, for the readiness probe."""
        ...

    @property
    def since(self) -> float | None:
        """When the kubelet began or ceased to use it, on `time.monotonic`'s clock; None: that is not known."""
        ...

    @property
    def claims(self) -> Sequence[HeldClaim] | None:
        """The claims that have devices; None: this protocol knows none."""
        ...


@attrs.frozen(kw_only=True)
class BaseStatus(abc.ABC):
    """Where everything stands.

    Attributes:
        backends: For each backend, in the order given, its class's name and why it is not ready (None: it is).
        absent: For each backend of which the node has no hardware, the sentence. It counts as ready.
        kubelet: What is seen of the kubelet; None: nothing is.
        kubelet_restarts: How often another kubelet took its place.
    """

    __repr__ = shown

    backends: tuple[tuple[str, str | None], ...]
    absent: tuple[str, ...] = ()
    kubelet: KubeletView | None = None
    kubelet_restarts: int = 0

    @property
    @abc.abstractmethod
    def parts(self) -> Mapping[str, ServicePart]:
        """What is served, by name."""

    @property
    def is_ready(self) -> bool:
        """Whether every backend is open, and every part of what is served is ready."""
        return all(problem is None for _, problem in self.backends) and all(p.is_ready for p in self.parts.values())


class Service(AsyncContextManagerMixin, abc.ABC):
    """Supervisors and what serves their devices; an async context manager (asyncio only).

    Leaving the context is the orderly stop; cancellation of the body counts as leaving.
    """

    def __init__(self) -> None:
        self._supervisors: list[Supervisor] = []
        self._was_entered = False
        self._everything: anyio.CancelScope
        self._discovering: anyio.CancelScope
        self._begun: anyio.Event
        self._leaving: anyio.Event
        self._discovered: anyio.Event
        self._tasks: TaskGroup

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The supervisors of the backends, in the order given."""
        return self._supervisors

    def rescan(self) -> None:
        """Let every backend discover soon, over the living streams."""
        for supervisor in self._supervisors:
            supervisor.rescan()

    async def look_at_holders(self) -> None:
        """Ask for the holders of the devices, if only the kubelet has them. It takes 0.7 s at most."""

    @abc.abstractmethod
    def status(self) -> BaseStatus:
        """Return where everything stands now."""

    async def failed(self) -> NoReturn:
        """Wait forever, unless something happens that only a new process can cure: then raise that."""
        await anyio.sleep_forever()
        raise AssertionError

    @property
    def is_ready(self) -> bool:
        """Whether every backend is open, and all that is served is ready."""
        return self.status().is_ready

    @property
    def _problems(self) -> tuple[tuple[str, str | None], ...]:
        """What `BaseStatus.backends` says."""
        return tuple(
            (each.label, None if each.discovery.value.is_absent else each.hooks.in_full(each.discovery.value.problem))
            for each in self._supervisors
        )

    @property
    def _absent(self) -> tuple[str, ...]:
        """What `BaseStatus.absent` says."""
        found = ((each.label, each.discovery.value) for each in self._supervisors)
        return tuple(f"{label}: {value.problem}" for label, value in found if value.is_absent)

    @abc.abstractmethod
    def _begin(self) -> None:
        """Start in ``_tasks`` what serves."""

    async def _follow(self, supervisor: Supervisor) -> None:
        """Hand on what a supervisor discovers, until cancelled."""

    @abc.abstractmethod
    async def _end(self, until: float) -> None:
        """End what serves, before this time if possible. Discovery was told to end, and may take a moment."""

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._was_entered:
            raise ConfigurationError(
                f"{type(self).__name__} was entered before, and can be entered only once; create a new one"
            )
        self._was_entered = True
        self._everything, self._discovering = anyio.CancelScope(shield=True), anyio.CancelScope()
        self._begun, self._leaving, self._discovered = anyio.Event(), anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            try:
                await self._begun.wait()
                yield self
            finally:
                # Not awaited here: asyncio's own `Task.cancel`, which no shield holds back, would break it off. The
                # group waits.
                self._leaving.set()

    async def _run(self) -> None:
        # Shielded: a cancelled body must not take the tasks down before the orderly stop.
        with self._everything:
            async with hold_core(), anyio.create_task_group() as self._tasks:
                self._begin()
                self._tasks.start_soon(self._discover)
                self._begun.set()
                try:
                    await self._leaving.wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._stop()
                    self._everything.cancel()

    async def _discover(self) -> None:
        try:
            with self._discovering:
                async with anyio.create_task_group() as tasks:
                    for supervisor in self._supervisors:
                        tasks.start_soon(_persist, supervisor.label, supervisor.run)
                        tasks.start_soon(_persist, supervisor.label, partial(self._follow, supervisor))
        finally:
            self._discovered.set()

    async def _stop(self) -> None:
        until = time.monotonic() + STOP_BUDGET
        self._discovering.cancel()
        with anyio.move_on_after(STOP_BUDGET + PATIENCE):
            await self._end(until)
        left = max(0.1, until - time.monotonic())
        async with anyio.create_task_group() as closing:
            for supervisor in self._supervisors:
                closing.start_soon(supervisor.shutdown, left)


async def _persist(label: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work of one backend, and begin anew if its data breaks it: the other backends of the process go on."""
    backoff = Backoff()
    while True:
        try:
            await work()
            return
        except Exception:
            logger.exception(
                "%s: kdp failed on what this backend returned, which is a bug of kdp; it starts again", label
            )
            await anyio.sleep(backoff.next())
