"""The pytest marker ``conformance``: a vendor's whole conformance test in three lines.

```python
@pytest.mark.conformance(Widgets, quick=True)
def test_widgets_conform(conformance_check: CheckResult) -> None:
    assert conformance_check.status == "passed"
```

Each check is a test of its own: the fixture ``conformance_check`` runs one and fails with what the kubelet saw, what it
should have seen, the rule and the cure; one that does not apply is skipped with the reason. The fixture ``conformance``
runs all of them at once, in a fraction of the time, and gives the report. The arguments of the marker are those of
`kdp_testkit.conformance.check_backend`; a backend that needs fixtures of the test comes from a fixture
``conformance_backend`` that returns the function to make it.

The tests are plain ``def``: the fixtures run an event loop of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .reports import CheckResult, ConformanceReport


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "conformance(make, **arguments): the backend that the fixtures 'conformance' and 'conformance_check' judge, "
        "see kdp_testkit.conformance.check_backend.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each check.

    Raises:
        pytest.Collector.CollectError: The marker names a check that there is not, or leaves none.
    """
    if "conformance_check" not in metafunc.fixturenames:
        return
    from ..profiles import DEFAULT_PROFILE
    from .deviceplugin.catalogue import CHECKS
    from .runner import Runner

    marker = metafunc.definition.get_closest_marker("conformance")
    arguments: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    choice = {name: arguments[name] for name in ("only", "skip", "quick") if name in arguments}
    try:
        chosen = Runner(CHECKS, profile=DEFAULT_PROFILE, **choice).chosen
    except ValueError as wrong:
        text = f"{metafunc.definition.name}: the marker 'conformance': {wrong}"
        raise pytest.Collector.CollectError(text) from None
    metafunc.parametrize(
        "conformance_check",
        [pytest.param(check.id, id=f"{check.id}-{check.name.replace(' ', '-')}") for check in chosen],
        indirect=True,
    )


def _run(request: pytest.FixtureRequest, **changes: Any) -> ConformanceReport:
    import anyio

    from .deviceplugin.runner import check_backend

    marker = request.node.get_closest_marker("conformance")
    made = () if marker is None else marker.args
    arguments: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    if len(made) > 1:
        raise pytest.UsageError("the marker 'conformance' takes one class, or one function that makes a backend")
    make = made[0] if made else request.getfixturevalue("conformance_backend")

    async def run() -> ConformanceReport:
        return await check_backend(make, **{**arguments, **changes})

    return anyio.run(run)


@pytest.fixture
def conformance(request: pytest.FixtureRequest) -> ConformanceReport:
    """Run all checks, many at the same time, and give the report."""
    return _run(request)


@pytest.fixture
def conformance_check(request: pytest.FixtureRequest) -> CheckResult:
    """Run one check; fails if it fails, skips if it does not apply."""
    report = _run(request, only=[request.param])
    [result] = report.results
    if result.status == "not_applicable":
        pytest.skip(f"check {result.check.id} does not apply: {result.saw}")
    if result.status == "failed":
        pytest.fail(
            result.in_full(indent=""),
            pytrace=False,
        )
    return result
