"""Runs the checks of DRA drivers: each on a node of its own, some beside one another.

A driver that cannot be met is judged by failures that say what happened instead. Whatever a check raises that is not its own
verdict is a failure as well: it never passes because it could not look.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio

from ...dra.pods import PodStartError, PodStopError
from ...dra.profiles import DEFAULT_PROFILE, profile_named
from ...dra.status import ApiRefused
from ...kubelet import NotReached
from ...pods import ScenarioError
from ...wire import CallError
from ..model import CheckResult, ConformanceReport, Failed, NotApplicable
from . import (
    claims,
    failures,
    features,
    messages,
    metadata,
    overlap,
    refusals,
    registration,
    skipping,
    slices,
    sockets,
    state,
)
from .model import REGISTRY
from .scene import playing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Any

    from ..model import ConformanceCheck, Status
    from .subject import DraSubject

__all__ = ["CHECKS", "run_dra_checks"]

_MODULES = (
    registration,
    sockets,
    overlap,
    claims,
    failures,
    features,
    metadata,
    state,
    slices,
    refusals,
    skipping,
    messages,
)
"""They enter their checks when they are loaded."""

CHECKS: Mapping[int, ConformanceCheck] = dict(sorted(REGISTRY.items()))
"""All checks by their ids."""

LONGEST = 120.0
"""Seconds that a check may take besides those that it must wait."""


async def run_dra_checks(
    subject: DraSubject,
    *,
    profile: str = DEFAULT_PROFILE,
    only: Iterable[int] | None = None,
    quick: bool = False,
    patience: float = 1.0,
    width: int = 4,
    tell: Callable[[CheckResult], None] | None = None,
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
    ids = list(CHECKS) if only is None else sorted(set(only))
    unknown = [each for each in ids if each not in CHECKS]
    if unknown:
        raise ValueError(f"there is no check {unknown[0]}; the ids are {', '.join(map(str, CHECKS))}")
    left_out = tuple(each for each in ids if quick and CHECKS[each].waits and only is None)
    results: list[CheckResult] = []
    limiter = anyio.CapacityLimiter(width)

    async def run(check: ConformanceCheck) -> None:
        async with limiter:
            result = await _run(subject, check, name, patience)
        results.append(result)
        if tell is not None:
            tell(result)

    async with anyio.create_task_group() as tasks:
        for id in ids:
            if id not in left_out:
                tasks.start_soon(run, CHECKS[id])
    return ConformanceReport(profile=name, results=tuple(results), left_out=left_out)


async def _run(subject: DraSubject, check: ConformanceCheck, profile: str, patience: float) -> CheckResult:
    began = time.monotonic()
    status: Status = "failed"
    saw = f"the check was not over after {LONGEST + check.waits:g} s"
    try:
        with anyio.move_on_after(LONGEST + check.waits):
            saw = await _play(subject, check.play, profile, patience)
            status = "passed"
    except* Failed as failed:
        saw = str(_first(failed))
    except* NotApplicable as reason:
        status, saw = "not_applicable", str(_first(reason))
    except* (ApiRefused, CallError, NotReached, PodStartError, PodStopError, ScenarioError) as other:
        saw = f"{type(_first(other)).__name__}: {_first(other)}"
    return CheckResult(check=check, status=status, saw=saw, seconds=time.monotonic() - began)


async def _play(subject: DraSubject, play: Callable[[Any], Awaitable[str]], profile: str, patience: float) -> str:
    with tempfile.TemporaryDirectory(prefix="kdp-") as folder:
        async with playing(subject, Path(folder), profile=profile, patience=patience) as scene:
            await scene.start()
            await scene.met()
            return await play(scene)
    raise AssertionError


def _first(error: BaseException) -> BaseException:
    """Return a group's first error."""
    if isinstance(error, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error
