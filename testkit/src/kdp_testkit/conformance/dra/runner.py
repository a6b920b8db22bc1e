"""Runs the checks of DRA drivers: each on a node of its own, some beside one another.

A driver that cannot be met is judged by failures that say what happened instead.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ...dra.profiles import DEFAULT_PROFILE, profile_named
from ..runner import Runner, Tell
from .catalogue import CHECKS
from .node import playing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..checks import Check
    from ..reports import ConformanceReport
    from .scene import DraScene
    from .subject import DraSubject


async def run_dra_checks(
    subject: DraSubject,
    *,
    profile: str = DEFAULT_PROFILE,
    only: Iterable[int] | None = None,
    quick: bool = False,
    patience: float = 1.0,
    width: int = 4,
    tell: Tell | None = None,
) -> ConformanceReport:
    """Run checks against a driver.

    Args:
        subject: The driver.
        profile: Which Kubernetes.
        only: Ids; default: all.
        quick: Leave out those that must wait long.
        patience: Factor on every verdict's limit; for the kit's own tests.
        width: How many run beside one another.
        tell: Called with each result as it comes.

    Raises:
        ValueError: There is no such profile or no check with such an id.
    """
    name = profile_named(profile).name
    runner = Runner(CHECKS, profile=name, only=only, quick=quick, tell=tell)
    limiter = anyio.CapacityLimiter(width)

    async def run(check: Check[DraScene]) -> None:
        async with limiter:
            await runner.judge(check, partial(_play, subject, check, name, patience), waits=check.waits)

    async with anyio.create_task_group() as tasks:
        for check in runner.chosen:
            tasks.start_soon(run, check)
    return runner.report()


async def _play(subject: DraSubject, check: Check[DraScene], profile: str, patience: float) -> str:
    with tempfile.TemporaryDirectory(prefix="kdp-") as folder:
        async with playing(subject, Path(folder), profile=profile, patience=patience) as scene:
            await scene.start()
            await scene.wait_until_ready()
            return await check.play(scene)
    raise AssertionError
