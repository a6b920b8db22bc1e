"""`PluginManager`: many resources, of one or several backends, each with its own socket and state.

A resource exists while its backend names it or a device of it is listed; none takes another one down.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import anyio
import attrs
from typing_extensions import override

from ..concurrency.observable import Observable
from ..errors import ConfigurationError, InvalidValueError, PluginDirectoryGoneError
from ..hardware.host import boot_id_of
from ..kubelet import KubeletState, KubeletWatch
from ..model.backend import WrappedBackend, tell_holdings, tell_mode
from ..startup import shown
from ..supervision.backend_validation import agreed_host, resource_of, scrubs, static_resources
from ..supervision.conditions import HELD
from ..supervision.publisher import LOOK_PAUSE
from ..supervision.service import BaseStatus, Service
from ..supervision.shared_state import SharedState, states_for
from ..supervision.supervisor import Supervisor
from .held import HeldDevices, is_recorded
from .options import ManagerOptions
from .plugin import DevicePlugin
from .registration import SocketNames
from .releasing import Releaser
from .status import ABSENT, ResourceStatus, failures_of
from .tracking.records import ADOPT_PATIENCE
from .tracking.store import AllocationOwner
from .tracking.tracker import Tracker
from .wire import check_renderable

QUIET_PAUSE: Final = 30.0
"""Seconds between two looks for other processes if the last look found none."""

if TYPE_CHECKING:
    from ..kubelet.podresources import Holder
    from ..model.backend import DeviceBackend
    from ..model.conditions import Condition
    from ..model.devices import Device
    from .tracking.drift import ResourceView
    from .tracking.tracker import Decisions


@attrs.frozen(kw_only=True)
class Status(BaseStatus):
    """Where everything stands.

    Attributes:
        resources: Each resource by its name.
        backends: For each backend, in the order given, its class's name and why it is not ready (None: it is).
        absent: For each backend of which the node has no hardware, the sentence. It counts as ready.
        kubelet: What is seen of the kubelet; None: nothing is.
        kubelet_restarts: How often another kubelet took its place.
    """

    __repr__ = shown

    resources: Mapping[str, ResourceStatus]

    @property
    @override
    def parts(self) -> Mapping[str, ResourceStatus]:
        """What is served: the resources; one is ready when the kubelet holds a stream of it."""
        return self.resources


class PluginManager(Service):
    """Runs device plugins for backends; an async context manager (asyncio only).

    Leaving the context is the orderly stop: streams end first, calls in flight get 1.5 s, own sockets are unlinked, no
    empty list is sent, backends are closed. It takes less than 2 s whatever a vendor's call does; cancellation of the
    body counts as leaving.

    Args:
        backends: The vendors' objects.
        options: How they are run; default: as `ManagerOptions` says.
        states: Each backend's state, handed on by its previous supervisor. Empty: there was none.

    Raises:
        ConfigurationError: No backend, two backends with one static resource, or thresholds that contradict each other.
        InvalidNameError: A static resource's name breaks the rules, or its socket's path would be too long.
    """

    def __init__(
        self,
        backends: Sequence[DeviceBackend],
        options: ManagerOptions | None = None,
        *,
        states: Sequence[SharedState] = (),
    ) -> None:
        super().__init__()
        if not backends:
            raise ConfigurationError("there is no backend to run: give at least one kdp.DeviceBackend")
        self._options = options = options or ManagerOptions()
        self._host = agreed_host(backends, options.host)
        self._kubelet = KubeletWatch(options.directory, options.history)
        boot_id = boot_id_of(self._host)
        self._tracker = Tracker(options, boot_id=boot_id)
        self._held = HeldDevices(
            self._host,
            self._tracker,
            self._supervisors,
            self._unrecorded,
            plugins_dir=options.paths.plugins_dir,
            boot_id=boot_id,
        )
        self._releaser = Releaser(self._tracker, self._held, judged=self._judge_again)
        self._plugins: dict[str, DevicePlugin] = {}
        self._owners: dict[str, Supervisor] = {}
        self._claims = threading.Lock()
        self._ids: dict[int, tuple[DeviceBackend, frozenset[str]]] = {}  # a backend may have no hash
        self._claimed: dict[str, DeviceBackend] = {}
        self._gone: Observable[PluginDirectoryGoneError | None] = Observable(None)
        for backend, state in zip(backends, states_for(backends, states), strict=True):
            tell_mode(backend, is_dra=False)
            supervisor = Supervisor(
                backend,
                host=self._host,
                poll_interval=options.poll_interval,
                check=functools.partial(self._check, backend),
                deadlines=options.deadlines,
                health_policy=options.health_policy,
                observe=options.observe,
                policy=options.policy,
                state=state,
                measures=options.measures,
                wants_labels=options.wants_labels,
                wants_counters=True,
            )
            scrubs(backend, options.release_policy)  # refuses what cannot be
            supervisor.outdated = functools.partial(self._outdated, supervisor)
            tell_holdings(backend, functools.partial(self._holdings, supervisor))
            for resource in static_resources(backend):
                if resource in self._owners:
                    raise ConfigurationError(
                        f"two backends serve {resource}: {self._owners[resource].label} and {supervisor.label}; give "
                        "one of them another resource"
                    )
                SocketNames(self._options.directory, resource)
                self._owners[resource] = supervisor
                self._claimed[resource] = backend
            self._supervisors.append(supervisor)
        self._unapplied = {*self._supervisors}
        self._renamed: set[str] = set()
        self._has_looked_beside = anyio.Event()

    # -- what others ask for -------------------------------------------------------------------------------------------

    @override
    def status(self) -> Status:
        """Return where everything stands now."""
        waiting = (
            ResourceStatus(
                resource=name,
                state=ABSENT if s.discovery.value.is_absent else "waiting",
                reason=s.discovery.value.problem,
                devices=0,
                healthy=0,
                cause=None if s.discovery.value.is_absent else "backend",
            )
            for name, s in self._owners.items()
            if name not in self._plugins
        )
        return Status(
            resources={s.resource: s for s in (*waiting, *(plugin.status for plugin in self._plugins.values()))},
            backends=self._problems,
            absent=self._absent,
            # The plugin watcher finds the sockets, and nothing is seen of its kubelet.
            kubelet=None if self._options.is_watcher else self._kubelet.view.value,
            kubelet_restarts=self._kubelet.restarts,
        )

    @property
    @override
    def _problems(self) -> tuple[tuple[str, str | None], ...]:
        # Between a first discovery and its plugins there is no part that could say that it is not ready.
        news = dict.fromkeys(self._unapplied, "its first devices are being offered")
        latest = ((each, each.discovery.value) for each in self._supervisors)
        return tuple(
            (each.label, None if found.is_absent else each.hooks.in_full(found.problem) or news.get(each))
            for each, found in latest
        )

    @property
    def kubelet_restarts(self) -> int:
        """How often another kubelet took the place of the one before, as its socket shows."""
        return self._kubelet.restarts

    @property
    def kubelet_problem(self) -> str | None:
        """Why the kubelet seems to hang; None: it answers, or was not asked."""
        return self._tracker.kubelet_problem

    @property
    def kubelet_sockets(self) -> dict[str, bool]:
        """Whether each socket of the kubelet that the plugins need is there; without those not looked for yet."""
        found: dict[str, bool] = {}
        if not self._options.is_watcher:
            found["kubelet"] = self._kubelet.view.value.state is KubeletState.LISTENING
        if (has_pod_resources := self._tracker.has_pod_resources) is not None:
            found["pod-resources"] = has_pod_resources
        return found

    def problem_of(self, resource: str) -> str | None:
        """Return why a resource's backend is not ready; None: it is, or nobody serves the resource."""
        owner = self._owners.get(resource)
        return None if owner is None else owner.discovery.value.problem

    def holders(self, resource: str) -> Mapping[str, tuple[Holder, ...]] | None:
        """Return the containers that hold a resource's devices; see `Tracker.holders`."""
        return self._tracker.holders(resource)

    def _holdings(self, supervisor: Supervisor) -> dict[str, tuple[str, ...]]:
        """Return the devices of a backend that containers have, with their pods. Any thread may call it."""
        self._tracker.follow_holders()
        found: dict[str, tuple[str, ...]] = {}
        for resource, owner in dict(self._owners).items():
            if owner is supervisor:
                found |= self._tracker.held(resource)
        return found

    def device_of(self, resource: str, device_id: str) -> str:
        """Return the id of a replica's device; any other id is returned unchanged."""
        return self._tracker.device_of(resource, device_id)

    @property
    def holders_asked_at(self) -> float | None:
        """When the kubelet was asked who holds what; see `Tracker.holders_asked_at`."""
        return self._tracker.holders_asked_at

    def want_holders(self) -> None:
        """Have the kubelet be asked soon who holds what."""
        self._tracker.want_holders()

    @override
    async def look_at_holders(self) -> None:
        await self._tracker.look_at_holders()

    def failures(self, resource: str) -> Mapping[str, str]:
        """Return which of a resource's devices have failed, and why; see `failures_of`."""
        plugin = self._plugins.get(resource)
        snapshot = None if plugin is None else plugin.inventory.snapshot
        if plugin is None or snapshot is None:
            return {}
        return failures_of(plugin.supervisor.discovery.value, snapshot.devices, plugin.inventory.tombstones)

    def kubelet_view(self, resource: str) -> ResourceView | None:
        """Return how the kubelet sees a resource; see `Tracker.view`."""
        return self._tracker.view(resource)

    @property
    def state_problem(self) -> str | None:
        """Why allocations are not saved in the state directory; None: they are, or there was no need."""
        return self._tracker.records.problem

    def releasing(self, resource: str) -> int:
        """Return how many allocations of a resource have ended whose ``released`` has not succeeded yet."""
        return self._tracker.records.releasing(resource)

    @override
    async def failed(self) -> NoReturn:
        """Wait forever, unless something happens that only a new process can cure.

        Raises:
            PluginDirectoryGoneError: The plugin directory was unlinked under us.
        """
        while (error := self._gone.value) is None:
            await self._gone.after(self._gone.version)
        raise error

    # -- life ----------------------------------------------------------------------------------------------------------

    @override
    def _begin(self) -> None:
        if self._options.cdi is not None:
            from ..cdi import CdiDirectory

            CdiDirectory(self._options.cdi.directory).remove_stale(self._host)
        self._tasks.start_soon(self._watch_kubelet)
        self._tasks.start_soon(self._tracker.run)
        self._tasks.start_soon(self._follow_tracker)
        self._tasks.start_soon(self._follow_processes)

    async def _watch_kubelet(self) -> None:
        try:
            await self._kubelet.run()
        except PluginDirectoryGoneError as error:
            self._gone.set(error)

    @override
    async def _end(self, until: float) -> None:
        for plugin in self._plugins.values():
            plugin.stop()
        await self._discovered.wait()
        for plugin in self._plugins.values():
            await plugin.stopped.wait()
        await self._releaser.settle(max(0.1, until - time.monotonic()))

    # -- devices -------------------------------------------------------------------------------------------------------

    @override
    async def _follow(self, supervisor: Supervisor) -> None:
        """Hand each discovery to the resources; also when only tombstones expire."""
        while True:
            version = supervisor.discovery.version
            groups = self._grouped(supervisor)
            await self._adopt(supervisor, groups)
            if supervisor.discovery.version != version:
                continue  # a newer one came meanwhile
            self._apply(supervisor, groups)  # first, for it may have failed with this one before
            mine = [p.inventory.next_expiry for name, p in self._plugins.items() if self._owners[name] is supervisor]
            expiry = min((expiry for expiry in mine if expiry is not None), default=float("inf"))
            with anyio.move_on_after(max(0.0, expiry - time.monotonic())):
                await supervisor.discovery.after(version)

    async def _adopt(self, supervisor: Supervisor, resources: Collection[str]) -> None:
        """Wait until it is known what an earlier process gave of resources that are new: they are not offered before.

        A device that is not what its pod was given is Unhealthy in the first list already.
        """
        for name in resources:
            if name not in self._plugins:
                self._attach(name, supervisor)
                await self._tracker.records.adopted(name)
        with anyio.move_on_after(ADOPT_PATIENCE):
            await self._has_looked_beside.wait()

    async def _follow_processes(self) -> None:
        """Look regularly for devices that others have given to containers."""
        while True:
            await self._held.look()
            self._has_looked_beside.set()
            for resource, supervisor in self._held.renamed().items():
                if await self._tracker.records.is_abandoned(resource):
                    await self._take_over(resource, supervisor)
            self._tracker.records.look()
            await anyio.sleep(LOOK_PAUSE if self._held.is_beside_others else QUIET_PAUSE)

    async def _take_over(self, resource: str, supervisor: Supervisor) -> None:
        """Serve a resource again that has another name now, until no pod holds a device by the old name.

        A kubelet that starts again refuses the containers of devices that are not listed.
        """
        self._renamed.add(resource)
        self._owners[resource] = supervisor
        with self._claims:
            self._claimed[resource] = supervisor.backend
        self._attach(resource, supervisor)
        await self._tracker.records.adopted(resource)
        await self._held.look()
        self._judge_again()

    def _attach(self, resource: str, supervisor: Supervisor) -> None:
        backend, overridden = supervisor.backend, supervisor.hooks.overridden
        owner = AllocationOwner(
            backend=backend,
            wants_release=overridden("released"),
            has_counters=overridden("counters"),
            place=backend.device_of if isinstance(backend, WrappedBackend) else None,
            scrubs=scrubs(backend, self._options.release_policy),
            leaves_state=overridden("allocate") and overridden("released"),
            adopted=self._judge_again,
        )
        self._tracker.attach(resource, owner)
        self._releaser.attach(resource, supervisor)

    def _outdated(self, supervisor: Supervisor, devices: Sequence[Device]) -> dict[str, tuple[Condition, ...]]:
        """Return the conditions that the allocations of pods cause, by device id."""
        now = time.monotonic()
        found: dict[str, tuple[Condition, ...]] = {
            device_id: (HELD.because(why, now),) for device_id, why in self._held.judge(supervisor, devices).items()
        }
        if not self._tracker.records.has_given:  # of ten thousand devices none is looked at while pods hold none
            return found
        for device in devices:
            given = self._tracker.records.given(supervisor.resource_of(device), device.id)
            if given is not None and (outdated := given.outdated(device, now)) is not None:
                found[device.id] = (outdated, *found.get(device.id, ()))
        return found

    def _unrecorded(self) -> Iterator[tuple[str, str]]:
        """Yield the listed devices that discovery lacks and whose Allocate leaves no record, by resource and id."""
        for name, plugin in self._plugins.items():
            for device_id in plugin.inventory.tombstones:
                if not self._leaves_record(plugin, device_id):
                    yield name, device_id

    def _judge_again(self) -> None:
        """Judge the devices of all backends again: a container has given some back."""
        for supervisor in self._supervisors:
            supervisor.judge_again()

    def _grouped(self, supervisor: Supervisor) -> dict[str, dict[str, Device]]:
        """Return the newest discovery's devices by resource and id; nothing as long as no discovery has succeeded."""
        found = supervisor.discovery.value
        if found.devices is None:
            return {}
        mine = [name for name, owner in self._owners.items() if owner is supervisor]
        groups: dict[str, dict[str, Device]] = {name: {} for name in (*mine, *found.resources)}
        static = found.resource or ""  # there is one if a device names none
        # Ten thousand times for each change, so that no call is made where none is needed.
        for device in found.devices:
            if device.exists:  # the kubelet has no word for a partition that is still to be made
                name = device.resource or static
                group = groups.get(name)
                if group is None:
                    group = groups[name] = {}
                group[device.id] = device
        return groups

    def _apply(self, supervisor: Supervisor, groups: Mapping[str, Mapping[str, Device]]) -> None:
        # A discovery may come just after the stop: nobody would tell its plugins.
        if supervisor.discovery.value.devices is None or self._discovering.cancel_called:
            return
        for name, group in groups.items():
            for other, plugin in self._plugins.items():
                if other != name and (moved := plugin.inventory.tombstones & group.keys()):
                    # An id is unique in the process, and lives where it is now. A pod may hold it under the old name.
                    plugin.forget(each for each in moved if self._is_known_free(plugin, each))
            self._owners[name] = supervisor
            is_new = name not in self._plugins
            plugin = self._plugins.get(name) or self._start(name, supervisor)
            plugin.update(group.values())
            if is_new:  # in the first list already: a kubelet that starts now refuses pods with unlisted devices
                plugin.adopt(self._tracker.records.unlisted(name, group))
            is_owed = name in self._renamed and self._tracker.records.owes(name)
            if name not in supervisor.discovery.value.resources and plugin.is_empty and not is_owed:
                self._renamed.discard(name)
                del self._plugins[name], self._owners[name]
                with self._claims:
                    self._claimed.pop(name, None)
                self._tracker.detach(name)
                plugin.withdraw()
        self._unapplied.discard(supervisor)

    def _is_known_free(self, plugin: DevicePlugin, device_id: str) -> bool:
        """Return whether no pod holds a vanished device: its Allocate would be recorded, and is not."""
        given = self._tracker.records.given(plugin.resource, device_id)
        return given is None and self._leaves_record(plugin, device_id)

    @staticmethod
    def _leaves_record(plugin: DevicePlugin, device_id: str) -> bool:
        """Return whether an Allocate of a listed device is recorded."""
        snapshot = plugin.inventory.snapshot
        assert snapshot is not None  # the device is listed
        return is_recorded(snapshot.devices[device_id], plugin.supervisor.backend.joined_env)

    def _start(self, resource: str, supervisor: Supervisor) -> DevicePlugin:
        plugin = DevicePlugin(
            resource,
            self._options,
            supervisor=supervisor,
            host=self._host,
            kubelet=self._kubelet,
            tracker=self._tracker,
            held=self._held,
        )
        self._attach(resource, supervisor)
        self._plugins[resource] = plugin  # last: one whose start fails is started anew
        self._tasks.start_soon(plugin.run)
        return plugin

    # -- what pods hold ------------------------------------------------------------------------------------------------

    async def _follow_tracker(self) -> None:
        while True:
            self._decide(await self._tracker.look())

    def _decide(self, decisions: Decisions) -> None:
        """Do what tracking decided. A plugin that has ended meanwhile needs none of it."""
        for name, plugin in list(self._plugins.items()):
            if held := decisions.held.get(name):
                plugin.hold(held)
            if gone := decisions.gone.get(name):
                plugin.forget(gone)
            if unlisted := decisions.unlisted.get(name):
                plugin.adopt(unlisted)
            if unknown := decisions.unknown.get(name):
                self._fill(plugin, unknown)
            if name in decisions.contested:
                plugin.reoffer()
        for name, (generation, reason) in decisions.reregistrations.items():
            if name in self._plugins:
                self._plugins[name].reregister(generation, reason)
        self._releaser.release(decisions.ended, self._tasks)
        if decisions.gone:
            self._judge_again()
        for supervisor in {self._owners[name]: None for name in decisions.gone if name in self._owners}:
            # A resource whose last device has gone may have to go, too.
            self._apply(supervisor, self._grouped(supervisor))

    def _fill(self, plugin: DevicePlugin, ids: Collection[str]) -> None:
        """Take these devices for allocated, with the things that their pods can touch as far as they are known now."""
        snapshot = plugin.inventory.snapshot
        listed = [] if snapshot is None else [snapshot.devices[each] for each in ids if each in snapshot.devices]
        named = {node.host_path for device in listed for node in device.edits.device_nodes}
        given = self._held.given(plugin.supervisor, plugin.resource, listed, named)
        self._tracker.records.fill(plugin.resource, ids, given)

    def _check(self, backend: DeviceBackend, devices: Sequence[Device], static: Sequence[str]) -> None:
        """Refuse devices that this protocol cannot serve, or that another backend already has. In a hook's thread.

        The claims are made here and not when the devices are taken, because two backends discover at the same time.
        """
        for device in devices:
            if self._options.cdi is None:
                check_renderable(device.edits)
        with self._claims:
            taken = {i: other for other, ids in self._ids.values() if other is not backend for i in ids}
            for device in devices:
                if device.id in taken:
                    raise InvalidValueError(
                        f"device id {device.id!r} is also one of {type(taken[device.id]).__name__}: an id must be "
                        "unique in the process, also over resources; add a prefix"
                    )
            resources = {resource_of(device, backend) for device in devices} | set(static)
            for name in [name for name, owner in self._claimed.items() if owner is backend]:
                if name not in resources and name not in self._owners:  # it was never served
                    del self._claimed[name]
            for resource in sorted(resources):
                owner = self._claimed.get(resource, backend)
                if owner is not backend:
                    raise InvalidValueError(
                        f"resource {resource} is already served by {type(owner).__name__}; choose another name"
                    )
                SocketNames(self._options.directory, resource)
            self._claimed.update(dict.fromkeys(resources, backend))
            self._ids[id(backend)] = backend, frozenset(device.id for device in devices)
