"""The conformance kit's full matrix: the examples under every profile, over both routes, and what waits for minutes.

Each is judged in a process of its own, several at a time; those that wait begin first.
"""

from __future__ import annotations

import pytest
from tests.conformance.examples import EXAMPLES, MISSING, PROFILES, ROUTES

from .backend import Figure
from .judging import HURRY, Judgement, Judgements, assert_passed

WHOLE = ("minimal", "generic")
"""Judged over both routes under every profile.

The others are judged over kubelet.sock, and on the real managers once over the watcher.
"""

# What waits for minutes does so with the first example; with the others it is in a hurry, as on the real device
# managers, since a hundred thousand calls keep a processor busy for a minute.

MATRIX = [
    Judgement("-".join(case[:4]), "tests.conformance.examples", case, waits="waiting" in case)
    for case in [
        ("minimal", "k137", "kubelet", "waiting"),
        *(
            (example, "k137", "kubelet", "waiting", HURRY)
            for example in EXAMPLES
            if example not in ("minimal", "hwrng")
        ),
        *((example, profile, route, "quick") for example in WHOLE for profile in PROFILES for route in ROUTES),
        *(
            (example, profile, "kubelet", "quick")
            for example in EXAMPLES
            if example not in (*WHOLE, "hwrng")
            for profile in PROFILES
        ),
        ("hwrng", "k137", "watcher", "quick"),
    ]
]


@pytest.mark.alike
@pytest.mark.parametrize("judgement", MATRIX, ids=lambda judgement: judgement.name)
def test_an_example_passes(judgement: Judgement, judgements: Judgements, figure: Figure) -> None:
    example, profile, route, which, *_ = judgement.arguments
    if missing := MISSING.get(example):
        pytest.skip(missing)
    report, seconds = judgements.of(judgement)
    assert_passed(report, example=example, route=route, which=which, left_out=report["left_out"])  # type: ignore[arg-type]
    again = f", {report['again']} at the second try" if report["again"] else ""
    figure(f"conformance of {example}, {profile}, {route}, {which}{again}", seconds, "s")
