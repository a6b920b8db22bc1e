"""`Stalls`: notices a coroutine that keeps the event loop, for example by `time.sleep`.

While the coroutine waits for the loop, nothing runs and nothing wakes up.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

from typing_extensions import override

if TYPE_CHECKING:
    from types import FrameType

PATIENCE: Final = 1.0
"""Seconds that one step of a coroutine may keep the loop."""

_T = TypeVar("_T")


@final
class Stalls(Awaitable[_T]):
    """Awaits a coroutine, and calls a function if one of its steps takes longer than `PATIENCE`.

    A thread of its own looks at the steps. It starts with the first one and ends with the coroutine.

    Args:
        coroutine: What to await.
        tell: Called once for each such step, in that thread, with the frame in which the event loop's thread is.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _T], tell: Callable[[FrameType], object]) -> None:
        self._coroutine = coroutine
        self._tell = tell
        self._began: float | None = None
        self._step = 0
        self._is_over = False
        self._has_news = threading.Condition()
        self._is_asleep = False
        self._loop_thread = threading.get_ident()

    @override
    def __await__(self) -> Generator[Any, Any, _T]:
        thread = threading.Thread(target=self._watch, name="kdp-stalls", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system refuses a thread: then nobody looks
            return (yield from self._coroutine.__await__())
        try:
            return (yield from self._stepped())
        finally:
            with self._has_news:
                self._is_over = True
                self._has_news.notify()

    def _stepped(self) -> Generator[Any, Any, _T]:
        """Await the coroutine as ``yield from`` does, and note when each step begins and ends."""
        step: Callable[[], Any] = functools.partial(self._coroutine.send, None)
        while True:
            self._begin()
            try:
                awaited = step()
            except StopIteration as returned:
                return cast("_T", returned.value)
            finally:
                self._began = None
            try:
                step = functools.partial(self._coroutine.send, (yield awaited))
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - the coroutine's to take, also a cancellation
                step = functools.partial(self._coroutine.throw, error)

    def _begin(self) -> None:
        self._step += 1
        self._began = time.monotonic()
        if self._is_asleep:
            with self._has_news:
                self._has_news.notify()

    def _watch(self) -> None:
        told = 0
        with self._has_news:
            while not self._is_over:
                began, step = self._began, self._step
                if began is None or step == told:
                    self._is_asleep = True
                    if self._began is None or self._step == told:
                        self._has_news.wait()
                    self._is_asleep = False
                elif (left := began + PATIENCE - time.monotonic()) > 0:
                    self._has_news.wait(left)
                else:
                    told = step
                    frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
                    if frame is not None and self._began is not None:
                        self._tell(frame)
                    del frame
