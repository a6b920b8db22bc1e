"""One backend object, and those who serve it one after the other, as the managers before and after a reload."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest
from tests.waiting import until
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.errors import HookTimeoutError
from kdp.hardware import Host
from kdp.supervision import supervisor as supervisor_module
from kdp.supervision.supervisor import Deadlines, Supervisor
from kdp_testkit.patience import PATIENCE


class Gate:
    """A place in a hook: who comes there says so, and goes on when told to."""

    def __init__(self) -> None:
        self.reached, self.is_free, self.passed = threading.Event(), threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        self.is_free.wait(PATIENCE)


class Gated(kdp.DeviceBackend):
    """It waits in the hooks that have a gate, and tells where it was."""

    resource = "example.com/widget"

    def __init__(self, *gates: str) -> None:
        self.calls: list[str] = []
        self.gates = {hook: Gate() for hook in gates}
        self.was_closed = threading.Event()

    def _go(self, hook: str) -> None:
        self.calls.append(hook)
        if hook in self.gates:
            self.gates[hook].wait()
            self.calls.append(f"{hook} returns")
            self.gates[hook].passed.set()

    @override
    def open(self) -> None:
        self._go("open")

    @override
    def close(self) -> None:
        self._go("close")
        self.was_closed.set()

    @override
    def discover(self) -> list[kdp.Device]:
        self._go("discover")
        return [kdp.Device(id="w0")]


def supervisor_of(backend: kdp.DeviceBackend, *, after: Supervisor | None = None, **seconds: float) -> Supervisor:
    """Return a supervisor; ``after`` another one it is handed what that one left, as at a reload."""
    state = after.hooks.state if after else None
    return Supervisor(backend, host=Host(), deadlines=Deadlines(**seconds), state=state)


async def come(event: threading.Event) -> None:
    """Wait for what a hook's thread tells."""
    assert await anyio.to_thread.run_sync(event.wait, PATIENCE)


async def run_until(supervisor: Supervisor, reached: threading.Event) -> None:
    """Serve until something is reached, and stop without waiting for it."""
    async with running(supervisor, stop_seconds=0.1):
        await come(reached)


@asynccontextmanager
async def running(supervisor: Supervisor, *, stop_seconds: float = PATIENCE) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        yield
        tasks.cancel_scope.cancel()
    await supervisor.shutdown(stop_seconds)


async def discovered(supervisor: Supervisor) -> None:
    with anyio.fail_after(PATIENCE):
        while supervisor.discovery.value.devices is None:
            await supervisor.discovery.after(supervisor.discovery.version)


@pytest.mark.anyio
async def test_an_open_that_returns_after_its_deadline_is_not_called_again_and_is_closed() -> None:
    backend = Gated("open")
    supervisor = supervisor_of(backend, open=0.05)
    for _ in range(2):
        with pytest.raises(HookTimeoutError, match=r"open\(\) of Gated did not return within 0.05 s"):
            await supervisor.once()
    backend.gates["open"].is_free.set()
    await come(backend.gates["open"].passed)
    found = await supervisor.once()
    assert [device.id for device in found["example.com/widget"]] == ["w0"]
    await supervisor.shutdown(PATIENCE)
    assert backend.calls == ["open", "open returns", "discover", "close"]


@pytest.mark.anyio
@pytest.mark.parametrize("hangs", [False, True])
async def test_close_waits_for_a_hook_that_is_running_and_not_for_one_that_hangs(hangs: bool) -> None:
    backend = Gated("discover")
    gate = backend.gates["discover"]
    supervisor = supervisor_of(backend)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        await come(gate.reached)
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.shutdown, 0.5)
        if not hangs:
            gate.is_free.set()
    assert backend.calls == ["open", "discover", *([] if hangs else ["discover returns"]), "close"]
    gate.is_free.set()


@pytest.mark.anyio
@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
async def test_a_reload_while_open_was_slow_opened_twice(is_shared: bool) -> None:
    backend = Gated("open")

    def served() -> kdp.DeviceBackend:
        return share(backend, Sharing(replicas=2)) if is_shared else backend

    gate = backend.gates["open"]
    first = supervisor_of(served())
    await run_until(first, gate.reached)
    successor = supervisor_of(served(), after=first)
    async with running(successor):
        await anyio.wait_all_tasks_blocked()
        assert backend.calls == ["open"]
        gate.is_free.set()
        await discovered(successor)
    assert backend.calls == ["open", "open returns", "discover", "close"]


@pytest.mark.anyio
async def test_an_open_that_returned_after_the_stop_was_never_closed() -> None:
    backend = Gated("open")
    await run_until(supervisor_of(backend), backend.gates["open"].reached)
    backend.gates["open"].is_free.set()
    await come(backend.was_closed)
    assert backend.calls == ["open", "open returns", "close"]


