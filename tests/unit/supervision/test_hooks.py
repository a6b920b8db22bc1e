"""Hooks that answer, fail, hang and come back late. A hang is a real one: a read from a pipe that nobody writes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import pytest
from typing_extensions import override

import kdp
from kdp.concurrency import stalls
from kdp.errors import AllocationError, HookFailedError, HookTimeoutError, NotReady, sentence
from kdp.supervision.hooks import Hooks
from kdp.supervision.supervisor import Supervisor
from kdp_testkit.patience import PATIENCE

SHORT = 0.05

pytestmark = pytest.mark.anyio


class Gate:
    """A pipe: `wait` blocks in read(2) until `open`, as a call into a driver does that never returns."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.entered = threading.Event()

    def wait(self) -> None:
        self.entered.set()
        os.read(self._read, 1)

    def open(self) -> None:
        os.write(self._write, b"x")

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    others = set(threading.enumerate())
    yield gate
    for _ in range(4):
        gate.open()  # no thread outlives its test
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("kdp-"):
            thread.join(PATIENCE)
    gate.close()


class Backend(kdp.DeviceBackend):
    """Its hooks are whatever a test gives it."""

    resource = "example.com/widget"

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        for name, hook in hooks.items():
            setattr(self, name, hook)

    @override
    def discover(self) -> list[kdp.Device]:
        return []


@pytest.fixture
async def make(gate: Gate) -> AsyncIterator[Callable[..., Hooks]]:
    made: list[Hooks] = []

    def make(**hooks: Callable[..., Any]) -> Hooks:
        made.append(Hooks(Backend(**hooks)))
        return made[-1]

    yield make
    for hooks in made:
        hooks.close()


Make = Callable[..., Hooks]


async def failing(hooks: Hooks, error: type[Exception], hook: str = "discover", **more: Any) -> str:
    with pytest.raises(error) as caught:
        await hooks.call(hook, **{"deadline": PATIENCE} | more)
    return str(caught.value)


# -- results -----------------------------------------------------------------------------------------------------------


async def test_a_def_hook_runs_in_a_daemon_thread_of_its_own(make: Make) -> None:
    hooks = make(discover=lambda: threading.current_thread(), open=lambda: threading.current_thread())
    first = await hooks.call("discover", deadline=PATIENCE)
    assert first.name == "kdp-Backend.discover"
    assert first.daemon
    assert await hooks.call("discover", deadline=PATIENCE) is first
    assert await hooks.call("open", deadline=None) is not first


async def test_an_idle_thread_holds_nothing_of_the_last_call(make: Make) -> None:
    class Big:
        pass

    hooks = make(discover=Big, open=lambda: None)
    found = weakref.ref(await hooks.call("discover", deadline=PATIENCE))
    await hooks.call("open", deadline=PATIENCE)
    for _ in range(1000):
        gc.collect()
        if found() is None:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the result is still held")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_result_that_nobody_reads_was_dropped_silently(
    make: Make, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    async def slow() -> dict[str, int]:
        return {"slot": 1}

    hooks = make(open=slow if is_async else lambda: {"slot": 1}, needs=lambda: {"slot": 1})
    for _ in range(2):
        await hooks.call("open", deadline=PATIENCE)
        await hooks.call("needs", deadline=PATIENCE)
    assert caplog.messages == [
        "open() of Backend returned a dict, which nobody reads: return None, and keep what other hooks need on self"
    ]


@pytest.mark.parametrize("hook", ["discover", "watch"])
async def test_an_async_hook_that_blocked_the_loop_was_not_named(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(stalls, "PATIENCE", 0.05)

    def driver() -> None:
        until = time.monotonic() + PATIENCE
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)

    async def blocks(*_: object) -> None:
        await asyncio.sleep(0)
        driver()

    hooks = make(**{hook: blocks})
    for _ in range(2):
        await hooks.call(hook, *([None] if hook == "watch" else []), deadline=PATIENCE)
    [said] = caplog.messages
    assert said.startswith(f"{hook}() of Backend has kept the event loop for 0.05 s, at {__file__}:")
    assert "declare the hook with def instead of async def" in said
    for thread in threading.enumerate():
        if thread.name == "kdp-stalls":
            thread.join(PATIENCE)
            assert not thread.is_alive(), "it ends with the hook"


