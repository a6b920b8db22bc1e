"""Waiting on a scene: how long, and on a machine that is busy."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from typing_extensions import override

from kdp_testkit.conformance.checks import Failed
from kdp_testkit.conformance.scene import Scene
from kdp_testkit.events import EventLog


class _Bare(Scene):
    """A scene with nothing on it."""

    noun = "plugin"

    def __init__(self, tasks: TaskGroup) -> None:
        super().__init__(tasks, patience=1.0)
        self.events = EventLog()

    @property
    @override
    def log(self) -> EventLog:
        return self.events


@pytest.fixture
async def scene() -> AsyncGenerator[_Bare]:
    async with anyio.create_task_group() as tasks:
        yield _Bare(tasks)
        tasks.cancel_scope.cancel()


async def test_a_condition_that_never_holds_fails_in_time(scene: _Bare) -> None:
    began = time.monotonic()
    with pytest.raises(Failed, match=r"^no list came within 0\.2 s$"):
        await scene.until(lambda: False, 0.2, "no list came")
    assert time.monotonic() - began >= 0.2


async def test_a_busy_machine_was_taken_for_a_late_plugin(scene: _Bare) -> None:
    """The seconds in which this process did not run were counted as the plugin's."""
    turns: list[float] = []

    async def starve() -> None:
        for _ in range(4):
            time.sleep(0.15)  # noqa: ASYNC251 - it stands for a processor that others have
            turns.append(time.monotonic())
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(starve)
        await scene.until(lambda: len(turns) == 4, 0.2, "no list came")


async def test_a_condition_that_takes_long_does_not_lengthen_its_limit(scene: _Bare) -> None:
    looks = 0

    async def look() -> bool:
        nonlocal looks
        looks += 1
        await anyio.sleep(0.15)
        return False

    with pytest.raises(Failed):
        await scene.until(look, 0.2, "no list came")
    assert looks <= 3
