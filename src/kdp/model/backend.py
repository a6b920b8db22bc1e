"""`DeviceBackend`: the class that a hardware vendor subclasses, and everything its hooks may rely on.

One mandatory method, `DeviceBackend.discover`; each other hook is optional and kdp finds it by "was it overridden?".
The protocol's flags follow from that and are not set by hand. No new mandatory method will ever be added.

How hooks are called, all of them:

* A hook is ``def`` or ``async def``. A ``def`` hook runs in a daemon thread of its own and may block; an
  ``async def`` hook runs on kdp's asyncio loop and must not block.
* **One call of a hook at a time**, for each backend: a second call waits for the first. Different hooks may run
  at the same time (``allocate`` during ``discover``), so share state between them with a lock or not at all.
* **Deadlines.** Each hook has one (see its docstring). An ``async def`` hook is cancelled at its deadline. A ``def``
  hook cannot be: its thread is left to it, nothing else waits for it, it is not called again until it has returned, and
  it does not keep the process from ending.
* **Exceptions.** `kdp.NotReady` from any hook means: close, back off, open again. `kdp.AllocationError` is the pod's
  author's sentence. Anything else is a bug of the hook: kdp logs the traceback once and carries on as the hook's
  docstring says. No exception ends the process.
* Everything a hook gets and returns is frozen and may be kept.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast, final, overload

import attrs
from typing_extensions import override

from ..errors import InvalidValueError
from ..startup import shown
from .devices import Device
from .edits import ContainerEdits
from .health_policy import HealthPolicy
from .needs import Needs
from .quantities import Amount, Quantity

if TYPE_CHECKING:
    import os
    import threading

    from .claims import Claim, NetworkData  # noqa: TC004 - attrs reads no annotation
    from .measurements import Measurement
    from .watched_file import WatchedFile

_Content = TypeVar("_Content")

__all__ = ["Allocation", "DeviceBackend", "Needs", "PreferRequest", "Reporter", "WrappedBackend", "is_overridden"]


@final
@attrs.frozen(kw_only=True, eq=False)
class Allocation(Sequence[Device]):
    """The devices of one container (DRA: of one request of a claim), as ``allocate`` and the hooks after it get them.

    Iterate over it for the devices: ``[d.handle for d in devices]``. Later fields come with defaults, so that no
    hook's signature ever changes.

    Attributes:
        resource: The extended resource's name.
        devices: The devices, in the order of their ids; the kubelet's order is random and means nothing.
        deadline: When the hook must have returned, on `time.monotonic`'s clock, in seconds.
        state: A JSON-like dict of the backend's own. What ``allocate`` puts in, ``prepare_container`` and ``released``
            find again, also after a restart of the plugin: it is saved in ``--state-dir``. In a DRA driver it is empty
            after a reboot.
        claim: The claim that they were allocated for; None: a device plugin's container, and all that follows is
            empty. ``released`` may come when the claim is gone from the API.
        request: The name of the claim's request; of a prioritised list with the chosen part, as ``gpu/large``.
        config: The parameters that class and claim ask for, as an object of what ``DeviceBackend.config`` names; None:
            they have none.
        consumed: What this claim has of a shared device's capacities, by device id and capacity.
        share_id: Which share of a shared device this is, by device id.
        admin_access: Whether this is admin access: another claim may have the devices at the same time, so neither
            ``allocate`` nor ``released`` may change anything about them, and kdp does not call ``prepare_container``.
            Source: DRA contract section 3.4.
        joined_env: The backend's ``joined_env``, for `edits`.
        shared_with: Who else has one of the devices now, by device id: a device plugin's replicas (``gpu-0::1``), or
            claims (``NAMESPACE/NAME``). In ``released`` these are the ones whose release is still to come.
        network: What is known of network interfaces, by device id. What ``allocate`` puts in is told in the claim's
            ``status.devices`` (``--device-status on``) and in the metadata file of its containers (``--device-metadata
            on``). Other hooks find nothing in it.
    """

    __repr__ = shown

    resource: str
    devices: tuple[Device, ...]
    deadline: float
    state: dict[str, Any] = attrs.field(factory=dict[str, Any])
    claim: Claim | None = None
    request: str = ""
    config: Any = None
    consumed: Mapping[str, Mapping[str, Quantity]] = attrs.field(factory=dict[str, Any])
    share_id: Mapping[str, str] = attrs.field(factory=dict[str, Any])
    admin_access: bool = False
    joined_env: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    shared_with: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])
    network: dict[str, NetworkData] = attrs.field(factory=dict[str, Any])

    @overload
    def __getitem__(self, index: int) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Device]: ...
    @override
    def __getitem__(self, index: int | slice) -> Device | Sequence[Device]:
        return self.devices[index]

    @override
    def __len__(self) -> int:
        return len(self.devices)

    @override
    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    @property
    def ids(self) -> tuple[str, ...]:
        """The devices' ids."""
        return tuple(device.id for device in self.devices)

    def edits(self) -> ContainerEdits:
        """Return the devices' own edits, merged: what a container gets if the backend has no ``allocate``.

        Raises:
            EditConflictError: Two devices want different values at one place.
            AllocationError: No program can be started with the variables.
        """
        return ContainerEdits.merge(((each.id, each.edits) for each in self.devices), joined_env=self.joined_env)


