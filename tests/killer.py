"""Ends the process by SIGKILL at one of its steps: what a crash leaves is what had reached the disk until then."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


class Killer:
    """Counts the steps while it is armed.

    Args:
        at: The step that is the last, from 0; negative: none.
        tells: The file descriptor to which it says ``killed before rename``, say.
    """

    def __init__(self, at: int, *, tells: int) -> None:
        self._left = at
        self._tells = tells
        self.is_armed = False

    def step(self, name: str) -> None:
        if not self.is_armed:
            return
        if self._left == 0:
            os.write(self._tells, f"killed {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            self.step(f"before {name}")
            return call(*args, **more)

        return wrapped

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        call = self.before(name, call)

        def wrapped(*args: Any, **more: Any) -> Any:
            found = call(*args, **more)
            self.step(f"after {name}")
            return found

        return wrapped
