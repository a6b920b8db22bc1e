"""`DraScene`: what a check of a DRA driver plays with: a node of its own, a driver on it, and the scheduler's work."""

from __future__ import annotations

import itertools
import socket
import time
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import attrs
from typing_extensions import override

from kdp.kubelet.paths import KubeletPaths

from ...dra import events, objects
from ...dra.apifaults import ApiFaults
from ...dra.claims import ClaimEntry, PreparedDevice
from ...dra.drivers import DriverConnection
from ...dra.kubelet import SimulatedDraKubelet
from ...dra.profiles import DraTimings
from ...dra.runtime import cdi_devices
from ...dra.status import ApiRefused
from ...events import PluginInfoReceived
from ...protocol.wire import CallError
from ..checks import NotApplicable
from ..scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from ...dra.pods import DraPod
    from ...dra.server import SimulatedApiServer
    from ...events import Event, EventLog
    from ..instance import Instance
    from .subject import DraNode, DraSubject

MEETING = 30.0
"""Seconds that a driver has to register and to publish its devices."""

NODE = "node0"
_TIMINGS = DraTimings(health_retry=0.2, watcher=0.05)
_QUIET = 0.1

Object = dict[str, Any]
_AnswerT = TypeVar("_AnswerT")
Prepared = tuple[tuple[PreparedDevice, ...], str]
"""What a driver answered for a claim: devices and error."""


def dra_kubelet(
    server: SimulatedApiServer, root: Path, *, profile: str, listener: Callable[[Event], None] | None = None
) -> SimulatedDraKubelet:
    """Make the kubelet of the node, which looks far more often than a real one."""
    return SimulatedDraKubelet(
        server.ask, root, node=NODE, profile=profile, tells_health=True, timings=_TIMINGS, listener=listener
    )


