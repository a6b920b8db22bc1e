"""The pytest plugin: fixtures for a vendor's tests. It is loaded with pytest wherever kdp is installed.

========== =================================================================================================
kubelet    a `SimulatedKubelet` that runs; ``@pytest.mark.kubelet(profile="k134")`` gives its arguments, and
           ``@pytest.mark.parametrize("kubelet", ["k134", "k137"], indirect=True)`` runs a test on several
plugin_for runs backends on it: ``async with plugin_for(Widgets()): ...``
sysfs_tree a `SysfsTree`: a root of a test's own for backends that read the node's files
node_from  a `SysfsTree` with the files of a snapshot: ``tree = node_from("tests/data/node.tar.gz")``
========== =================================================================================================

A test that asks for ``kubelet`` is ``async def`` and needs no marker: anyio's pytest plugin, which comes with kdp, runs
it.

Rule: nothing but pytest is imported before a fixture is used, and nothing is changed for tests that use none.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from .patience import PATIENCE

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from kdp.deviceplugin import PluginManager
    from kdp.hardware import Host
    from kdp.model.backend import DeviceBackend

    from .kubelet import SimulatedKubelet
    from .sysfs import SysfsTree


class PluginFor(Protocol):
    """The type of the fixture ``plugin_for``."""

    def __call__(
        self,
        *backends: DeviceBackend,
        host: Host | None = None,
        ready: bool = True,
        timeout: float = PATIENCE,
        **options: Any,
    ) -> AbstractAsyncContextManager[PluginManager]:
        """Run backends on the kubelet of the fixture ``kubelet`` while the context lasts.

        Args:
            backends: The vendor's objects.
            host: The node's files, for instance ``sysfs_tree.host``.
            ready: Wait until the kubelet has a device list of every resource.
            timeout: Seconds to wait for that.
            options: Fields of `kdp.deviceplugin.ManagerOptions`.

        Raises:
            NotReached: They are not ready in time; the text tells why, and what happened.
        """
        ...


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
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "kubelet(profile, **arguments): what the fixture 'kubelet' is made with, see kdp.testing.SimulatedKubelet.",
    )


@pytest.fixture
async def kubelet(request: pytest.FixtureRequest, anyio_backend_name: str) -> AsyncGenerator[SimulatedKubelet]:
    """A simulated kubelet that runs: the newest one, unless the marker or a parameter says otherwise."""
    if anyio_backend_name != "asyncio":
        pytest.skip(f"gRPC runs on asyncio, not on {anyio_backend_name}")
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


@pytest.fixture
def plugin_for(kubelet: SimulatedKubelet) -> PluginFor:
    """Run backends on the kubelet of this test."""

    @asynccontextmanager
    async def run(
        *backends: DeviceBackend,
        host: Host | None = None,
        ready: bool = True,
        timeout: float = PATIENCE,  # noqa: ASYNC109 - a deadline for tests, with a story
        **options: Any,
    ) -> AsyncGenerator[PluginManager]:
        from kdp.deviceplugin import ManagerOptions, PluginManager

        async with PluginManager(backends, ManagerOptions(paths=kubelet.paths, host=host, **options)) as manager:
            if ready:
                await _until_ready(kubelet, manager, timeout)
            yield manager

    return run


async def _until_ready(kubelet: SimulatedKubelet, manager: PluginManager, seconds: float) -> None:
    import anyio

    from . import events
    from .protocol.pods import NotReached

    def is_ready() -> bool:
        listed = {event.resource for event in kubelet.events.of(events.ListReceived)}
        return manager.is_ready and manager.status().resources.keys() <= listed

    with anyio.move_on_after(seconds):
        while not is_ready():
            # Its last step is not the kubelet's, so there is no event of it.
            with anyio.move_on_after(0.01):
                await kubelet.events.change()
    if not is_ready():
        status = manager.status()
        reasons = [f"{name}: {reason}" for name, reason in status.backends if reason]
        reasons += [f"{name} is {held.state}: {held.reason or 'no reason'}" for name, held in status.resources.items()]
        raise NotReached(
            f"not ready in {seconds:g} s: {'; '.join(reasons) or 'no resource'}. What happened:\n{kubelet.events.story()}"
        )


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
