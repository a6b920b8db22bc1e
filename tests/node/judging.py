"""Judging plugins with the conformance kit in processes of their own, some beside one another.

As a command it makes one judgement and prints it as JSON; ``python -m tests.node.judging`` with

* ``examples EXAMPLE PROFILE ROUTE IDS [SCALE]``: an example on the real device manager of the minor that PROFILE
  simulates;
* ``defects PROFILE``: the broken plugins of tests/conformance on it, each by the check that must find it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import anyio
import attrs
from tests.conformance import examples
from tests.conformance.defects import DEFECTS, is_found, judge_all

from kdp_testkit.conformance.checks import Route

from .nodekit.observed import real
from .quiet import Quiet

__all__ = ["HURRY", "PLAYED", "Judgement", "Judgements", "assert_passed"]

REPOSITORY = Path(__file__).resolve().parents[2]

BESIDE = (os.cpu_count() or 1) + 1
"""So many at a time, besides those that wait and the other tests: each waits for half of its time, but one that is
starved of a processor is late through no fault of its own."""

WAITING_BESIDE = 3
"""Number of those that wait, one for five minutes: with more of them, the tests of the first minutes are starved."""

HURRY = "0.05"
"""The scale of those that wait for minutes, where they need not."""

LONGEST = 1000.0
"""Seconds for one judgement; what waits longest waits for 300, and once more if it fails on a busy machine."""

PLAYED = tuple(defect for defect in DEFECTS if defect.name != "spins")
"""What spins is seen only if it gets a processor. Beside so many others it gets none, and no kubelet is there then."""


@attrs.frozen
class Judgement:
    """One process that judges.

    Attributes:
        name: For people.
        module: What ``python -m`` runs.
        arguments: For the module.
        waits: Whether it spends its time waiting.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    waits: bool = False


class Judgements:
    """Makes judgements, as many at a time as this machine can, and those that wait beside them.

    Args:
        asked: All of them.
        quiet: Whom they make room for, but for those that wait.
    """

    def __init__(self, asked: Iterable[Judgement], quiet: Quiet) -> None:
        self._quiet = quiet
        self._is_closed = False
        self._processes: list[subprocess.Popen[str]] = []
        self._pools = {True: ThreadPoolExecutor(WAITING_BESIDE), False: ThreadPoolExecutor(BESIDE)}
        self._futures: dict[Judgement, Future[tuple[Any, float]]] = {
            judgement: self._pools[judgement.waits].submit(self._make, judgement) for judgement in dict.fromkeys(asked)
        }

    def _make(self, judgement: Judgement) -> tuple[Any, float]:
        with nullcontext() if judgement.waits else self._quiet.disturbed():
            if self._is_closed:
                raise AssertionError(f"{judgement.name} was not begun: the tests have ended")
            return self._judge(judgement)

    def _judge(self, judgement: Judgement) -> tuple[Any, float]:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", judgement.module, *judgement.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self._processes.append(process)
        said, log = process.communicate(timeout=LONGEST)
        if process.returncode:
            raise AssertionError(f"{judgement.name} ended with {process.returncode}:\n{log[-4000:]}")
        return json.loads(said), time.monotonic() - began

    def of(self, judgement: Judgement) -> tuple[Any, float]:
        """Return what came of a judgement, and the seconds that it took; waits for it."""
        return self._futures[judgement].result()

    def close(self) -> None:
        """End what is not done."""
        self._is_closed = True
        for future in self._futures.values():
            future.cancel()
        for process in self._processes:
            process.kill()
        for pool in self._pools.values():
            pool.shutdown()


async def _judge_defects(profile: str) -> list[tuple[str, str, str, bool]]:
    """Return of each broken plugin: the defect, the status, what was seen, whether it was found."""
    results = await judge_all(PLAYED, profile=profile, kubelet=real)
    return [(str(each), result.status, result.saw, is_found(each, result)) for each, result in results.items()]


def assert_passed(report: dict[str, Any], *, example: str, route: Route, which: str, left_out: Collection[int]) -> None:
    """Fail unless all checks passed but those that cannot apply, which must be just the listed ones."""
    failed = [f"{check['id']}: {check['saw']}" for check in report["checks"] if check["status"] == "failed"]
    assert not failed, "\n\n".join(failed)
    found = {check["id"]: check["saw"] for check in report["checks"] if check["status"] == "not_applicable"}
    if which == "waiting":
        assert not found
        assert report["summary"]["passed"] == len(examples.WAITING)
    else:
        assert found == {id_: why for id_, why in examples.listed(route, example).items() if id_ not in left_out}


async def _judge_example(example: str, profile: str, route: str, ids: str, scale: str = "1") -> dict[str, object]:
    return await examples.judge_beside_others(
        example, profile, cast("Route", route), ids, kubelet=real, scale=float(scale)
    )


def main() -> None:
    """Make the judgement that the command line asks for."""
    what, *arguments = sys.argv[1:]
    judge_it: Callable[..., Awaitable[object]] = _judge_example if what == "examples" else _judge_defects
    made = anyio.run(judge_it, *arguments)
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