# -- failures ----------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[], None]:
    def hook() -> None:
        raise error

    return hook


def raising_async(error: BaseException) -> Callable[[], Any]:
    async def hook() -> None:
        raise error

    return hook


@pytest.mark.parametrize("make_hook", [raising, raising_async])
async def test_what_a_hook_may_raise_comes_through(make: Make, make_hook: Any) -> None:
    error = AllocationError("the card is in use")
    with pytest.raises(AllocationError) as caught:
        await make(allocate=make_hook(error)).call("allocate", deadline=PATIENCE)
    assert caught.value is error


@pytest.mark.parametrize("make_hook", [raising, raising_async])
async def test_a_refusal_for_no_container_was_taken_for_a_bug_of_kdp(make: Make, make_hook: Any) -> None:
    """It ended the supervisor again and again, and the devices stayed Healthy for ever."""
    error = AllocationError("the card is in use")
    with pytest.raises(HookFailedError, match=r"discover\(\) of .* raised AllocationError"):
        await make(discover=make_hook(error)).call("discover", deadline=PATIENCE)


@pytest.mark.parametrize("make_hook", [raising, raising_async])
@pytest.mark.parametrize(
    "error",
    [OSError("secret"), StopIteration("secret"), SystemExit(3), asyncio.CancelledError("secret")],
    ids=lambda error: type(error).__name__,
)
async def test_anything_else_is_a_bug_of_the_hook_and_ends_nothing(
    make: Make, make_hook: Any, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = make(discover=make_hook(error), needs=lambda: "fine")
    message = await failing(hooks, HookFailedError)
    # Python itself makes a RuntimeError of a StopIteration in a coroutine.
    is_renamed = isinstance(error, StopIteration) and make_hook is raising_async
    named = "RuntimeError" if is_renamed else type(error).__name__
    assert message == f"discover() of Backend raised {named}; the plugin's log has the details"
    assert await failing(hooks, HookFailedError) == message, "it can be called again"
    assert await hooks.call("needs", deadline=PATIENCE) == "fine"
    (record,) = caplog.records
    assert record.exc_info is not None
    logged = record.exc_info[1]
    assert (logged.__cause__ if logged and is_renamed else logged) is error


class Untold(Exception):
    """As one whose ``__str__`` has a typing error."""

    @override
    def __str__(self) -> str:
        return self.nothing  # type: ignore[attr-defined,no-any-return]


async def test_an_exception_that_fails_to_tell_its_text_ends_nothing(make: Make) -> None:
    message = await failing(make(discover=raising(Untold())), HookFailedError)
    assert message == "discover() of Backend raised Untold; the plugin's log has the details"


async def test_what_is_raised_on_purpose_with_what_has_no_text_ends_nothing(make: Make) -> None:
    with pytest.raises(NotReady) as caught:
        await make(discover=raising(NotReady(Untold()))).call("discover", deadline=PATIENCE)
    assert sentence(caught.value) == "NotReady"


async def test_a_thread_that_could_not_be_started_once_is_started_by_the_next_call(
    make: Make, without_threads: Callable[[], AbstractContextManager[list[str]]]
) -> None:
    """As at a container's limit of processes. The hook was never called again, and was said to hang."""
    hooks = make(discover=list)
    with without_threads(), pytest.raises(HookFailedError, match=r"discover\(\) of Backend raised RuntimeError"):
        await hooks.call("discover", deadline=PATIENCE)
    assert await hooks.call("discover", deadline=PATIENCE) == []


async def test_a_hook_that_is_a_property_that_raises_can_be_called_again() -> None:
    class Property(Backend):
        @property
        @override
        def discover(self) -> Any:
            raise OSError("not yet")

    hooks = Hooks(Property())
    message = "discover() of Property raised OSError; the plugin's log has the details"
    assert [await failing(hooks, HookFailedError) for _ in range(2)] == [message, message]


async def test_where_an_object_lies_in_memory_is_no_news(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def discover() -> None:
        raise OSError(f"{object()} is gone")

    hooks = make(discover=discover)
    kept = [await failing(hooks, HookFailedError), object()]
    await failing(hooks, HookFailedError)
    assert len(caplog.records) == 1, kept


async def test_a_def_hook_that_returns_a_coroutine_is_told_to_be_async(make: Make) -> None:
    """The coroutine was taken for the result, and what it should have done did not happen."""

    async def prepare() -> int:
        raise AssertionError("nobody awaits it")

    hooks = make(discover=lambda: prepare(), open=lambda: prepare())
    message = await failing(hooks, HookFailedError, then=list)
    assert message == (
        "discover() of Backend: it is a def that returned 'coroutine', which is not awaited: declare it with async "
        "def, or return its result"
    )
    assert "open() of Backend: it is a def" in await failing(hooks, HookFailedError, hook="open")


@pytest.mark.parametrize("make_hook", [raising, raising_async])
async def test_a_result_that_cannot_be_used_is_the_hooks_failure(make: Make, make_hook: Any) -> None:
    async def asynchronous() -> int:
        return 7

    hooks = make(discover=(lambda: 7) if make_hook is raising else asynchronous)
    message = await failing(hooks, HookFailedError, then=iter)
    assert message == "discover() of Backend raised TypeError; the plugin's log has the details"


async def test_each_new_failure_is_logged_once_with_its_traceback(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    outcome: list[str | None] = ["a", "a", "b", "a", None, "a"]

    def answer() -> None:
        if (text := outcome.pop(0)) is not None:
            raise OSError(text)

    hooks = make(discover=answer)
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            try:
                await hooks.call("discover", deadline=PATIENCE)
            except HookFailedError:
                continue
    said = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert said == ["a", "b", "a", "a"], "after a success the same failure is news again"
    for record, text in zip(caplog.records, said, strict=True):
        assert record.getMessage().startswith(f"discover() of Backend failed: OSError: {text} ({__file__}, line ")


# -- deadlines ---------------------------------------------------------------------------------------------------------


async def test_a_hanging_hook_is_not_called_again_before_it_has_returned(make: Make, gate: Gate) -> None:
    calls: list[None] = []

    def discover() -> str:
        calls.append(None)
        if len(calls) == 1:
            gate.wait()
        return f"call {len(calls)}"

    hooks = make(discover=discover)
    await failing(hooks, HookTimeoutError, deadline=SHORT)
    message = await failing(hooks, HookTimeoutError, deadline=SHORT)
    assert message.startswith("discover() of Backend ")
    assert "it will be called again only after" in message
    assert len(calls) == 1
    gate.open()
    assert await hooks.call("discover", deadline=PATIENCE) == "call 2", "its late return frees the hook"


async def test_an_error_pointed_to_a_log_that_is_off(make: Make) -> None:
    def discover() -> None:
        logging.disable()
        raise OSError("no driver")

    try:
        message = await failing(make(discover=discover), HookFailedError)
    finally:
        logging.disable(logging.NOTSET)
    assert message == "discover() of Backend raised OSError; the plugin's log is switched off"


async def test_a_hook_that_hung_did_not_say_where(make: Make, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    def discover() -> None:
        gate.wait()

    hooks = make(discover=discover)
    for _ in range(2):
        await failing(hooks, HookTimeoutError, deadline=SHORT)
    told = await failing(hooks, HookTimeoutError, deadline=SHORT)
    lines, first = inspect.getsourcelines(Gate.wait)
    place = f"{__file__}:{first + len(lines) - 1}"
    assert [record.getMessage() for record in caplog.records] == [
        f"discover() of Backend hangs at {place}: it has not returned within 0.05 s"
    ]
    assert place not in told, "a pod's author has no use for it"
    assert f"did not return from {place} within" in (hooks.in_full(told) or "")
    gate.open()
    await hooks.idle("discover", deadline=PATIENCE)
    assert hooks.in_full(told) == told, "it has returned"


async def outlasting(make: Make, gate: Gate, *, fails: bool = False) -> tuple[Hooks, list[str]]:
    """Return hooks whose call for card0 has outlasted its deadline and comes back now, and what was called for."""
    calls: list[str] = []

    def released(work: str) -> None:
        calls.append(work)
        if len(calls) == 1:
            gate.wait()
            if fails:
                raise RuntimeError("not yet")

    hooks = make(released=released)
    hooks.forget("released", "card0")
    with pytest.raises(HookTimeoutError):
        await hooks.call("released", "card0", deadline=SHORT, work="card0")
    gate.open()
    return hooks, calls


async def test_work_that_ended_well_after_its_deadline_was_begun_again(make: Make, gate: Gate) -> None:
    """A wipe of 70 s with a deadline of 60 s never ended."""
    hooks, calls = await outlasting(make, gate)
    await hooks.call("released", "card1", deadline=PATIENCE, work="card1")
    await hooks.call("released", "card0", deadline=PATIENCE, work="card0")
    assert calls == ["card0", "card1"]
    await hooks.call("released", "card0", deadline=PATIENCE, work="card0")
    assert calls == ["card0", "card1", "card0"], "it is known for one call"


async def test_work_that_ended_well_after_a_reload_was_begun_again(make: Make, gate: Gate) -> None:
    """A reload cancels the call, and the next manager called `released` for the same allocation a second time."""
    calls: list[str] = []

    def released(name: str) -> None:
        calls.append(name)
        gate.wait()

    hooks = make(released=released)
    call = asyncio.ensure_future(hooks.call("released", "card0", deadline=PATIENCE, work="card0"))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.open()
    await hooks.call("released", "card0", deadline=PATIENCE, work="card0")
    assert calls == ["card0"]


async def test_whose_call_is_running_is_known(make: Make, gate: Gate) -> None:
    hooks = make(allocate=gate.wait)
    await failing(hooks, HookTimeoutError, "allocate", deadline=SHORT, owner="claim0")
    await failing(hooks, HookTimeoutError, "allocate", deadline=SHORT, owner="claim1")  # which never began
    assert [hooks.is_running("allocate", name) for name in (None, "claim0", "claim1")] == [True, True, False]
    gate.open()
    await hooks.idle("allocate", deadline=PATIENCE)
    assert not hooks.is_running("allocate", "claim0")


async def test_work_that_fails_after_its_deadline_is_begun_again(make: Make, gate: Gate) -> None:
    hooks, calls = await outlasting(make, gate, fails=True)
    await hooks.call("released", "card0", deadline=PATIENCE, work="card0")
    assert calls == ["card0", "card0"]


async def test_work_that_is_to_be_done_anew_is_not_known_as_done(make: Make, gate: Gate) -> None:
    """The claim was prepared again meanwhile."""
    hooks, calls = await outlasting(make, gate)
    await hooks.idle("released", deadline=PATIENCE)
    hooks.forget("released", "card0")
    await hooks.call("released", "card0", deadline=PATIENCE, work="card0")
    assert calls == ["card0", "card0"]


async def test_one_call_at_a_time_the_others_wait(make: Make, gate: Gate) -> None:
    inside: list[int] = []
    most: list[int] = []

    def allocate(number: int) -> int:
        inside.append(number)
        most.append(len(inside))
        if number == 0:
            gate.wait()
        inside.remove(number)
        return number

    hooks = make(allocate=allocate)
    calls = [asyncio.ensure_future(hooks.call("allocate", number, deadline=PATIENCE)) for number in range(10)]
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    gate.open()
    assert await asyncio.gather(*calls) == list(range(10))
    assert set(most) == {1}


async def test_a_caller_who_leaves_does_not_free_the_hook(make: Make, gate: Gate) -> None:
    hooks = make(allocate=gate.wait)
    call = asyncio.ensure_future(hooks.call("allocate", deadline=PATIENCE))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await failing(hooks, HookTimeoutError, "allocate", deadline=SHORT)
    gate.open()
    gate.open()
    await hooks.call("allocate", deadline=PATIENCE)


async def test_an_async_hook_is_cancelled_at_its_deadline(make: Make) -> None:
    ended: list[str] = []

    async def discover() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cleaned up")

    hooks = make(discover=discover)
    message = await failing(hooks, HookTimeoutError, deadline=SHORT)
    assert message.startswith("discover() of Backend did not return within ")
    assert ended == ["cleaned up"]
    await failing(hooks, HookTimeoutError, deadline=SHORT)


async def test_an_async_hook_is_cancelled_with_its_caller(make: Make) -> None:
    started = asyncio.Event()

    async def allocate() -> None:
        started.set()
        await anyio.sleep_forever()

    async def nothing() -> str:
        return "free"

    hooks = make(allocate=allocate)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: hooks.call("allocate", deadline=None))
            await started.wait()
            scope.cancel()
    assert scope.cancelled_caught
    hooks._backend.allocate = nothing  # type: ignore[method-assign,assignment]
    assert await hooks.call("allocate", deadline=PATIENCE) == "free"


async def test_a_hook_that_cancels_the_task_that_it_runs_in_has_failed_and_its_caller_goes_on(make: Make) -> None:
    """As libraries for deadlines do that are older than `asyncio.timeout`."""

    async def discover() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep_forever()

    message = await failing(make(discover=discover), HookFailedError)
    assert message.startswith("discover() of Backend raised CancelledError")


async def test_an_async_hook_that_does_not_let_a_cancellation_pass_costs_its_caller_only_the_deadline(
    make: Make,
) -> None:
    free = asyncio.Event()

    async def discover() -> str:
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()
        return "late"

    hooks = make(discover=discover)
    await failing(hooks, HookTimeoutError, deadline=SHORT)
    message = await failing(hooks, HookTimeoutError, deadline=SHORT)
    assert "it will be called again only after" in message
    free.set()
    assert await hooks.call("discover", deadline=PATIENCE) == "late"


# -- what is told ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["open", "discover"])
async def test_for_half_a_minute_nobody_said_what_the_start_waits_for(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hook: str
) -> None:
    monkeypatch.setattr("kdp.supervision.hooks.LONG", SHORT)
    caplog.set_level("INFO")
    supervisor = Supervisor(type("Slow", (Backend,), {hook: lambda self: gate.wait()})(), host=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE):
            found = await supervisor.discovery.after(supervisor.discovery.version)
        begins = f"waiting for {hook}() of Slow, which has not returned for 0.05 s; its deadline is "
        assert found.problem is not None
        assert found.problem.startswith(begins)
        assert caplog.text.count(begins) == 1
        gate.open()
        tasks.cancel_scope.cancel()
    gate.open()
    await supervisor.shutdown(1.0)


async def test_what_discover_raised_was_in_no_status(make: Make) -> None:
    """The text and the log had the class only. A pod still gets no more than that."""

    def discover() -> NoReturn:
        raise RuntimeError(f"card 7\nis \x1b[31m{'x' * 1000}")

    hooks = make(discover=discover)
    told = await failing(hooks, HookFailedError)
    assert told == "discover() of Backend raised RuntimeError; the plugin's log has the details"
    full = hooks.in_full(told) or ""
    assert full.startswith("discover() of Backend raised RuntimeError: card 7 is \\x1b[31mxxx")
    assert full.endswith("...; the plugin's log has the details")
    assert len(full) < 500
    assert hooks.in_full(None) is None
