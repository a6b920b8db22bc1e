"""How a backend's hooks are called: one call at a time for each hook, with a deadline, whatever the hook does.

A ``def`` hook runs in a daemon thread that is its own (`kdp.concurrency.threads.Worker`). If it hangs in a blocking
call, its caller gets an error at the deadline, no other hook waits, and the process can end.

An ``async def`` hook runs in a task that is its own, so that what it does to the task that it runs in, as to cancel it,
is not done to its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from ..errors import (
    AllocationError,
    HookFailedError,
    HookTimeoutError,
    InvalidValueError,
    KdpError,
    NotReady,
    in_one_line,
    kind_of,
    lasting,
    message_of,
    printable,
    sentence,
)
from ..model.backend import OPTIONAL_HOOKS, WrappedBackend, is_overridden
from ..storage import forks
from . import log_guard
from .shared_state import Lane, SharedState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ..concurrency.threads import Outcome
    from ..model.backend import DeviceBackend

logger = logging.getLogger(__name__)

GRACE = 0.1
"""Seconds that a cancelled ``async def`` hook has to release what it holds before its caller goes on without it."""

LONG = 3.0
"""Seconds after which it is said that the start waits for a hook; its deadline may be a minute."""


_PROMISE_NOTHING = frozenset(("open", "close", "watch", "prepare_container", "released"))
"""Hooks that return None."""

_OWN_CODE = f"{os.path.dirname(os.path.dirname(__file__))}/"

_REASONS = {
    NotReady: "not_ready",
    AllocationError: "refused",
    HookTimeoutError: "deadline",
}
"""What the failures of hooks are counted as; any other is an ``error``."""

_REFUSING: Final = ("allocate", "prepare_container", "released")
"""The hooks that may refuse for a container; from any other, an `AllocationError` is a bug of the vendor."""

FAILURES = (*_REASONS.values(), "error")
"""All of them."""


class _Limit:
    """A deadline that has begun to run; without ``seconds`` it never ends."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())


MOST_OF_FAILURE: Final = 300
"""Characters of what a hook raised, as an administrator is shown it."""


