"""`Scene`: one node with what is judged on it, for both protocols.

Everything that a check waits for is waited for here, with a deadline, and ends at once when the plugin ends although
nobody asked it to. A verdict's limit is ten times what the contract's rule names, because a loaded machine is no fault
of the plugin.
"""

from __future__ import annotations

import abc
import time
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from .checks import Failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup, TaskStatus

    from ..events import EventLog
    from .instance import Ending, Instance

LENIENCE = 10.0
"""A verdict's limit is so many times the time that the rule names."""

STORY = 8
"""So many last events are told with a failure."""

_LINE = 300

_LOOK = 0.02
"""Seconds between two looks at a condition."""

_MOST_STRETCHED = 5
"""Limits that a wait on a busy machine may take at most."""

_PUNCTUAL = 0.02
"""Seconds by which a look is late on any machine."""


def limit_of(target: float, patience: float) -> float:
    """Return the seconds after which a rule counts as broken that names ``target`` seconds."""
    return target * LENIENCE * patience


class Scene(abc.ABC):
    """One node with what is judged on it, and what a check asks about them.

    Attributes:
        noun: What is judged, for failures.
        instances: Those that were started, the last one last.
    """

    noun: ClassVar[str]

    def __init__(self, tasks: TaskGroup, *, patience: float) -> None:
        self.instances: list[Instance] = []
        self._tasks = tasks
        self._patience = patience
        self._expected_to_end: set[int] = set()

    @property
    @abc.abstractmethod
    def log(self) -> EventLog:
        """What the kubelet has seen."""

    def limit(self, target: float) -> float:
        """Return the seconds after which a rule counts as broken that names ``target`` seconds."""
        return limit_of(target, self._patience)

    # -- instances -----------------------------------------------------------------------------------------------------

    @property
    def instance(self) -> Instance:
        """The instance that was started last."""
        return self.instances[-1]

    async def hold(self, running: AbstractAsyncContextManager[Instance]) -> Instance:
        """Keep one more instance until the scene is over, and return it; it need not be registered yet."""
        # In a task of its own, because contexts must be left where they were entered.
        self.instances.append(await self._tasks.start(self._hold, running))
        return self.instance

    async def _hold(self, running: AbstractAsyncContextManager[Instance], *, task_status: TaskStatus[Instance]) -> None:
        async with running as instance:
            task_status.started(instance)
            await anyio.sleep_forever()

    async def stop(self, instance: Instance | None = None) -> Ending:
        """Ask an instance to end, as the kubelet does, and wait for it; by default the last one.

        Raises:
            Failed: It does not end.
        """
        instance = instance or self.instance
        self.may_end(instance)
        within = self.limit(2.0)
        try:
            return await instance.stop(within)
        except TimeoutError:
            raise self.failed(f"the {self.noun} was still running {within:g} s after SIGTERM") from None

    async def kill(self, instance: Instance | None = None) -> None:
        """End an instance as SIGKILL does; by default the last one."""
        instance = instance or self.instance
        self.may_end(instance)
        await instance.kill()

    def may_end(self, instance: Instance) -> None:
        """Do not take the end of this instance for a failure."""
        self._expected_to_end.add(id(instance))

    # -- waiting and judging -------------------------------------------------------------------------------------------

    async def until(
        self, condition: Callable[[], object] | Callable[[], Awaitable[object]], within: float, otherwise: str
    ) -> float:
        """Wait until a condition holds and return the seconds that it took.

        On a busy machine the limit grows: a delay of this loop by the machine delays the plugin as well.

        Args:
            condition: Evaluated after each event of the kubelet, and every 20 ms.
            within: Seconds to wait.
            otherwise: What was seen instead, for the failure.

        Raises:
            Failed: It did not hold in time, or an instance ended.
        """
        began = now = time.monotonic()
        until = began + within
        while not await _value(condition):
            if now >= until:
                raise self.failed(f"{otherwise} within {within:.3g} s")
            self.check_alive()
            asked = time.monotonic()
            with anyio.move_on_after(min(until - now, _LOOK)):
                await self.log.change()
            now = time.monotonic()
            # Not without end: a plugin in this process that keeps the loop stops the kit, too.
            until = min(until + max(0.0, now - asked - _LOOK - _PUNCTUAL), began + _MOST_STRETCHED * within)
        return time.monotonic() - began

    async def elapse(self, seconds: float) -> None:
        """Let a time pass that the scenario names."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check_alive()
            await anyio.sleep(min(left, 0.05))
        self.check_alive()

    def check_alive(self) -> None:
        """Raise if an instance has ended although nobody asked it to."""
        for instance in self.instances:
            if instance.ending is not None and id(instance) not in self._expected_to_end:
                raise self.failed(f"the {self.noun} {instance.ending}")

    def failed(self, saw: str) -> Failed:
        """Return the failure, with the kubelet's last events and the last lines of the instances."""
        story = self.log.story(STORY).splitlines() if len(self.log) else []
        said = [line for instance in self.instances for line in instance.output().splitlines()[-4:]]
        parts = [saw]
        if story:
            parts += ["what the kubelet saw last:", *(line[:_LINE] for line in story)]
        if said:
            parts += [f"what the {self.noun} said last:", *(f"  {line[:_LINE]}" for line in said)]
        return Failed("\n".join(parts))

    def require(self, condition: object, otherwise: str) -> None:
        """Raise the failure unless the condition holds."""
        if not condition:
            raise self.failed(otherwise)


async def _value(condition: Callable[[], Any]) -> object:
    found = condition()
    return await found if isawaitable(found) else found


def plural(count: int, what: str) -> str:
    """Return "1 device", "2 devices"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def ids(devices: Iterable[str], most: int = 4) -> str:
    """Return some ids as text."""
    names = sorted(devices)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
