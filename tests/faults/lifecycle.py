"""Faults 55, 56, 58 and 61 to 65: the kubelet dies in a call, and what its versions do to records of plugins."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from kdp.testing import CallError, RegisterFault, ScenarioError, events
from kdp_testkit.faults.base import FaultGroup
from kdp_testkit.patience import PATIENCE


class RecordFaults(FaultGroup):
    """Faults of the kubelet's life and records."""

    async def restart_during_register(self, resource: str, *, timeout: float = PATIENCE) -> None:  # noqa: ASYNC109
        """Fault 55: the kubelet is killed while it treats a Register, and starts again.

        On a node: an upgrade under a plugin that comes up. A stream that is open is ended to make the plugin register.

        A good plugin registers with the new kubelet without waiting for the old one's answer.
        """
        known = len(self._kubelet.events.of(events.RegisterReceived, resource=resource))
        self._process.living("it cannot be asked")
        self._arm(RegisterFault(hang=True))
        if self._kubelet.streams(resource):
            self._kubelet.drop_stream(resource)
        await self._kubelet.until(
            lambda: len(self._kubelet.events.of(events.RegisterReceived, resource=resource)) > known, timeout=timeout
        )
        await self._kubelet.restart()

    async def restart_during_allocate(
        self, resource: str, device_ids: Sequence[str], *, after: float = 0.05
    ) -> str | None:
        """Fault 56: the kubelet is killed ``after`` so many seconds of an Allocate; return how the call ended for it.

        On a node: its choice of devices is forgotten, and another set may be asked for next time (section 6.1).

        A good plugin cancels or finishes the call, registers, and answers any set.
        """
        connection = self._process.client(resource).connection
        answers: list[str | None] = []

        async def allocate() -> None:
            try:
                await connection.allocate(device_ids)
            except CallError as failed:
                answers.append(str(failed))
            else:
                answers.append(None)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(allocate)
            await anyio.sleep(after)
            await self._kubelet.restart()
        return answers[0]

    def registry_dead(self) -> None:
        """Fault 58: no process listens on kubelet.sock any more, while the kubelet lives and reads its streams.

        On a node: kubelets up to 1.31 whose registry server died silently (#125506, B23). A restart cures it.

        A good plugin keeps the stream that it has; without one it says why and goes on trying.
        """
        for listener in self._process.living("its registry cannot die")._listeners:
            listener.refuse()

    def end_oldest_stream(self, resource: str) -> None:
        """Fault 61: the oldest stream of a resource ends, and the kubelet closes the newest registration for it.

        On a node: kubelets up to 1.36 look the client up by the resource's name alone (#121994, B1).

        A good plugin whose stream ends soon after a successful Register registers again.

        Raises:
            ScenarioError: This kubelet keeps records by path, or there are not two streams.
        """
        if not self._kubelet.profile.one_client_per_resource:
            raise ScenarioError(
                f"{self._kubelet.profile.name} finds clients by name and path, so it never ends the wrong one; take "
                "k136"
            )
        streaming = self._process.streaming(resource)
        if len(streaming) < 2:
            raise ScenarioError(
                f"{resource} has {len(streaming)} open stream: two are needed, an older and a newer one"
            )
        streaming[0].end_stream()

    def refuse_as_connected(self, *, times: int | None = 1) -> None:
        """Fault 62: Register is refused as ``device plugin already connected``, with the path of the plugin's socket.

        On a node: kubelet 1.37, as long as the path is on record (section 2.2).

        A good plugin never uses that path again, and registers under another name.
        """
        self._arm(RegisterFault(code="UNKNOWN", text="device plugin already connected: {socket}"), times)

    def poison(self, resource: str) -> None:
        """Fault 63: the record of the live connection is dropped, so that its end will go unnoticed: a poisoned path.

        On a node: kubelet 1.37 after a Register that failed under the path of a live one. Devices stay allocatable for
        ever, and the path is refused until the kubelet restarts (section 2.5, B3).

        A good plugin comes back under a path that is not poisoned, because it never uses one twice.

        Raises:
            ScenarioError: This kubelet has no records by path.
        """
        if self._kubelet.profile.one_client_per_resource:
            raise ScenarioError(f"{self._kubelet.profile.name} has no records by path to poison; take k137")
        client = self._process.client(resource)
        self._process.living("it has no records").clients.drop(resource, client.socket_path)

    def deduplicate(self) -> None:
        """Fault 64: a Register of a resource and path that are on record is answered ok, and nothing happens.

        On a node: #139765, which is in no release; with it a repeated Register brings no new stream.

        A good plugin never registers while its stream lives, and believes in nothing but a stream.
        """
        self.armed.deduplicates = True

    def disconnect_late(self, seconds: float) -> None:
        """Fault 65: the kubelet acts on a stream's end only ``seconds`` later, on the plugin on record then.

        On a node: a busy kubelet. Up to 1.36 that is the newcomer, which loses its connection; from 1.37 on only one
        under the same path.

        A good plugin has a new path each time, and registers again if its stream ends all the same.
        """
        self.armed.disconnect_delay = seconds

    def _arm(self, fault: RegisterFault, times: int | None = 1) -> None:
        self.register(fault, times=times)
