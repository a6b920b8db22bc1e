"""`kdp.serve` in a program that cancels its task as asyncio does, which no shield of anyio's holds back."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path

import anyio.lowlevel
import pytest
from typing_extensions import override

import kdp
from kdp_testkit.patience import PATIENCE

pytestmark = pytest.mark.anyio


class Widgets(kdp.DeviceBackend):
    """Counts how often it is open."""

    resource = "example.com/widget"

    def __init__(self) -> None:
        self.is_open = False

    @override
    def open(self) -> None:
        self.is_open = True

    @override
    def close(self) -> None:
        self.is_open = False

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id="w0")]


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as directory:  # short, because a socket's path is
        (Path(directory) / "device-plugins").mkdir()
        yield Path(directory)


def serve(root: Path, backend: Widgets) -> asyncio.Task[None]:
    return asyncio.create_task(serving(root, backend))


def serving(root: Path, backend: Widgets) -> Coroutine[None, None, None]:
    return kdp.serve(
        backend, kubelet_root=root, device_plugin_dir=root / "device-plugins", state_dir=str(root / "state")
    )


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.cancel_shielded_checkpoint()


@pytest.mark.parametrize("again_after", [None, 3])
async def test_a_cancelled_service_ends_in_order_whenever_that_is_and_how_often(
    root: Path, again_after: int | None
) -> None:
    """In the first turns of the loop, or for the second time while it stopped, it was served on and on."""
    for begun_for in range(40):
        backend = Widgets()
        service = serve(root, backend)
        await turns(begun_for)
        service.cancel()
        if again_after is not None:
            await turns(again_after)
            service.cancel()
        ended, _ = await asyncio.wait({service}, timeout=PATIENCE)
        assert ended, f"cancelled after {begun_for} turns it has not ended"
        assert service.cancelled()
        assert not backend.is_open
        assert not os.listdir(root / "device-plugins")


async def test_a_task_that_fails_beside_it_ends_the_program(root: Path) -> None:
    async def fail() -> None:
        raise OSError("port in use")

    backend = Widgets()

    async def both() -> None:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(serving(root, backend))
            tasks.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert [str(error) for error in caught.value.exceptions] == ["port in use"]
    assert not backend.is_open
