from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.to_thread
import pytest
from typing_extensions import override

import kdp
from kdp.errors import HookFailedError, HookTimeoutError
from kdp.hardware import Host
from kdp.once import discover_once
from kdp.supervisor import Deadlines, Supervisor, pause_after


class Generator(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> Iterator[kdp.Device]:
        yield kdp.Device(id="w0")
        raise TypeError("of the vendor's own")


class AsyncGenerator(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    async def discover(self) -> AsyncIterator[kdp.Device]:  # type: ignore[override]  # a vendor's mistake
        yield kdp.Device(id="w0")


@pytest.mark.anyio
async def test_a_type_error_inside_a_generator_is_the_hooks_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(HookFailedError) as caught:
        await discover_once(Generator(), host=Host())
    assert str(caught.value) == "discover() of Generator raised TypeError; the plugin's log has the details"
    assert "of the vendor's own" in caplog.text


@pytest.mark.anyio
async def test_what_is_no_iterable_is_called_the_same_each_time() -> None:
    told: set[str] = set()
    for _ in range(3):
        with pytest.raises(HookFailedError) as caught:
            await discover_once(AsyncGenerator(), host=Host())
        told.add(str(caught.value))
    assert told == {
        (
            "discover() of AsyncGenerator: it returned <async_generator object AsyncGenerator.discover>: must be an iterable "
            "of kdp.Device"
        )
    }


@pytest.mark.parametrize(
    ("took", "rest"), [(0.0, 5.0), (0.1, 4.9), (2.5, 2.5), (2.6, 2.5), (30.0, 2.5)], ids=lambda value: str(value)
)
def test_discoveries_begin_an_interval_apart_unless_they_are_slow(took: float, rest: float) -> None:
    assert pause_after(took, interval=5.0) == pytest.approx(rest)


class LateToOpen(kdp.DeviceBackend):
    """Its first ``open`` returns when it is told to, after its deadline; then it is open."""

    resource = "example.com/widget"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_open, self.has_opened = threading.Event(), threading.Event()

    @override
    def open(self) -> None:
        self.calls.append("open")
        self.may_open.wait()
        self.has_opened.set()

    @override
    def close(self) -> None:
        self.calls.append("close")

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id="w0")]


@pytest.mark.anyio
async def test_an_open_that_returns_after_its_deadline_is_not_called_again_and_is_closed() -> None:
    backend = LateToOpen()
    supervisor = Supervisor(backend, host=Host(), deadlines=Deadlines(open=0.05))
    for _ in range(2):
        with pytest.raises(HookTimeoutError, match=r"open\(\) of LateToOpen did not return within 0.05 s"):
            await supervisor.once()
    backend.may_open.set()
    assert await anyio.to_thread.run_sync(backend.has_opened.wait, 60)
    found = await supervisor.once()
    assert [device.id for device in found["example.com/widget"]] == ["w0"]
    await supervisor.shutdown(60)
    assert backend.calls == ["open", "close"]


@pytest.mark.anyio
async def test_an_open_in_flight_at_the_stop_is_closed_when_it_has_returned() -> None:
    backend = LateToOpen()
    supervisor = Supervisor(backend, host=Host(), deadlines=Deadlines(open=0.05))
    with pytest.raises(HookTimeoutError):
        await supervisor.once()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.shutdown, 60)
        backend.may_open.set()
    assert backend.calls == ["open", "close"]


class Slow(kdp.DeviceBackend):
    """Its ``discover`` is told when to return, and says so."""

    resource = "example.com/widget"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.has_begun, self.may_return = threading.Event(), threading.Event()

    @override
    def discover(self) -> list[kdp.Device]:
        self.has_begun.set()
        self.may_return.wait(60)
        self.calls.append("discovered")
        return []

    @override
    def close(self) -> None:
        self.calls.append("closed")


@pytest.mark.anyio
@pytest.mark.parametrize("hangs", [False, True])
async def test_close_waits_for_a_hook_that_is_running_and_not_for_one_that_hangs(hangs: bool) -> None:
    backend = Slow()
    supervisor = Supervisor(backend, host=Host())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        assert await anyio.to_thread.run_sync(backend.has_begun.wait, 60)
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.shutdown, 0.5)
        if not hangs:
            backend.may_return.set()
    assert backend.calls == (["closed"] if hangs else ["discovered", "closed"])
    backend.may_return.set()


@pytest.mark.anyio
async def test_no_hook_is_called_for_a_protocol_while_the_backend_is_not_ready() -> None:
    """One was, between ``close`` and ``open``; and ``counters`` that said so was asked as fast as it could."""
    supervisor = Supervisor(Slow(), host=Host())
    with pytest.raises(kdp.NotReady, match="Slow is not ready: it has not discovered anything yet"):
        await supervisor.call("counters", deadline=60.0)
