"""The pytest plugin: fixtures for a vendor's tests. It is loaded with pytest wherever kdp is installed.

========== =================================================================================================
kubelet    a `SimulatedKubelet` that runs; ``@pytest.mark.kubelet(profile="k134")`` gives its arguments, and
           ``@pytest.mark.parametrize("kubelet", ["k134", "k137"], indirect=True)`` runs a test on several;
           ``async with kubelet.serving(Widgets()): ...`` runs backends on it
cluster    a `SimulatedCluster` for DRA drivers: ``async with cluster.serving(Widgets()): ...``
sysfs_tree a `SysfsTree`: a root of a test's own for backends that read the node's files
node_from  a `SysfsTree` with the files of a snapshot: ``tree = node_from("tests/data/node.tar.gz")``
========== =================================================================================================

A test that asks for ``kubelet`` or ``cluster`` is ``async def`` and needs no marker: anyio's pytest plugin, which comes
with kdp, runs it. If it calls ``kubelet.admit(...)`` without ``await``, it fails.

Rule: nothing but pytest is imported before a fixture is used, and nothing is changed for tests that use none.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from .dra.cluster import SimulatedCluster
    from .kubelet import SimulatedKubelet
    from .lifetime import Entered
    from .sysfs import SysfsTree

_T = TypeVar("_T")


class NodeFrom(Protocol):
    """The type of the fixture ``node_from``."""

    def __call__(self, snapshot: str | os.PathLike[str]) -> SysfsTree:
        """Return the node that a snapshot was taken on, its errors included; each call makes a node of its own.

        Args:
            snapshot: As ``kdp snapshot`` wrote it; a relative path is relative to the working directory.

        Raises:
            ConfigurationError: It cannot be used; the text says why.
        """
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and have the async fixtures run by the plugin that runs the tests."""
    config.addinivalue_line(
        "markers",
        "kubelet(profile, **arguments): what the fixture 'kubelet' is made with, see kdp.testing.SimulatedKubelet.",
    )
    is_auto = config.pluginmanager.hasplugin("asyncio") and "auto" in (
        config.getoption("asyncio_mode", None),
        config.getini("asyncio_mode"),
    )
    config.pluginmanager.register(_OnPytestAsyncio() if is_auto else _OnAnyio(), "kdp-fixtures")


_NO_AWAIT = (
    "error:coroutine .* was never awaited:RuntimeWarning",
    # Nothing can be raised where a coroutine ends: pytest collects it there, and warns of it after the test.
    r"error:[\s\S]* was never awaited:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test of the simulated kubelet or cluster fail if it calls without ``await``: nothing has happened then."""
    for item in items:
        # A test's own fixture of that name is somebody else's.
        known: Mapping[str, Sequence[Any]] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        used = [known[name][-1].func.__module__ for name in ("kubelet", "cluster") if known.get(name)]
        if __name__ in used:
            for each in _NO_AWAIT:
                item.add_marker(pytest.mark.filterwarnings(each))


def _check_entered(name: str, served: Sequence[Entered[Any]]) -> None:
    """Fail a test that has called ``serving`` and has not entered it: nothing was served."""
    if not all(each.is_entered for each in served):
        pytest.fail(f"{name}.serving(...) was not entered; write: async with {name}.serving(...): ... in an async def")


@asynccontextmanager
async def _kubelet(request: pytest.FixtureRequest) -> AsyncGenerator[SimulatedKubelet]:
    from .kubelet import SimulatedKubelet

    marker = request.node.get_closest_marker("kubelet")
    arguments: dict[str, Any] = {}
    if marker is not None:
        arguments = dict(marker.kwargs)
        if marker.args:
            (arguments["profile"],) = marker.args
    if hasattr(request, "param"):
        arguments["profile"] = request.param
    async with SimulatedKubelet(**arguments) as simulated:
        yield simulated
    _check_entered("kubelet", simulated.served)


@asynccontextmanager
async def _cluster(request: pytest.FixtureRequest) -> AsyncGenerator[SimulatedCluster]:
    from .dra.cluster import SimulatedCluster

    arguments = {"profile": request.param} if hasattr(request, "param") else {}
    async with SimulatedCluster(**arguments) as simulated:
        yield simulated
    _check_entered("cluster", simulated.served)


class _OnAnyio:
    """The async fixtures, run by anyio's pytest plugin, which then runs the test, too."""

    @pytest.fixture
    async def kubelet(
        self, request: pytest.FixtureRequest, anyio_backend_name: str
    ) -> AsyncGenerator[SimulatedKubelet]:
        """A simulated kubelet that runs: the newest one, unless the marker or a parameter says otherwise."""
        _check_runner(request, anyio_backend_name)
        async with _kubelet(request) as simulated:
            yield simulated

    @pytest.fixture
    async def cluster(
        self, request: pytest.FixtureRequest, anyio_backend_name: str
    ) -> AsyncGenerator[SimulatedCluster]:
        """A simulated API server with a node that speaks DRA: of the newest version unless a parameter says another."""
        _check_runner(request, anyio_backend_name)
        async with _cluster(request) as simulated:
            yield simulated


class _OnPytestAsyncio:
    """The same, run by pytest-asyncio: in its mode ``auto`` it runs all async tests and fixtures."""

    @pytest.fixture
    async def kubelet(self, request: pytest.FixtureRequest) -> AsyncGenerator[SimulatedKubelet]:
        async with _in_one_task(_kubelet(request)) as simulated:
            yield simulated

    @pytest.fixture
    async def cluster(self, request: pytest.FixtureRequest) -> AsyncGenerator[SimulatedCluster]:
        async with _in_one_task(_cluster(request)) as simulated:
            yield simulated


@asynccontextmanager
async def _in_one_task(context: AbstractAsyncContextManager[_T]) -> AsyncGenerator[_T]:
    """Enter and leave a context in one task, as anyio wants it; pytest-asyncio begins and ends a fixture in two."""
    import asyncio

    entered: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def live() -> None:
        async with context as value:
            entered.set_result(value)
            await over.wait()

    task = asyncio.create_task(live())
    first: set[asyncio.Future[Any]] = {task, entered}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    try:
        if not entered.done():
            task.result()  # it raises what went wrong
        yield entered.result()
    finally:
        over.set()
        await task


def _check_runner(request: pytest.FixtureRequest, backend: str) -> None:
    if request.node.get_closest_marker("asyncio") is not None:
        raise pytest.UsageError(
            f"{request.node.name}: the fixture {request.fixturename!r} and @pytest.mark.asyncio would use two event "
            "loops; remove that marker, or set asyncio_mode to auto"
        )
    if backend != "asyncio":
        pytest.skip(f"gRPC runs on asyncio, not on {backend}")


@pytest.fixture
def sysfs_tree(tmp_path: Path) -> SysfsTree:
    """A root directory for a node's files; where a device node is not permitted the test is skipped."""
    from .sysfs import SysfsTree

    return SysfsTree(tmp_path / "host", not_permitted=pytest.skip)


@pytest.fixture
def node_from(tmp_path: Path) -> NodeFrom:
    """Nodes made of snapshots, which a test may change under a running plugin."""
    from .sysfs import SysfsTree

    made: list[SysfsTree] = []

    def make(snapshot: str | os.PathLike[str]) -> SysfsTree:
        made.append(SysfsTree(tmp_path / f"node{len(made)}", snapshot=snapshot, not_permitted=pytest.skip))
        return made[-1]

    return make