class Hooks:
    """Calls one backend's hooks.

    Attributes:
        label: What texts call it: its class's name.
        state: The state shared with earlier and later supervisors.
        waiting: Called with a sentence when ``open`` or ``discover`` has not returned for a while; must not raise.
    """

    def __init__(self, backend: DeviceBackend, state: SharedState | None = None) -> None:
        self._backend = backend
        self.label = type(backend).__name__
        self.state = state or SharedState()
        self.waiting: Callable[[str], object] = lambda _: None
        self._overridden = frozenset(hook for hook in {"discover", *OPTIONAL_HOOKS} if is_overridden(backend, hook))

    def close(self) -> None:
        """Let all threads end that can."""
        for lane in self.state.lanes.values():
            lane.end()

    def in_full(self, text: str | None) -> str | None:
        """Return a text about failed hooks with their errors and lines: for an administrator, never for a pod."""
        for hook, lane in self.state.lanes.items():
            failure = lane.last_failure
            told = f"{hook}() of {self.label} raised {failure.partition(':')[0]};"
            if text is not None and failure and told in text:
                said = printable(" ".join(failure.split()), MOST_OF_FAILURE)
                text = text.replace(told, f"{hook}() of {self.label} raised {said};")
            if text is not None and lane.hangs_at:
                told = f"{hook}() of {self.label} did not return"
                text = text.replace(told, f"{told} from {lane.hangs_at}")
        return text

    def overridden(self, hook: str) -> bool:
        """Return whether the vendor wrote this hook."""
        return hook in self._overridden

    async def call(
        self,
        hook: str,
        *args: Any,
        deadline: float | None,
        then: Callable[[Any], Any] | None = None,
        work: str | None = None,
        owner: str | None = None,
    ) -> Any:
        """Call a hook and return its result.

        Args:
            hook: Its name.
            *args: Its arguments.
            deadline: Seconds until the caller is answered, waiting for an earlier call included; None: no limit.
            then: What to do with the result, in the hook's own thread (it may block, as consuming a generator does) or
                task.
            work: What the call is to do, for a hook that returns nothing. If an earlier call for it has ended well
                after its caller was answered at the deadline, or cancelled, the hook is not called again.
            owner: Whose call it is, for `is_running`.

        Raises:
            NotReady: The hook said so.
            AllocationError: The hook said so, and it is one for a container.
            HookTimeoutError: The deadline is over. The hook may still be running: a ``def`` hook, or one that lets no
                cancellation pass.
            HookFailedError: The hook raised something else. The log has the traceback, once for each new failure.
        """
        began, counts = time.monotonic(), self.state.counts
        try:
            return await self._call(hook, args, deadline, then, work, owner)
        except KdpError as error:
            reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "error")
            counts.failures.add(hook, reason)
            raise
        finally:
            if hook != "watch":
                counts.seconds.add(hook, seconds=time.monotonic() - began)

    async def _call(
        self,
        hook: str,
        args: tuple[Any, ...],
        deadline: float | None,
        then: Callable[[Any], Any] | None,
        work: str | None,
        owner: str | None,
    ) -> Any:
        lanes = self.state.lanes
        lane = lanes.get(hook)
        if lane is None:
            lane = lanes[hook] = Lane(f"kdp-{self.label}.{hook}")
        limit = _Limit(deadline)
        try:
            async with asyncio.timeout(deadline):
                await lane.lock.acquire()
        except TimeoutError:
            raise self._timeout(lane, hook, limit) from None
        if work in lane.done_late:
            lane.done_late.discard(work)
            lane.lock.release()
            return None
        try:
            method = getattr(self._backend, hook)
            begin = self._begun if inspect.iscoroutinefunction(method) else self._submitted
            done = begin(lane, hook, lambda: method(*args), then)
        except Exception as error:  # a property, as which the vendor wrote the hook
            lane.lock.release()
            raise self._failed(lane, hook, error) from error
        lane.running = owner
        # Not this call's end but the hook's own return frees the hook for the next call.
        done.add_done_callback(lambda _: _returned(lane))
        try:
            if hook in ("open", "discover") and deadline is not None and deadline > LONG:
                finished, _ = await asyncio.wait({done}, timeout=LONG)
                if not finished:
                    text = f"waiting for {hook}() of {self.label}, which has not returned for {LONG:g} s"
                    self.waiting(f"{text}; its deadline is {deadline:g} s")
            finished, _ = await asyncio.wait({done}, timeout=limit.left)
        except asyncio.CancelledError:  # a reload does that
            await _cancel(done)
            _remember_late(lane, work, done)
            raise
        log_guard.look(f"{hook}() of {self.label}")
        if not finished:
            await _cancel(done)
            lane.is_hanging = not done.done()
            _remember_late(lane, work, done)
            raise self._timeout(lane, hook, limit)
        result, failure = (None, asyncio.CancelledError()) if done.cancelled() else done.result()
        if isinstance(failure, NotReady) or (isinstance(failure, AllocationError) and hook in _REFUSING):
            raise failure
        if failure is not None:
            raise self._failed(lane, hook, failure) from failure
        lane.last_failure = ""
        return result

    def _submitted(
        self, lane: Lane, hook: str, method: Callable[[], Any], then: Callable[[Any], Any] | None
    ) -> asyncio.Future[Outcome[Any]]:
        """Begin a ``def`` hook, in the lane's thread."""
        process = os.getpid()

        def call() -> Any:
            try:
                with self._noted(hook):
                    result = _not_awaitable(method())
                self._look_at(lane, hook, result)
                return then(result) if then else result
            finally:
                forks.end_child(f"{hook}() of {self.label}", process)

        return lane.worker.submit(call)

    def _begun(
        self, lane: Lane, hook: str, method: Callable[[], Any], then: Callable[[Any], Any] | None
    ) -> asyncio.Future[Outcome[Any]]:
        """Begin an ``async def`` hook, in a task."""
        from ..concurrency.stalls import PATIENCE, Stalls  # late: few backends have such a hook

        coroutine, process = method(), os.getpid()

        async def run() -> Outcome[Any]:
            try:
                with self._noted(hook):
                    result = await coroutine
                self._look_at(lane, hook, result)
                return then(result) if then else result, None
            except BaseException as error:  # noqa: BLE001 - as in a thread; a task would end the loop with some of them
                return None, error
            finally:
                forks.end_child(f"{hook}() of {self.label}", process)

        def tell(frame: FrameType) -> None:
            place = _place(frame, coroutine.cr_code.co_filename)
            if place != lane.last_stall:
                lane.last_stall = place
                logger.warning(
                    "%s() of %s has kept the event loop for %g s, at %s: no pod is answered meanwhile; "
                    "declare the hook with def instead of async def, or await what blocks",
                    *(hook, self.label, PATIENCE, place),
                )

        async def watched() -> Outcome[Any]:
            return await Stalls(run(), tell)

        return asyncio.get_running_loop().create_task(watched())

    def _noted(self, hook: str) -> AbstractContextManager[None]:
        """Return the context in which a hook runs, for the process after a crash."""
        note = self.state.note
        return contextlib.nullcontext() if note is None else note.running(f"{hook}() of {self.label}")

    def _look_at(self, lane: Lane, hook: str, result: Any) -> None:
        """Warn once if a hook returns something although nobody reads it."""
        if result is not None and hook in _PROMISE_NOTHING and not lane.has_returned_something:
            lane.has_returned_something = True
            logger.warning(
                "%s() of %s returned %s, which nobody reads: return None, and keep what other hooks need on self",
                *(hook, self.label, kind_of(result)),
            )

    def is_done(self, hook: str, work: str) -> bool:
        """Return whether a call for this work has ended well, and its caller was not answered or did not save it."""
        lane = self.state.lanes.get(hook)
        return lane is not None and work in lane.done_late

    def note_done(self, hook: str, work: str) -> None:
        """Note that a call for this work has ended well, and that its caller could not save it."""
        self.state.lanes[hook].done_late.add(work)

    def forget(self, hook: str, work: str) -> None:
        """Call a hook for this work again, even if an earlier call has ended well after its deadline."""
        if (lane := self.state.lanes.get(hook)) is not None:
            lane.done_late.discard(work)

    def is_running(self, hook: str, owner: str | None = None) -> bool:
        """Return whether a call of a hook is running, of this owner if one is given; also one that nobody waits for."""
        lane = self.state.lanes.get(hook)
        return lane is not None and lane.lock.locked() and owner in (None, lane.running)

    async def idle(self, hook: str, *, deadline: float | None) -> None:
        """Wait until no call of a hook is running any more, also none whose caller was answered at its deadline.

        Raises:
            HookTimeoutError: One still is.
        """
        lane = self.state.lanes.get(hook)
        if lane is None:
            return
        limit = _Limit(deadline)
        try:
            async with asyncio.timeout(deadline), lane.lock:
                return
        except TimeoutError:
            raise self._timeout(lane, hook, limit) from None

    async def quiet(self, seconds: float) -> None:
        """Wait until no hook is running but ``watch`` and ``close``, or so many seconds."""
        limit = _Limit(seconds)
        for hook in self.state.lanes.keys() - {"watch", "close"}:
            with contextlib.suppress(HookTimeoutError):
                await self.idle(hook, deadline=limit.left or 0.0)

    def _timeout(self, lane: Lane, hook: str, limit: _Limit) -> HookTimeoutError:
        if lane.is_hanging and not lane.hangs_at and (frame := lane.worker.frame()) is not None:
            lane.hangs_at = _place(frame, self._file_of(hook))
            logger.warning(
                "%s() of %s hangs at %s: it has not returned within %g s",
                *(hook, self.label, lane.hangs_at, limit.seconds),
            )
        # The same words while it lasts, so that it is told once.
        return HookTimeoutError(
            f"{hook}() of {self.label} did not return within {limit.seconds:g} s; "
            "it will be called again only after it returns"
        )

    def _file_of(self, hook: str) -> str:
        """Return the file in which a vendor wrote a hook; "" if it was not written in Python."""
        backend = self._backend
        while isinstance(backend, WrappedBackend):
            backend = backend.inner
        code = getattr(inspect.unwrap(getattr(backend, hook)), "__code__", None)
        return "" if code is None else code.co_filename

    def _failed(self, lane: Lane, hook: str, error: BaseException) -> HookFailedError:
        failure = lasting(f"{type(error).__name__}: {message_of(error)}")
        if failure != lane.last_failure:
            lane.last_failure = failure
            frames = frames_of_others(error.__traceback__)
            # The receiver of the failure logs our own sentences.
            told = "" if isinstance(error, InvalidValueError) else f": {in_one_line(error)}"
            if told or frames is not None:
                info = (type(error), error, frames or error.__traceback__)
                logger.error("%s() of %s failed%s", hook, self.label, told, exc_info=info)
        if isinstance(error, InvalidValueError):  # our own words about the vendor's value: they may leave the process
            return HookFailedError(f"{hook}() of {self.label}: {sentence(error)}")
        is_logged = logger.isEnabledFor(logging.ERROR)
        where = "the plugin's log has the details" if is_logged else "the plugin's log is switched off"
        return HookFailedError(f"{hook}() of {self.label} raised {type(error).__name__}; {where}")


