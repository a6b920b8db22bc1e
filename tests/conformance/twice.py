"""What fails beside other tests is judged once more by itself; what fails twice has failed.

On a starved machine, a plugin is late through no fault of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from kdp_testkit.conformance import ConformanceReport

__all__ = ["judged"]

Only = tuple[int, ...] | None


async def judged(judge: Callable[[Only], Awaitable[ConformanceReport]]) -> tuple[ConformanceReport, tuple[int, ...]]:
    """Return a report, and which checks were judged a second time.

    Args:
        judge: Called with None for everything, then with each check that has failed.
    """
    report = await judge(None)
    again = tuple(result.check.id for result in report.of("failed"))
    for number in again:
        [second] = (await judge((number,))).results
        report = attrs.evolve(report, results=tuple(second if r.check.id == number else r for r in report.results))
    return report, again
