"""`DraPlugin`: one driver of a backend; puts the claims, the sockets and the slices together.

The sockets are made when what was left of claims is known, the one for calls before the one for registration, so that
a kubelet that finds the driver can call it. They are made anew if somebody removes them, and, under names that nobody
has called, if the kubelet has not registered the driver for a minute.

The devices are published when the kubelet has registered the driver, not before: a pod that comes sooner is refused by
the kubelet, and not tried again for a minute. Nor are they while the node still offers them by a device plugin
(`kdp.dra.publishing.feed`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, final

import anyio
import attrs

from ..cluster.events import EventRecorder
from ..concurrency import threads
from ..concurrency.backoff import Backoff
from ..errors import CheckpointError, sentence
from ..kubelet.plugin_watcher import Registration
from ..kubelet.server import ServeError, SocketServer
from ..kubelet.sockets import is_answered, missing_right, remove_dead
from ..model.devices import Device
from ..supervision.claimed import MARK
from ..supervision.health import DeviceHealth
from ..supervision.publisher import Offer
from ..supervision.service import DRAIN_SECONDS, MAX_LISTED, HeldClaim
from .claims.prepare import Preparer
from .health import HealthStreams
from .plugin_holders import PluginHolders
from .publishing.actions import PublisherStatus
from .publishing.feed import Feed
from .publishing.slices import Pool
from .servicer import handlers, versions
from .sockets import DriverSockets

if TYPE_CHECKING:
    from ..hardware import Host
    from ..supervision.publisher import Discovery
    from ..supervision.supervisor import Supervisor
    from .options import DriverOptions

logger = logging.getLogger(__name__)

LOOK_PAUSE = 5.0
"""Seconds between two looks whether the sockets are still there."""

UNREGISTERED_SECONDS = 60.0
"""Seconds without a registration after which new sockets are made: the watcher may have missed the old ones."""

NOT_PUBLISHED = "the devices are not published yet"

MISSING = "the API server has no ResourceSlice of these devices any more, so no pod can get one"

BEHIND = "the API server does not have the wanted ResourceSlices yet"

NOT_ASKED = "the kubelet has not asked for it yet"

EVENT_PAUSE = 5.0
"""Seconds between two looks for what is to be told as an Event."""

PATIENCE = 10.0
"""Seconds for which devices must be unpublished before an Event tells it: a conflict or a short outage is none."""

OWED_PAUSE = 30.0
"""Seconds between two looks for releases that another process of the driver owed."""

COLLECT_PAUSE = 300.0
"""Seconds between two looks for claims that are gone."""


@final
@attrs.frozen(kw_only=True)
class DriverStatus:
    """Where one driver stands.

    Attributes:
        driver: Its name.
        is_registered: Whether the kubelet said that it has registered it.
        reason: Why it is not, or why nothing is published yet; None: it is ready.
        devices: How many devices there are.
        healthy: How many of them are healthy.
        faults: How those are that are not simply healthy, by id; since when on `time.monotonic`'s clock.
        found: The devices.
        set_aside: Claims whose saved state was broken.
        publication: What the API server has of the devices.
        problem: Why the slices are not as they should be although there are some; None: they are, or see ``reason``.
        obstacle: Why no claim can be prepared; the devices are published as unhealthy. None: nothing is known.
        unwritable: Which directories take no file, each as ``cdi`` or ``claims``.
        is_missing: Whether the devices were published, and no slice of them has been there for longer than a moment.
        is_absent: Whether the node has no such hardware, so that there is nothing to publish.
        serves: Whether it serves a kubelet; a pool's controller does not.
        publishes: Whether it publishes slices; a node's driver for another process's pool does not.
        claims: The claims that are prepared, being prepared, or over but not released; None: it prepares none.
        since: When the kubelet registered it, or ceased to, on `time.monotonic`'s clock; None: no kubelet does.
    """

    driver: str
    is_registered: bool
    reason: str | None
    devices: int
    healthy: int
    faults: Mapping[str, DeviceHealth] = attrs.field(factory=dict[str, DeviceHealth])
    found: tuple[Device, ...] = attrs.field(default=(), repr=False)
    set_aside: tuple[str, ...] = ()
    publication: PublisherStatus = attrs.field(factory=PublisherStatus)
    problem: str | None = None
    obstacle: str | None = None
    unwritable: tuple[str, ...] = ()
    is_missing: bool = False
    is_absent: bool = False
    serves: bool = True
    publishes: bool = True
    claims: tuple[HeldClaim, ...] | None = ()
    since: float | None = None

    @classmethod
    def of(cls, driver: str, found: Discovery, feed: Feed | None) -> DriverStatus:
        """Return what is known of the devices, and of their slices; without a feed nothing is published here."""
        devices = found.devices or ()
        publication = PublisherStatus() if feed is None else feed.publisher.status.value
        trouble = None if feed is None else feed.trouble
        is_behind = publication.generation > 0 and publication.is_behind(time.monotonic())
        is_missing = is_behind and publication.is_missing and bool(devices)
        if is_missing:
            trouble = MISSING if trouble is None else f"{MISSING}: {trouble}"
        elif is_behind:
            trouble = trouble or BEHIND
        is_published = feed is None or (publication.generation > 0 and not is_missing)
        return cls(
            driver=driver,
            is_registered=False,
            reason=None if is_published else trouble or NOT_PUBLISHED,
            devices=len(devices),
            healthy=sum(device.health.is_healthy for device in devices),
            faults=found.health,
            found=devices,
            publication=publication,
            problem=trouble if is_published else None,
            is_missing=is_missing,
            publishes=feed is not None,
        )

    @property
    def state(self) -> str:
        """``waiting`` for the kubelet, ``registered`` with it but nothing is published yet, or ``published``."""
        if self.publishes and self.is_published and (self.is_registered or not self.serves):
            return "published"
        return "registered" if self.is_registered else "waiting"

    @property
    def is_published(self) -> bool:
        """Whether the devices were published once, and not all their slices are gone."""
        return self.publication.generation > 0 and not self.is_missing

    @property
    def listed(self) -> Mapping[str, Device]:
        """The devices by id."""
        return {device.id: device for device in self.found}

    @property
    def holders(self) -> Mapping[str, str]:
        """The claims that have a device, by its id. Their pods are not known here."""
        found: dict[str, str] = {}
        for claim in self.claims or ():
            if claim.is_over:
                continue
            for device_id in dict.fromkeys(claim.devices):
                found[device_id] = f"{found[device_id]}, {claim.name}" if device_id in found else f"claim {claim.name}"
        return found

    @property
    def details(self) -> Mapping[str, object]:
        """Status of the driver's slices, for the readiness probe."""
        published = self.publication
        slices: dict[str, object] = {"generation": published.generation, "count": published.slices}
        slices["problem"] = self.problem
        withheld = dict(itertools.islice(published.withheld.items(), MAX_LISTED))
        dropped = [{"path": each.path, "gate": each.gate} for each in published.dropped]
        more: dict[str, object] = {"withheld": withheld, "dropped": dropped}
        return {"slices": slices | {name: value for name, value in more.items() if value}}

    @property
    def is_ready(self) -> bool:
        """Whether the kubelet has registered it, its devices are published, and claims can be prepared.

        Failures to publish a change do not count, while the API server has a slice. A driver is not ready if all its
        slices have been gone for longer than a moment. One of which the node has no hardware is ready, too.
        """
        is_published = self.is_published or not self.publishes
        is_served = (self.is_registered or not self.serves) and is_published and self.obstacle is None
        return is_served or self.is_absent


