"""`Handlers`: the process's signal handlers and wake-up descriptor, and whether they are still ours.

Python knows only of the handlers that Python code has set. So the kernel's view is asked, too: a C library may ignore a
signal or replace its handler with ``signal`` or ``sigaction``. All of it costs about 20 µs.
"""

from __future__ import annotations

import ctypes
import signal
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

_ACTION_BYTES: Final = 512
"""More than ``struct sigaction`` has on any platform; it begins with the handler."""


@final
class Handlers:
    """The handlers of these signals. All methods belong to the main thread, where alone Python sets them."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._signals = frozenset(signals)
        self._descriptor = -1
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._addresses: dict[signal.Signals, int] = {}
        self._libc = ctypes.CDLL(None)
        self._action = (ctypes.c_size_t * (_ACTION_BYTES // ctypes.sizeof(ctypes.c_size_t)))()

    def install(self, handler: Callable[[int, FrameType | None], object], descriptor: int) -> None:
        """Handle the signals, and write their numbers to this descriptor, also if the parent process blocked them."""
        self._handler, self._descriptor = handler, descriptor
        for number in self._signals:
            signal.signal(number, handler)
            self._addresses[number] = self._address(number)
        self.restore_descriptor()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)

    def restore(self) -> list[str]:
        """Take back what is not ours any more, and return its names, sorted."""
        if self._handler is None:
            return []
        lost: set[int] = {
            number
            for number in self._signals
            if signal.getsignal(number) != self._handler or self._address(number) != self._addresses[number]
        }
        for number in lost:
            signal.signal(number, self._handler)
        lost |= signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals) & self._signals
        names = sorted(signal.Signals(number).name for number in lost)
        return [*names, "the wake-up descriptor"] if self.restore_descriptor() else names

    def restore_descriptor(self) -> bool:
        """Take the wake-up descriptor back, and return whether it was another one."""
        return signal.set_wakeup_fd(self._descriptor, warn_on_full_buffer=False) != self._descriptor

    def _address(self, number: signal.Signals) -> int:
        """Return the address of the handler that the kernel calls, or 0 or 1: by default, ignored."""
        self._libc.sigaction(ctypes.c_int(number), None, self._action)
        return int(self._action[0])
