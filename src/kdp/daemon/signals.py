"""The process's signals, and its certain end.

A thread of its own reads the signals' numbers from the interpreter's wakeup descriptor. So they arrive also while a
hook of the vendor blocks the event loop or hangs in a system call, and the process's end does not depend on anything
that may hang: `GRACE` seconds after it was asked to stop the thread ends the process itself. It sleeps in ``poll``
without a timeout until then: no wake-ups. It starts before there is an event loop, so it is none of
`kdp.concurrency.threads`.

`Signals.attach` takes back the signals that a backend's module has taken while it was loaded. An event loop of asyncio
would take the wakeup descriptor with the first `add_signal_handler` of a hook. The loop of this module leaves the
descriptor alone, and has the thread call the hook's handler. A C library that takes signals later keeps them: then
SIGKILL ends the process when the pod's grace period is over.

========= ============================================================================
SIGTERM   orderly stop, exit code 0; so does SIGINT
SIGHUP    read the configuration again and discover again, over the living stream
SIGQUIT   write every thread's and task's stack to stderr, and go on
========= ============================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, final

from typing_extensions import TypeVarTuple, override

from ..errors import ConfigurationError
from . import logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

logger = logging.getLogger(__name__)

GRACE = 1.85
"""Seconds from the request to stop until the process is ended in any case; with the interpreter's own end below 2 s."""

_STOP = (signal.SIGTERM, signal.SIGINT)
_HANDLED = (*_STOP, signal.SIGHUP, signal.SIGQUIT)
_DUMP_SECONDS = 0.3
"""Seconds for which the stacks are tried to be written; a request to stop waits so long."""

_LOOK = 0
"""No signal has this number: it makes the thread look at its deadline."""


@final
class Stopped(SystemExit):
    """Asked to stop before there was anything to stop in order."""


@final
class Signals:
    """Takes over the process's signals, for good: kdp.run is the end of its program.

    Until `attach` there is nothing to stop in an orderly way, so a request to stop ends the program where it is.
    """

    def __init__(self) -> None:
        self.asked_to_stop = False
        self._code = 0
        self._deadline: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] | None = None
        self._reload: Callable[[], object] | None = None
        self._read_end = -1
        self._write_end = -1
        self._poll = select.poll()
        self._of_hooks: dict[int, Callable[[], object]] = {}

    def start(self) -> None:
        """Take the signals over.

        Raises:
            ConfigurationError: This is not the main thread, which alone can do that, or a loop runs in it.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "kdp.run was called outside the main thread, where signals cannot be handled; call it in the main "
                "thread, or await kdp.serve in an event loop of your own"
            )
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigurationError(
                "kdp.run was called inside a running event loop; await kdp.serve there, or call kdp.run outside of it"
            )
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._poll.register(self._read_end, select.POLLIN)
        self._install()
        threading.Thread(target=self._watch, name="kdp-signals", daemon=True).start()

    def _install(self) -> None:
        for number in _HANDLED:
            signal.signal(number, self._in_main_thread)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)  # the parent process may have blocked them

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop with an `add_signal_handler` that takes nothing from this process."""
        return _EventLoop(self)

    def add(self, number: int, function: Callable[[], object]) -> None:
        """Call a function in the loop at each signal of this number, after the process has reacted to it.

        Raises:
            RuntimeError: This signal cannot be caught.
        """
        try:
            signal.signal(number, self._in_main_thread)
            signal.siginterrupt(number, False)
        except OSError as error:
            raise RuntimeError(f"signal {number} cannot be caught") from error
        self._of_hooks[number] = function

    def remove(self, number: int) -> bool:
        """Forget the function of a signal, and return whether there was one."""
        if self._of_hooks.pop(number, None) is None:
            return False
        if number not in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        return True

    def attach(
        self, loop: asyncio.AbstractEventLoop, *, stop: Callable[[], object], reload: Callable[[], object]
    ) -> None:
        """From now on tell this loop: both functions are called in it."""
        self._install()
        self._stop, self._reload = stop, reload
        self._loop = loop
        if self.asked_to_stop:
            stop()

    def end(self, code: int) -> None:
        """See to it that the process ends with this code soon, even if a forgotten thread would keep it."""
        self._code = code
        if self._deadline is None:
            self._deadline = time.monotonic() + GRACE
            os.write(self._write_end, bytes([_LOOK]))

    def _in_main_thread(self, number: int, _frame: FrameType | None) -> None:
        # The wakeup descriptor needs a handler to exist. It has work only before there is a loop to tell.
        if number in _STOP and self._loop is None:
            raise Stopped(0)

    def _watch(self) -> None:
        while True:
            left = None if self._deadline is None else max(0.0, 1000 * (self._deadline - time.monotonic()))
            if not self._poll.poll(left):
                logs.write_now(logging.WARNING, "a task did not end in time; the process exits without it")
                os._exit(self._code)
            for number in os.read(self._read_end, 64):
                if number == signal.SIGQUIT:
                    try:
                        self._dump()
                    except Exception:  # noqa: BLE001 - this thread must live: it is the process's certain end
                        logs.write_now(logging.ERROR, "the stacks could not be shown")
                elif number == signal.SIGHUP:
                    self._tell(self._reload)
                elif number in _STOP and not self.asked_to_stop:
                    self.asked_to_stop = True
                    self._deadline = self._deadline or time.monotonic() + GRACE
                    self._tell(self._stop, f"stopping, as {signal.Signals(number).name} asks")
                self._tell(self._of_hooks.get(number))

    def _tell(self, function: Callable[[], object] | None, line: str = "") -> None:
        if self._loop is None or function is None:
            return
        try:
            # The line is written by the loop: a lock of logging must not keep this thread from its deadline.
            if line:
                self._loop.call_soon_threadsafe(logger.info, line)
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop is closed: we are at the end already

    def _dump(self) -> None:
        import faulthandler

        # Not into stderr: what nobody reads would hold this thread, and with it all others, since it writes without
        # letting them run.
        with open(os.memfd_create("stacks"), "w+", errors="replace") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            text = f"SIGQUIT: the stacks of all threads\n{file.read()}"
        if self._loop is not None:
            for task in asyncio.all_tasks(self._loop):
                text += f"Task {task.get_name()} (most recent call last):\n{_awaiting(task.get_coro())}"
        logs.write_out(text, _DUMP_SECONDS)


_Ts = TypeVarTuple("_Ts")


@final
class _EventLoop(asyncio.SelectorEventLoop):
    def __init__(self, signals: Signals) -> None:
        super().__init__()
        self._signals = signals

    @override
    def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        if inspect.iscoroutinefunction(callback):
            raise TypeError("a coroutine function cannot handle a signal; give one that makes a task")
        self._signals.add(sig, functools.partial(callback, *args))

    @override
    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.remove(sig)


def _awaiting(coroutine: Any) -> str:
    """Return the places at which a coroutine and those that it awaits stand, a line each.

    Unlike `asyncio.Task.print_stack` it goes to the innermost one, and knows that gRPC's coroutines have no lines.
    """
    lines: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n')
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return "".join(lines)