@pytest.mark.anyio
async def test_an_async_open_that_lets_no_cancellation_pass_is_closed_when_it_has_returned() -> None:
    began, may_return, closed = anyio.Event(), anyio.Event(), anyio.Event()

    class Stubborn(kdp.DeviceBackend):
        resource = "example.com/widget"

        @override
        async def open(self) -> None:
            began.set()
            with anyio.CancelScope(shield=True):
                while not may_return.is_set():
                    try:
                        await may_return.wait()
                    except BaseException:  # noqa: BLE001, S112 - that is the point
                        continue

        @override
        async def close(self) -> None:
            closed.set()

        @override
        def discover(self) -> list[kdp.Device]:
            return []

    supervisor = supervisor_of(Stubborn())
    async with running(supervisor, stop_seconds=0.1):
        await began.wait()
    assert not closed.is_set()
    may_return.set()
    with anyio.fail_after(PATIENCE):
        await closed.wait()


@pytest.mark.anyio
async def test_a_backend_was_opened_while_its_close_was_running() -> None:
    backend = Gated("close")
    first = supervisor_of(backend)
    successor = supervisor_of(backend, after=first)
    await first.once()
    await first.shutdown(0.1)
    async with running(successor):
        await anyio.wait_all_tasks_blocked()
        assert backend.calls == ["open", "discover", "close"]
        backend.gates["close"].is_free.set()
        await discovered(successor)
    assert backend.calls[2:] == ["close", "close returns", "open", "discover", "close", "close returns"]


@pytest.mark.anyio
async def test_a_close_that_hangs_beyond_its_deadline_keeps_nobody() -> None:
    backend = Gated("close")
    first = supervisor_of(backend, close=0.1)
    successor = supervisor_of(backend, after=first, close=0.1)
    await first.once()
    await first.shutdown(0.1)
    async with running(successor, stop_seconds=0.1):
        await discovered(successor)
    assert backend.calls == ["open", "discover", "close", "open", "discover"]
    backend.gates["close"].is_free.set()


@pytest.mark.anyio
async def test_a_hook_that_hangs_is_not_called_beside_it_by_whoever_serves_next() -> None:
    backend = Gated("discover")
    first = supervisor_of(backend)
    await run_until(first, backend.gates["discover"].reached)
    successor = supervisor_of(backend, after=first, discover=0.1)
    with pytest.raises(HookTimeoutError, match=r"discover\(\) of Gated did not return within 0.1 s"):
        await successor.once()
    assert backend.calls.count("discover") == 1
    backend.gates["discover"].is_free.set()
    await successor.shutdown(PATIENCE)


@pytest.mark.anyio
async def test_what_somebody_else_needs_open_stays_open() -> None:
    backend = Gated()
    serving = supervisor_of(backend)
    looking = supervisor_of(backend, after=serving)
    async with running(serving):
        await discovered(serving)
        await looking.once()
        await looking.shutdown(PATIENCE)
        assert "close" not in backend.calls
    assert (backend.calls.count("open"), backend.calls.count("close")) == (1, 1)


@pytest.mark.anyio
async def test_a_watch_that_does_not_stop_is_complained_about_and_called_again_when_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Deaf(Gated):
        @override
        def watch(self, report: kdp.Reporter) -> None:
            self._go("watch")

    monkeypatch.setattr(supervisor_module, "WATCH_SECONDS", 0.05)
    backend = Deaf("watch")
    gate = backend.gates["watch"]
    first = supervisor_of(backend)
    await run_until(first, gate.reached)
    successor = supervisor_of(backend, after=first)
    async with running(successor):
        await until(lambda: "report.stopping is set" in caplog.text)
        assert backend.calls.count("watch") == 1
        gate.is_free.set()
        await until(lambda: backend.calls.count("watch") == 2)
    (line,) = (record.message for record in caplog.records if "report.stopping" in record.message)
    assert line == (
        "Deaf: watch() of Deaf did not return within 0.05 s; it will be called again only after it returns, so only "
        "polling sees changes; end the hook when report.stopping is set"
    )


@pytest.mark.anyio
async def test_a_close_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Gated):
        is_away = False

        @override
        def close(self) -> None:
            super().close()
            raise OSError("the card did not answer")

        @override
        def discover(self) -> list[kdp.Device]:
            if self.is_away:
                self.is_away = False
                raise kdp.NotReady("the driver is not loaded")
            return super().discover()

    backend = Broken()
    supervisor = supervisor_of(backend)
    async with running(supervisor):
        await discovered(supervisor)
        backend.is_away = True
        supervisor.rescan()
        await until(lambda: backend.calls.count("discover") == 2)
    assert backend.calls == ["open", "discover", "close", "open", "discover", "close"]
    assert "close() of Broken failed: OSError: the card did not answer" in caplog.text
