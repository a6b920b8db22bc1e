"""`CallCounts`: how many calls kubelets made of a plugin or driver, how they ended, and how long they took."""

from __future__ import annotations

from typing import Final

from ..concurrency.counts import Durations, Names, Tally

MOST_RESOURCES: Final = 64
"""Resources and drivers that are counted apart."""


RESULTS: Final = ("ok", "refused", "failed")
"""How a call ended: answered; kdp or the backend said no; a hook failed or was late, or the kubelet hung up."""


class CallCounts:
    """The calls of a process, for all its resources or drivers.

    Attributes:
        resources: The names of those that are counted apart.
        calls: Calls by method, resource, and result, one of `RESULTS`.
        seconds: The time until their answers, by method and resource.
    """

    def __init__(self) -> None:
        self.resources = Names(MOST_RESOURCES)
        self.calls = Tally()
        self.seconds = Durations()

    def called(self, method: str, resource: str, result: str, seconds: float) -> None:
        """Count a call that is answered."""
        name = self.resources.of(resource)
        self.calls.add(method, name, result)
        self.seconds.add(method, name, seconds=seconds)
