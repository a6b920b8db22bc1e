"""Faults 1 to 5 and 7: how Register is answered, and whether the plugin is dialed.

They are queued: each one meets the next Register calls, ``times`` of them (None: all that follow).
"""

from __future__ import annotations

from ..armed_faults import RegisterFault
from .base import FaultGroup


class RegisterFaults(FaultGroup):
    """Faults of Register."""

    def delay_register(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 1: Register is answered ``seconds`` late, after the plugin was dialed and asked for its options.

        On a node: a busy kubelet. The stream may be open long before the reply comes.

        A good plugin serves the stream meanwhile, waits at least 15 s for the reply, and does not register twice.
        """
        self.register(RegisterFault(delay=seconds), times=times)

    def refuse_register(self, text: str, *, code: str = "UNKNOWN", times: int | None = 1) -> None:
        """Fault 2: Register is answered with this status, whatever it says; the kubelet's own code is UNKNOWN.

        On a node: a version or a name that this kubelet does not accept, or it could not reach the plugin (section
        2.2).

        A good plugin tells the lasting refusals from the passing ones by their text, says why once, and tries again.
        """
        self.register(RegisterFault(code=code, text=text), times=times)

    def hang_register(self, *, times: int | None = 1) -> None:
        """Fault 3: Register is never answered; it ends at the plugin's deadline.

        On a node: the kubelet's disk or its locks are stuck.

        A good plugin has a deadline of its own, of 15 s or more, and then tries again under a new socket name.
        """
        self.register(RegisterFault(hang=True), times=times)

    def drop_register(self, *, times: int | None = 1) -> None:
        """Fault 4: the connection breaks after the request came.

        On a node: the kubelet is killed while it registers the plugin.

        A good plugin takes it for a failure and registers with the next kubelet that listens.
        """
        self.register(RegisterFault(drop=True), times=times)

    def accept_without_dialing(self, *, times: int | None = 1) -> None:
        """Fault 5: Register is answered ok, and the plugin is never dialed.

        On a node: the kubelet ended in between, or took the call for a repetition.

        A good plugin believes only in an open stream: without one after 10 s it registers anew.
        """
        self.register(RegisterFault(dial=False), times=times)

    def dial_without_stream(self, *, times: int | None = 1) -> None:
        """Fault 7: the plugin is dialed and asked for its options; ListAndWatch is never called.

        On a node: the kubelet ended between its answer and the stream (B6).

        A good plugin registers anew when no stream has come after 10 s.
        """
        self.register(RegisterFault(stream=False), times=times)