@final
@attrs.frozen(kw_only=True)
class PreferRequest:
    """What the kubelet asks in GetPreferredAllocation (contract section 7).

    Attributes:
        resource: The extended resource's name.
        available: The candidates, those of ``must_include`` among them.
        must_include: Devices that are already chosen.
        size: How many are wanted in all, those of ``must_include`` counted.
    """

    __repr__ = shown

    resource: str
    available: tuple[Device, ...]
    must_include: tuple[Device, ...]
    size: int


class Reporter(Protocol):
    """How a running ``watch`` hook tells kdp what happened. Every method may be called from any thread.

    Health is a set of named conditions: a device is healthy only while no ``kind`` is faulty and ``discover`` says
    that it is. So a fault that was reported here is not healed by the next poll, only by `clear` of the same kind.
    """

    @property
    def stopping(self) -> threading.Event:
        """Set when the backend is to be closed: return soon. A blocking ``watch`` looks at it between waits."""
        ...

    def rescan(self) -> None:
        """Ask for a ``discover`` now. Requests while one runs are put together into one more."""
        ...

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        """Mark devices Unhealthy at once, without a ``discover``.

        A thread that reports faster than kdp takes the events waits here until there is room, or until the backend is
        closed.

        Args:
            ids_or_unit: A unit (then all its devices), a device id, or several of them. Unknown ones are kept: the
                fault shows when such a device is discovered. Beyond 2,048 unknown ones, the oldest are forgotten.
            reason: What is wrong, for logs and ``kdp devices``.
            kind: The condition's name; faults of different kinds are cleared separately. A device has at most 32 kinds
                at once; a further one keeps it Unhealthy until the plugin restarts. Avoid the names of kdp's own
                kinds (docs/reference/conditions.md): metrics show such a kind with the prefix ``backend:``.
        """
        ...

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        """Take back a fault of this kind; the device is healthy again if nothing else is wrong with it."""
        ...


