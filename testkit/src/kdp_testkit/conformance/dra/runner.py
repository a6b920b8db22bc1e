"""Runs the checks of DRA drivers: each on a node of its own, some beside one another.

A driver that cannot be met is judged by failures that say what happened instead.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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

_WIDTH = 4
"""So many checks run beside one another: each has a kubelet and an API server of its own."""


async def run_dra_checks(
    subject: DraSubject,
    *,
    profile: str = DEFAULT_PROFILE,
    only: Iterable[int] | None = None,
    skip: Iterable[int] = (),
    quick: bool = False,
    jobs: int | None = None,
    patience: float = 1.0,
    tell: Tell | None = None,
) -> ConformanceReport:
    """Run checks against a driver.

    Args:
        subject: The driver.
        profile: Which Kubernetes.
        only: Ids; default: all.
        skip: Ids that are left out.
        quick: Leave out those that must wait long.
        jobs: How many run beside one another; default: 4.
        patience: Factor on every verdict's limit; for the kit's own tests.
        tell: Called with each result as it comes.

    Raises:
        ValueError: There is no such profile or no check with such an id, or no check is left to run.
    """
    name = profile_named(profile).name
    runner = Runner(CHECKS, profile=name, only=only, skip=skip, quick=quick, tell=tell)
    await runner.judge_all(
        partial(_play, subject, name, patience), jobs=jobs or _WIDTH, shares_hardware=subject.shares_hardware
    )
    return runner.report()


async def _play(subject: DraSubject, profile: str, patience: float, check: Check[DraScene]) -> str:
    with tempfile.TemporaryDirectory(prefix="kdp-") as folder:
        async with playing(subject, Path(folder), profile=profile, patience=patience) as scene:
            await scene.start()
            await scene.wait_until_ready()
            return await check.play(scene)
    raise AssertionError
