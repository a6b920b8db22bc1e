"""One life of a kubelet, as far as DRA goes: from reading the checkpoint to the end of its process.

Everything here dies with a crash, above all which claims are prepared; what survives one (directories and the two files
in them, pods, faults, the log, the API server) is `SimulatedDraKubelet`'s. The decisions are in `claims`, `drivers` and
`health`; this module carries them out. Source: ``k8s.io/kubernetes`` ``pkg/kubelet/cm/dra``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from ..protocol.registry import Refusal
from ..protocol.wire import CallError, PluginInfo, settle
from ..watcher import PluginHandler, PluginWatcher
from . import events
from .claims import (
    CHECKPOINT_NAME,
    PREPARE,
    ClaimCache,
    ClaimEntry,
    ClaimKey,
    ClaimRefusal,
    drivers_of,
    judge,
    skips_of,
)
from .drivers import DriverInstance, DriverTable, choose_health_service, choose_service, decode_health
from .health import HEALTH_NAME, HealthCache
from .status import ApiRefused

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Coroutine
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from ..armed_faults import WatcherQueue
    from ..events import EventLog
    from .pods import DraPod
    from .profiles import DraProfile, DraTimings

_T = TypeVar("_T")

DRA_PLUGIN_TYPE = "DRAPlugin"

ApiRequest = Callable[[str, str], Awaitable[dict[str, Any]]]
"""Asks the API server as the kubelet: method and path with query; raises `ApiRefused`."""


class DraKubeletProcess:
    """One process of the kubelet. `run` is its whole life; cancelling it is its end.

    Args:
        directory: The kubelet's root directory, for the checkpoint.
        registry: The plugin watcher's directory.
        profile: Which kubelet it is.
        tells_health: Whether the gate ResourceHealthStatus is on.
        node: The node's name.
        ask: Asks the API server.
        active_pods: The UIDs of the pods that are not done.
        log: Where everything is written down.
        faults: What goes wrong.
        timings: How long things take.
        rng: Decides what a race decides in the real one.
    """

    def __init__(
        self,
        *,
        directory: Path,
        registry: Path,
        profile: DraProfile,
        tells_health: bool,
        node: str,
        ask: ApiRequest,
        active_pods: Callable[[], Collection[str]],
        log: EventLog,
        faults: WatcherQueue,
        timings: DraTimings,
        rng: random.Random,
    ) -> None:
        self._checkpoint = directory / CHECKPOINT_NAME
        self._health_file = directory / HEALTH_NAME
        self.claims = ClaimCache(profile, _read(self._checkpoint))
        self.health = HealthCache(says_more=profile.health_says_more, has_limit=profile.guards_unprepare)
        self.health.load(_read(self._health_file), now=time.monotonic(), wall=time.time())
        self.drivers = DriverTable()
        self._profile = profile
        self._tells_health = tells_health
        self._node = node
        self._ask = ask
        self._active_pods = active_pods
        self._log = log
        self._timings = timings
        self._rng = rng
        self._wipes: dict[str, anyio.CancelScope] = {}
        self._instances: list[DriverInstance] = []
        self._tasks: TaskGroup | None = None
        self._is_over = False
        self._watcher = PluginWatcher(
            directory=registry,
            retries=profile.watcher_retries,
            period=timings.watcher,
            handlers={
                DRA_PLUGIN_TYPE: PluginHandler(validate=_validate, register=self._register, deregister=self._deregister)
            },
            rng=rng,
            log=log,
            faults=faults,
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Wipe the node's slices, watch for drivers, and look for pods that are gone, until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._wipe, "")
                await tasks.start(self._watcher.run)
                tasks.start_soon(self._reconcile_forever)
                task_status.started()
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        for instance in self._instances:
                            await instance.connection.drop()
        finally:
            with anyio.CancelScope(shield=True):
                await settle()

    def crash(self) -> None:
        """Break everything at once and abruptly, as SIGKILL does; `run` must still be cancelled."""
        self._is_over = True
        for instance in self._instances:
            instance.connection.sever()

    # -- registration --------------------------------------------------------------------------------------------------

    async def _register(self, info: PluginInfo, endpoint: str) -> Callable[[], None]:
        service = choose_service(info.name, endpoint, info.versions)
        health_service = ""
        if self._tells_health:
            asks_all = self._profile.asks_all_for_health
            health_service = "v1alpha1.DRAResourceHealth" if asks_all else choose_health_service(info.versions)
        instance = DriverInstance(info.name, endpoint, service, health_service)
        try:
            self.drivers.add(instance)
        except ValueError as error:
            await instance.connection.drop()
            raise Refusal(str(error)) from None
        self._instances.append(instance)
        self._log.add(
            events.DriverRegistered(driver=info.name, endpoint=endpoint, service=service, health_service=health_service)
        )
        self._start(self._keep, instance)
        if health_service:
            self._start(self._watch_health, instance)
        self._sync(info.name)
        return lambda: None

    async def _deregister(self, driver: str, endpoint: str) -> None:
        instance = self.drivers.remove(driver, endpoint)
        if instance is None:
            return
        instance.is_gone = True
        instance.kept.cancel()
        instance.end_health()
        self._log.add(events.DriverGone(driver=driver, endpoint=endpoint))
        self._sync(driver)
        # A close that is cancelled halfway leaves a channel that cannot be closed any more.
        with anyio.CancelScope(shield=True):
            await instance.connection.close()
        self._instances.remove(instance)

    async def _keep(self, instance: DriverInstance) -> None:
        def changed(connected: bool) -> None:
            if self._is_over or instance.is_gone:
                return
            instance.is_connected = connected
            self._log.add(
                events.ConnectionChanged(driver=instance.driver, endpoint=instance.endpoint, connected=connected)
            )
            self._sync(instance.driver)

        with instance.kept:
            await instance.connection.keep(changed)

    # -- slices --------------------------------------------------------------------------------------------------------

    def _sync(self, driver: str) -> None:
        """Have the slices of a driver wiped that cannot be reached, unless it comes back in time."""
        if self.drivers.is_usable(driver):
            pending = self._wipes.pop(driver, None)
            if pending is not None:
                pending.cancel()
        elif driver not in self._wipes:
            self._wipes[driver] = scope = anyio.CancelScope()
            self._start(self._wipe_later, driver, scope)

    async def _wipe_later(self, driver: str, scope: anyio.CancelScope) -> None:
        with scope:
            await anyio.sleep(self._timings.wiping_delay)
            # The entry stays: there is no second wiping before the driver is usable again.
            await self._wipe(driver)

    async def _wipe(self, driver: str) -> None:
        selector = f"spec.nodeName={self._node}"
        if driver:
            selector = f"spec.driver={driver},{selector}"
        pause = self._timings.wiping_retry
        while True:
            error: str | None = None
            try:
                # A node that is not registered yet has no slices, and the kubelet waits for it.
                await self._ask("GET", f"/api/v1/nodes/{self._node}")
                await self._ask("DELETE", f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector={selector}")
            except ApiRefused as refused:
                error = str(refused)
            self._log.add(events.SlicesWiped(driver=driver, error=error))
            if error is None:
                return
            await anyio.sleep(pause)
            pause = min(2 * pause, 300.0)

    # -- Prepare -------------------------------------------------------------------------------------------------------

    async def prepare(self, pod: DraPod) -> dict[str, tuple[str, ...]]:
        """Prepare a pod's claims, and return the CDI ids of each container.

        Raises:
            ClaimRefusal: The pod cannot start now.
        """
        try:
            return await self._prepare(pod)
        except (ClaimRefusal, CallError) as error:
            raise ClaimRefusal(f"prepare dynamic resources: {error}") from None

    async def _prepare(self, pod: DraPod) -> dict[str, tuple[str, ...]]:
        claims: list[dict[str, Any]] = []
        instances: dict[str, DriverInstance] = {}
        for pod_claim, name in pod.claims.items():
            try:
                claim = await self._ask(
                    "GET", f"/apis/resource.k8s.io/v1/namespaces/{pod.namespace}/resourceclaims/{name}"
                )
            except ApiRefused as refused:
                raise ClaimRefusal(f"fetch ResourceClaim {name}: {refused}") from None
            judge(pod, pod_claim, claim, self._profile)
            drivers = drivers_of(claim)
            skips = skips_of(claim, self._profile.gates)
            for driver in drivers:
                if not {PREPARE, "*"} & set(skips.get(driver, ())):
                    instances.setdefault(driver, self._driver(driver))
            claims.append(claim)
        batches: dict[str, list[ClaimEntry]] = {}
        try:
            batches = self.claims.refer(pod, claims)
        finally:
            self._save()
        called = list(batches)
        self._rng.shuffle(called)  # the kubelet goes through a map
        for driver in called:
            await self._call_prepare(instances.get(driver) or self._driver(driver), batches[driver])
        for name in pod.claims.values():
            self.claims.entries[pod.namespace, name].is_prepared = True
        self._save()
        return self._given(pod)

    async def _call_prepare(self, instance: DriverInstance, batch: list[ClaimEntry]) -> None:
        driver, endpoint = instance.driver, instance.endpoint
        uids = tuple(entry.uid for entry in batch)
        self._log.add(events.PrepareRequested(driver=driver, endpoint=endpoint, claims=uids))
        answer, error, seconds = await _timed(instance.connection.prepare(batch, self._timings.call))
        self._log.add(
            events.PrepareAnswered(
                driver=driver,
                endpoint=endpoint,
                devices={
                    uid: tuple((device.pool, device.device, device.cdi_ids) for device in devices)
                    for uid, (devices, _) in answer.items()
                },
                errors={uid: text for uid, (_, text) in answer.items() if text},
                error=error,
                seconds=seconds,
            )
        )
        if error is not None:
            raise ClaimRefusal(f"NodePrepareResources: {error}")
        self.claims.answered(driver, batch, answer)

    def _given(self, pod: DraPod) -> dict[str, tuple[str, ...]]:
        given: dict[str, tuple[str, ...]] = {}
        for container in pod.containers:
            cdi_ids: list[str] = []
            for pod_claim, request in container.claims:
                entry = self.claims.entries.get((pod.namespace, pod.claims[pod_claim]))
                if entry is not None:
                    cdi_ids += entry.cdi_ids(request)
            given[container.name] = tuple(cdi_ids)
        return given

    def _driver(self, driver: str) -> DriverInstance:
        instance = self.drivers.get(driver)
        if instance is None:
            raise ClaimRefusal(f"DRA driver {driver} is not registered")
        return instance

    # -- Unprepare -----------------------------------------------------------------------------------------------------

    async def unprepare(self, pod: DraPod) -> None:
        """Unprepare those of a pod's claims that nobody else uses.

        Raises:
            ClaimRefusal: The pod cannot end now.
        """
        keys = self.claims.keys_of(pod.uid) if self._profile.guards_unprepare else []
        keys = keys or [(pod.namespace, name) for name in pod.claims.values()]
        try:
            await self._unprepare(pod.uid, keys)
        except ClaimRefusal as error:
            raise ClaimRefusal(f"unprepare dynamic resources: {error}") from None

    async def _unprepare(self, pod_uid: str, keys: list[ClaimKey]) -> None:
        unused, batches = self.claims.release(pod_uid, keys)
        for driver, batch in batches.items():
            await self._call_unprepare(self._driver(driver), batch)
        self.claims.forget(unused)
        self._save()

    async def _call_unprepare(self, instance: DriverInstance, batch: list[ClaimEntry]) -> None:
        driver, endpoint = instance.driver, instance.endpoint
        uids = tuple(entry.uid for entry in batch)
        self._log.add(events.UnprepareRequested(driver=driver, endpoint=endpoint, claims=uids))
        answer, error, seconds = await _timed(instance.connection.unprepare(batch, self._timings.call))
        self._log.add(
            events.UnprepareAnswered(
                driver=driver,
                endpoint=endpoint,
                errors={uid: text for uid, text in answer.items() if text},
                error=error,
                seconds=seconds,
            )
        )
        if error is not None:
            raise ClaimRefusal(f"NodeUnprepareResources: {error}")
        self.claims.unprepared(batch, answer)

    async def reconcile(self) -> None:
        """Unprepare the claims of pods that are no longer active; what fails is tried again at the next look."""
        active = set(self._active_pods())
        for uid in sorted(self.claims.pods() - active):
            with suppress(ClaimRefusal):
                await self._unprepare(uid, self.claims.keys_of(uid))

    async def _reconcile_forever(self) -> None:
        while True:
            await self.reconcile()
            await anyio.sleep(self._timings.reconcile)

    # -- health --------------------------------------------------------------------------------------------------------

    async def _watch_health(self, instance: DriverInstance) -> None:
        while not instance.is_gone:
            code = await self._follow_health(instance)
            if self._is_over:  # a killed process forgets nothing that is in its file
                return
            self.health.clear(instance.driver)
            self._save_health()
            self._log.touch()
            if code == "UNIMPLEMENTED" and not self._profile.asks_all_for_health:
                return
            await anyio.sleep(self._timings.health_retry)

    async def _follow_health(self, instance: DriverInstance) -> str:
        try:
            instance.health = stream = instance.connection.watch_health(instance.health_service)
        except CallError as error:
            return error.code
        driver, endpoint = instance.driver, instance.endpoint
        self._log.add(events.HealthStreamOpened(driver=driver, endpoint=endpoint, service=instance.health_service))
        while (message := await stream.read()) is not None:
            received, payload = message
            try:
                reports = decode_health(payload)
            except CallError as error:
                stream.refuse(error)
                break
            states = [report.health for report in reports]
            changed = set(self.health.report(driver, reports, received))
            if changed:
                self._save_health()
            self._log.add(
                events.HealthReceived(
                    driver=driver,
                    endpoint=endpoint,
                    healthy=states.count("Healthy"),
                    unhealthy=states.count("Unhealthy"),
                    unknown=states.count("Unknown"),
                    messages={report.device: report.message for report in reports if report.message},
                )
            )
            concerned = {
                uid
                for entry in self.claims.entries.values()
                for device in entry.drivers.get(driver, ())
                if (device.pool, device.device) in changed
                for uid in entry.pods
            }
            if concerned:
                self._log.add(events.PodsConcernedByHealth(driver=driver, uids=tuple(sorted(concerned))))
        code, detail = stream.ending
        instance.health = None
        self._log.add(events.HealthStreamEnded(driver=driver, endpoint=endpoint, code=code, detail=detail))
        return code

    # -- small helpers -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        _write(self._checkpoint, self.claims.to_json())

    def _save_health(self) -> None:
        _write(self._health_file, self.health.to_json(now=time.monotonic(), wall=time.time()))

    def _start(self, task: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        if self._tasks is None:
            raise RuntimeError("the kubelet's life has not begun")
        self._tasks.start_soon(task, *arguments)


async def _timed(call: Awaitable[dict[str, _T]]) -> tuple[dict[str, _T], str | None, float]:
    """Return the answer of a call, its error, and the seconds that it took."""
    start = time.monotonic()
    try:
        answer, error = await call, None
    except CallError as failed:
        answer, error = {}, str(failed)
    return answer, error, time.monotonic() - start


def _read(path: Path) -> str:
    """Return a file's text; "" where there is none."""
    with suppress(OSError):
        return path.read_text()
    return ""


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.rename(path)


def _validate(info: PluginInfo, endpoint: str) -> str | None:
    try:
        choose_service(info.name, endpoint, info.versions)
    except ValueError as error:
        return str(error)
    return None
