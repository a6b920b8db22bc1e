"""The work of a command that plays a kubelet, until it is done or a person ends it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskStatus

_T = TypeVar("_T")


class Interrupted(Exception):
    """SIGINT or SIGTERM came first; the text is its name."""


async def unless_interrupted(work: Callable[[], Awaitable[_T]]) -> _T:
    """Return what this returns; SIGINT or SIGTERM cancels it.

    Raises:
        Interrupted: A signal came first, and the work is cancelled.
        Exception: What the work raised, as it was raised.
    """
    done: list[_T] = []
    failure: Exception | None = None
    received = ""
    async with anyio.create_task_group() as tasks:

        async def receive(*, task_status: TaskStatus[None]) -> None:
            nonlocal received
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for number in signals:
                    received = number.name
                    tasks.cancel_scope.cancel()

        await tasks.start(receive)
        try:
            done.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not done:
        raise Interrupted(received)
    return done[0]
