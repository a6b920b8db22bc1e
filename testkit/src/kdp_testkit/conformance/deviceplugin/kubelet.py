"""`ConformanceKubelet`: what the checks need of a kubelet, and the one that they get if nobody says otherwise.

The checks know a kubelet by this and by nothing else, so that it need not be the simulated one: kdp's own tests give
them the kubelet's device manager itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...kubelet import SimulatedKubelet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from kdp.kubelet.paths import KubeletPaths

    from ...events import Event, EventLog
    from ...faults import Faults
    from ...profiles import Profile
    from ...protocol.pods import AdmissionError, AdmittedPod, Pod
    from ...protocol.wire import ListedDevice, PluginConnection

# ruff: noqa: D102 - SimulatedKubelet has the docstrings


class ConformanceKubelet(Protocol):
    """A kubelet on directories of its own; what each member means is said at `SimulatedKubelet`."""

    @property
    def paths(self) -> KubeletPaths: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def events(self) -> EventLog: ...
    @property
    def faults(self) -> Faults: ...
    @property
    def is_running(self) -> bool: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def crash(self) -> None: ...
    async def restart(self, *, down: float = 0.0, listen_delay: float = 0.0, reboot: bool = False) -> None: ...

    def devices(self, resource: str) -> dict[str, ListedDevice]: ...
    def streams(self, resource: str) -> int: ...

    async def admit(self, pod: Pod) -> AdmittedPod: ...
    async def delete(self, pod: Pod) -> None: ...
    async def readmit(self) -> Mapping[str, AdmittedPod | AdmissionError]: ...

    def plugin(self, resource: str) -> PluginConnection: ...
    def drop_stream(self, resource: str) -> None: ...
    def pause_reading(self, resource: str) -> None: ...
    def resume_reading(self, resource: str) -> None: ...
    def checkpoint_noise(self, per_second: float = 100.0) -> AbstractAsyncContextManager[None]: ...


class MakeKubelet(Protocol):
    """Makes a kubelet, which lives while its context lasts."""

    def __call__(
        self,
        root: Path | None,
        *,
        profile: str,
        autostart: bool,
        listener: Callable[[Event], None] | None,
        seen_at: str | None,
    ) -> AbstractAsyncContextManager[ConformanceKubelet]:
        """Make one.

        Args:
            root: Its root directory; None: a temporary one.
            profile: Which kubelet, as ``k137``.
            autostart: Whether it runs when the context is entered.
            listener: Called with each event at once; a Register is not answered before it returns.
            seen_at: Where the plugin sees the root directory.
        """
        ...


def simulated(
    root: Path | None,
    *,
    profile: str,
    autostart: bool,
    listener: Callable[[Event], None] | None,
    seen_at: str | None,
) -> AbstractAsyncContextManager[ConformanceKubelet]:
    """Make a simulated kubelet, whose plugin watcher looks twenty times as often as a real one."""
    return SimulatedKubelet(
        root,
        profile=profile,
        seed=1,
        watcher_period=0.05,
        autostart=autostart,
        listener=listener,
        seen_at=seen_at,
    )
