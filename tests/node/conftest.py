"""What the tests of a real node share: the parts of the node, skipped with one sentence where they are missing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import attrs
import grpc.aio
import pytest

from kdp.kubelet.sockets import remove_dead

from . import deploy
from .gate import is_for_older_minors, is_in_gate, lost_names
from .groups import GroupScheduling
from .judging import Judgement, Judgements
from .nodekit import MINORS, Cluster, DeviceManager, Kubelet, Minor, Missing, image
from .nodekit.machine import Containerd
from .nodekit.tools import BIN, program
from .quiet import Quiet

# With its last server, gRPC ends its queue and waits for what is left in it. A test that failed had left servers that
# were not stopped, and a later one hung for ever (https://github.com/grpc/grpc/issues/22365).
grpc.aio.init_grpc_aio()

_STORIES = pytest.StashKey[list[tuple[str, Callable[[], str]]]]()


class MakeDeviceManager(Protocol):
    """Start another device manager with settings of its own; it ends with the test."""

    async def __call__(self, **settings: Any) -> DeviceManager: ...


class MakeCluster(Protocol):
    """Start another cluster with settings of its own; it ends with the test."""

    async def __call__(self, **settings: Any) -> Cluster: ...


@attrs.frozen
class Namespace:
    """Where a test works in a cluster.

    Attributes:
        cluster: The cluster, which other tests use before and after.
        name: A namespace of the test's own, which ends with it.
    """

    cluster: Cluster
    name: str


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to `make test-node`: a run of all tests that names no folder needs no node."""
    return True if config.args_source is pytest.Config.ArgsSource.TESTPATHS else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate", action="store_true", help="only what `.ci/run` runs of these tests (gate.py)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--gate`, leave the other tests to `make verify`."""
    if config.getoption("--gate"):
        chosen = [item for item in items if is_in_gate(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
        if lost := lost_names(items):
            raise pytest.UsageError(f"tests/node/gate.py names no test: {', '.join(lost)}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    """Take the place of the scheduler that the command line names."""
    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what the parts of the node said into the report of a failed test."""
    report = yield
    if report.failed:
        for title, story in item.stash.get(_STORIES, []):
            report.sections.append((title, story()))
    return report


def tells(request: pytest.FixtureRequest, title: str, story: Callable[[], str]) -> None:
    """Have this story in the report if the test fails."""
    request.node.stash.setdefault(_STORIES, []).append((title, story))


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    """Who may be busy, in all processes that share the tests."""
    base = tmp_path_factory.getbasetemp()
    return Quiet(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture
def disturbing(quiet: Quiet) -> Iterator[None]:
    """For tests that keep a processor busy: they make room as judgements do."""
    with quiet.disturbed():
        yield


@pytest.fixture(scope="session")
def judgements(request: pytest.FixtureRequest, quiet: Quiet) -> Iterator[Judgements]:
    """What the chosen tests ask to be judged, all beside one another."""
    asked = (
        value
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        for value in item.callspec.params.values()
        if isinstance(value, Judgement)
    )
    made = Judgements(asked, quiet)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=MINORS, ids=lambda minor: minor.profile)
def minor(request: pytest.FixtureRequest) -> Minor:
    """Each version of Kubernetes in turn."""
    return _compiled(request.param)


@pytest.fixture
def minors(request: pytest.FixtureRequest) -> Sequence[Minor]:
    """All versions of Kubernetes, for what is done on each at once; the newest, where that is enough for `.ci/run`."""
    all_of_them = not request.config.getoption("--gate") or is_for_older_minors(request.node)
    return [_compiled(minor) for minor in (MINORS if all_of_them else MINORS[-1:])]


@pytest.fixture
def newest() -> Minor:
    """The newest version: where the versions do not differ."""
    return _compiled(MINORS[-1])


def _compiled(minor: Minor) -> Minor:
    try:
        _ = minor.devmgr
    except Missing as missing:
        pytest.skip(str(missing))
    return minor


@pytest.fixture
async def make_devmgr(request: pytest.FixtureRequest) -> AsyncIterator[MakeDeviceManager]:
    """Start device managers; all of them end with the test."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> DeviceManager:
            manager = DeviceManager(**settings)
            tells(request, f"device manager {manager.minor.release}", manager.story)
            return await stack.enter_async_context(manager)

        yield make


@pytest.fixture
async def devmgr(minor: Minor, make_devmgr: MakeDeviceManager) -> DeviceManager:
    """The running device manager of each version in turn."""
    return await make_devmgr(minor=minor)


@pytest.fixture
def kubelet_options() -> dict[str, Any]:
    """What else `kubelet` is made with; a test may be parametrized with others."""
    return {}


@pytest.fixture(params=["containerd-1", "containerd-2"])
async def kubelet(request: pytest.FixtureRequest, kubelet_options: dict[str, Any]) -> AsyncIterator[Kubelet]:
    """A whole kubelet, with each container runtime in turn."""
    containerd: Containerd = request.param
    try:
        node = Kubelet(containerd, **kubelet_options)
    except Missing as missing:
        pytest.skip(str(missing))
    tells(request, f"kubelet and {containerd}", node.story)
    async with node:
        yield node


# -- clusters: one for all tests that have no settings of their own ----------------------------------------------------


@pytest.fixture(scope="session")
async def shared_cluster() -> AsyncIterator[Cluster]:
    """The cluster of the whole run; tests ask for `namespace` instead."""
    try:
        cluster = Cluster()
    except Missing as missing:
        pytest.skip(str(missing))
    async with cluster:
        yield cluster


@pytest.fixture
async def namespace(request: pytest.FixtureRequest, shared_cluster: Cluster) -> AsyncIterator[Namespace]:
    """A namespace of the test's own in the cluster of the whole run."""
    tells(request, "cluster", shared_cluster.story)
    # The socket of a driver that an earlier test has killed: a kubelet that is started meanwhile calls it again and
    # again, with pauses of up to two minutes, and for so long it would not call a driver of the same name.
    remove_dead(shared_cluster.paths.plugins_registry_dir, bool)
    async with shared_cluster.namespace() as name:
        yield Namespace(shared_cluster, name)


@pytest.fixture
async def make_cluster(request: pytest.FixtureRequest) -> AsyncIterator[MakeCluster]:
    """Start clusters with settings of their own; all of them end with the test."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Cluster:
            try:
                cluster = Cluster(**settings)
            except Missing as missing:
                pytest.skip(str(missing))
            tells(request, "cluster", cluster.story)
            return await stack.enter_async_context(cluster)

        yield make


@pytest.fixture(scope="session")
def system_layer() -> Iterator[image.Layer]:
    """What all images with a Python have below."""
    try:
        shell = program("busybox", BIN / "runtime/bin")
    except Missing as missing:
        pytest.skip(str(missing))
    with TemporaryDirectory(prefix="kdp-") as folder:
        yield image.system(Path(folder) / "system.tar", shell)


@pytest.fixture(scope="session")
def generic_image(system_layer: image.Layer) -> Iterator[Path]:
    """An archive of the image `deploy.IMAGE`: this Python with kdp and the examples, and the command kdp."""
    with TemporaryDirectory(prefix="kdp-") as folder:
        archive = Path(folder) / "generic.tar"
        examples = [*(f"kdp-example-{name}" for name in ("generic", "minimal", "hwrng")), "kdp-sdk[kube,metrics]"]
        files: dict[str, bytes | Path] = {
            "usr/bin/kdp": b'#!/bin/sh\nexec python3 -m kdp "$@"\n',
            **{f"opt/site/{name}": Path(__file__).with_name(name) for name in ("failing.py", "keeper.py", "night.py")},
        }
        image.python(archive, deploy.IMAGE, examples, system_layer, command=["python3", "-m", "kdp"], files=files)
        yield archive
