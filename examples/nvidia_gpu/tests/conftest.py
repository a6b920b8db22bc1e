from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import FakeNode, NvmlState, compile_library

Figure = Callable[[str, float], None]


class MakeNode(Protocol):
    """Make a node with these GPUs."""

    def __call__(self, state: NvmlState | None = None, *, driver: bool = True) -> FakeNode: ...


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_library(tmp_path_factory.mktemp("nvml"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def make_node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeNode:
    def make(state: NvmlState | None = None, *, driver: bool = True) -> FakeNode:
        node = FakeNode(tmp_path / "node", library=library if driver else None, state=state)
        # A process keeps the library that it has loaded first: so each test tells it where its own node's state is.
        monkeypatch.setenv("FAKE_NVML", str(node.file))
        return node

    return make


@pytest.fixture
def make(make_node: MakeNode) -> Callable[..., tuple[FakeNode, NvidiaGpu]]:
    """Return a node and a backend on it, which gives containers device nodes unless told otherwise."""

    def both(state: NvmlState | None = None, **options: Any) -> tuple[FakeNode, NvidiaGpu]:
        node = make_node(state)
        return node, NvidiaGpu(node.host, **{"strategies": ["device-nodes"], **options})

    return both


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend looks who is on its GPUs a hundred times a second; without XIDs it does not wait for events between."""
    monkeypatch.setattr("kdp_nvidia_gpu.watching.LOOK", 0.01)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Report a measured time in milliseconds: in the output of ``-s``, and in a summary where one is made."""

    def report(name: str, milliseconds: float) -> None:
        text = f"nvidia-gpu: {name}: {milliseconds:.4g} ms"
        record_property("figure", text)
        print(text)

    return report
