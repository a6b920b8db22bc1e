"""The full matrix of the conformance kit: the examples under every profile, over both routes, and what waits for minutes.

Each is judged in a process of its own, several at a time; those that wait begin first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conformance.examples import EXAMPLES, MISSING, PROFILES, ROUTES, WAITING, listed

from .backend import Figure

REPOSITORY = Path(__file__).resolve().parents[2]
BESIDE = 2 + (os.cpu_count() or 1)
"""So many at a time: two of them only wait."""

LONGEST = 900.0

MATRIX = [
    *((example, "k137", "kubelet", "waiting") for example in EXAMPLES),
    *((example, profile, route, "quick") for example in EXAMPLES for profile in PROFILES for route in ROUTES),
]

Judged = Callable[[tuple[str, str, str, str]], tuple[dict[str, Any], float]]


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest) -> Iterator[Judged]:
    """Judge what the chosen tests ask for, all beside one another."""
    processes: list[subprocess.Popen[str]] = []

    def judge(case: tuple[str, str, str, str]) -> tuple[dict[str, Any], float]:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.examples", *case],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        processes.append(process)
        said, log = process.communicate(timeout=LONGEST)
        assert process.returncode == 0, log[-4000:]
        return json.loads(said), time.monotonic() - began

    asked: list[tuple[str, str, str, str]] = [
        cast("Any", item).callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(BESIDE) as pool:
        futures: dict[Any, Future[tuple[dict[str, Any], float]]] = {case: pool.submit(judge, case) for case in asked}
        try:
            yield lambda case: futures[case].result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: "-".join(case))
def test_an_example_passes(case: tuple[str, str, str, str], judged: Judged, figure: Figure) -> None:
    example, profile, route, which = case
    if missing := MISSING.get(example):
        pytest.skip(missing)
    report, seconds = judged(case)
    failed = [f"{check['id']}: {check['saw']}" for check in report["checks"] if check["status"] == "failed"]
    assert not failed, "\n\n".join(failed)
    found = {check["id"]: check["saw"] for check in report["checks"] if check["status"] == "not_applicable"}
    if which == "waiting":
        assert not found
        assert report["summary"]["passed"] == len(WAITING)
    else:
        assert found == {id_: why for id_, why in listed(route, example).items() if id_ not in report["left_out"]}  # type: ignore[arg-type]
    figure(f"conformance of {example}, {profile}, {route}, {which}", seconds, "s")