def frames_of_others(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of kdp's own code, which tell a vendor nothing; None: no other is left."""
    found: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((_OWN_CODE, "<attrs generated")):
            found.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for each in reversed(found):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _returned(lane: Lane) -> None:
    lane.is_hanging, lane.running, lane.hangs_at = False, None, ""
    lane.lock.release()


def _remember_late(lane: Lane, work: str | None, done: asyncio.Future[Outcome[Any]]) -> None:
    """Note the work of a call that nobody waits for any more, when it has ended well."""

    def remember(done: asyncio.Future[Outcome[Any]]) -> None:
        if work is not None and not done.cancelled() and done.result()[1] is None:
            lane.done_late.add(work)

    done.add_done_callback(remember)


def _place(frame: FrameType, filename: str) -> str:
    """Return where in a file a thread is, or in what the file calls."""
    innermost: FrameType | None = frame
    while innermost is not None and innermost.f_code.co_filename != filename:
        innermost = innermost.f_back
    found = innermost or frame
    return f"{found.f_code.co_filename}:{found.f_lineno}"


async def _cancel(done: asyncio.Future[Outcome[Any]]) -> None:
    """Cancel a hook that runs in a task, and give it a moment; a thread cannot be cancelled."""
    if isinstance(done, asyncio.Task):
        done.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({done}, timeout=GRACE)


def check_state(state: object, what: str = "the allocation's state") -> dict[str, Any]:
    """Return a copy of an allocation's state, or of the thing that the texts name, as the file will give it back.

    Raises:
        InvalidValueError: JSON cannot carry it.
    """
    if not state and isinstance(state, dict):
        return {}
    import json  # with the first state: a plugin without one starts without it

    from ..storage.documents import MAX_STATE_DEPTH, check_depth

    try:
        if (misfit := _misfit(state, what.split()[-1])) is not None:
            raise ValueError(misfit)
        copy = json.loads(json.dumps(state, allow_nan=False))
        check_depth(copy, MAX_STATE_DEPTH)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(
            f"{what} cannot be saved as JSON ({error}); use dicts, lists, str, int, float, bool and None"
        ) from None
    if not isinstance(copy, dict):
        raise InvalidValueError(f"{what} is {state!r}: must be a dict")
    return cast("dict[str, Any]", copy)


def _misfit(value: Any, where: str) -> str | None:
    """Return what JSON would change or not carry, and where it is; None: nothing."""
    if isinstance(value, dict):
        for key, held in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                return f"{where} has the key {key!r}, which is no text"
            if (misfit := _misfit(held, f"{where}[{key!r}]")) is not None:
                return misfit
    elif isinstance(value, (list, tuple)):
        for number, held in enumerate(cast("Sequence[object]", value)):
            if (misfit := _misfit(held, f"{where}[{number}]")) is not None:
                return misfit
    elif value is not None and not isinstance(value, (str, int, float)):
        return f"{where} is {kind_of(value)}"
    return None


def _not_awaitable(result: Any) -> Any:
    """Return a ``def`` hook's result. A coroutine is none: nobody awaits it, and what it would do does not happen."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise InvalidValueError(
        f"it is a def that returned {type(result).__name__!r}, which is not awaited: declare it with async def, or "
        "return its result"
    )
