"""Faults 53, 54, 57, 59 and 60: the kubelet ends and starts again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import FaultGroup

if TYPE_CHECKING:
    from ..profiles import Profile


class LifeCycleFaults(FaultGroup):
    """Faults of the kubelet's life."""

    async def clean_restart(self) -> None:
        """Fault 53: the kubelet closes its connections, removes kubelet.sock, ends, and starts again.

        On a node: the device manager's own end, which hardly any kubelet reaches.

        A good plugin registers within 100 ms of the new socket's listening, under a new name.
        """
        await self._kubelet.stop()
        await self._kubelet.start()

    async def crash_restart(self) -> None:
        """Fault 54: the kubelet is killed and restarts; connections break, kubelet.sock stays until its cleanup.

        On a node: ``systemctl restart kubelet`` and every upgrade look like that (section 4.3).

        A good plugin registers within 100 ms of the new socket's listening, under a new name.
        """
        await self._kubelet.restart()

    async def stay_down(self, seconds: float = 600.0) -> None:
        """Fault 57: the kubelet is down for ten minutes, or as long as it is told, and then starts again.

        On a node: a failed upgrade. The resource is dropped five minutes after the *next* kubelet's start if nobody
        serves it (section 4.5).

        A good plugin waits without a busy loop, and registers as quickly as after a short break.
        """
        await self._kubelet.restart(down=seconds)

    async def restart_storm(self, times: int, *, down: float = 0.0) -> None:
        """Fault 59: the kubelet is killed and started ``times`` times, as quickly as it comes up.

        On a node: a kubelet that fails soon after its start.

        A good plugin is registered with the last one, once, and has lost nothing on the way.
        """
        for _ in range(times):
            await self._kubelet.restart(down=down)

    async def switch_profile(self, profile: str | Profile) -> None:
        """Fault 60: the kubelet is replaced by another version on the same directory and checkpoint.

        On a node: an upgrade or a downgrade under a plugin that stays.

        A good plugin has no notion of the kubelet's version, and registers as after any restart.
        """
        await self._kubelet.restart(profile=profile)
