"""`SimulatedDraKubelet`: a kubelet's DRA side, for tests, without a cluster and without root.

Real gRPC over real unix sockets, and behind them a model of the kubelet's plugin watcher and DRA manager. Claims are
read from an API server, real or simulated, and the node's slices are wiped there.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from .. import events as common
from ..events import Event, EventLog
from ..lifetime import Lifetime, temporary_root, ungrouped
from ..patience import PATIENCE
from ..protocol.pods import NotReached, ScenarioError
from . import events
from .claims import CHECKPOINT_NAME, ClaimEntry, ClaimRefusal
from .faults import DraFaults
from .kubelet_process import ApiRequest, DraKubeletProcess
from .pods import DraPod, PodStartError, PodStopError
from .profiles import DEFAULT_PROFILE, DraProfile, DraTimings, profile_named

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import Self

    from anyio.abc import TaskGroup

    from .pods import DraContainer


class SimulatedDraKubelet(AsyncContextManagerMixin):
    """A kubelet to test DRA drivers with.

    An async context manager: started on entry, it crashes on exit. Everything must be called from the event loop that
    entered it. asyncio only, because gRPC is.

    Args:
        ask: Asks the API server as the kubelet: method and path (`SimulatedApiServer.ask`).
        root: The kubelet's root directory; a temporary one, removed at the end, if it is not given.
        node: The node's name.
        profile: Which kubelet: ``k134``, ``k136``, ``k137`` or a `DraProfile`.
        tells_health: Whether the gate ResourceHealthStatus is on; None: as it is by default in that version.
        timings: How long things take; by default as in the kubelet.
        seed: Makes reproducible what races decide.
        listener: Called with each event at once, in the event loop; must not block.

    Attributes:
        events: What happened, in order.
        faults: How it misbehaves on command.
        profile: Which kubelet it is.
    """

    def __init__(
        self,
        ask: ApiRequest,
        root: str | os.PathLike[str] | None = None,
        *,
        node: str = "node0",
        profile: str | DraProfile = DEFAULT_PROFILE,
        tells_health: bool | None = None,
        timings: DraTimings | None = None,
        seed: int | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self._clean_up: Callable[[], object] | None = None
        if root is None:
            root, self._clean_up = temporary_root(self)
        self.root = Path(root).absolute()
        self.node = node
        self.profile = profile_named(profile)
        self.events = EventLog(listener)
        self.faults = DraFaults(lambda: self._process)
        self._ask = ask
        self._tells_health = tells_health
        self._timings = timings or DraTimings()
        self._rng = random.Random(seed)  # noqa: S311 - for tests, reproducible
        self._pods: dict[str, DraPod] = {}
        self._tasks: TaskGroup | None = None
        self._process: DraKubeletProcess | None = None
        self._life = Lifetime()

    @property
    def registry(self) -> Path:
        """Where drivers put their registration sockets."""
        return self.root / "plugins_registry"

    @property
    def plugins(self) -> Path:
        """Where drivers have their data directories and service sockets."""
        return self.root / "plugins"

    @property
    def checkpoint(self) -> Path:
        """The file in which the kubelet remembers its claims."""
        return self.root / CHECKPOINT_NAME

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            with ungrouped():
                async with anyio.create_task_group() as self._tasks:
                    try:
                        await self.start()
                        yield self
                    finally:
                        with anyio.CancelScope(shield=True):
                            if self._process is not None:
                                await self.crash()
                        self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            if self._clean_up is not None:
                self._clean_up()

    # -- process -------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the kubelet's process is there."""
        return self._process is not None

    async def start(self, *, profile: str | DraProfile | None = None) -> None:
        """Start the kubelet: read the checkpoint, wipe the node's slices, look for drivers.

        Args:
            profile: Another version than before.

        Raises:
            ScenarioError: It runs already, or the context is not entered.
        """
        if self._tasks is None:
            raise ScenarioError("the simulated kubelet is an async context manager: enter it before you start it")
        if self._process is not None:
            raise ScenarioError("the kubelet is running already; restart it, or crash it first")
        if profile is not None:
            self.profile = profile_named(profile)
        self.registry.mkdir(parents=True, exist_ok=True)
        self.plugins.mkdir(parents=True, exist_ok=True)
        tells = self._tells_health
        self._process = DraKubeletProcess(
            directory=self.root,
            registry=self.registry,
            profile=self.profile,
            tells_health="ResourceHealthStatus" in self.profile.gates if tells is None else tells,
            node=self.node,
            ask=self._ask,
            active_pods=lambda: list(self._pods),
            log=self.events,
            faults=self.faults.armed,
            timings=self._timings,
            rng=self._rng,
        )
        self._life = Lifetime()
        await self._tasks.start(self._life.run, self._process.run)
        self.events.add(common.KubeletStarted(profile=self.profile.name))

    async def crash(self) -> None:
        """Kill it: connections break abruptly, the checkpoint stays.

        Raises:
            ScenarioError: It does not run.
        """
        self._living().crash()
        self._process = None
        self._life.end()
        await self._life.until_over()
        self.events.add(common.KubeletStopped(how="crashed"))

    async def restart(self, *, down: float = 0.0, profile: str | DraProfile | None = None) -> None:
        """Replace the kubelet's process by a new one: it has forgotten which claims are prepared, and wipes the slices.

        Args:
            down: Seconds without a kubelet.
            profile: Another version than before.

        Raises:
            ScenarioError: It does not run.
        """
        await self.crash()
        await anyio.sleep(down)
        await self.start(profile=profile)

    # -- pods ----------------------------------------------------------------------------------------------------------

    async def start_pod(self, pod: DraPod) -> dict[str, tuple[str, ...]]:
        """Make a pod's sandbox: prepare its claims that are not prepared. Also for a new sandbox of the same pod.

        Returns:
            The CDI ids of each container, in the order in which the runtime gets them.

        Raises:
            PodStartError: It cannot start now; the kubelet tries again at the pod's next sync, and so may the test.
            ScenarioError: The kubelet does not run.
        """
        process = self._living()
        self._pods[pod.uid] = pod
        try:
            given = await process.prepare(pod)
        except ClaimRefusal as refusal:
            message = f"Failed to prepare dynamic resources: {refusal}"
            self.events.add(events.PodNotStarted(pod=pod.name, message=message))
            raise PodStartError(message) from None
        self.events.add(events.PodStarted(pod=pod.name, cdi_ids=given))
        return given

    async def stop_pod(self, pod: DraPod) -> None:
        """End a pod whose containers have stopped: unprepare what nobody else uses.

        Raises:
            PodStopError: It stays Terminating; the kubelet tries again, and so may the test.
            ScenarioError: The kubelet does not run.
        """
        try:
            await self._living().unprepare(pod)
        except ClaimRefusal as refusal:
            raise PodStopError(str(refusal)) from None
        self._pods.pop(pod.uid, None)
        self.events.add(common.PodDeleted(pod=pod.name))

    def delete_pod(self, pod: DraPod) -> None:
        """Delete a pod by force: the kubelet finds at its next look (`reconcile`) that it is gone."""
        self._pods.pop(pod.uid, None)
        self.events.add(common.PodDeleted(pod=pod.name))

    async def reconcile(self) -> None:
        """Look now for pods that are gone, as the kubelet does every minute.

        Raises:
            ScenarioError: The kubelet does not run.
        """
        await self._living().reconcile()

    def claim(self, name: str, namespace: str = "default") -> ClaimEntry | None:
        """Return what the kubelet remembers of a claim; None: nothing.

        Raises:
            ScenarioError: The kubelet does not run.
        """
        return self._living().claims.entries.get((namespace, name))

    def health(self, pod: DraPod) -> dict[str, dict[str, dict[str, tuple[str, str]]]]:
        """Return the health of a pod's devices, as in ``allocatedResourcesStatus`` of its status.

        Returns:
            Container -> ``claim:NAME[/REQUEST]`` -> resource id -> health and message.

        Raises:
            ScenarioError: The kubelet does not run.
        """
        process = self._living()
        now = time.monotonic()
        reported: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
        for container in pod.containers:
            resources = reported.setdefault(container.name, {})
            for pod_claim, request, entry in self._told_of(pod, container, process):
                name = f"claim:{pod_claim}/{request}" if request else f"claim:{pod_claim}"
                for driver, devices in entry.drivers.items():
                    for device in devices:
                        if (
                            self.profile.health_by_request
                            and request
                            and device.requests
                            and request.split("/")[0] not in device.requests
                        ):
                            continue
                        resource = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
                        health = process.health.health(driver, device.pool, device.device, now)
                        resources.setdefault(name, {}).setdefault(resource, health)
        return reported

    def _told_of(
        self, pod: DraPod, container: DraContainer, process: DraKubeletProcess
    ) -> list[tuple[str, str, ClaimEntry]]:
        """Return which claims of a container the pod's status tells of: each as it is named there, with its request."""
        found = [
            (pod_claim, request, process.claims.entries.get((pod.namespace, pod.claims[pod_claim])))
            for pod_claim, request in container.claims
        ]
        known = [(pod_claim, request, entry) for pod_claim, request, entry in found if entry is not None]
        if self.profile.health_by_request:
            return known
        if len(known) < len(found):
            return []
        requests: dict[str, str] = {}
        for pod_claim, request in container.claims:
            requests.setdefault(pod_claim, request)
        return [(entry.name, requests[entry.name], entry) for _, _, entry in known if entry.name in requests]

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], what: str, *, seconds: float = PATIENCE) -> None:
        """Wait until something is so; it is looked at after each event.

        Raises:
            NotReached: It did not come about; the text has everything that happened instead.
        """
        with anyio.move_on_after(seconds):
            while not condition():
                with anyio.move_on_after(0.1):
                    await self.events.change()
            return
        raise NotReached(f"not within {seconds:g} s: {what}; what happened:\n{self.events.story()}")

    async def until_registered(self, driver: str, *, instances: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until so many instances of a driver are registered and connected.

        Raises:
            NotReached: They were not.
        """

        def is_so() -> bool:
            registered = self._process.drivers.of(driver) if self._process else []
            return len(registered) == instances and all(each.is_connected for each in registered)

        await self.until(is_so, f"{instances} instances of {driver} are registered", seconds=seconds)

    def registered(self) -> Mapping[str, list[str]]:
        """Return the endpoints of each registered driver, oldest first.

        Raises:
            ScenarioError: The kubelet does not run.
        """
        found: dict[str, list[str]] = {}
        for instance in self._living().drivers.all():
            found.setdefault(instance.driver, []).append(instance.endpoint)
        return found

    def connected(self, driver: str) -> list[str]:
        """Return the endpoints of a driver's instances that are connected, oldest first.

        Raises:
            ScenarioError: The kubelet does not run.
        """
        return [instance.endpoint for instance in self._living().drivers.of(driver) if instance.is_connected]

    def _living(self) -> DraKubeletProcess:
        if self._process is None:
            raise ScenarioError("the kubelet is not running: start it first")
        return self._process