class DraScene(Scene):
    """One node with the driver on it, and what a check asks about them.

    Attributes:
        subject: The driver under test.
        node: Where the driver finds itself.
        kubelet: The node's kubelet.
        server: The API server.
        profile: Which Kubernetes.
        driver: The driver's name, when it has been met.
        endpoint_answered: Whether somebody listened at the endpoint when GetInfo was answered first; None: it never
            was.
    """

    noun = "driver"

    def __init__(
        self,
        subject: DraSubject,
        node: DraNode,
        kubelet: SimulatedDraKubelet,
        server: SimulatedApiServer,
        tasks: TaskGroup,
        *,
        profile: str,
        patience: float,
    ) -> None:
        super().__init__(tasks, patience=patience)
        self.node = node
        self.kubelet = kubelet
        self.server = server
        self.profile = profile
        self.driver = ""
        self.endpoint_answered: bool | None = None
        self.subject = subject
        self._names = (f"c{number}" for number in itertools.count())

    @property
    @override
    def log(self) -> EventLog:
        """What the kubelet has seen."""
        return self.kubelet.events

    # -- the driver ----------------------------------------------------------------------------------------------------

    async def start(self, *, pod_uid: str = "", subject: DraSubject | None = None) -> Instance:
        """Start one more instance and return it; it need not be registered yet.

        Args:
            pod_uid: The UID of its pod, if several are to overlap.
            subject: Another version of the driver.
        """
        node = attrs.evolve(self.node, pod_uid=pod_uid)
        return await self.hold((subject or self.subject).start(node, self.log.touch))

    async def wait_until_ready(self) -> None:
        """Wait until the driver is registered and has published its devices; then its name is known."""
        await self.until(lambda: self._named(), MEETING * max(self._patience, 0.2), "the driver was not registered")
        [self.driver] = self._named()
        await self.published()
        with anyio.move_on_after(self.limit(1.0)):  # a driver may find its hardware later
            while not await self.devices():
                await self.elapse(_QUIET)
        until = time.monotonic() + self.limit(1.0)
        count = 0
        while len(self.writes()) != count and time.monotonic() < until:
            count = len(self.writes())  # what the server left out may be answered by another write
            await self.elapse(_QUIET)

    def _named(self) -> list[str]:
        return list(self.kubelet.registered()) if self.kubelet.is_running else []

    async def registered(self) -> None:
        """Wait until the driver is registered, as before."""
        limit = MEETING * max(self._patience, 0.2)
        await self.until(lambda: self.driver in self._named(), limit, f"{self.driver} was not registered")

    async def unregistered(self) -> None:
        """Wait until the kubelet has seen that the driver is gone.

        Raises:
            Failed: It still has it.
        """
        await self.until(lambda: not self.kubelet.registered(), self.limit(1.0), "it was not unregistered")

    async def leave(self) -> None:
        """Ask the last instance to end, and wait until the kubelet has seen that."""
        await self.stop()
        await self.unregistered()

    async def start_again(self, *, subject: DraSubject | None = None, pod_uid: str = "") -> None:
        """Start an instance after the last one has ended, and wait until the kubelet has it and can call it.

        Raises:
            Failed: It is not registered.
        """
        before = len(self.log.of(events.DriverRegistered))
        await self.start(subject=subject, pod_uid=pod_uid)
        await self.until(
            lambda: len(self.log.of(events.DriverRegistered)) > before and self._is_called(),
            MEETING * max(self._patience, 0.2),
            "after a new start the driver was not registered again",
        )

    def _is_called(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return bool(self.kubelet.registered()) and probe.connect_ex(self.endpoint) == 0

    async def reboot(self) -> None:
        """Lose what a node loses when its power fails: processes, what is in memory, and /var/run."""
        await self.kill()
        await self.kubelet.crash()
        for path in self.node.cdi.iterdir():
            path.unlink()
        self.node = attrs.evolve(self.node, boot_id=f"{self.node.boot_id}-and-one")
        await self.kubelet.start()
        await self.start_again()

    @asynccontextmanager
    async def moved(self, root: Path) -> AsyncGenerator[None]:
        """Have the kubelet at another root directory, with no driver there yet."""
        before = self.kubelet, self.node
        await self.stop()
        await self.kubelet.crash()
        async with dra_kubelet(self.server, root, profile=self.profile) as self.kubelet:
            self.node = attrs.evolve(self.node, paths=KubeletPaths.simulated(root))
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self.kill()
                self.kubelet, self.node = before

    # -- slices --------------------------------------------------------------------------------------------------------

    async def slices(self) -> list[Object]:
        """Return the driver's slices, by name. Faults of the API server do not count."""
        items = [each.item for each in _latest(self.server.api.store.changes, "resourceslices")]
        return sorted((each for each in items if each["spec"]["driver"] == self.driver), key=_name_of)

    async def devices(self) -> list[Object]:
        """Return the published devices."""
        return [device for each in await self.slices() for device in each["spec"].get("devices") or ()]

    @property
    def changes(self) -> int:
        """How many changes of objects the API server has seen."""
        return len(self.server.api.store.changes)

    def was_tainted(self, devices: Sequence[Object], since: int) -> bool:
        """Return whether a device has had other taints since then, as during a long release.

        Args:
            devices: The devices before.
            since: ``changes`` at that time.
        """
        taints = {each["name"]: each.get("taints") for each in devices}
        changed = (each.item for each in self.server.api.store.changes[since:] if each.kind.plural == "resourceslices")
        published = (device for item in changed for device in item["spec"].get("devices") or ())
        return any(device.get("taints") != taints.get(device["name"]) for device in published)

    async def published(self, within: float | None = None, otherwise: str = "no complete pool was published") -> float:
        """Wait until a complete pool is published, and return the seconds that it took."""
        return await self.until(self._is_complete, self.limit(3.0) if within is None else within, otherwise)

    async def _is_complete(self) -> bool:
        pools = [each["spec"]["pool"] for each in await self.slices()]
        return bool(pools) and all(
            pool["generation"] == pools[0]["generation"] and pool["resourceSliceCount"] == len(pools)
            for pool in pools
            if pool["name"] == pools[0]["name"]
        )

    def writes(self) -> list[tuple[str, int]]:
        """Return the requests that wrote slices, each with the status of its answer."""
        return [
            (request, status)
            for request, status in self.server.api.requests
            if objects.SLICES in request and not request.startswith("GET")
        ]

    async def some(self, count: int = 1, *, alone: bool = False) -> list[Object]:
        """Return untainted devices of this node with their pool: exclusive ones, or else devices that claims share.

        Args:
            count: How many.
            alone: Whether the check needs devices for one claim alone.

        Raises:
            NotApplicable: There are not so many.
        """
        published = [
            {**device, "pool": each["spec"]["pool"]["name"]}
            for each in await self.slices()
            for device in each["spec"].get("devices") or ()
        ]
        untainted = [device for device in published if not device.get("taints")]
        found = [device for device in untainted if not device.get("allowMultipleAllocations")]
        if len(found) < count and not alone:
            found = untainted
        if len(found) < count:
            kind = "without a taint and for one claim alone" if alone else "without a taint"
            raise NotApplicable(
                f"the driver publishes {len(published)} devices, {len(found)} of them {kind}; "
                f"{count} such {'is' if count == 1 else 'are'} needed"
            )
        return found[:count]

    async def delete_slices(self) -> None:
        """Delete the driver's slices, as somebody else."""
        await self.server.ask("DELETE", f"{objects.SLICES}?fieldSelector=spec.driver={self.driver}")

    async def write_as_other(self, item: Object) -> None:
        """Write a slice as somebody else, whom the API server's faults do not concern."""
        faults, self.server.faults = self.server.faults, ApiFaults(self.server.api)
        try:
            await self.server.ask("PUT", f"{objects.SLICES}/{_name_of(item)}", item)
        finally:
            self.server.faults = faults

    # -- claims --------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        *results: Mapping[str, Any],
        config: Sequence[Mapping[str, Any]] = (),
        pods: Sequence[DraPod] = (),
        allocated: bool = True,
        name: str = "",
    ) -> ClaimEntry:
        """Make a claim as if the scheduler had allocated these results to it."""
        name = name or next(self._names)
        if allocated:
            made = await objects.allocated_claim(
                self.server.ask, name, results, config=config, pods=pods, node=self.node.name
            )
        else:
            made = await self.server.ask("POST", objects.claims(), objects.claim(name))
        return ClaimEntry(namespace="default", name=name, uid=made["metadata"]["uid"])

    async def claim_quietly(self, *results: Mapping[str, Any]) -> ClaimEntry:
        """Make a claim while the API server fails: what it does to others it does not do to the scheduler."""
        faults, self.server.faults = self.server.faults, ApiFaults(self.server.api)
        try:
            return await self.claim(*results)
        finally:
            self.server.faults = faults

    async def drop(self, claim: ClaimEntry) -> None:
        """Delete a claim."""
        with suppress(ApiRefused):
            await self.server.ask("DELETE", objects.claims(claim.name))

    async def stored(self, claim: ClaimEntry) -> Object:
        """Return a claim as the API server has it."""
        return await self.server.ask("GET", objects.claims(claim.name))

    async def claimed(self, *, alone: bool = False) -> tuple[Object, ClaimEntry]:
        """Return a device as `some` does, and a claim to which it is allocated.

        Raises:
            NotApplicable: There is no such device.
        """
        [device] = await self.some(alone=alone)
        return device, await self.claim(self.result(device))

    async def rivals(self) -> tuple[Object, ClaimEntry, ClaimEntry]:
        """Return a device and two claims to both of which it is allocated."""
        device, claim = await self.claimed(alone=True)
        return device, claim, await self.claim(self.result(device))

    def result(self, device: Mapping[str, Any], **more: Any) -> Object:
        """Return the result of an allocation of a device, or of a share of its own if claims share the device."""
        share = {"shareID": str(uuid.uuid4())} if device.get("allowMultipleAllocations") else {}
        return objects.result(self.driver, device["name"], **{"pool": device["pool"], **share, **more})

    # -- calls ---------------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """The service socket that the kubelet would call."""
        endpoints = self.kubelet.registered().get(self.driver)
        if not endpoints:
            raise self.failed(f"{self.driver} is no longer registered")
        return endpoints[-1]

    async def prepare(
        self, *claims: ClaimEntry, version: str = "v1", within: float = 45.0, at: str | None = None
    ) -> dict[str, Prepared]:
        """Call NodePrepareResources as the kubelet does, of the newest instance or at another one's endpoint.

        Raises:
            Failed: The call failed, or it was answered for other claims than those that were asked for.
        """
        return await self._call("prepare", claims, version, at, lambda driver: driver.prepare(list(claims), within))

    async def unprepare(
        self, *claims: ClaimEntry, version: str = "v1", within: float = 45.0, at: str | None = None
    ) -> dict[str, str]:
        """Call NodeUnprepareResources as the kubelet does, and return the errors by UID.

        Raises:
            Failed: The call failed, or it was answered for other claims than those that were asked for.
        """
        return await self._call("unprepare", claims, version, at, lambda driver: driver.unprepare(list(claims), within))

    async def _call(
        self,
        name: str,
        claims: Sequence[ClaimEntry],
        version: str,
        at: str | None,
        call: Callable[[DriverConnection], Awaitable[Mapping[str, _AnswerT]]],
    ) -> dict[str, _AnswerT]:
        async with self.connection(version, at) as driver:
            try:
                answer = await call(driver)
            except CallError as error:
                raise self.failed(f"{name} failed as a whole: {error}") from None
        self.require(
            set(answer) == {each.uid for each in claims},
            f"{name} of {len(claims)} claims was answered with {len(answer)} entries: {sorted(answer)}",
        )
        return dict(answer)

    @asynccontextmanager
    async def connection(self, version: str = "v1", at: str | None = None) -> AsyncGenerator[DriverConnection]:
        """Have a connection of one's own to the driver, to its newest instance or to another one's endpoint.

        A kubelet that sees a driver's socket again unregisters the driver and takes it back a look later; pods wait for
        that, and so does this.

        Raises:
            Failed: It does not come back.
        """
        await self.registered()
        connection = DriverConnection(at or self.endpoint, f"{version}.DRAPlugin")
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def prepared(
        self, claim: ClaimEntry, *, version: str = "v1", within: float = 45.0, at: str | None = None
    ) -> tuple[PreparedDevice, ...]:
        """Prepare a claim that nothing is wrong with.

        Raises:
            Failed: It was refused.
        """
        devices, error = (await self.prepare(claim, version=version, within=within, at=at))[claim.uid]
        self.require(not error, f"a claim that nothing is wrong with was refused: {error}")
        return devices

    async def refused(self, claim: ClaimEntry, what: str) -> str:
        """Prepare a claim that must be refused, and return the error.

        Raises:
            Failed: It was not.
        """
        devices, error = (await self.prepare(claim))[claim.uid]
        self.require(error, f"{what} was prepared: {_shown(devices)}")
        return error

    async def unprepared(self, *claims: ClaimEntry, at: str | None = None) -> None:
        """Unprepare claims.

        Raises:
            Failed: It was refused.
        """
        for uid, error in (await self.unprepare(*claims, at=at)).items():
            self.require(not error, f"claim {uid} could not be unprepared: {error}")

    async def require_free(self, *devices: Mapping[str, Any]) -> None:
        """Prepare and unprepare a claim of devices that must be free.

        A refused Prepare is repeated, as by the kubelet: a driver that has just started may find its devices later.

        Raises:
            Failed: It was refused.
        """
        claim = await self.claim(*(self.result(each, request=f"r{index}") for index, each in enumerate(devices)))
        until = time.monotonic() + self.limit(0.5)
        while (await self.prepare(claim))[claim.uid][1] and time.monotonic() < until:
            await self.elapse(_QUIET)
        await self.prepared(claim)
        await self.unprepared(claim)

    # -- health --------------------------------------------------------------------------------------------------------

    @property
    def has_health_service(self) -> bool:
        """Whether the driver advertises a service of health."""
        said = self.log.of(PluginInfoReceived)[-1]
        return any(each.endswith(".DRAResourceHealth") for each in said.versions)

    async def reported(self) -> events.HealthReceived:
        """Wait for a report of health, and return the newest.

        Raises:
            NotApplicable: The driver advertises no service of health.
        """
        if not self.has_health_service:
            raise NotApplicable("the driver advertises no service of health")
        await self.until(
            lambda: self.log.of(events.HealthReceived),
            self.limit(1.0),
            "no report of health came on a new stream",
        )
        return self.log.of(events.HealthReceived)[-1]

    # -- the runtime's view --------------------------------------------------------------------------------------------

    def specs(self) -> set[str]:
        """Return the fully qualified names of all CDI devices that a container runtime finds."""
        return set(cdi_devices(self.node.cdi))

    def require_resolved(self, devices: Iterable[PreparedDevice]) -> None:
        """Fail unless every CDI id of these devices can be resolved from disk."""
        missing = {each for device in devices for each in device.cdi_ids} - self.specs()
        self.require(not missing, f"unresolvable CDI devices {', '.join(sorted(missing))} in {self.node.cdi}")


def _shown(devices: Iterable[PreparedDevice]) -> str:
    return ", ".join(f"{each.pool}/{each.device}" for each in devices) or "no device"


def _name_of(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["name"])


def _latest(changes: Sequence[Any], plural: str) -> list[Any]:
    latest = {_name_of(each.item): each for each in changes if each.kind.plural == plural}
    return [each for each in latest.values() if each.event != "DELETED"]