class DraPlugin:
    """Serves one driver to the kubelet and its devices to the scheduler.

    Args:
        driver: The driver's name.
        supervisor: The backend.
        host: The node's files.
        options: See `DriverOptions`.

    Attributes:
        preparer: The claims.
        stopped: Set when `run` has ended.

    Raises:
        InvalidNameError: No socket's name fits into a directory.
    """

    def __init__(self, driver: str, *, supervisor: Supervisor, host: Host, options: DriverOptions) -> None:
        self.driver = driver
        self._supervisor = supervisor
        self._registry = options.paths.plugins_registry_dir
        self._data = options.paths.plugins_dir / driver
        self._offer = Offer(supervisor.discovery)
        self._unwritable: tuple[str, ...] = ()
        self._feed: Feed | None = None
        self._plugin_holders: PluginHolders | None = None
        if options.pool is None:
            pool = Pool.of_node(driver, options.node)
            self._plugin_holders = PluginHolders(
                driver,
                options.paths.pod_resources_socket,
                replaced=options.replaces,
                changed=self._judge_again,
            )
            self._feed = Feed(
                supervisor,
                pool,
                options,
                host=host,
                discovery=self._offer.discovery,
                holders=self._plugin_holders,
            )
        self._events = EventRecorder(options.api, driver, options.node)
        self._options = options
        self._sockets_named = partial(
            DriverSockets.of, driver, registry=self._registry, data=self._data, pod_uid=options.pod_uid
        )
        self._sockets_named()  # directories whose paths leave no room for a name are refused now
        self._was_called_in_vain = False
        self.preparer = Preparer(
            driver, supervisor=supervisor, host=host, options=options, holders=self._plugin_holders
        )
        supervisor.outdated = self.preparer.outdated
        self._streams = HealthStreams(options.pool or options.node, self._offer.discovery, is_on=options.health)
        self._servers: list[SocketServer] = []
        self._since = time.monotonic()
        self._problem: str | None = "it has not begun yet"
        self._is_registered = False
        self._was_registered = anyio.Event()
        self._last_problem: str | None = None
        self._scope = anyio.CancelScope()
        self.stopped = anyio.Event()

    @property
    def status(self) -> DriverStatus:
        """Where the driver stands now."""
        found = self._offer.discovery.value
        known = DriverStatus.of(self.driver, found, self._feed)
        return attrs.evolve(
            known,
            is_registered=self._is_registered,
            reason=self._problem or self._offer.obstacle or known.reason,
            obstacle=self._offer.obstacle,
            unwritable=self._unwritable,
            is_absent=found.devices is None and found.is_absent,
            set_aside=tuple(self.preparer.store.set_aside),
            claims=self.preparer.store.held,
            since=self._since,
        )

    # -- life ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until `stop`, or until cancelled."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._offer.run)
                    tasks.start_soon(self._look_for_obstacles)
                    tasks.start_soon(self._follow_drivers)
                    if self._feed is not None:  # a pod that comes before the kubelet knows the driver is refused by it
                        tasks.start_soon(self._feed.run, self._was_registered)
                    if self._plugin_holders is not None:
                        tasks.start_soon(self._plugin_holders.run)
                    tasks.start_soon(self._serve_forever)
                    tasks.start_soon(self._record_events)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close_servers()
            self.stopped.set()

    async def stop(self) -> None:
        """Stop in order: calls in flight get `DRAIN_SECONDS`, streams end, sockets go. The slices stay."""
        await self.preparer.close(DRAIN_SECONDS)
        self._streams.end()
        self._scope.cancel()
        await self.stopped.wait()

    async def _serve_forever(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.preparer.recover()
                break
            except CheckpointError as error:
                self._say(sentence(error))
                await anyio.sleep(backoff.next())
        async with anyio.create_task_group() as tasks:
            self._supervisor.judge_again()  # what was given of the devices is known now
            tasks.start_soon(self._renew_forever)
            tasks.start_soon(self._collect_forever)
            tasks.start_soon(self._take_over_forever)
            while True:
                try:
                    await self._open_servers()
                except ServeError as error:
                    self._say(str(error))
                    await self._close_servers()
                    await anyio.sleep(backoff.next())
                    continue
                backoff.reset()
                self._say(await self._until_useless())
                await self._close_servers()

    async def _until_useless(self) -> str:
        """Wait until the sockets must be made anew, and return why."""
        since = time.monotonic()
        while True:
            await anyio.sleep(LOOK_PAUSE)
            self._remove_dead_rivals()
            if not all(server.is_in_place for server in self._servers):
                return "a socket of the driver was removed; kdp makes a new one"
            if self._is_registered:
                since = time.monotonic()
            elif time.monotonic() - since >= UNREGISTERED_SECONDS:
                self._was_called_in_vain = True
                if self._problem != NOT_ASKED:
                    return self._problem or ""  # it has refused, and up to 1.35 it will not try again
                return "the kubelet has not picked up the socket; kdp makes a new one from time to time"

    def _remove_dead_rivals(self) -> None:
        """Remove the sockets of a driver process that was killed: the kubelet still calls them."""
        own, sockets = {server.path.name for server in self._servers}, self._sockets_named()

        def is_rivals(name: str) -> bool:  # a socket gets its final name after its first answer
            is_ours = sockets.is_registration(name) or sockets.is_service(name)
            return is_ours and not name.startswith(".") and name not in own

        for directory in (self._registry, self._data):
            remove_dead(directory, is_rivals)

    def _judge_again(self) -> None:
        """Judge the devices again, before the feed publishes them: pods hold some in another way."""
        self._supervisor.judge_again()
        self._offer.refresh()

    async def _follow_drivers(self) -> None:
        """Look regularly for devices that claims have by another driver, or by this one under another name."""
        while True:
            if await self.preparer.look_elsewhere():
                self._judge_again()
            await anyio.sleep(LOOK_PAUSE)

    async def _look_for_obstacles(self) -> None:
        """Look regularly whether a claim could be prepared, and surely while or after one could not."""
        doubts = self.preparer.doubts
        surely = True
        while True:
            version = doubts.version
            before = self._offer.obstacle
            with contextlib.suppress(RuntimeError):  # no thread can be started now; the next look tries again
                found = await threads.run(partial(self.preparer.obstacles, surely=surely), name="kdp-disk")
                self._unwritable = tuple(found)
                self._offer.block(next(iter(found.values()), None))
            if (now := self._offer.obstacle) != before:
                level, text = (logging.INFO, "claims can be prepared again") if now is None else (logging.ERROR, now)
                logger.log(level, "%s: %s", self.driver, text, extra={"driver": self.driver})
            with anyio.move_on_after(LOOK_PAUSE):
                await doubts.after(version)
            surely = now is not None or doubts.version != version

    async def _renew_forever(self) -> None:
        while True:
            version = self._supervisor.discovery.version
            await self.preparer.renew()
            await self._supervisor.discovery.after(version)

    async def _collect_forever(self) -> None:
        while True:
            try:
                await self.preparer.collect(grace=self._options.claim_grace)
            except CheckpointError as error:
                logger.warning("%s: %s", self.driver, sentence(error))
            await anyio.sleep(min(COLLECT_PAUSE, self._options.claim_grace / 2))

    async def _take_over_forever(self) -> None:
        while True:
            await anyio.sleep(OWED_PAUSE)
            with contextlib.suppress(CheckpointError):  # a Prepare tells of such a disk
                await self.preparer.take_over()

    async def _record_events(self) -> None:
        """Tell the cluster what somebody must do something about."""
        trouble: str | None = None
        since = time.monotonic()
        while True:
            for uid in tuple(self.preparer.store.set_aside):
                await self._events.warn(
                    "ClaimStateSetAside",
                    f"{self.driver}: the saved state of claim {uid} cannot be read, and is set aside in "
                    f"{self.preparer.store.directory}; its devices may still be in use",
                )
            if self._feed is not None and self._feed.trouble != trouble:
                trouble, since = self._feed.trouble, time.monotonic()
            if trouble is not None and time.monotonic() - since >= PATIENCE:
                await self._events.warn("DevicesNotPublished", f"{self.driver}: {trouble}")
            await anyio.sleep(EVENT_PAUSE)

    def _say(self, problem: str) -> None:
        """Log why the driver is not registered, once; what goes on while it lasts is not news."""
        self._problem = problem
        if self._is_registered:
            self._is_registered, self._since = False, time.monotonic()
        if problem != self._last_problem:
            self._last_problem = problem
            if self._options.history is not None:
                self._options.history.add("disconnected", self.driver, problem)
            logger.warning("%s: not registered: %s", self.driver, problem, extra={"driver": self.driver})

    # -- sockets -------------------------------------------------------------------------------------------------------

    async def _open_servers(self) -> None:
        if not os.path.isdir(self._registry):  # noqa: ASYNC240 - raises nothing, whatever is wrong with it
            raise ServeError(
                f"the plugin watcher's directory {self._registry} is missing; mount the node's at the same path"
            )
        try:
            self._data.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            right = missing_right(error.errno)
            raise ServeError(f"cannot make {self._data}: {error.strerror or error}{right}") from None
        with contextlib.suppress(OSError):  # the next server tries again
            (self._data / MARK).touch(mode=0o600)
        sockets = self._sockets_named()
        if remove_dead(self._registry, sockets.is_registration):
            self._was_called_in_vain = True  # perhaps: by a kubelet that has started since its process was killed
        remove_dead(self._data, sockets.is_service)
        if self._was_called_in_vain:
            sockets = self._sockets_named(suffix=os.urandom(4).hex())
        for path in self._registry.glob("*-reg.sock"):
            if sockets.is_rival(path.name) and is_answered(path):
                raise ServeError(
                    f"another process answers at {path}: stop it, or give both the UIDs of their pods for an update"
                )
        registration = Registration(
            type="DRAPlugin",
            name=self.driver,
            versions=versions(health=self._options.health),
            endpoint=str(sockets.service),
            notified=self._notified,
        )
        own = handlers(self.driver, self.preparer, self._streams, self._options.calls)
        for path, services in ((sockets.service, own), (sockets.registration, [registration.handler()])):
            server = SocketServer(path, services)
            self._servers.append(server)
            await server.start()
            server.publish()
        self._problem = NOT_ASKED

    async def _close_servers(self) -> None:
        """End both servers; the kubelet is told first, by the registration's socket."""
        servers, self._servers = self._servers, []
        for server in reversed(servers):
            await server.stop()

    def _notified(self, problem: str | None) -> None:
        if problem is not None:
            self._say(f"the kubelet did not register the driver: {problem}")
            return
        self._problem = self._last_problem = None
        if not self._is_registered:
            logger.info("%s: registered with the kubelet", self.driver, extra={"driver": self.driver})
            if self._options.history is not None:
                self._options.history.add("registered", self.driver)
            self._is_registered, self._since = True, time.monotonic()
        self._was_registered.set()
