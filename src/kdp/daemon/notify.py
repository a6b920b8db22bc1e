"""What systemd is told of the process, where it runs as a unit with ``Type=notify`` (sd_notify(3)).

============ ====================================================================================================
``READY``    every backend is open, and the kubelet has all resources or drivers, whose devices were published: the same
             as ``/readyz``
``STATUS``   where everything stands, in one line, for ``systemctl status``; only when it changed
``WATCHDOG`` the event loop answers: the same as ``/livez``. Only if the unit has ``WatchdogSec=``
``STOPPING`` asked to stop
============ ====================================================================================================

Without ``NOTIFY_SOCKET`` in the environment nothing is done. `kdp.serve` never tells anything: inside somebody's
program that is the program's business.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..supervision.service import BaseStatus

logger = logging.getLogger(__name__)

_SOON: Final = 0.1
_SELDOM: Final = 5.0
"""Seconds between two looks: at first, growing until everything is ready, and from then on."""


@final
class Notifier:
    """Tells systemd, if it wants to know."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._pause = _watchdog(environ)
        self._is_ready = False
        self._status = ""

    def stopping(self) -> None:
        """Tell that the process was asked to stop."""
        self._send("STOPPING=1", "STATUS=stopping")

    async def follow(self, status: Callable[[], BaseStatus | None]) -> None:
        """Tell where everything stands, until cancelled.

        Args:
            status: Called in the event loop; None: nothing runs yet, or not any more.
        """
        if not self._address:
            return
        pause = _SOON
        while True:
            now = status()
            self.tell(now)
            pause = _SELDOM if now is not None and now.is_ready else min(pause * 1.5, 1.0)
            await asyncio.sleep(pause if self._pause is None else min(pause, self._pause))

    def tell(self, status: BaseStatus | None) -> None:
        """Tell this state: what of it is new."""
        lines = ["WATCHDOG=1"] if self._pause is not None else []
        if status is not None and status.is_ready and not self._is_ready:
            self._is_ready = True
            lines.append("READY=1")
        words = in_words(status)
        if words != self._status:
            self._status = words
            lines.append(f"STATUS={words}")
        if lines:
            self._send(*lines)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            logger.debug("systemd was not notified of %s: %s", ", ".join(lines), error)


def in_words(status: BaseStatus | None) -> str:
    """Return one line for people: what is not ready, or how much there is."""
    if status is None:
        return "starting"
    for label, problem in status.backends:
        if problem is not None:
            return " ".join(f"{label}: {problem}".split())
    for name, held in status.parts.items():
        if not held.is_ready:
            return " ".join(f"{name}: {held.state}{f', {held.reason}' if held.reason else ''}".split())
    return "; ".join(f"{name}: devices {held.devices}, healthy {held.healthy}" for name, held in status.parts.items())


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Return the seconds between two signs of life; None: none are wanted (sd_watchdog_enabled(3))."""
    if environ.get("WATCHDOG_PID") not in (None, "", str(os.getpid())):
        return None
    try:
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return microseconds / 2e6 if microseconds > 0 else None
