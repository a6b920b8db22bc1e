"""The conformance kit on the kubelet's own device managers: the same checks and verdicts, and it can fail there, too.

What may be not applicable is what may be so on the simulated kubelet, and nothing else. The checks that wait for
minutes are hurried to a twentieth of their time, which no kubelet can tell; test_conformance.py has them at their
length.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.examples import MISSING, ROUTES, WAITING

from .backend import Figure
from .judging import HURRY, PLAYED, Judgement, Judgements, assert_passed
from .nodekit import MINORS, Minor

OTHERS = {
    # Who asks for devices the kubelet may choose by preference, who has several resources at once, who has many of one
    # device: by each kubelet over kubelet.sock, where everything applies, and once over the watcher. Who has a
    # PreStartContainer: where it is oldest.
    "nvidia-gpu": (*((minor.profile, "kubelet") for minor in MINORS), ("k136", "watcher")),
    "fpga": (*((minor.profile, "kubelet") for minor in MINORS), ("k137", "watcher")),
    "rdma": (*((minor.profile, "kubelet") for minor in MINORS), ("k134", "watcher")),
    "hwrng": (("k134", "kubelet"),),
}
"""The other examples have kdp's own protocol in common with the first two, and all tests of a node together may take
fifteen minutes on two processors."""


def _cases(minor: Minor) -> Iterator[tuple[str, ...]]:
    """Return what is judged on a kubelet: example, profile, route, which checks, and how hurried they are."""
    for example in ("minimal", "generic"):
        yield from ((example, minor.profile, route, "quick") for route in ROUTES)
        yield example, minor.profile, "kubelet", "waiting", HURRY
    for example, judged in OTHERS.items():
        yield from ((example, profile, route, "quick") for profile, route in judged if profile == minor.profile)
        if minor is MINORS[-1] and example != "hwrng":
            yield example, minor.profile, "kubelet", "waiting", HURRY


EXAMPLES_JUDGED = [
    pytest.param(
        minor,
        Judgement(
            f"{'-'.join(case[:4])} on {minor.release}",
            "tests.node.judging",
            ("examples", *case),
            waits="waiting" in case,
        ),
        id="-".join(case[:4]),
    )
    for minor in MINORS
    for case in _cases(minor)
]

DEFECTS_JUDGED = [
    pytest.param(
        minor,
        Judgement(f"broken plugins on {minor.release}", "tests.node.judging", ("defects", minor.profile)),
        id=minor.profile,
    )
    for minor in (MINORS[0], MINORS[-1])  # between them nothing changed that a check could see
]


def _needs(minor: Minor) -> None:
    if not minor.is_compiled:
        pytest.skip(f"devmgr-{minor.name} is not compiled: run `make node-tools`")


@pytest.mark.alike
@pytest.mark.parametrize(("minor", "judgement"), EXAMPLES_JUDGED)
def test_an_example_passes(minor: Minor, judgement: Judgement, judgements: Judgements, figure: Figure) -> None:
    _needs(minor)
    _, example, _profile, route, which = judgement.arguments[:5]
    if missing := MISSING.get(example):
        pytest.skip(missing)
    report, seconds = judgements.of(judgement)
    assert_passed(report, example=example, route=route, which=which, left_out=WAITING)  # type: ignore[arg-type]
    summary = report["summary"]
    told = f"{summary['passed']} passed, {summary['not_applicable']} not applicable"
    if report["again"]:
        told += f", {report['again']} at the second try"
    figure(f"conformance of {example} on kubelet {minor.release}, {route}, {which}: {told}", seconds, "s")


@pytest.mark.parametrize(("minor", "judgement"), DEFECTS_JUDGED)
def test_every_defect_is_found(minor: Minor, judgement: Judgement, judgements: Judgements, figure: Figure) -> None:
    _needs(minor)
    results, seconds = judgements.of(judgement)
    missed = [f"{defect}: {status}: {saw}" for defect, status, saw, is_found in results if not is_found]
    assert not missed, "\n\n".join(missed)
    assert len(results) == len(PLAYED)
    figure(f"broken plugins on kubelet {minor.release}: {len(results)} of {len(results)} found", seconds, "s")