@final
class _NotTold:
    """The value of an attribute before kdp sets it: the mode and the node's directories are not known earlier."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, backend: object, owner: type) -> _NotTold:
        if backend is None:
            return self
        raise InvalidValueError(
            f"{self._name} of {owner.__name__} is not known before open(): read it in a hook, and not in __init__; a "
            "test that calls a hook itself sets it"
        )


class DeviceBackend(abc.ABC):
    """Which devices are there, and what does a container need to use them: subclass it, kdp does the rest.

    A complete plugin::

        class Widgets(kdp.DeviceBackend):
            resource = "example.com/widget"

            def discover(self) -> list[kdp.Device]:
                return [kdp.Device(id=p.name, edits=kdp.ContainerEdits.of_node(p)) for p in
                Path("/dev").glob("widget*")]

        kdp.run(Widgets())

    The options of a backend are its constructor's parameters: ``kdp run --set NAME=VALUE`` converts them by their
    annotations. The attributes below may be set on the class or, in ``__init__``, on the object.

    Attributes:
        resource: The extended resource of devices that name none. None: every device names its own. A resource
            named here is registered also with zero devices; one named only by devices exists while there is one.
        resources: Further resources that are registered also with zero devices, for a backend that serves several by
            configuration. May be a property; it is read after each ``discover``, in the same thread.
        poll_interval: Seconds from the beginning of one ``discover`` to that of the next; after one that takes longer
            than half of them, half of them. The first is shorter by up to half, so that backends which open together do
            not discover in step. None: only at the start and on ``rescan``. While a device is on its way back it is
            sooner: see `HealthPolicy.recheck`. It may change: it is read after each ``discover``.
        stale_after: Seconds for which the last known devices keep their health while ``discover`` fails or hangs;
            then they are Unhealthy with the reason. They never vanish because of a failure.
        health_policy: From when on a device counts as dead, and as alive again.
        joined_env: Environment variables that join when a container gets several devices, with their separator,
            as ``{"NVIDIA_VISIBLE_DEVICES": ","}``. They also join across the requests of a DRA claim. Any other
            difference is an error that names both devices or requests.
        policy: Which devices to prefer for a container that wants several: ``first``, ``packed``, ``spread``, ``numa``
            or ``linked`` (see docs/how-to/choose-devices.md). None: ``linked`` if there is a ``links`` hook, else the
            kubelet chooses. The option ``policy`` of `kdp.run` and ``kdp run`` goes before it.
        config: The parameters that a DRA claim may carry for these devices: an attrs class, a dataclass, or a tuple of
            several. Its name is their ``kind``; its fields are theirs, ``power_limit`` as ``powerLimit``, and may be
            left out if they have a default; ``apiVersion`` is the class variable ``api_version``, or else the driver's
            name and ``/v1``. ``allocate`` finds an object of it in ``Allocation.config``. Set on the class. None: there
            are no parameters.
        release_policy: What a device waits for that a pod gave back. ``notify``: for nothing; ``released`` is called.
            ``scrub``: until ``released`` has succeeded. Until then it is not offered, and a container that gets it all
            the same does not start. ``allocate`` may be called before that, so it must leave such a device alone. The
            option ``release_policy`` of `kdp.run` and ``kdp run`` goes before it.
        unused_hooks: Hooks that the class has and this object does not want called, as one that an option switches on:
            ``self.unused_hooks = () if scrub else ("released",)`` in ``__init__``. They count as not overridden.
        measurements: What ``measure`` measures, as ``(kdp.Measurement("gpu_utilization", unit="ratio", help="Share of
            time in use."),)``. At most 32. Set on the class.
        measure_interval: Seconds from the beginning of one ``measure`` to that of the next, at least.
        prepares_every_start: Whether ``prepare_container`` must run before every start of a container. DRA has no such
            moment: ``True`` refuses the start of a DRA driver, ``False`` says that once for each claim is enough, and
            ``None`` has the start log one warning. Only for a class with that hook.
        renamed_options: Options that have another name now, as ``{"max_errors": "ecc_limit"}``: the old name goes on
            working, also in a configuration that was kept, and the log says the new one. Set on the class.
        is_dra: Whether the devices are served by DRA, and not by a device plugin. kdp sets it after ``__init__`` and
            before any hook; earlier, reading it raises `InvalidValueError`.
        store: The values that the backend keeps on the node, by name, as ``self.store["latched"] = ["gpu-0"]``: what
            JSON can carry, copied at each reading, so that only an assignment changes it. kdp sets it as it sets
            ``is_dra``. An assignment counts at once and is in the state directory before it returns; if the disk
            refuses, the log says so, and the next discovery and the stop try again. An ``async def`` hook waits for the
            disk, too. Both protocols have the same store, and processes of a rolling update share it. It outlives
            restarts and reboots, until ``kdp uninstall``. Without a state directory it ends with the process.
        holdings: Returns the devices that containers have now, by id, as ``{"gpu-0": ("ml/train",)}``: the names are
            NAMESPACE/POD, and in a DRA driver NAMESPACE/NAME of the claims. Call it in any hook: ``self.holdings()``.
            kdp sets it as it sets ``is_dra``. A device is in it from its Allocate on. A device plugin has the names
            from the kubelet, at most about 30 s late, so a device may have none yet, and is in it for about 30 s after
            its pod has ended. Replicas count as their device. After the first call kdp asks the kubelet every
            30 s for the holders.
    """

    resource: str | None = None
    resources: Sequence[str] = ()
    poll_interval: float | None = 5.0
    stale_after: float = 30.0
    health_policy: HealthPolicy = HealthPolicy()
    joined_env: Mapping[str, str] = {}
    policy: str | None = None
    config: type | tuple[type, ...] | None = None
    release_policy: str = "notify"
    unused_hooks: Collection[str] = ()
    measurements: Sequence[Measurement] = ()
    measure_interval: float = 10.0
    prepares_every_start: bool | None = None
    renamed_options: ClassVar[Mapping[str, str]] = {}
    is_dra: bool = cast("bool", _NotTold())
    store: MutableMapping[str, Any] = cast("MutableMapping[str, Any]", _NotTold())
    holdings: Callable[[], Mapping[str, tuple[str, ...]]] = cast("Callable[[], Any]", _NotTold())

    def watched_file(self, path: str | os.PathLike[str], parse: Callable[[str], _Content]) -> WatchedFile[_Content]:
        """Return a file that the devices depend on: a table of slots, for example. Call it in ``__init__``.

        Its ``current`` is the result of ``parse`` for the last good text. When the file changes, kdp discovers again.
        Bad text changes nothing: kdp logs the error, and ``/readyz``, the metrics, an Event, and ``kdp doctor`` have
        it. ``kdp run`` keeps the last good text in the state directory, so that a restart begins with it.

        Args:
            path: The file, as this process sees it.
            parse: Turns the text into the content. The message of its error tells the fault in the text.

        Raises:
            ConfigurationError: The file is unreadable or bad, and kdp has kept no good text of it.
        """
        from .watched_file import WatchedFile  # late: few backends have files

        file = WatchedFile(path, parse)
        vars(self).setdefault("_watched_files", []).append(file)
        return file

    @abc.abstractmethod
    def discover(self) -> Iterable[Device] | Awaitable[Iterable[Device]]:
        """Return all devices that are there now: the whole truth, each time. The one mandatory hook.

        Called at the start, every ``poll_interval`` seconds, after ``Reporter.rescan``, when a device node comes or
        goes, and on SIGHUP. Deadline 30 s. Must be idempotent and free of side effects on the hardware.

        A device that is missing from the list stays listed as Unhealthy for a while, because the kubelet would show a
        vanished device as healthy to the pod that holds it (contract section 9).

        Raising anything, hanging, or returning duplicates or something that is no `Device` keeps the last known
        devices for ``stale_after`` seconds, then marks them Unhealthy. On cancellation (``async def``, at the
        deadline or the stop) release what you hold and let it pass.
        """

    def open(self) -> Awaitable[None] | None:
        """Acquire what the other hooks need (load a library, open a handle).

        Called before everything else, and again after `kdp.NotReady`. Deadline 60 s. An exception is logged and open
        is tried again with growing pauses (0.1 s to 5 s); ``close`` is not called after a failed ``open``. One that
        returns after its deadline has opened all the same: it is not called again. One that returns after the stop is
        followed by ``close``, unless the object is served again meanwhile, as after a reload: then it counts for that.
        """

    def close(self) -> Awaitable[None] | None:
        """Give back what ``open`` acquired.

        Called once for each successful ``open``, after ``watch`` was told to stop and the other hooks have returned
        (what hangs for 1 s, or half of the deadline, may still be running). Deadline 60 s, but at the process's stop
        what is left of 2 s. An exception is logged and changes nothing.
        """

    def watch(self, report: Reporter) -> Awaitable[None] | None:
        """Wait for events of the hardware and report them, for as long as the backend is open.

        Called after each ``open`` and the first ``discover``, from a thread of its own (``def``), so it may block
        for ever; it should look at ``report.stopping`` when it can, because until it has returned it is not called
        again. ``async def``: cancelled at the close. It adds to polling and never replaces it. Returning is fine and
        final until the next open; an exception is logged and ``watch`` is called again with growing pauses.
        """

    def allocate(self, devices: Allocation) -> ContainerEdits | Awaitable[ContainerEdits]:
        """Return what a container needs to use these devices; default: ``devices.edits()``.

        Called once for each container at pod admission, never at a container's restart, a kubelet's restart or a
        reboot (contract section 6.1): what it prepared must survive those, or be made again in ``open``. There is no
        deallocation in the protocol. Must be idempotent: the same devices may come again without any sign in between,
        for another container of the same pod (contract section 6.2).

        Deadline 20 s: the kubelet itself has none and admits no other pod meanwhile. Raise `kdp.AllocationError` with a
        sentence that the user understands; anything else reaches the pod as "internal error" and the log as a
        traceback. Either way only this pod fails. On cancellation the kubelet has lost interest: do not undo anything.
        """
        return ContainerEdits.merge(((d.id, d.edits) for d in devices), joined_env=self.joined_env)

    def prefer(self, request: PreferRequest) -> Sequence[str] | Awaitable[Sequence[str] | None] | None:
        """Return the ids to prefer: ``request.size`` of ``available``, with all of ``must_include``.

        None: no opinion, so the policy chooses, if there is one.

        Called inside pod admission, if overridden. Deadline 50 ms: it must not touch the hardware. Whatever goes wrong
        here, the kubelet gets an empty answer and chooses itself: an error would fail the pod (contract section 7).
        """
        return None

    def links(
        self, devices: Sequence[Device]
    ) -> Mapping[tuple[str, str], float] | Awaitable[Mapping[tuple[str, str], float]]:
        """Return how well pairs of units are connected: larger is better; a missing pair counts 0.

        Called when the set of units has changed, never inside a request of the kubelet. Keyed by unit, in either order
        or in both with equal weights, which are finite and not negative. A unit paired with itself says how near its
        own devices are to each other (default: nearer than any two units). The policy ``linked`` uses them
        (`kdp.allocation.links_of_matrix` makes them of a square matrix). Deadline 30 s. On an exception or a wrong
        weight the previous links stay in force, and the hook is asked again after 5 s.
        """
        return {}

    def counters(self) -> Mapping[str, Mapping[str, Amount]] | Awaitable[Mapping[str, Mapping[str, Amount]]]:
        """Return what there is of the things that partitions share, by counter set and counter; default: none.

        A card whose memory is divided declares ``{"gpu-0": {"memory": Quantity("80Gi")}}``, and each of its partitions
        ``consumes={"gpu-0": {"memory": Quantity("20Gi")}}``: the scheduler allocates no more of them than there is.

        Called after each ``discover``. Deadline 30 s. On an exception, or if a device consumes what is not declared
        here, what was published before stays in force. A device plugin counts what pods hold, and does not offer a
        device for which too little is left. Source: the field ``sharedCounters`` of ``resource.k8s.io/v1``
        ResourceSlice.
        """
        return {}

    def prepare_container(self, devices: Allocation) -> Awaitable[None] | None:
        """Prepare the devices right before each start of a container, for example reset them.

        kdp calls it before every start, also after a crash of the container; calls for several pods wait for one
        another. Must be idempotent. Deadline 25 s (the kubelet's is 30 s), the wait for other pods included: a hook of
        5 s serves five pods that start together, and the kubelet repeats the other starts. An exception fails that
        start, which the kubelet repeats. kdp keeps changes of ``state``, also if the call raises or misses its
        deadline: the next call and ``released`` wait for its return. The kubelet skips it after its own restart
        until we are registered (contract section 7), so it must not be the only safety reset.

        A DRA driver has no moment before each start. It calls the hook once for each request of a claim and boot of
        the node: after ``allocate`` of all requests, and before the kubelet starts the first pod of the claim. The
        record of the claim says so, so no second pod, restart of a container or of the driver repeats the call. A
        Prepare that has failed is repeated with all its hooks. See ``prepares_every_start``. Source: DRA contract
        section 3.
        """

    def released(self, devices: Allocation) -> Awaitable[None] | None:
        """Clean up after devices that a pod gave back: scrub, reset, delete.

        Called when two lists of the kubelet's pod-resources API, 30 s apart, do not name the devices. ``state`` is what
        the other hooks left (contract section 10; the API's directory must be mounted). Once for each allocation;
        a plugin that is killed may do it again. Never while a pod holds one of the devices: if they are given to
        another pod before it could be told, it is told when that one has ended, too; allocations of the same devices
        that left equal states count as one then. While it runs, an ``allocate`` of these devices waits. Deadline 60 s;
        after that, a device plugin lists them Unhealthy until it has ended.
        May raise: it is called again with growing pauses (5 s to 5 min; 1 min for a scrub), and finds ``state`` as it
        left it.

        A device that is gone may have its id only, and its ``handle`` may be `None`: always in a DRA driver, and in a
        device plugin after a restart. The ``state`` that ``allocate`` fills is all that remains of it.

        With ``release_policy = "scrub"`` it is called as soon as the devices are given to another pod, before that
        pod's container starts, and ``allocate`` waits for nothing.

        A DRA driver calls it when a claim is unprepared, and gives the devices to no other claim before it succeeds.
        The pod's end waits for one second. The pauses grow up to 1 min (12 s for a scrub).

        A pod that ends, or is refused, before a list names it gives its devices back in the same way. No list names
        the devices of plain init containers: they are given back when the pods that came shortly before the allocation
        have ended.
        """

    def measure(self) -> Mapping[str, Mapping[str, float]] | Awaitable[Mapping[str, Mapping[str, float]]]:
        """Return what the devices measure now: device id to measurement to value. Leave out what is not known.

        Each measurement is declared in ``measurements``. Called only if metrics are on, after the first ``discover``
        and then every ``measure_interval`` seconds; a scrape reads what was measured last. Deadline 5 s. A value that
        is no finite number, and a device or measurement that is not known, is left out, and the log tells the mistake.
        On an exception no value is exported until it succeeds again.
        """
        return {}

    def labels(self, devices: Sequence[Device]) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Return the labels that the node is to have because of these devices; default: `kdp.default_labels`.

        Pods select nodes by them. Called only if labels are on (``--labels``), after a ``discover`` that found other
        devices or attributes than before, and by ``kdp node label``. Deadline 5 s. Names begin with a domain;
        `kdp.label_value` makes a value of any text. A label that breaks Kubernetes' rules is left out, and the log and
        the status tell the rule. On an exception the previous labels stay, and it is called again after 10 s.
        """
        from .labels import default_labels  # late: few plugins label their node

        return default_labels(devices, self.resource)

    def needs(self) -> Needs | Awaitable[Needs]:
        """Return what the plugin's container needs on the node, beyond what the devices' edits show.

        Called by ``kdp manifests`` and ``kdp doctor``, never by a running plugin; the backend is not open. The first
        also runs ``discover`` and adds the directories of the device nodes that it finds, so a backend that only looks
        at its nodes needs none of this. May block; has no deadline. An exception ends the command with one sentence.
        """
        return Needs()


class WrappedBackend(DeviceBackend):
    """A backend whose hooks call those of another one.

    Attributes:
        inner: The other one, which the vendor made; no wrapped one itself.
    """

    inner: DeviceBackend

    @abc.abstractmethod
    def device_of(self, device_id: str) -> str:
        """Return the id that the inner backend uses for one of these devices."""


def watched_files_of(backend: DeviceBackend) -> tuple[WatchedFile[Any], ...]:
    """Return the files that a backend watches, or the backend that it wraps."""
    if isinstance(backend, WrappedBackend):
        return watched_files_of(backend.inner)
    return tuple(vars(backend).get("_watched_files", ()))


def tell_mode(backend: DeviceBackend, *, is_dra: bool) -> None:
    """Set ``is_dra`` of a backend, of whatever kind its class is, and of the backend that it wraps."""
    vars(backend)["is_dra"] = is_dra
    if isinstance(backend, WrappedBackend):
        tell_mode(backend.inner, is_dra=is_dra)


def tell_holdings(backend: DeviceBackend, ask: Callable[[], Mapping[str, tuple[str, ...]]]) -> None:
    """Set ``holdings`` of a backend, and of the backend that it wraps.

    Args:
        backend: The backend.
        ask: Returns the names of the holders by the id of each held device. Any thread may call it.
    """
    vars(backend)["holdings"] = ask
    if isinstance(backend, WrappedBackend):
        device_of = backend.device_of

        def ask_inner() -> Mapping[str, tuple[str, ...]]:
            found: dict[str, dict[str, None]] = {}
            for device_id, names in ask().items():
                found.setdefault(device_of(device_id), {}).update(dict.fromkeys(names))
            return {device_id: tuple(names) for device_id, names in found.items()}

        tell_holdings(backend.inner, ask_inner)


OPTIONAL_HOOKS: Final = frozenset(
    (
        "open",
        "close",
        "watch",
        "allocate",
        "prefer",
        "links",
        "counters",
        "prepare_container",
        "released",
        "measure",
        "labels",
        "needs",
    )
)


def is_overridden(backend: DeviceBackend, hook: str) -> bool:
    """Return whether the backend's class has its own version of this hook, and the object wants it called.

    Raises:
        InvalidValueError: ``unused_hooks`` names what is no optional hook.
    """
    unused = backend.unused_hooks
    if unused and not OPTIONAL_HOOKS.issuperset(unused):
        wrong = min(set(unused) - OPTIONAL_HOOKS)
        raise InvalidValueError(
            f"unused_hooks of {type(backend).__name__}: {wrong!r} is no optional hook; there are "
            f"{', '.join(sorted(OPTIONAL_HOOKS))}"
        )
    return hook not in unused and getattr(type(backend), hook) is not getattr(DeviceBackend, hook)
